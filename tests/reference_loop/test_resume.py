"""A resumed reference run is the uninterrupted one, bit for bit; with a part left out it is not."""

from __future__ import annotations

import pytest
import torch

from oracle.tasks import load_task
from reference_loop import checkpoint, interpreter
from reference_loop.loader import count_samples
from reference_loop.operations import Cursor
from reference_loop.plan import plan
from reference_loop.recipe import from_dict
from reference_loop.semantics import RESUME_PARTS, Semantics
from reference_loop.state import State

RECIPE = from_dict({
    "epochs": 2, "batch_size": 2, "accumulation": 2, "shuffle": True, "optimizer": {"name": "adamw", "lr": 0.02},
    "schedule": {"name": "linear", "warmup": 2}, "checkpoint": {"every": 1}, "ema": {"decay": 0.9},
    "precision": {"dtype": "float16"}, "scaler": {"init_scale": 2.0**16, "growth_interval": 2},
})  # fmt: skip


def run(workdir, *, cut=None, resume_from=None, missing=""):
    """Every update's parameters and averages, by update."""
    task, s = load_task("decoder"), Semantics.of(RECIPE).with_("resume.missing", missing)
    folder = resume_from / f"checkpoint-{cut}" if resume_from else None
    state = State(task, RECIPE, drop_last=False, workdir=workdir, resume_from=folder)
    at = None
    if folder is not None:
        saved = checkpoint.load(folder)
        at = Cursor(saved["counter"]["updates"], *saved["cursor"])
    rows = {}

    def observe(address, value):
        if address.moment == "update" and address.kind in ("parameter", "ema", "optimizer_state", "scaler"):
            rows.setdefault(address.update, {})[address.kind, address.name] = value.clone()

    interpreter.run(plan(RECIPE, s, count_samples(state.loader.data), at), state, observe)
    return rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, run(workdir)


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(whole, tmp_path, cut):
    workdir, rows = whole
    resumed = run(tmp_path, cut=cut, resume_from=workdir)
    assert sorted(resumed) == [update for update in sorted(rows) if update >= cut]
    assert all(same(rows[update], resumed[update]) for update in resumed)


@pytest.mark.parametrize("part", [p for p in RESUME_PARTS if p != "accumulated_gradient"])
def test_a_part_left_out_shows(whole, tmp_path, part):
    workdir, rows = whole
    cut = 5 if part in ("order", "ema") else 2  # in the second epoch, after the overflows
    resumed = run(tmp_path, cut=cut, resume_from=workdir, missing=part)
    left = [update for update in sorted(rows) if update >= cut]
    assert sorted(resumed) != left or not all(same(rows[update], resumed[update]) for update in left)


def test_a_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match=r"holds no state\.pt"):
        checkpoint.load(tmp_path)
    (tmp_path / "state.pt").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(checkpoint.CheckpointError, match="cannot be read"):
        checkpoint.load(tmp_path)
