"""The main job on one page: train a task by the reference and by a candidate, and say where and why they differ."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from diffs.first import Comparison, compare
from diffs.verdict import Policy, Verdict, passes
from oracle import environment, findings, guard, nodes, pardon, processes, recipes, tasks, trainers
from oracle.candidate import FULL, Runs, WarmRuns, idle_reason
from oracle.errors import OracleError, OutputError
from oracle.explain.between import between
from oracle.explain.engine import Explainer
from oracle.explain.evidence import described
from oracle.explain.explanation import Explanation
from oracle.explain.noise import Floor
from oracle.explain.standing import rules
from oracle.explain.weights import uneven_weights
from oracle.findings import Findings
from oracle.impact import ImpactUnknown, impact
from oracle.remedy import prescribed
from oracle.replays import Reading, ReplayFailed, Replays, Server
from oracle.result import Cause, FirstDivergence, Latent, Result, Unexplained
from reference_loop.moments import Address
from reference_loop.recipe import Recipe, to_dict
from reference_loop.semantics import Semantics


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to check.

    task, trainer: a name, or a file (`path.py`, `path.py:Class`).
    arguments: what the trainer's class is constructed with.
    requirements, python, allow_torch: the candidate's environment.
    policy: which verdicts pass. strict: a difference in witnesses alone fails too.
    watch: note the files that the candidate writes.
    remedies: verify the remedies that the trainer states.
    seeds: over how many seeds of the reference the impact is measured; 0 for no impact.
    timeout: seconds that each of the candidate's runs may take; None for no limit.
    folder: where runs and traces stay; None for a folder that goes away.
    launch: how a launcher started this process as the first of all ranks; None runs all of them here.
    digest: of all recorded values; None is the fastest that the candidate's environment has.
    rerun: the command that repeats this.
    """

    task: str
    trainer: str
    recipe: Recipe
    arguments: Mapping[str, Any] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    python: str | None = None
    allow_torch: bool = False
    policy: Policy = field(default_factory=lambda: Policy.parse("noise"))
    strict: bool = False
    remedies: bool = True
    seeds: int = 0
    watch: bool = False
    timeout: float | None = None
    threads: int = 1
    device: str = "cpu"
    folder: Path | None = None
    launch: nodes.Launch | None = None
    digest: str | None = None
    rerun: str = ""


Progress = Callable[[str], None]
OURS = ("python", "torch")
"""What the reference runs on; it is the candidate's."""


def check(request: Request, progress: Progress = lambda words: None, server: Server | None = None) -> Result:
    """Train twice by the candidate and once by the reference, compare, and explain what differs.

    server: as `opened` takes it.

    Raises:
        OracleError: the task, the trainer or the environment cannot be used as asked.
    """
    started = time.monotonic()
    with opened(request, progress, server) as case:
        result = case.judge()
        if case.found is not None and request.remedies:
            result = replace(result, causes=prescribed(result.causes, case.found, case.findings, progress))
        if request.seeds:
            result = case.with_impact(result)
        seconds = {**case.seconds, "total": time.monotonic() - started}
    return replace(result, seconds={name: round(value, 3) for name, value in seconds.items()})


def follow(request: Request) -> int:
    """Take part in a check, or a resume, that the first rank leads; returns 0 once that one says that it is over."""
    assert request.launch is not None and request.folder is not None
    recipes.refuse(request.recipe)
    place = environment.prepare(request.requirements, python=request.python, allow_torch=request.allow_torch)
    nodes.follow(request.launch, request.folder, place, request.threads)
    return 0


@contextmanager
def opened(request: Request, progress: Progress, server: Server | None = None) -> Iterator[Case]:
    """The candidate run twice and the reference once, ready to be judged; nothing of them is left afterwards.

    server: runs the candidate and the reference in forks that share its imports, for many checks in our own
        environment; None gives each of the candidate's runs an interpreter of its own.

    Raises:
        OracleError: as `check` does.
    """
    recipes.refuse(request.recipe)
    if request.python is None and not request.allow_torch:  # another environment's torch may have other devices
        _refuse_device(request.device)
    task = str(tasks.find_task(request.task))
    reading = Reading(recipe=request.recipe, semantics=Semantics.of(request.recipe))
    with _folder(request.folder) as folder, nodes.leading(request.launch, folder) as launch:
        place = environment.prepare(
            request.requirements, python=request.python, allow_torch=request.allow_torch, say=progress
        )
        progress("running the candidate twice, and the reference")
        digest = request.digest or place.digest
        spec = {**_spec(request, reading.semantics, digest), "launch": launch}
        warm = server or Server(folder, task=task, threads=request.threads, python=place.python, layer=place.layer)
        try:
            runs: Runs | WarmRuns
            if server is None:
                runs = Runs(spec, folder / "candidate", place, request.timeout)
            else:
                runs = WarmRuns(spec, folder / "candidate", server, request.timeout)
            replays = Replays(warm, task, folder / "replays", digest=digest, device=request.device)
            (reference,) = replays.run(reading, **FULL)
            candidate = runs.wait(None if isinstance(reference, ReplayFailed) else reference.metrics)
            if isinstance(reference, ReplayFailed):
                raise reference
            replays.candidate = candidate.full
            replays.shards = candidate.shards
            if replays.shards:  # the reference is to be held against shards of the same cut
                reference = replays.one(reading, **FULL)
            taken = {
                f"candidate_{name}": value
                for name, value in (candidate.ending.outcome or {}).get("seconds", {}).items()
            }
            findings = Findings(reading, reference, candidate, replays, runs)
            yield Case(request, findings, progress, {"layer": place.seconds, **taken})
        finally:
            if server is None:
                processes.kill_all()
                warm.close()


@dataclass
class Case:
    """One candidate held against one reference: from two traces to a verdict and its support."""

    request: Request
    findings: Findings
    progress: Progress
    seconds: dict[str, float]
    found: Explanation | None = None  # once there is one

    @cached_property
    def floor(self) -> Floor:
        """What rounding amounts to in the candidate's run."""
        return Floor(self.findings.candidate, self.findings.replays)

    def judge(self) -> Result:
        """The verdict, the cheap reasons to give none first."""
        candidate, reference = self.findings.candidate, self.findings.reference
        if candidate.trace is None:
            return self._result("not_comparable", reason="the candidate recorded nothing" if candidate.ended else None)
        if candidate.wavers is not None:
            return self._result("nondeterministic", first=described(candidate.wavers, None, None))
        through = None if candidate.ended else candidate.trace.last_whole_update(reference.trace.processes)
        comparison = compare(
            reference.trace, candidate.trace, rules(reference.trace, candidate.trace), through_update=through
        )
        reason = self._nothing_proven(comparison)
        if reason is not None:
            return self._result("not_comparable", comparison, reason=reason or None)
        return self._explained(comparison)

    def _nothing_proven(self, comparison: Comparison) -> str | None:
        """Why neither agreement nor difference proves anything; "" where the candidate's end says it; else None."""
        candidate, reference = self.findings.candidate, self.findings.reference
        assert candidate.trace is not None
        if not candidate.ended:
            return "" if comparison.first is None else None
        idle = idle_reason(reference.trace, candidate.trace)
        if idle is not None:
            return idle
        if comparison.addresses == 0:
            return "the two runs have no address in common"
        if comparison.first is None and reference.nan is not None:
            where = Address(*reference.nan)
            return f"both runs hold the same NaN, first in {where.kind} {where.name} of update {where.update}"
        return None

    def _explained(self, comparison: Comparison) -> Result:
        """The verdict on runs that can be compared: by the causes that make the reference equal to the candidate."""
        case, candidate = self.findings, self.findings.candidate
        assert candidate.trace is not None
        found = self.found = self.explanation()
        noise = self.floor.measure(found)
        first = comparison.first and case.elements(comparison.first)
        if first is not None and comparison.first is not None and noise.covers and not found.causes:
            error, allowance = noise.at(comparison.first.address)
            first = replace(first, error=error, allowance=allowance)
        explained = candidate.ended and (not found.gaps or noise.covers)
        if comparison.first is None:
            verdict: Verdict = "match"
        elif explained and not any(cause.effect == "semantic" for cause in found.causes):
            verdict = "rounding"
        else:
            verdict = "diverged"
        return self._result(
            verdict,
            comparison,
            first=first,
            site=case.site(comparison.first, found) if comparison.first else None,
            causes=tuple(case.causes(found)),
            unexplained=() if noise.covers else tuple(map(case.unexplained, found.gaps)),
            latent=tuple(findings.latent(found, candidate.trace)),
            notes=tuple(filter(None, [uneven_weights(case.replays, case.reading, case.reference)])),
        )

    def with_impact(self, result: Result) -> Result:
        """The result with how much the difference matters, or with a note why that cannot be measured."""
        try:
            found = impact(self.findings, self.request.seeds, self.progress)
        except ImpactUnknown as reason:
            return replace(result, notes=(*result.notes, f"impact is not known: {reason}"))
        return replace(result, impact=found)

    def explanation(self) -> Explanation:
        """How the candidate is to be read; of a run without an end, only how it stands."""
        case, candidate = self.findings, self.findings.candidate
        assert candidate.trace is not None
        explainer = Explainer(
            replays=case.replays,
            candidate=candidate.trace,
            floor=self.floor,
            unsteady=candidate.unsteady,
            can_pin=candidate.full is not None and candidate.complete and candidate.ended,
            progress=self.progress,
        )
        if candidate.ended:
            return explainer.explain(case.reading, case.reference)
        return explainer.begin(case.reading, case.reference)

    def _result(
        self,
        verdict: Verdict,
        comparison: Comparison | None = None,
        *,
        first: FirstDivergence | None = None,
        causes: tuple[Cause, ...] = (),
        unexplained: tuple[Unexplained, ...] = (),
        latent: tuple[Latent, ...] = (),
        **more: Any,
    ) -> Result:
        request, case = self.request, self.findings
        accepted = tuple(pardon.accepted(request.recipe, causes))
        worst = case.worst_ulp() if request.policy.name == "ulp" and first is not None else None
        passed = passes(verdict, request.policy, worst) or (
            self.found is not None
            and case.candidate.ended
            and pardon.pardons(accepted, causes, self.found, request.policy)
        )
        outcome = case.candidate.ending.outcome or {}
        return Result(
            command="check",
            verdict=verdict,
            policy=str(request.policy),
            passed=passed and not (request.strict and latent),
            reference={
                "task": request.task,
                "recipe": to_dict(request.recipe),
                "semantics": case.reading.semantics.flat(),
                "versions": {name: of for name, of in outcome.get("versions", {}).items() if name in OURS},
                "threads": request.threads,
                "device": request.device,
            },
            candidate={
                "trainer": request.trainer,
                "arguments": dict(request.arguments),
                "versions": outcome.get("versions", {}),
                "requirements": list(request.requirements),
                "python": request.python,
            },
            compared=findings.compared(comparison),
            rerun=request.rerun,
            self_check=case.candidate.itself,
            candidate_outcome=case.candidate.outcome,
            first_divergence=first,
            causes=causes,
            unexplained=unexplained,
            latent=latent,
            between_ranks=tuple(between(case.reference.trace, case.candidate.trace)) if case.candidate.trace else (),
            one_sided=tuple(findings.one_sided(comparison)) if case.candidate.ended else (),
            accepted=accepted,
            replays=case.replays.count,
            **more,
        )


def _spec(request: Request, semantics: Semantics, digest: str) -> dict[str, Any]:
    trainer = trainers.absolute(request.trainer) if trainers.is_file(request.trainer) else request.trainer
    return {
        "task": str(tasks.find_task(request.task)),
        "trainer": trainer,
        "arguments": dict(request.arguments),
        "recipe": to_dict(request.recipe),
        "semantics": semantics.flat(),
        "digest": digest,
        "threads": request.threads,
        "device": request.device,
        "ranks": request.recipe.parallel.ranks,
        "watch": request.watch,
    }


def _refuse_device(name: str) -> None:
    """Refuse a device that torch does not have here.

    Raises:
        OracleError: says what torch says.
    """
    try:
        torch.zeros(1, device=name).item()
    except Exception as error:  # each device type raises its own
        reason = str(error).partition("\n")[0]
        raise OracleError(f"--device {name}: it cannot be used here: {reason}: choose another, such as cpu") from error


@contextmanager
def _folder(asked: Path | None) -> Iterator[Path]:
    """The folder for everything that a check writes; one that nobody asked for goes away.

    Raises:
        OutputError: it cannot be made, or holds something already.
    """
    if asked is None:
        with guard.folder() as made:
            yield made
        return
    if asked.exists() and (not asked.is_dir() or any(asked.iterdir())):
        raise OutputError(f"{asked} is there already: name a new folder, or empty it")
    try:
        asked.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {asked}: {error.strerror}: name a folder that can be written") from error
    try:
        yield asked
    except BaseException:  # nothing half-written stays
        for entry in asked.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        with suppress(OSError):  # a mount point stays, empty
            asked.rmdir()
        raise
