"""Where two traces first differ, and how many places differ at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diffs.address import Address
from diffs.pairing import Pair, Place, Row, Trace, join


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the traces' places mean for comparing them; by default every row must be there, bit for bit.

    optional: kinds that one side alone may have.
    named: kinds of which one side alone may have a name; where the other knows the name, it must have it here too.
    partial: places of which one side alone may have any name.
    void: (update, moment, kind) of which a difference decides nothing.
    absent: (rank, moment, kind, name) that one side has by itself, which decides nothing.
    decimals: places whose numbers are compared as decimals, because they were printed and read.
    relative: the allowance of a decimal, relative to the larger of the two.
    changes: places that are recorded only on change, each with the place of the value before the first change.
    """

    optional: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    partial: frozenset[Place] = frozenset()
    void: frozenset[tuple[int, str, str]] = frozenset()
    absent: frozenset[tuple[int, str, str, str]] = frozenset()
    decimals: frozenset[Place] = frozenset()
    relative: float = 1e-6
    changes: Mapping[Place, Place] = field(default_factory=dict)


EXACT = Rules()


class Difference(NamedTuple):
    """One address at which two traces differ.

    reference, candidate: the rows; None where that side lacks the address. At a place recorded only on change, the row
        that still held there.
    decisive: whether it makes a verdict; otherwise it locates and explains.
    """

    address: Address
    reference: Row | None
    candidate: Row | None
    decisive: bool


class Unmatched(NamedTuple):
    """Rows that one side alone has and may have.

    side: "reference" or "candidate".
    first: the address of the first of them.
    rows: how many there are of this side, moment, kind and name.
    """

    side: str
    first: Address
    rows: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What comparing two traces to the end found.

    updates: updates at which both have something.
    addresses: addresses that both have; 0 means that nothing was compared.
    differing: decisive addresses that differ, or that one side lacks.
    first: the first decisive difference; None if there is none.
    latent: the first difference of each witness place, in causal order.
    unmatched: what one side alone has and may have.
    """

    updates: int
    addresses: int
    differing: int
    first: Difference | None
    latent: tuple[Difference, ...]
    unmatched: tuple[Unmatched, ...]

    @property
    def unmatched_rows(self) -> int:
        """How many rows had no partner and needed none."""
        return sum(group.rows for group in self.unmatched)


def differences(
    reference: Trace,
    candidate: Trace,
    rules: Rules = EXACT,
    *,
    decisive_only: bool = False,
    through_update: int | None = None,
) -> Iterator[Difference]:
    """Every address at which two traces differ, in causal order.

    through_update: the last update to look at, without the closing places; None for all.

    A row that one side lacks is a difference, unless it is a witness, its kind is optional, or the other side never
    recorded its moment and kind.

    Raises:
        NotComparable: the traces use different digests.
    """
    for step in join(reference, candidate, through_update):
        for pair in step.pairs:
            found = _judge(pair, reference, candidate, rules)
            if isinstance(found, Difference) and (found.decisive or not decisive_only):
                yield found


def first(
    reference: Trace,
    candidate: Trace,
    rules: Rules = EXACT,
    *,
    decisive_only: bool = True,
    through_update: int | None = None,
) -> Difference | None:
    """The first difference, or None; by default of the decisive kinds. It stops looking there."""
    return next(
        differences(reference, candidate, rules, decisive_only=decisive_only, through_update=through_update), None
    )


def compare(
    reference: Trace, candidate: Trace, rules: Rules = EXACT, *, through_update: int | None = None
) -> Comparison:
    """Compare two traces to the end.

    Raises:
        NotComparable: the traces use different digests.
    """
    updates = addresses = differing = 0
    leading: Difference | None = None
    latent: dict[Place, Difference] = {}
    unmatched: dict[tuple[str, str, str, str], Unmatched] = {}
    for step in join(reference, candidate, through_update):
        addresses += step.matched
        updates += step.update is not None and step.update >= 0 and step.matched > 0
        for pair in step.pairs:
            found = _judge(pair, reference, candidate, rules)
            if isinstance(found, Difference):
                if found.decisive:
                    differing += 1
                    leading = leading or found
                else:
                    latent.setdefault((found.address.moment, found.address.kind), found)
            elif found is not None:
                key = (found.side, *found.first[2:5])
                known = unmatched.get(key)
                unmatched[key] = known._replace(rows=known.rows + 1) if known else found
    return Comparison(
        updates=updates,
        addresses=addresses,
        differing=differing,
        first=leading,
        latent=tuple(latent.values()),
        unmatched=tuple(unmatched.values()),
    )


def _judge(pair: Pair, reference: Trace, candidate: Trace, rules: Rules) -> Difference | Unmatched | None:
    """What a pair with unequal digests, or with one row, amounts to; None: nothing."""
    address, left, right = pair
    place = (address.moment, address.kind)
    decisive = any(row.decisive for row in (left, right) if row)
    decisive = decisive and (address.update, *place) not in rules.void
    decisive = decisive and (address.rank, *place, address.name) not in rules.absent
    if place in rules.changes:
        left = left or reference.latest(address, rules.changes[place])
        right = right or candidate.latest(address, rules.changes[place])
    if left and right:
        agree = _equal(left, right, rules.relative if place in rules.decimals else None)
        return None if agree else Difference(address, left, right, decisive)
    side, other = ("reference", candidate) if left else ("candidate", reference)
    unknown = not other.has(place) or (address.kind in rules.named and not other.has_name(place, address.name))
    free = address.kind in rules.optional or place in rules.changes or place in rules.partial
    if not decisive or free or unknown:
        return Unmatched(side, address, 1)
    return Difference(address, left, right, decisive)


def _equal(reference: Row, candidate: Row, relative: float | None) -> bool:
    """Whether two rows hold the same: the same digest, or the same decimal within an allowance where there is one."""
    if reference.digest == candidate.digest:
        return True
    if relative is None:
        return False
    left, right = reference.content, candidate.content
    if not _is_number(left) or not _is_number(right):
        return False
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right or abs(left - right) <= relative * max(abs(left), abs(right)) < math.inf


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
