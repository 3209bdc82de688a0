"""How far a replay agrees with the candidate."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from diffs.first import Difference, Rules, differences
from diffs.trace import Trace
from oracle.left import left_to_others
from reference_loop.moments import MOMENTS, NAMED_KINDS, OPTIONAL_KINDS, Address, causal_key

RULES = Rules(
    optional=OPTIONAL_KINDS,
    named=NAMED_KINDS,
    decimals=frozenset({("log", "metric"), ("evaluate", "metric")}),
    changes={("consume", "hyperparameter"): ("start", "hyperparameter")},
)
"""How traces of a reference and a candidate are paired, whatever is in them; see `rules`."""


def rules(reference: Trace, candidate: Trace) -> Rules:
    """How these two traces are paired.

    Gradients of an update that both scalers skipped are taken by no optimizer. A rate that is only set just before the
    step that takes it says nothing when the window opens. Optimizers over tensors that no model holds, as copies in
    another type or shape are, have nothing that could be compared by name. What a rank leaves to another rank's
    optimizer it has no gradient or state of; whether it gets the outcome is seen in its parameters.
    """
    void = {(update, "consume", "gradient") for update in skipped(reference) & skipped(candidate)}
    void |= {(update, "schedule", "learning_rate") for update in _set_late(reference, candidate)}
    left = left_to_others(candidate)
    absent = frozenset(_held(reference, left)) if left else RULES.absent
    return replace(RULES, void=frozenset(void), partial=_nameless(candidate), absent=absent)


OPTIMIZED = (("consume", "gradient"), ("consume", "learning_rate"), ("update", "optimizer_state"))


def _held(trace: Trace, left: set[tuple[int, str]]) -> Iterator[tuple[int, str, str, str]]:
    """What a trace has of optimizers for some parameters on some ranks: (rank, moment, kind, name)."""
    moments = ("start", "consume")
    for place in (*OPTIMIZED, ("schedule", "learning_rate"), *((moment, "hyperparameter") for moment in moments)):
        for row in trace.rows_at(place):
            dotted = place[1] in ("optimizer_state", "hyperparameter")
            parameter = row.address.name.rpartition(".")[0] if dotted else row.address.name
            if (row.address.rank, parameter) in left:
                yield row.address.rank, *place, row.address.name


def _nameless(trace: Trace) -> frozenset[tuple[str, str]]:
    """The places at which a trace has values of tensors that no model holds."""
    rates = [row for row in trace.rows_at(("consume", "learning_rate")) if row.address.update == 0]
    named = all("parameter[" not in row.address.name for row in rates)
    return frozenset() if named else frozenset((*OPTIMIZED, ("schedule", "learning_rate")))


def _set_late(reference: Trace, candidate: Trace) -> set[int]:
    """The updates after which the candidate sets the next rate late, and then takes the one that the reference has."""
    opened, taken = rates_of(candidate, "schedule"), rates_of(candidate, "consume")
    late = {update for update, rates in opened.items() if update + 1 in taken and taken[update + 1] != rates}
    if not late:
        return set()
    expected = rates_of(reference, "consume")
    good = {update for update in late if taken[update + 1] == expected.get(update + 1)}
    never = max(opened)  # the rate after the last update is not set at all, by one that always sets it late
    return good | ({never} if good == late and never not in late and never + 1 not in expected else set())


_known: WeakKeyDictionary[Trace, dict[str, dict[int, dict[str, Any]]]] = WeakKeyDictionary()


def rates_of(trace: Trace, moment: str) -> dict[int, dict[str, Any]]:
    """The learning rates of each update by parameter, read once: a trace that is compared does not change."""
    known = _known.setdefault(trace, {})
    if moment in known:
        return known[moment]
    found = known[moment] = {}
    for row in trace.rows_at((moment, "learning_rate")):
        found.setdefault(row.address.update, {})[row.address.name] = row.content
    return found


def skipped(trace: Trace) -> set[int]:
    """The updates at which the loss scale shrank, on all ranks."""
    rows = chain(trace.rows_at(("start", "scaler")), trace.rows_at(("update", "scaler")))
    scales: dict[int, dict[int, float]] = {}
    for row in rows:
        if row.address.name == "scale":
            scales.setdefault(row.address.rank, {})[row.address.update] = row.content
    shrank = [{update for update, scale in own.items() if scale < own.get(update - 1, 0.0)} for own in scales.values()]
    return set.intersection(*shrank) if shrank else set()


Key = tuple[tuple[float, ...], tuple[float, ...]]
_END: tuple[float, ...] = (float("inf"),)


@dataclass(frozen=True)
class Standing:
    """Where a replay first differs from the candidate.

    decisive: the first difference that makes a verdict; None if there is none.
    first: the first difference of any kind.
    """

    decisive: Difference | None
    first: Difference | None

    @property
    def key(self) -> Key:
        """Sorts standings: the later the first decisive difference, then the first of any kind, the better."""
        return _rank(self.decisive), _rank(self.first)

    @property
    def clean(self) -> bool:
        """Whether nothing differs at all."""
        return self.first is None


def stand(
    reference: Trace, candidate: Trace, *, silent: Collection[tuple[str, str]] = (), through: int | None = None
) -> Standing:
    """Compare a replay with the candidate until both first differences are known.

    silent: (moment, kind) of differences that say nothing, because the candidate does not repeat them or because what
        they come from is known already.
    through: the last update to look at.
    """
    first = None
    for difference in differences(reference, candidate, rules(reference, candidate), through_update=through):
        if difference.address[2:4] in silent:
            continue
        if difference.decisive:
            return Standing(difference, first or difference)
        first = first or difference
    return Standing(None, first)


def _rank(difference: Difference | None) -> tuple[float, ...]:
    if difference is None:
        return _END
    address = Address(*difference.address)
    return (*causal_key(address), 0 if MOMENTS[address.moment][address.kind] else 1)
