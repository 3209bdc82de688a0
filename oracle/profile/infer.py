"""Probes a trainer and puts together what the probes prove.

The candidate is explained on each probe as in a check. Under the reading that makes the reference bit-identical, every
other value of every knob is replayed, and excluded if it differs from the candidate. A value is `confirmed` where the
probes together exclude all others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle import environment, trainers
from oracle.adapters.levers import TABLES, Lever
from oracle.candidate import CandidateUsage, WarmRuns
from oracle.check import Case, Request, opened
from oracle.processes import pinned
from oracle.profile import signatures
from oracle.profile.changes import changes, shrunk
from oracle.profile.entries import entries
from oracle.profile.facts import Facts
from oracle.profile.look import Seen, facts_of, look, look_again
from oracle.profile.probes import OUT_OF_MEMORY, PROBES, Probe
from oracle.profile.schema import Change, Move, Number, Profile
from oracle.profile.sources import WITH, Sources
from oracle.remedy import written
from oracle.replays import ReplayFailed, Server
from reference_loop.recipe import from_dict
from reference_loop.semantics import Semantics


def infer(
    trainer: str,
    *,
    requirements: tuple[str, ...] = (),
    python: str | None = None,
    probes: Iterable[str] | None = None,
    timeout: float | None = 300.0,
    progress: Callable[[str], None] = lambda words: None,
) -> Profile:
    """A trainer's profile.

    probes: the names of those to run; None runs all.

    Raises:
        OracleError: the trainer or its environment cannot be used at all.
    """
    place = environment.prepare(requirements, python=python, say=progress)
    chosen = {name: PROBES[name] for name in (PROBES if probes is None else probes)}
    with tempfile.TemporaryDirectory(prefix="oracle-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder), imports=trainers.imports(trainer), python=place.python, layer=place.layer)
        try:
            made = _Inference(trainer, requirements, python, timeout, server, place, Path(folder), progress)
            for name, probe in chosen.items():
                progress(f"probe: {name}")
                made.run(name, probe)
            if probes is None:
                made.without_memory()
        finally:
            server.close()
    if not made.seen and made.refusal is not None:
        raise made.refusal
    recipes = [dict(probe.recipe) for probe in chosen.values()]
    known = trainer in TABLES
    variables = pinned(1, place.layer)
    told = signatures.read(trainer, recipes, place.python, variables) if known else signatures.Signatures()
    return made.profile(chosen, Sources(trainer, told, tuple(chosen), variables))


@dataclass
class _Inference:
    """One trainer being probed.

    seen: what each probe says. other: what probes say under another setting, by (setting, probe).
    proving: the part of `other` that says something of the trainer as it is.
    skipped: probes that could not be run. memory: what becomes of batches that find no memory.
    refusal: the first recipe's that the trainer refuses.
    """

    trainer: str
    requirements: tuple[str, ...]
    python: str | None
    timeout: float | None
    server: Server
    place: environment.Environment
    folder: Path
    progress: Callable[[str], None]
    seen: dict[str, Seen] = field(default_factory=dict)
    other: dict[tuple[str, str], Seen] = field(default_factory=dict)
    proving: dict[str, Seen] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    memory: list[Change] = field(default_factory=list)
    refusal: CandidateUsage | None = None

    def run(self, name: str, probe: Probe) -> None:
        """Run a probe, and the trainer's levers on it."""
        if probe.needs is not None and probe.needs not in self.place.versions:
            self.skipped[name] = f"its task needs {probe.needs}, which this environment lacks"
            return
        request = Request(
            task=probe.file,
            trainer=self.trainer,
            recipe=from_dict(dict(probe.recipe)),
            requirements=self.requirements,
            python=self.python,
            timeout=self.timeout,
        )
        try:
            with opened(request, lambda words: None, self.server) as case:
                self.seen[name] = look(case, probe.model)
                for number, lever in enumerate(self._levers(name)):
                    self._pull(case, name, probe, lever, f"lever{number}")
        except CandidateUsage as refused:
            self.refusal = self.refusal or refused
            self.skipped[name] = str(refused)
        except ReplayFailed as error:
            self.skipped[name] = str(error)

    def _levers(self, probe: str) -> tuple[Lever, ...]:
        table = TABLES.get(self.trainer)
        return tuple(lever for lever in table.levers if lever.probe == probe) if table else ()

    def _pull(self, case: Case, name: str, probe: Probe, lever: Lever, folder: str) -> None:
        setting = said(lever.arguments)
        self.progress(f"probe: {name}, with {setting}")
        found = look_again(case, probe.model, lever.arguments, folder)
        self.other[setting, name] = found
        if lever.proves and found.gap is None:
            kept = {knob: found.excluded[knob] if knob in lever.proves else set() for knob in found.excluded}
            self.proving[f"{name}{WITH}{setting}"] = Seen(
                model=found.model, asked=found.asked, values=found.values, excluded=kept, equal=found.equal
            )

    def without_memory(self) -> None:
        """See what becomes of a batch that no memory is found for; the candidate alone is run."""
        recipe = dict(OUT_OF_MEMORY.recipe)
        for number, lever in enumerate(self._levers("")):
            name = f"memory{number}"
            spec = {
                "task": OUT_OF_MEMORY.file,
                "trainer": self.trainer,
                "recipe": recipe,
                "semantics": Semantics.of(from_dict(recipe)).flat(),
                "digest": self.place.digest,
                "arguments": dict(lever.arguments),
            }
            runs = WarmRuns(spec, self.folder / name, self.server, self.timeout)
            self.progress("probe: out of memory")
            try:
                candidate = runs.wait()
            except CandidateUsage as refused:
                self.skipped["out of memory"] = str(refused)
                continue
            words = None if candidate.ended else (candidate.outcome.error or "").partition(":")[0]
            seen = facts_of(self.folder / name / "first")
            setting = said(lever.arguments) or None
            self.memory.append(shrunk(recipe["batch_size"], seen, words, setting, "out of memory"))

    def profile(self, probes: Mapping[str, Probe], sources: Sources) -> Profile:
        """What it came to."""
        gaps = {name: one.gap for name, one in self.seen.items() if one.gap is not None}
        gaps |= {f"{name}{WITH}{told}": one.gap for (told, name), one in self.other.items() if one.gap is not None}
        rows = list(changes(self.seen, probes))
        for (told, name), one in self.other.items():
            usual = {(row.subject, row.asked, row.seen) for row in rows if name in row.probes}
            fresh = changes({name: one}, probes, told)
            rows += [row for row in fresh if (row.subject, row.asked, row.seen) not in usual]
        return Profile(
            trainer=self.trainer,
            versions=next((one.versions for one in self.seen.values() if one.versions), {}),
            knobs=tuple(entries(self.seen | self.proving, sources)),
            numbers=tuple(self._numbers(sources)),
            changes=(*rows, *self.memory),
            moves=tuple(self._moves()),
            unexplained=gaps,
            skipped=self.skipped,
        )

    def _numbers(self, sources: Sources) -> Iterable[Number]:
        where: dict[tuple[str, Any, Any], list[str]] = {}
        for probe, one in self.seen.items():
            for number in one.numbers:
                where.setdefault(number, []).append(probe)
        for (name, recipe, used), found in where.items():
            source = sources.of(f"hyperparameter.{name}", str(used), found, asked=False)
            yield Number(name=name, recipe=recipe, trainer=used, source=source)

    def _moves(self) -> Iterable[Move]:
        for (setting, name), one in self.other.items():
            usual = self.seen[name]
            if one.gap is None and usual.gap is None and _as_large(one.facts, usual.facts):
                for knob, after in one.values.items():
                    before = usual.values[knob]
                    if after in usual.excluded[knob] and before in one.excluded[knob]:
                        yield Move(setting=setting, knob=knob, before=before, after=after, probe=name)


def _as_large(one: Facts, other: Facts) -> bool:
    """Whether windows and batches hold the same: otherwise knobs that count them mean something else."""
    return (one.batch_size, one.accumulation) == (other.batch_size, other.accumulation)


def said(arguments: Mapping[str, Any]) -> str:
    """Settings as a user writes them."""
    variables = [f"{name.removeprefix('environ.')}={v}" for name, v in arguments.items() if name.startswith("environ.")]
    if any(name.startswith("float16.") for name in arguments):
        variables.append("float16 made to work on the CPU")
    calls = {name: v for name, v in arguments.items() if not name.startswith(("environ.", "float16."))}
    return ", ".join([*variables, *([written(calls, "")] if calls else [])])
