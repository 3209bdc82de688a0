"""Values that a recorded run had, taken in place of the reference's: those dealt to ranks are put together again."""

from __future__ import annotations

import pytest
import torch

from oracle.recorder.trace import TraceWriter
from oracle.reference import Pins
from reference_loop.moments import Address

WEIGHT = Address(0, -1, "update", "parameter", "w", 0)
BIAS = Address(0, -1, "update", "parameter", "b", 0)
BUFFER = Address(0, -1, "update", "buffer", "w", 0)
MOMENT = Address(0, -1, "update", "optimizer_state", "w.exp_avg", 0)
STEP = Address(0, -1, "update", "optimizer_state", "w.step", 0)
WHOLE = torch.arange(15.0).view(5, 3)
# Of w the first rank has 3 rows and the second 2; of b, which is one number, the first has all.
SHARDS = {"0": {"w": [0, 0, 3]}, "1": {"w": [0, 3, 2], "b": [0, 1, 0]}}


@pytest.fixture
def folder(tmp_path):
    for rank, rows in enumerate((slice(0, 3), slice(3, 5))):
        writer = TraceWriter(tmp_path / "trace", rank, capture=lambda address: True, budget_bytes=10**6)
        for address, value in {
            WEIGHT: WHOLE[rows],
            MOMENT: WHOLE[rows] * 2,
            STEP: torch.tensor(1.0),
            BIAS: torch.ones(1 - rank),
            BUFFER: torch.full((5, 3), float(rank)),
        }.items():
            writer.put(address._replace(rank=rank), value.clone())
        writer.commit()
        writer.close({})
    return str(tmp_path / "trace")


@pytest.mark.parametrize("rank", [0, 1])
def test_shards_are_put_together(folder, rank):
    pins = Pins(folder, None, SHARDS)
    assert torch.equal(pins[WEIGHT._replace(rank=rank)], WHOLE)
    assert torch.equal(pins[MOMENT._replace(rank=rank)], WHOLE * 2)
    assert torch.equal(pins[BIAS._replace(rank=rank)], torch.ones(1))


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_not_dealt_is_each_ranks_own(folder, rank):
    pins = Pins(folder, None, SHARDS)
    assert torch.equal(pins[BUFFER._replace(rank=rank)], torch.full((5, 3), float(rank)))
    assert pins[STEP._replace(rank=rank)].item() == 1
    assert torch.equal(Pins(folder, None, {})[WEIGHT._replace(rank=rank)], WHOLE[3 * rank : 3 + 2 * rank])


def test_only_the_places_that_are_asked_for_are_pinned(folder):
    pins = Pins(folder, [["update", "parameter", 0]], SHARDS)
    assert WEIGHT in pins and MOMENT not in pins and WEIGHT._replace(update=1) not in pins
