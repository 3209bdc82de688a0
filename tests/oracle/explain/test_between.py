"""Ranks that stand apart where the reference's agree are named, and the reverse; else nothing is said."""

from __future__ import annotations

import pytest
import torch

from diffs.trace import open_trace
from oracle.explain.between import between
from oracle.recorder.trace import TraceWriter
from reference_loop.moments import Address

PARAMETER = Address(0, -1, "update", "parameter", "w", 0)
GRADIENT = Address(0, -1, "consume", "gradient", "w", 0)
BUFFER = Address(1, -1, "update", "buffer", "mean", 0)
IDS = Address(0, 0, "batch", "batch_ids", "id", 0)


@pytest.fixture
def traced(tmp_path):
    """A trace of several ranks: of each, address -> number or list of ids."""
    numbers = iter(range(100))

    def traced(*ranks, shards=None):
        folder = tmp_path / str(next(numbers))
        for rank, values in enumerate(ranks):
            writer = TraceWriter(folder, rank)
            for address, value in values.items():
                held = value if isinstance(value, list) else torch.tensor([float(value)])
                writer.put(address._replace(rank=rank), held)
            writer.commit()
            writer.close({"shards": shards or {}})
        return open_trace(folder)

    return traced


def said(found):
    return [(one.update, one.moment, one.kind, one.name, one.rank, one.agree) for one in found]


def test_a_parameter_out_of_sync_is_named_with_its_rank(traced):
    reference = traced({PARAMETER: 1}, {PARAMETER: 1})
    assert said(between(reference, traced({PARAMETER: 2}, {PARAMETER: 3}))) == [
        (0, "update", "parameter", "w", 1, False)
    ]


def test_of_three_ranks_the_one_unlike_the_others_is_named(traced):
    reference = traced(*[{PARAMETER: 1}] * 3)
    (one,) = between(reference, traced({PARAMETER: 2}, {PARAMETER: 1}, {PARAMETER: 1}))
    assert one.rank == 0
    (one,) = between(reference, traced({PARAMETER: 1}, {PARAMETER: 1}, {PARAMETER: 2}))
    assert one.rank == 2


def test_the_same_batch_where_each_rank_has_its_own_is_named(traced):
    reference = traced({IDS: [0, 2]}, {IDS: [1, 3]})
    assert said(between(reference, traced({IDS: [0, 1]}, {IDS: [0, 1]}))) == [(0, "batch", "batch_ids", "id", 1, True)]


def test_a_statistic_that_is_shared_where_each_rank_keeps_its_own_is_named(traced):
    reference = traced({BUFFER: 1}, {BUFFER: 2})
    assert said(between(reference, traced({BUFFER: 1}, {BUFFER: 1}))) == [(1, "update", "buffer", "mean", 1, True)]


def test_the_first_place_of_each_kind_is_named_in_causal_order(traced):
    later = {address._replace(update=address.update + 1): 1 for address in (PARAMETER, GRADIENT)}
    reference = traced(*[{PARAMETER: 1, GRADIENT: 1, **later}] * 2)
    candidate = traced({PARAMETER: 1, GRADIENT: 1, **later}, dict.fromkeys([PARAMETER, GRADIENT, *later], 2))
    assert said(between(reference, candidate)) == [
        (0, "consume", "gradient", "w", 1, False),
        (0, "update", "parameter", "w", 1, False),
    ]


# Silent


def test_ranks_that_stand_as_the_references_do_are_none(traced):
    values = {PARAMETER: 1, IDS: [0]}, {PARAMETER: 1, IDS: [1]}
    other = {PARAMETER: 5, IDS: [7]}, {PARAMETER: 5, IDS: [6]}  # another run altogether, but in step
    assert between(traced(*values), traced(*other)) == []


def test_one_rank_stands_to_nobody(traced):
    assert between(traced({PARAMETER: 1}), traced({PARAMETER: 2})) == []


def test_what_a_rank_lacks_says_nothing(traced):
    reference = traced({PARAMETER: 1}, {PARAMETER: 1})
    assert between(reference, traced({PARAMETER: 1, GRADIENT: 1}, {PARAMETER: 1})) == []
    assert between(reference, traced({PARAMETER: 2}, {GRADIENT: 1})) == []


def test_shards_differ_because_they_are_dealt(traced):
    state = Address(0, -1, "update", "optimizer_state", "w.exp_avg", 0)
    reference = traced({PARAMETER: 1, state: 1}, {PARAMETER: 1, state: 1})
    apart = {PARAMETER: 1, state: 1}, {PARAMETER: 2, state: 2}
    assert between(reference, traced(*apart, shards={"w": [0, 0, 1]})) == []
    assert len(between(reference, traced(*apart))) == 2
