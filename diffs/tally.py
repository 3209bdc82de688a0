"""Counts how much two traces have in common, and how much of it differs: in SQL, without a row leaving it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from diffs.pairing import attach
from diffs.trace import Place, Process, Trace
from diffs.verdict import NotComparable


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How much two traces have in common.

    updates: at which both have something. addresses: that both have. differing: of them, with another digest.
    unmatched: that one side alone has.
    """

    updates: int
    addresses: int
    differing: int
    unmatched: int

    @property
    def same(self) -> bool:
        """Whether both hold the same, bit for bit, and nothing else."""
        return not self.differing and not self.unmatched


def tally(reference: Trace, candidate: Trace) -> Tally:
    """Count over all ranks.

    Raises:
        NotComparable: the traces use different digests.
    """
    if reference.digest != candidate.digest:
        raise NotComparable(
            f"the reference is digested with {reference.digest}, the candidate with {candidate.digest}: record both "
            "with one of them"
        )
    updates: set[int] = set()
    addresses = differing = 0
    for rank in reference.processes.keys() & candidate.processes.keys():
        for update, matched, unlike in by_update(reference.processes[rank], candidate.processes[rank]):
            updates.add(update)
            addresses, differing = addresses + matched, differing + unlike
    return Tally(
        updates=len(updates - {-1}),
        addresses=addresses,
        differing=differing,
        unmatched=len(reference) + len(candidate) - 2 * addresses,
    )


def by_update(reference: Process, candidate: Process, place: Place | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield (update, addresses that both have, of them those that differ), ascending, of one rank.

    place: only of this moment and kind.
    """
    where = "" if place is None else f"WHERE r.place = {reference.place_ids.get(place, -1):d}"
    with closing(attach(reference, candidate)) as database:
        yield from database.execute(_BY_UPDATE.format(where=where))


# CROSS JOIN fixes the order of the loops: the outer one walks the key, so rows come by update without a sort.
_BY_UPDATE = """
SELECT r."update", count(*), sum(c.digest IS NOT r.digest)
FROM reference.record AS r
    CROSS JOIN places ON places.reference = r.place
    CROSS JOIN names ON names.reference = r.name
    CROSS JOIN candidate.record AS c ON c."update" = r."update" AND c.micro = r.micro
        AND c.place = places.candidate AND c.name = names.candidate
{where}
GROUP BY r."update" ORDER BY r."update"
"""
