"""Where the candidate's ranks stand to one another otherwise than the reference's do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from diffs.trace import Place, Trace
from oracle.result import BetweenRanks
from reference_loop.moments import SHARDED_KINDS, Address, causal_key, parameter_of

# What ranks are compared in: all that makes a verdict at a step.
COMPARED: tuple[Place, ...] = (
    ("start", "parameter"),
    ("start", "buffer"),
    ("batch", "batch_ids"),
    ("batch", "input"),
    ("consume", "gradient"),
    ("consume", "learning_rate"),
    ("update", "parameter"),
    ("update", "buffer"),
    ("update", "optimizer_state"),
)


def between(reference: Trace, candidate: Trace) -> list[BetweenRanks]:
    """The first place of each kind at which the candidate's ranks differ and the reference's agree, or the reverse.

    Nothing is said of values that one rank lacks, or that are dealt to ranks.
    """
    if len(candidate.processes) < 2:
        return []
    dealt = {name for rank in candidate.processes for name in candidate.told(rank).get("shards", {})}
    found = (next(_apart(reference, candidate, place, dealt), None) for place in COMPARED)
    return sorted(filter(None, found), key=lambda one: causal_key(_address(one)))


def _address(one: BetweenRanks) -> Address:
    return Address(one.update, one.micro, one.moment, one.kind, one.name, one.rank)


def _apart(reference: Trace, candidate: Trace, place: Place, dealt: set[str]) -> Iterator[BetweenRanks]:
    theirs, ours = _by_rank(candidate, place), _by_rank(reference, place)
    for at in sorted(theirs, key=lambda at: at[:2]):  # names stay as they were recorded
        digests, expected = theirs[at], ours.get(at, {})
        if len(digests) < len(candidate.processes) or digests.keys() != expected.keys():
            continue
        if at.kind in SHARDED_KINDS and parameter_of(at) in dealt:
            continue
        agree, should = len(set(digests.values())) == 1, len(set(expected.values())) == 1
        if agree != should:
            yield BetweenRanks(**{**at._asdict(), "rank": _odd(digests)}, agree=agree)


def _by_rank(trace: Trace, place: Place) -> dict[Address, dict[int, bytes]]:
    """The digests of all ranks, by the first rank's address."""
    found: dict[Address, dict[int, bytes]] = {}
    for row in trace.rows_at(place):
        found.setdefault(Address(*row.address)._replace(rank=0), {})[row.address.rank] = row.digest
    return found


def _odd(digests: dict[int, bytes]) -> int:
    """The first rank that is not like most; where half is like the other half, not like the first rank."""
    counted = Counter(digests.values())
    usual = max(counted, key=lambda digest: (counted[digest], digest == digests[min(digests)]))
    return next((rank for rank, digest in sorted(digests.items()) if digest != usual), max(digests))
