"""What a golden and a run of today say together: whether the code moved or what it runs on, and whether it matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from diffs.verdict import Verdict
from oracle.golden.file import Seen
from oracle.golden.fingerprint import first_moved, first_moved_update
from oracle.golden.sketch import alike
from oracle.result import Change, Fact, Moved

What = Literal["nothing", "code", "environment", "both", "task", "unknown"]
_NEITHER = "what no knob explains differed from the reference before and does now: whether it is the same is not known"
_SAME_PLACE = "the versions and the processor are those of the golden"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict on what a golden holds, what moved, where, and how. reason: why nothing was decided."""

    verdict: Verdict
    moved: What
    at: Moved | None = None
    reference_at: Moved | None = None
    facts: tuple[Fact, ...] = ()
    changes: tuple[Change, ...] = ()
    reason: str | None = None


def judge(old: Seen, now: Seen, *, epsilon: float) -> Judgement:
    """Hold today's run against a golden's.

    epsilon: of the coarsest precision that the recipe computes in: the distance from 1 to the next number.

    Where the reference gives what it gave, the environment did not move, and what the candidate gives otherwise is the
    code's. Where the reference moved, old digests say nothing: then the candidate is judged by its decisions, which
    were held against the reference there and are held against it here.
    """
    at, reference_at = first_moved(old.candidate, now.candidate), first_moved_update(old.reference, now.reference)
    facts, changes = tuple(_facts(old, now)), tuple(_changes(old, now))

    def found(verdict: Verdict, moved: What, reason: str | None = None) -> Judgement:
        return Judgement(verdict=verdict, moved=moved, at=at, reference_at=reference_at, facts=facts,
                         changes=changes, reason=reason)  # fmt: skip

    if at is None:
        return found("match", "nothing" if reference_at is None else "environment")
    semantic = any(change.effect == "semantic" for change in changes)
    if reference_at is None:
        settled = old.understood and now.understood and not semantic
        return found("rounding" if settled else "diverged", "code")
    if old.sources.get("task") != now.sources.get("task"):
        return found("not_comparable", "task", "the task's file changed, and with it what the reference gives")
    if old.surroundings == now.surroundings:
        reason = f"the reference gives other values, and {_SAME_PLACE}: the task's data, or what it imports, changed"
        return found("not_comparable", "unknown", reason)
    if semantic or (old.understood and not now.understood):
        return found("diverged", "both")
    if not old.understood:
        return found("not_comparable", "environment", _NEITHER)
    more = _more_than_rounding(old, now, epsilon)
    return found("not_comparable", "environment", more) if more else found("rounding", "environment")


def _more_than_rounding(old: Seen, now: Seen, epsilon: float) -> str | None:
    """Why the reference's move is more than rounding; None where nothing says so.

    What training is given must be the same, or its floats the same in half of the digits that the precision has: a
    random initialisation rounds otherwise on another processor. Then the first losses, which nothing has amplified
    yet, must agree as far.
    """
    allowance = epsilon**0.5
    if old.given != now.given and not (old.form == now.form and alike(old.sketch, now.sketch, allowance)):
        return "the model starts from other parameters here, or its batches hold other values"
    if not old.losses or [dtype for _, dtype in old.losses] != [dtype for _, dtype in now.losses]:
        return "the losses of the first update cannot be compared with those of the golden"
    for micro, ((before, _), (here, _)) in enumerate(zip(old.losses, now.losses, strict=True)):
        if not abs(here - before) <= allowance * max(abs(here), abs(before)):
            return (
                f"from the same parameters and batch, the reference's loss at update 0, micro {micro} is {here!r} here "
                f"and was {before!r}: relative {allowance:.2g} would be rounding"
            )
    return None


def _facts(old: Seen, now: Seen) -> Iterator[Fact]:
    """What differs in the surroundings, and files of the user's own that changed."""
    for name in dict.fromkeys([*old.surroundings, *now.surroundings]):
        before, here = old.surroundings.get(name), now.surroundings.get(name)
        if before != here:
            yield Fact(name=name, old=before, new=here)
    for name in dict.fromkeys([*old.sources, *now.sources]):
        before, here = old.sources.get(name), now.sources.get(name)
        if before != here:
            yield Fact(name=f"{name} file", old=before, new=here)


def _changes(old: Seen, now: Seen) -> Iterator[Change]:
    """The decisions that differ, in the order in which they show."""
    before, here = ({cause[0]: cause for cause in seen.causes} for seen in (old, now))
    for knob in dict.fromkeys([*before, *here]):
        _, default, _, effect, _ = here.get(knob) or before[knob]
        values: list[Any] = [side[knob][2] if knob in side else default for side in (before, here)]
        if values[0] != values[1]:
            confirmed = all(side[knob][4] == "confirmed" for side in (before, here) if knob in side)
            yield Change(knob=knob, old=values[0], new=values[1], effect=effect, confirmed=confirmed)
