"""Known differences: a recipe's `[[accept]]` entries, and whether they cover what was found."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from diffs.verdict import Policy
from oracle.explain.explanation import Explanation
from oracle.result import Accepted, Cause
from reference_loop.recipe import Recipe


def accepted(recipe: Recipe, causes: Sequence[Cause]) -> Iterator[Accepted]:
    """The entries whose cause was found; one is expired from the day after its last."""
    today = datetime.date.today().isoformat()
    found = {cause.knob for cause in causes}
    for entry in recipe.accept:
        if entry.cause in found:
            yield Accepted(cause=entry.cause, reason=entry.reason, until=entry.until, expired=entry.until < today)


def pardons(entries: Sequence[Accepted], causes: Sequence[Cause], found: Explanation, policy: Policy) -> bool:
    """Whether entries that are not expired cover all that a policy refuses.

    Nothing may be left that no cause explains, to the end of the run. A cause that is not told apart from another one
    is covered only if the other is, too. Only `noise` lets a style pass by itself.
    """
    known = {entry.cause for entry in entries if not entry.expired}
    refused = [cause for cause in causes if cause.effect == "semantic" or policy.name != "noise"]
    whole = not found.gaps and found.standing.decisive is None
    return whole and bool(refused) and all(_may_be(cause) <= known for cause in refused)


def _may_be(cause: Cause) -> set[str]:
    """Every knob that a cause may really be."""
    rivals = (part for rival in cause.indistinguishable for part in rival.split(" and "))
    return {cause.knob, *(rival.partition(" = ")[0] for rival in rivals)}
