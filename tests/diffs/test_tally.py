"""Counting what two traces have in common agrees with comparing them row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffs.first import compare
from diffs.tally import by_update, tally
from diffs.trace import open_trace
from diffs.verdict import NotComparable
from oracle.recorder.trace import TraceWriter
from reference_loop.moments import Address


def written(folder: Path, values: dict[tuple[int, str], float], digest: str = "blake2b-128", rank: int = 0) -> Path:
    writer = TraceWriter(folder, digest=digest, rank=rank)
    for (update, name), value in values.items():
        writer.put(Address(update, -1, "update", "parameter", name, rank), value)
    writer.close()
    return folder


ONE = {(update, name): float(update) for update in range(4) for name in ("a", "b", "c")}


def test_equal_traces_are_the_same(tmp_path: Path) -> None:
    with open_trace(written(tmp_path / "1", ONE)) as left, open_trace(written(tmp_path / "2", ONE)) as right:
        found = tally(left, right)
        assert found.same and (found.updates, found.addresses) == (4, 12)


def test_differences_and_what_one_side_has_are_counted(tmp_path: Path) -> None:
    other = {**ONE, (1, "b"): 9.0, (3, "b"): 9.0, (3, "d"): 0.0}
    del other[0, "a"]
    with open_trace(written(tmp_path / "1", ONE)) as left, open_trace(written(tmp_path / "2", other)) as right:
        found = tally(left, right)
        assert (found.updates, found.addresses, found.differing, found.unmatched) == (4, 11, 2, 2)
        whole = compare(left, right)
        assert (found.updates, found.addresses) == (whole.updates, whole.addresses) and not found.same
        pair = left.processes[0], right.processes[0]
        assert list(by_update(*pair, ("update", "parameter"))) == [(0, 2, 0), (1, 3, 1), (2, 3, 0), (3, 3, 1)]
        assert list(by_update(*pair, ("no", "place"))) == []


def test_a_rank_of_one_side_is_unmatched(tmp_path: Path) -> None:
    for name in ("1", "2"):
        written(tmp_path / name, ONE)
    written(tmp_path / "2", ONE, rank=1)
    with open_trace(tmp_path / "1") as left, open_trace(tmp_path / "2") as right:
        assert tally(left, right).unmatched == 12


def test_unlike_digests_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "1", ONE)
    written(tmp_path / "2", ONE, digest="xxh3-128")
    with open_trace(tmp_path / "1") as left, open_trace(tmp_path / "2") as right, pytest.raises(NotComparable):
        tally(left, right)
