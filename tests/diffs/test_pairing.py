from __future__ import annotations

import sqlite3
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffs.pairing import join, open_trace
from diffs.verdict import NotComparable
from oracle.recorder.trace import SCHEMA, TraceWriter
from reference_loop.moments import MOMENTS, Address, causal_key

ADDRESSES = st.one_of(
    st.builds(Address, st.integers(0, 3), st.integers(0, 2), st.just("forward"), st.sampled_from(["loss", "mode"]),
              st.sampled_from(["", "a", "b"]), st.just(0)),
    st.builds(Address, st.integers(0, 3), st.just(-1), st.just("update"), st.sampled_from(["parameter", "buffer"]),
              st.sampled_from(["a", "b"]), st.just(0)),
    st.builds(Address, st.just(-1), st.just(-1), st.just("start"), st.just("parameter"), st.sampled_from(["a", "b"]),
              st.just(0)),
    st.builds(Address, st.integers(0, 3), st.just(-1), st.just("end"), st.just("count"), st.sampled_from(["a", "b"]),
              st.just(0)),
)  # fmt: skip
RUN = st.dictionaries(ADDRESSES, st.integers(0, 1), max_size=25).flatmap(
    lambda run: st.permutations(list(run)).map(lambda order: [(address, run[address]) for address in order])
)


@given(RUN, RUN)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pairs_are_those_of_a_dictionary_in_causal_order(record, reference, candidate) -> None:
    left, right = dict(reference), dict(candidate)
    ordinals = {address: place for place, (address, _) in enumerate(candidate)}
    ordinals |= {address: place for place, (address, _) in enumerate(reference)}
    with record(reference) as first, record(candidate) as second:
        steps = list(join(first, second))
    pairs = [pair for step in steps for pair in step.pairs]
    expected = {a for a in left.keys() | right.keys() if left.get(a) != right.get(a)}
    assert {pair.address for pair in pairs} == expected and len(pairs) == len(expected)
    assert [causal_key(pair.address) for pair in pairs] == sorted(causal_key(address) for address in expected)
    for one, other in pairwise(pairs):
        if causal_key(one.address) == causal_key(other.address) and (one.address in left) == (other.address in left):
            assert ordinals[one.address] < ordinals[other.address]
    for pair in pairs:
        assert (pair.reference.content if pair.reference else None) == left.get(pair.address)
        assert (pair.candidate.content if pair.candidate else None) == right.get(pair.address)
    assert sum(step.matched for step in steps) == len(left.keys() & right.keys())


@given(RUN, RUN, st.integers(-1, 3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_bounded_join_is_the_start_of_the_whole_one(record, reference, candidate, through: int) -> None:
    with record(reference) as first, record(candidate) as second:
        whole = [step for step in join(first, second) if step.update is not None and step.update <= through]
        assert list(join(first, second, through)) == whole


@given(RUN)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_come_in_causal_order(record, run) -> None:
    with record(run) as trace:
        rows = list(trace.rows())
        assert [row.address for row in rows] == sorted(dict(run), key=causal_key)
        assert len(trace) == len(rows) == len(run)
        assert all(trace.row(row.address) == row for row in rows)
        assert trace.last_update == max((address.update for address, _ in run), default=-1)


def test_a_row_holds_what_was_recorded(record) -> None:
    weight, rate = Address(0, -1, "update", "parameter", "w"), Address(0, -1, "schedule", "learning_rate", "w")
    with record([(weight, torch.ones(2, 3)), (rate, 0.1)]) as trace:
        row, number = trace.row(weight), trace.row(rate)
        assert row is not None and number is not None
        assert (row.dtype, row.shape, row.value, row.content, row.decisive) == ("float32", (2, 3), None, None, True)
        assert (number.dtype, number.shape, number.value, number.content) == (None, None, "0.1", 0.1)
        assert trace.row(weight._replace(name="v")) is None and trace.row(weight._replace(rank=1)) is None
        assert trace.has(("update", "parameter")) and not trace.has(("update", "ema"))


def test_ranks_are_joined_each_with_its_own(tmp_path: Path) -> None:
    def run(folder: Path, ranks: int, changed: int | None = None) -> None:
        for rank in range(ranks):
            writer = TraceWriter(folder, rank)
            for update in range(2):
                value = -1.0 if rank == changed and update == 1 else float(update)
                writer.put(Address(update, -1, "update", "parameter", "w", rank), torch.tensor(value))
            writer.close()

    run(tmp_path / "a", 3)
    run(tmp_path / "b", 3, changed=1)
    run(tmp_path / "c", 2)
    with open_trace(tmp_path / "a") as a, open_trace(tmp_path / "b") as b, open_trace(tmp_path / "c") as c:
        (pair,) = [pair for step in join(a, b) for pair in step.pairs]
        assert pair.address == (1, -1, "update", "parameter", "w", 1)
        steps = list(join(a, c))
        assert [(step.update, step.matched) for step in steps] == [(0, 2), (1, 2)]
        assert [[pair.address.rank for pair in step.pairs] for step in steps] == [[2], [2]]
        assert all(pair.candidate is None for step in steps for pair in step.pairs)
        assert all(pair.reference is None for step in join(c, a) for pair in step.pairs)


def test_names_and_places_are_joined_by_what_they_mean(record) -> None:
    """The numbers that two databases give to a name, or to a place in another version, need not agree."""
    one = [(Address(0, -1, "update", "parameter", name), 1.0) for name in "ab"]
    with record(one) as first, record(one[::-1]) as second:
        database = sqlite3.connect(second.folder / "trace.db")
        database.execute("UPDATE record SET place = place + 100")
        database.execute("UPDATE place SET place = place + 100")
        database.commit()
        database.close()
        with open_trace(second.folder) as moved:
            assert [(step.matched, step.pairs) for step in join(first, moved)] == [(2, [])]


def test_different_digests_are_not_compared(record) -> None:
    one = [(Address(0, -1, "update", "parameter", "w"), torch.ones(1))]
    first, second = record(one, digest="blake2b-128"), record(one, digest="xxh3-128")
    with pytest.raises(NotComparable, match="digested with blake2b-128, the candidate with xxh3-128"):
        join(first, second)


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match="holds no trace"):
        open_trace(tmp_path)
    (tmp_path / "trace.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(NotComparable, match="cannot be read as a trace"):
        open_trace(tmp_path)


def test_another_format_is_refused(record) -> None:
    with record([]) as trace:
        database = sqlite3.connect(trace.folder / "trace.db")
        database.execute("UPDATE trace_format SET format = 99")
        database.commit()
        database.close()
        with pytest.raises(NotComparable, match="has format 99, this version reads 1"):
            open_trace(trace.folder)


def test_a_folder_name_may_hold_what_a_uri_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "50% of a? #1 run"
    writer = TraceWriter(folder)
    writer.put(Address(0, -1, "end", "count", "updates"), 1)
    writer.close()
    with open_trace(folder) as trace:
        assert [step.matched for step in join(trace, trace)] == [1]


def large_trace(folder: Path, rows: int, changed: int) -> None:
    """A trace of about `rows` rows, written by SQL: 1,000 an update, one digest changed."""
    folder.mkdir()
    database = sqlite3.connect(folder / "trace.db")
    database.executescript(f"PRAGMA synchronous = OFF; BEGIN; {SCHEMA}")
    database.execute("INSERT INTO trace_format VALUES (1, 'xxh3-128', 0)")
    places = [(m, k) for m, kinds in MOMENTS.items() for k in kinds]
    database.executemany(
        "INSERT INTO place VALUES (?, ?, ?, 1, ?)", [(i, m, k, m == "end") for i, (m, k) in enumerate(places)]
    )
    database.executemany("INSERT INTO name VALUES (?, ?)", [(i, f"layer.{i}.weight") for i in range(100)])
    first = places.index(("consume", "gradient"))
    database.executemany(
        "INSERT INTO record VALUES (?, 8388607, ?, ?, ?, NULL, ?, NULL)",
        (
            (i // 1000, first + i % 1000 // 100, i % 100, i, (i if i != changed else rows).to_bytes(16, "little"))
            for i in range(rows)
        ),
    )
    database.commit()
    database.close()


def test_a_large_join_takes_seconds_at_most(tmp_path: Path) -> None:
    """200,000 rows in processor time: a million takes five times as long. The figure is in docs/trace.md."""
    large_trace(tmp_path / "a", 200_000, changed=-1)
    large_trace(tmp_path / "b", 200_000, changed=123_456)
    with open_trace(tmp_path / "a") as a, open_trace(tmp_path / "b") as b:
        start = time.process_time()
        (pair,) = [pair for step in join(a, b) for pair in step.pairs]
        assert time.process_time() - start < 1.0
    assert pair.address.update == 123 and pair.reference is not None and pair.reference.ordinal == 123_456


def test_a_small_join_takes_milliseconds(record) -> None:
    run = [(Address(u, m, "forward", "loss", ""), u * m * 1.0) for u in range(4) for m in range(4)]
    with record(run) as first, record(run) as second:
        start = time.process_time()
        for _ in range(20):
            assert sum(step.matched for step in join(first, second)) == 16
        assert (time.process_time() - start) / 20 < 0.01
