"""`oracle upgrade`: the same trainer under several requirement sets, and what changes from one to the next."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from diffs.first import compare
from diffs.trace import Trace
from diffs.verdict import NotComparable, Policy, Verdict, passes
from oracle import bisection, environment, interfaces
from oracle.check import Progress, Request, opened
from oracle.errors import OracleError
from oracle.explain.evidence import described
from oracle.explain.standing import rules
from oracle.result import FirstDivergence, Result
from oracle.trainers import ADAPTERS, is_file

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Change:
    """A decision that one version makes otherwise than the one before.

    old, new: the values; the reference loop's where a version has no cause of this name.
    confirmed: whether both values are proven.
    """

    knob: str
    old: Any
    new: Any
    effect: str
    confirmed: bool


@dataclass(frozen=True, kw_only=True)
class Side:
    """One version: what it holds, and what the check of it against the reference loop said."""

    requirements: tuple[str, ...]
    result: Result

    @property
    def name(self) -> str:
        """The requirements as a person writes them."""
        return ", ".join(self.requirements) or "as installed"

    @property
    def decisions(self) -> dict[str, Any]:
        """What it decides otherwise than the reference loop: cause to value."""
        return {cause.knob: cause.candidate for cause in self.result.causes}

    @property
    def understood(self) -> bool:
        """Whether every difference from the reference loop has a cause."""
        return self.result.verdict in ("match", "rounding", "diverged") and not self.result.unexplained


@dataclass(frozen=True, kw_only=True)
class Step:
    """From one version to the next: `match`, `rounding`, `diverged`, or `not_comparable` with the reason.

    interfaces: names of the packages that the trainer uses and that changed, in sentences.
    """

    reference: str
    candidate: str
    verdict: Verdict
    changes: tuple[Change, ...] = ()
    first_divergence: FirstDivergence | None = None
    reason: str | None = None
    interfaces: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """What changes along a chain of versions.

    sides: the versions that were run, in the order given. steps: from each to the next.
    between: versions that a bisection did not need to run.
    """

    sides: tuple[Side, ...]
    steps: tuple[Step, ...]
    policy: str
    passed: bool
    between: tuple[str, ...] = ()
    rerun: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of the steps."""
        return worst(step.verdict for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        sides = [{"requirements": list(side.requirements), "result": side.result.to_dict()} for side in self.sides]
        return {
            "schema": SCHEMA,
            "command": "upgrade",
            "verdict": self.verdict,
            "passed": self.passed,
            "policy": self.policy,
            "steps": json.loads(json.dumps([asdict(step) for step in self.steps])),
            "sides": sides,
            "between": list(self.between),
            "rerun": self.rerun,
        }


def upgrade(
    request: Request,
    versions: Sequence[tuple[str, ...]],
    *,
    bisect: bool = False,
    progress: Progress = lambda words: None,
) -> Upgrade:
    """Run a task under each requirement set, and say what changes.

    request: the check of one; its requirements are added to each set.
    bisect: run no more versions than are needed to find where something changes.

    Raises:
        OracleError: as `check` does; fewer than two versions.
    """
    if len(versions) < 2:
        raise OracleError("an upgrade is from one version to another: give --reference and --candidate")
    with ExitStack() as stack:
        ran: dict[int, tuple[Side, Trace | None]] = {}

        def run(number: int) -> Any:
            if number not in ran:
                progress(f"running {', '.join(versions[number])}")
                ran[number] = _run(
                    stack, replace(request, requirements=(*request.requirements, *versions[number])), progress
                )
            side = ran[number][0]
            return side.result.verdict, sorted(side.decisions.items(), key=str), side.understood

        if bisect:
            bisection.changes(len(versions), run)
        else:
            for number in range(len(versions)):
                run(number)
        order = sorted(ran)
        steps = [_step(ran[one], ran[two]) for one, two in pairwise(order)]
        steps = [
            replace(step, interfaces=_interfaces(request, ran[one][0], ran[two][0]))
            for step, (one, two) in zip(steps, pairwise(order), strict=True)
        ]
        between = tuple(", ".join(each) for number, each in enumerate(versions) if number not in ran)
    return Upgrade(
        sides=tuple(ran[number][0] for number in order),
        steps=tuple(steps),
        policy=str(request.policy),
        passed=all(passes(step.verdict, request.policy, None) for step in steps),
        between=between,
        rerun=request.rerun,
    )


def _interfaces(request: Request, old: Side, new: Side) -> tuple[str, ...]:
    """What changed of the names that the trainer's file uses; an adapter is the file of a trainer."""
    file = Path(request.trainer.rpartition(":")[0]) if is_file(request.trainer) else ADAPTERS / f"{request.trainer}.py"
    before, after = (environment.prepare(side.requirements) for side in (old, new))
    return tuple(interfaces.changed([file], before, after))


def _run(stack: ExitStack, request: Request, progress: Progress) -> tuple[Side, Trace | None]:
    """One version's check; its runs stay until the stack is left."""
    case = stack.enter_context(opened(request, progress))
    return Side(requirements=request.requirements, result=case.judge()), case.findings.candidate.trace


def _step(before: tuple[Side, Trace | None], after: tuple[Side, Trace | None]) -> Step:
    (old, left), (new, right) = before, after
    same = Step(reference=old.name, candidate=new.name, verdict="match")
    for side in (old, new):
        if side.result.verdict in ("nondeterministic", "not_comparable"):
            reason = side.result.reason or (side.result.candidate_outcome and side.result.candidate_outcome.error)
            return replace(same, verdict=side.result.verdict, reason=f"{side.name}: {reason or side.result.verdict}")
    assert left is not None and right is not None
    try:
        found = compare(left, right, rules(left, right))
    except NotComparable as error:
        return replace(same, verdict="not_comparable", reason=str(error))
    changes = tuple(_changes(old, new))
    first = described(found.first, None, None) if found.first else None
    if first is None:
        return replace(same, changes=changes)
    semantic = any(change.effect == "semantic" for change in changes)
    rounding = not semantic and old.understood and new.understood
    return replace(same, verdict="rounding" if rounding else "diverged", changes=changes, first_divergence=first)


def _changes(old: Side, new: Side) -> Iterator[Change]:
    """The decisions that differ, in the order in which they show."""
    before, after = ({cause.knob: cause for cause in side.result.causes} for side in (old, new))
    for knob in dict.fromkeys([*before, *after]):
        one, two = before.get(knob), after.get(knob)
        cause = one or two
        assert cause is not None
        values = (one.candidate if one else cause.reference, two.candidate if two else cause.reference)
        if values[0] != values[1]:
            confirmed = all(side.status == "confirmed" for side in (one, two) if side)
            yield Change(knob=knob, old=values[0], new=values[1], effect=cause.effect, confirmed=confirmed)


def of_script(
    command: Sequence[str],
    versions: Sequence[tuple[str, ...]],
    common: tuple[str, ...],
    keep: str | None,
    policy: Policy,
    progress: Progress,
) -> tuple[dict[str, Any], list[str]]:
    """Record a script with each version and compare each recording with the next: JSON-able content, and the report.

    common: requirements of all versions. keep: a new folder for the recordings; None for one that goes away.

    Raises:
        OracleError: as `oracle.recording.record` and `oracle.environment.prepare` do.
    """
    from oracle.diff import Request as Pair
    from oracle.diff import diff
    from oracle.recorder.session import Options
    from oracle.recording import NothingRecorded, record

    names = [", ".join(version) for version in versions]
    environments = [environment.prepare((*common, *version), say=progress) for version in versions]
    digests = {one.digest for one in environments}
    digest = digests.pop() if len(digests) == 1 else "blake2b-128"  # which every environment has
    with tempfile.TemporaryDirectory(prefix="oracle-") as aside:
        folder = Path(keep or aside)
        places = [folder / f"{number}" for number in range(len(versions))]
        failed: dict[str, str] = {}
        for name, where, place in zip(names, environments, places, strict=True):
            progress(f"recording with {name}")
            try:
                code = record(
                    command, Options(folder=str(place), command=tuple(command), digest=digest), where
                ).exit_code
                if code:
                    failed[name] = f"{name}: the command ended with exit code {code}"
            except NothingRecorded as error:
                failed[name] = f"{name}: {error}"
        steps: list[dict[str, Any]] = []
        printed: list[str] = []
        scripts = interfaces.scripts_of(command)
        sides = zip(names, places, environments, strict=True)
        for (one, left, before), (two, right, after) in pairwise(sides):
            told = interfaces.changed(scripts, before, after)
            step: dict[str, Any] = {"reference": one, "candidate": two, "interfaces": told}
            printed += [f"{one} -> {two}", *(f"  interface  {each}" for each in told)]
            if why := [failed[name] for name in (one, two) if name in failed]:
                steps.append({**step, "verdict": "not_comparable", "passed": False, "reason": "; ".join(why)})
                printed += [f"  NOT COMPARABLE: {reason}" for reason in why]
                continue
            found = diff(Pair(reference=left, candidate=right, policy=policy))
            steps.append({**step, "verdict": found.verdict, "passed": found.passed, "difference": found.content})
            printed += [f"  {line}" for line in found.lines]
    content = {
        "schema": SCHEMA,
        "command": "upgrade",
        "verdict": worst(step["verdict"] for step in steps),
        "passed": all(step["passed"] for step in steps),
        "policy": str(policy),
        "steps": steps,
    }
    return content, printed


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a chain of versions."""
    order: tuple[Verdict, ...] = ("match", "rounding", "diverged", "nondeterministic", "not_comparable")
    return max(verdicts, key=order.index, default="not_comparable")
