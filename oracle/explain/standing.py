"""How far a replay agrees with the candidate."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain

from diffs.first import Difference, Rules, differences
from diffs.trace import Trace
from reference_loop.moments import MOMENTS, NAMED_KINDS, OPTIONAL_KINDS, Address, causal_key

RULES = Rules(
    optional=OPTIONAL_KINDS,
    named=NAMED_KINDS,
    decimals=frozenset({("log", "metric"), ("evaluate", "metric")}),
    changes={("consume", "hyperparameter"): ("start", "hyperparameter")},
)
"""How traces of a reference and a candidate are paired, whatever is in them; see `rules`."""


def rules(reference: Trace, candidate: Trace) -> Rules:
    """How these two traces are paired: gradients of an update that both scalers skipped are taken by no optimizer."""
    skipped = _skipped(reference) & _skipped(candidate)
    return replace(RULES, void=frozenset((update, "consume", "gradient") for update in skipped))


def _skipped(trace: Trace) -> set[int]:
    """The updates at which the loss scale shrank."""
    rows = chain(trace.rows_at(("start", "scaler")), trace.rows_at(("update", "scaler")))
    scales = {row.address.update: row.content for row in rows if row.address.name == "scale"}
    return {update for update, scale in scales.items() if update - 1 in scales and scale < scales[update - 1]}


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
