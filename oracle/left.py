"""What a rank leaves to others: parameters that it holds nothing of, or that another rank's optimizer moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffs.trace import Trace


def left_to_others(trace: Trace) -> set[tuple[int, str]]:
    """(rank, parameter) that the rank's own optimizer does not move, and another rank's does, or holds nothing of.

    So parameters are dealt by ZeRO's first stage, and by flat shards.
    """
    if len(trace.processes) == 1:
        return set()
    shards = {rank: trace.told(rank).get("shards", {}) for rank in trace.processes}
    empty = {(rank, name) for rank, own in shards.items() for name, (_, _, length) in own.items() if length == 0}
    moved: dict[str, set[int]] = {}
    for row in trace.rows_at(("start", "hyperparameter")):
        name, _, argument = row.address.name.rpartition(".")
        if argument == "optimized" and row.content:
            moved.setdefault(name, set()).add(row.address.rank)
    return empty | {(rank, name) for name, ranks in moved.items() for rank in trace.processes.keys() - ranks}
