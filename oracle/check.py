"""The main job on one page: train a task by the reference and by a candidate, and say where and why they differ."""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffs.captured import read_tensors
from diffs.first import Comparison, Difference, compare
from diffs.verdict import Policy, passes
from oracle import environment, processes, tasks, trainers
from oracle.candidate import Candidate, Runs, WarmRuns, idle_reason
from oracle.errors import OutputError
from oracle.explain.engine import Explainer, Explanation, Found, Gap
from oracle.explain.evidence import clause, constant_ratio, described
from oracle.explain.site import find_site
from oracle.explain.standing import RULES, stand
from oracle.replays import Reading, Replay, ReplayFailed, Replays, Server
from oracle.result import Accepted, At, Cause, Compared, FirstDivergence, Latent, OneSided, Result, Site, Unexplained
from reference_loop.moments import MOMENTS, Address, causal_key
from reference_loop.recipe import Recipe, to_dict
from reference_loop.semantics import KNOBS, Semantics


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to check.

    task, trainer: a name, or a file (`path.py`, `path.py:Class`).
    requirements, python, allow_torch: the candidate's environment.
    policy: which verdicts pass. strict: a difference in witnesses alone fails too.
    timeout: seconds that each of the candidate's runs may take; None for no limit.
    folder: where runs and traces stay; None for a folder that goes away.
    rerun: the command that repeats this.
    """

    task: str
    trainer: str
    recipe: Recipe
    requirements: tuple[str, ...] = ()
    python: str | None = None
    allow_torch: bool = False
    policy: Policy = field(default_factory=lambda: Policy.parse("noise"))
    strict: bool = False
    timeout: float | None = None
    threads: int = 1
    device: str = "cpu"
    folder: Path | None = None
    rerun: str = ""


Progress = Callable[[str], None]


def check(request: Request, progress: Progress = lambda words: None, server: Server | None = None) -> Result:
    """Train twice by the candidate and once by the reference, compare, and explain what differs.

    server: runs the candidate and the reference in forks that share its imports, for many checks in our own
        environment; None gives each of the candidate's runs an interpreter of its own.

    Raises:
        OracleError: the task, the trainer or the environment cannot be used as asked.
    """
    started = time.monotonic()
    task = str(tasks.find_task(request.task))
    reading = Reading(recipe=request.recipe, semantics=Semantics.of(request.recipe))
    with _folder(request.folder) as folder:
        place = environment.prepare(
            request.requirements, python=request.python, allow_torch=request.allow_torch, say=progress
        )
        progress("running the candidate twice, and the reference")
        spec = _spec(request, reading.semantics, place.digest)
        warm = server or Server(folder, task=task, threads=request.threads, python=place.python, layer=place.layer)
        try:
            runs: Runs | WarmRuns
            if server is None:
                runs = Runs(spec, folder / "candidate", place, request.timeout)
            else:
                runs = WarmRuns(spec, folder / "candidate", server, request.timeout)
            replays = Replays(warm, task, folder / "replays", digest=place.digest, device=request.device)
            (reference,) = replays.run(reading)
            candidate = runs.wait()
            if isinstance(reference, ReplayFailed):
                raise reference
            replays.candidate = candidate.full
            result = Case(request, reading, reference, candidate, replays, runs, progress).judge()
        finally:
            if server is None:
                processes.kill_all()
                warm.close()
    seconds = {"total": time.monotonic() - started, "layer": place.seconds, **_share(candidate)}
    return replace(result, seconds={name: round(value, 3) for name, value in seconds.items()})


@dataclass
class Case:
    """One candidate held against one reference."""

    request: Request
    reading: Reading
    reference: Replay
    candidate: Candidate
    replays: Replays
    runs: Runs | WarmRuns
    progress: Progress

    def judge(self) -> Result:
        """The verdict with everything that supports it, the cheap reasons to give none first."""
        candidate = self.candidate
        if candidate.trace is None:
            return self._result(
                "not_comparable", reason=None if not candidate.ended else "the candidate recorded nothing"
            )
        if candidate.wavers is not None:
            return self._result("nondeterministic", first=self._elements(candidate.wavers, against_itself=True))
        through = None if candidate.ended else candidate.last_complete_update
        compared = compare(self.reference.trace, candidate.trace, RULES, through_update=through)
        if not candidate.ended and compared.first is None:
            return self._result("not_comparable", compared=compared)
        if compared.addresses == 0:
            return self._result("not_comparable", compared=compared, reason="the two runs have no address in common")
        idle = idle_reason(self.reference.trace, candidate.trace)
        if idle is not None and candidate.ended:
            return self._result("not_comparable", compared=compared, reason=idle)
        if compared.first is None and self.reference.nan is not None:
            where = Address(*self.reference.nan)
            reason = f"both runs hold the same NaN, first in {where.kind} {where.name} of update {where.update}"
            return self._result("not_comparable", compared=compared, reason=reason)
        return self._explained(compared)

    def _explained(self, compared: Comparison) -> Result:
        """The verdict on a run that can be compared: by the causes that make the reference equal to it."""
        candidate, trace = self.candidate, self.candidate.trace
        assert trace is not None
        explainer = Explainer(
            replays=self.replays,
            candidate=trace,
            unsteady=candidate.unsteady,
            can_pin=candidate.full is not None and candidate.complete and candidate.ended,
            progress=self.progress,
        )
        if candidate.ended:
            found = explainer.explain(self.reading, self.reference)
        else:
            standing = stand(self.reference.trace, trace, unsteady=candidate.unsteady, through=trace.last_update)
            found = Explanation(reading=self.reading, replay=self.reference, standing=standing)
        gaps = found.gaps
        within, beyond = self._within_the_floor(found) if gaps else (False, None)
        first = compared.first and self._elements(compared.first)
        if within and first is not None and not found.causes:
            first = replace(first, **self._floor_of(found, first))
        semantic = any(cause.effect == "semantic" for cause in found.causes)
        if compared.first is None:
            verdict = "match"
        elif candidate.ended and not semantic and (not gaps or within):
            verdict = "rounding"
        else:
            verdict = "diverged"
        return self._result(
            verdict,
            compared=compared,
            first=first,
            site=self._site(compared.first, found) if compared.first else None,
            found=found,
            gaps=() if within else gaps,
        )

    def _site(self, first: Difference, found: Explanation) -> Site:
        assert self.candidate.trace is not None
        origin = next((cause.origin for cause in found.causes if cause.at == first and cause.origin), None)
        silent = self.candidate.unsteady | {difference.address[2:4] for difference in found.latent}
        return find_site(self.reference.trace, self.candidate.trace, first, origin=origin, silent=silent)

    def _floor(self, found: Explanation) -> list[dict[str, Any]] | None:
        """What the noise floor says of every value, from the understood reading on; None where it cannot be measured."""
        if self.candidate.full is None or not self.candidate.complete:
            return None
        try:
            return self.replays.one(replace(found.reading, pins=()), local=True).local
        except ReplayFailed:
            return None

    def _within_the_floor(self, found: Explanation) -> tuple[bool, dict[str, Any] | None]:
        """Whether all that is unexplained is rounding, and the first value that is not."""
        self.progress("measuring the noise floor")
        judged = self._judged = self._floor(found)
        if judged is None or any(gap.at.address.moment not in ("consume", "update", "schedule") for gap in found.gaps):
            return False, None
        beyond = next((entry for entry in judged if not entry["within"]), None)
        covered = {tuple(entry["address"][2:4]) for entry in judged}
        missed = any(gap.at.address[2:4] not in covered for gap in found.gaps)
        lengths = self.candidate.trace.last_update == found.replay.trace.last_update  # type: ignore[union-attr]
        return beyond is None and not missed and lengths, beyond

    _judged: list[dict[str, Any]] | None = None

    def _floor_of(self, found: Explanation, first: FirstDivergence) -> dict[str, float]:
        place = [first.update, first.micro, first.moment, first.kind, first.name, first.rank]
        entry = next((e for e in self._judged or () if e["address"] == place and e["error"] is not None), None)
        return {"error": entry["error"], "allowance": entry["allowance"]} if entry else {}

    # Elements

    def _tensors(self, address: Address) -> tuple[Any, Any]:
        """Both sides' tensors at an address, as far as they can be had."""
        wanted = {"moments": [[address.update, address.moment, address.kind]]}
        full = self.candidate.full
        theirs = read_tensors(full) if full is not None else {}
        if address not in theirs and self.candidate.ended:
            theirs = read_tensors(self.runs.once_more(wanted["moments"]))
        ours = read_tensors(self.replays.one(self.reading, through=max(address.update, 0), capture=wanted).folder)
        return ours.get(address), theirs.get(address)

    def _elements(self, difference: Difference, against_itself: bool = False) -> FirstDivergence:
        row = difference.reference or difference.candidate
        scalar = row is None or row.dtype is None or difference.reference is None or difference.candidate is None
        if scalar or against_itself or difference.address.moment == "end":
            return described(difference, None, None)
        return described(difference, *self._tensors(Address(*difference.address)))

    # The result

    def _causes(self, found: Explanation) -> Iterator[Cause]:
        last = self.candidate.trace.last_update if self.candidate.trace else -1
        clean_until = found.standing.decisive.address.update - 1 if found.standing.decisive else last
        for cause in sorted(found.causes, key=lambda cause: causal_key(Address(*cause.at.address))):
            at = cause.at.address
            proven = clean_until >= at.update and not cause.alternatives
            yield Cause(
                knob=cause.knob,
                reference=cause.reference,
                candidate=cause.candidate,
                status="confirmed" if proven else "suggested",
                effect=cause.effect,  # type: ignore[arg-type]
                at=At(update=at.update, moment=at.moment),
                identical_through_update=clean_until if clean_until >= at.update else None,
                indistinguishable=cause.alternatives,
                evidence=tuple(self._evidence(cause)),
                facts=self._facts(cause),
            )

    def _evidence(self, cause: Found) -> Iterator[str]:
        address = Address(*cause.at.address)
        if address.kind == "gradient" and cause.knob in KNOBS:
            ours, theirs = self._tensors(address)
            ratio = constant_ratio(ours, theirs) if ours is not None and theirs is not None else None
            if ratio is not None:
                yield clause(ratio)
        if cause.knob not in KNOBS:
            yield "the candidate's own record says so"

    def _facts(self, cause: Found) -> dict[str, Any]:
        recipe = self.request.recipe
        facts: dict[str, Any] = {"configured": recipe.accumulation}
        if cause.knob == "accumulation.tail_divisor" and self.candidate.trace is not None:
            update = cause.at.address.update
            facts["actual"] = sum(
                row.address.update == update for row in self.candidate.trace.rows_at(("forward", "mode"))
            )
        if cause.parameters:
            facts["parameters"] = list(cause.parameters)
        return facts

    def _result(
        self,
        verdict: str,
        *,
        compared: Comparison | None = None,
        first: FirstDivergence | None = None,
        site: Site | None = None,
        found: Explanation | None = None,
        gaps: tuple[Gap, ...] = (),
        reason: str | None = None,
    ) -> Result:
        causes = tuple(self._causes(found)) if found else ()
        latent = tuple(_latent(difference) for difference in (found.latent if found else ()))
        unexplained = tuple(self._unexplained(gap) for gap in gaps)
        accepted = tuple(_accepted(self.request.recipe, causes))
        pardoned = (
            bool(causes)
            and not unexplained
            and {c.knob for c in causes if c.effect == "semantic"} <= {a.cause for a in accepted if not a.expired}
        )
        passed = passes(verdict, self.request.policy, first.ulp if first else None) or (
            verdict == "diverged" and pardoned
        )  # type: ignore[arg-type]
        passed = passed and not (self.request.strict and latent)
        return Result(
            command="check",
            verdict=verdict,  # type: ignore[arg-type]
            policy=str(self.request.policy),
            passed=passed,
            reference=self._reference_facts(),
            candidate=self._candidate_facts(),
            compared=_compared(compared),
            rerun=self.request.rerun,
            reason=reason,
            self_check=self.candidate.itself,
            candidate_outcome=self.candidate.outcome,
            first_divergence=first,
            site=site,
            causes=causes,
            unexplained=unexplained,
            latent=latent,
            one_sided=tuple(_one_sided(compared)) if compared else (),
            accepted=accepted,
            notes=tuple(self._notes(verdict)),
            replays=self.replays.count,
        )

    def _unexplained(self, gap: Gap) -> Unexplained:
        assert self.candidate.trace is not None
        return Unexplained(site=find_site(gap.trace, self.candidate.trace, gap.at), ruled_out=gap.tried)

    def _reference_facts(self) -> dict[str, Any]:
        return {
            "task": self.request.task,
            "recipe": to_dict(self.request.recipe),
            "semantics": self.reading.semantics.flat(),
            "threads": self.request.threads,
            "device": self.request.device,
        }

    def _candidate_facts(self) -> dict[str, Any]:
        outcome = self.candidate.ending.outcome or {}
        return {
            "trainer": self.request.trainer,
            "versions": outcome.get("versions", {}),
            "requirements": list(self.request.requirements),
            "python": self.request.python,
        }

    def _notes(self, verdict: str) -> Iterator[str]:
        """What is worth knowing about the task itself, whatever the candidate does."""
        from oracle.explain.weights import uneven_weights  # needed by runs that compare at all

        if verdict in ("match", "rounding", "diverged"):
            note = uneven_weights(self.replays, self.reading)
            if note:
                yield note


def _spec(request: Request, semantics: Semantics, digest: str) -> dict[str, Any]:
    trainer = trainers.absolute(request.trainer) if trainers.is_file(request.trainer) else request.trainer
    return {
        "task": str(tasks.find_task(request.task)),
        "trainer": trainer,
        "recipe": to_dict(request.recipe),
        "semantics": semantics.flat(),
        "digest": digest,
        "threads": request.threads,
        "device": request.device,
    }


@contextmanager
def _folder(asked: Path | None) -> Iterator[Path]:
    """The folder for everything that a check writes; one that nobody asked for goes away.

    Raises:
        OutputError: it cannot be made, or holds something already.
    """
    if asked is None:
        memory = Path("/dev/shm")
        where = memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30 else None
        with tempfile.TemporaryDirectory(prefix="oracle-", dir=where, ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    if asked.exists() and (not asked.is_dir() or any(asked.iterdir())):
        raise OutputError(f"{asked} is there already: name a new folder, or empty it")
    try:
        asked.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {asked}: {error.strerror}: name a folder that can be written") from error
    yield asked


def _share(candidate: Candidate) -> dict[str, float]:
    seconds = (candidate.ending.outcome or {}).get("seconds", {})
    return {f"candidate_{name}": value for name, value in seconds.items()}


def _compared(compared: Comparison | None) -> Compared:
    if compared is None:
        return Compared(updates=0, addresses=0)
    return Compared(updates=compared.updates, addresses=compared.addresses, unmatched=compared.unmatched_rows)


def _latent(difference: Difference) -> Latent:
    sides = [row.content if row else None for row in (difference.reference, difference.candidate)]
    return Latent(**difference.address._asdict(), reference=sides[0], candidate=sides[1])


def _one_sided(compared: Comparison) -> Iterator[OneSided]:
    """Decisive values of one side alone, by place. A threshold that only the reference states is no value: it is none."""
    places: dict[tuple[str, str, str], list[Any]] = {}
    for group in compared.unmatched:
        key = (group.side, group.first.moment, group.first.kind)
        if not MOMENTS[group.first.moment][group.first.kind] or group.first.name in ("max_norm", "max_value"):
            continue
        known = places.setdefault(key, [group.first.name, 0])
        known[1] += group.rows
    for (side, moment, kind), (name, rows) in places.items():
        yield OneSided(side=side, moment=moment, kind=kind, name=name, addresses=rows)  # type: ignore[arg-type]


def _accepted(recipe: Recipe, causes: tuple[Cause, ...]) -> Iterator[Accepted]:
    today = datetime.date.today().isoformat()
    found = {cause.knob for cause in causes}
    for entry in recipe.accept:
        if entry.cause in found:
            yield Accepted(cause=entry.cause, reason=entry.reason, until=entry.until, expired=entry.until < today)
