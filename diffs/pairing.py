"""Pairs two traces by address: one join in SQL, in causal order.

Only what differs leaves SQLite, so that two traces of a million rows are joined in about a second and little memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from diffs.address import Address
from diffs.trace import COLUMNS, LAST, Place, Process, Row, Trace, open_trace
from diffs.verdict import NotComparable

__all__ = ["Address", "Pair", "Place", "Row", "Step", "Trace", "join", "open_trace"]


class Pair(NamedTuple):
    """The two rows of one address; None where a side lacks it."""

    address: Address
    reference: Row | None
    candidate: Row | None


class Step(NamedTuple):
    """What pairing found at one update.

    update: its number; None for the closing places, which come after every update.
    matched: how many addresses both sides have.
    pairs: those whose digests differ and those that one side lacks, in causal order.
    """

    update: int | None
    matched: int
    pairs: list[Pair]


def join(reference: Trace, candidate: Trace, through_update: int | None = None) -> Iterator[Step]:
    """Pair two traces by address, update by update.

    through_update: the last update to look at; None for all. With it the closing places are left out, because a run
        may go on past it.

    Yields one step for each update that has rows, ascending, then one for the closing places. Within a step the order
    is micro-batch (after all of them where there is none), place, ordinal in the reference, else in the candidate.

    Raises:
        NotComparable: the traces use different digests.
    """
    if reference.digest != candidate.digest:
        raise NotComparable(
            f"the reference is digested with {reference.digest}, the candidate with {candidate.digest}: record both "
            "with one of them"
        )
    return _steps(reference, candidate, through_update)


# A rank's share of a step: update, matched, [(sort key, pair)].
_Share = tuple[int, int, list[tuple[tuple[int, ...], Pair]]]


def _steps(reference: Trace, candidate: Trace, through_update: int | None) -> Iterator[Step]:
    ranks = sorted(reference.processes.keys() | candidate.processes.keys())
    sides = [(reference.processes.get(rank), candidate.processes.get(rank)) for rank in ranks]
    through = LAST if through_update is None else through_update
    shares = merge(*(_shares(*side, through) for side in sides), key=itemgetter(0))
    for update, group in groupby(shares, key=itemgetter(0)):
        yield _step(update, list(group))
    if through_update is None:
        ends = [share for side in sides for share in _shares(*side, through, at_end=True)]
        if ends:
            yield _step(None, ends)


def _step(update: int | None, shares: list[_Share]) -> Step:
    found = sorted((entry for share in shares for entry in share[2]), key=itemgetter(0))
    return Step(update, sum(share[1] for share in shares), [pair for _, pair in found])


def _shares(
    reference: Process | None, candidate: Process | None, through: int, *, at_end: bool = False
) -> Iterator[_Share]:
    """Join the rows of one rank, update by update; a side that lacks the rank has no rows.

    at_end: whether to join the closing places, or all the others.
    """
    reference_bounds, candidate_bounds = (
        (0, 0) if process is None else process.place_bounds(at_end) for process in (reference, candidate)
    )
    with closing(attach(reference, candidate)) as database:
        reference_counts = dict(database.execute(_COUNT.format(side="reference"), (through, *reference_bounds)))
        candidate_counts = dict(database.execute(_COUNT.format(side="candidate"), (through, *candidate_bounds)))
        differing = groupby(database.execute(_DIFFERING, (through, *reference_bounds)), key=itemgetter(0))
        group = next(differing, None)
        for update in sorted(reference_counts.keys() | candidate_counts.keys()):
            entries, lacking = [], 0
            if group is not None and group[0] == update:
                for raw in group[1]:
                    left, right = raw[:8], raw[8:] if raw[8] is not None else None
                    lacking += right is None
                    entries.append(_entry(reference, left, candidate, right))
                group = next(differing, None)
            matched = reference_counts.get(update, 0) - lacking
            if matched < candidate_counts.get(update, 0):
                added = database.execute(_ADDED, (update, *candidate_bounds))
                entries += [_entry(reference, None, candidate, right) for right in added]
            yield update, matched, entries


def _entry(
    reference: Process | None, left: tuple[Any, ...] | None, candidate: Process | None, right: tuple[Any, ...] | None
) -> tuple[tuple[int, ...], Pair]:
    """The sort key inside a step, and the pair."""
    first = reference.row(left) if reference and left else None
    second = candidate.row(right) if candidate and right else None
    (address,) = {row.address for row in (first, second) if row}
    update, micro, place, _, ordinal, *_ = left or right or ()
    return (update, micro, place, ordinal, address.rank), Pair(address, first, second)


def attach(reference: Process | None, candidate: Process | None) -> sqlite3.Connection:
    """Both databases in one connection, with a table of which names and which places in them mean the same."""
    database = sqlite3.connect(":memory:", uri=True, isolation_level=None)
    for name, process in (("reference", reference), ("candidate", candidate)):
        database.execute(f"ATTACH ? AS {name}", (process.uri if process else ":memory:",))
        if process is None:
            database.execute(f"CREATE TABLE {name}.record ({COLUMNS})")
    for table, ids in (("names", "name_ids"), ("places", "place_ids")):
        left, right = (getattr(process, ids) if process else {} for process in (reference, candidate))
        database.execute(
            f"CREATE TABLE {table} (reference INTEGER, candidate INTEGER, "
            "UNIQUE (reference, candidate), UNIQUE (candidate, reference))"
        )
        database.executemany(
            f"INSERT INTO {table} VALUES (?, ?)",
            [(left.get(key), right.get(key)) for key in left.keys() | right.keys()],
        )
    return database


_COUNT = """
SELECT "update", count(*) FROM {side}.record WHERE "update" <= ? AND place >= ? AND place < ? GROUP BY "update"
"""
# CROSS JOIN fixes the order of the loops: the outer one walks the key, so rows come by update without a sort.
_DIFFERING = """
SELECT r."update", r.micro, r.place, r.name, r.ordinal, r.form, r.digest, r.value,
    c."update", c.micro, c.place, c.name, c.ordinal, c.form, c.digest, c.value
FROM reference.record AS r
    CROSS JOIN places ON places.reference = r.place
    CROSS JOIN names ON names.reference = r.name
    LEFT JOIN candidate.record AS c ON c."update" = r."update" AND c.micro = r.micro
        AND c.place = places.candidate AND c.name = names.candidate
WHERE r."update" <= ? AND r.place >= ? AND r.place < ? AND c.digest IS NOT r.digest
ORDER BY r."update"
"""
_ADDED = """
SELECT c."update", c.micro, c.place, c.name, c.ordinal, c.form, c.digest, c.value
FROM candidate.record AS c
    CROSS JOIN places ON places.candidate = c.place
    CROSS JOIN names ON names.candidate = c.name
WHERE c."update" = ? AND c.place >= ? AND c.place < ? AND NOT EXISTS (
    SELECT 1 FROM reference.record AS r WHERE r."update" = c."update" AND r.micro = c.micro
        AND r.place = places.reference AND r.name = names.reference
)
"""
