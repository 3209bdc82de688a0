"""The DeepSpeed adapter, where deepspeed is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.deepspeed import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import from_dict

if importlib.util.find_spec("deepspeed") is None:
    REASON = "deepspeed is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

DROPPED = {"accumulation.tail": "carry_drop"}
CASES = [
    ("regression", "ragged_tail", {}),
    ("ragged_tail", "ragged_tail", DROPPED),
    ("decoder", "decoder", {}),
    ("decoder", "bfloat16", {}),
]


@pytest.mark.parametrize(("task", "recipe", "knobs"), CASES)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(train, reference, recipe_named, task, recipe, knobs):
    recipe = recipe_named(recipe)
    expected = reference(task, recipe, knobs)
    found = train("deepspeed", task, recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(("stage", "task"), [(1, "decoder"), (2, "decoder"), (3, "regression")])
def test_zero_is_the_reference_bit_for_bit(train, reference, recipe_named, stage, task):
    recipe = recipe_named("decoder")
    expected = reference(task, recipe, {})
    found = train("deepspeed", task, recipe, arguments={"DeepSpeedZeroConfig.stage": stage}).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("stage", [1, 3])
def test_zero_s_moments_have_the_parameters_names(train, recipe_named, stage):
    seen = set()
    recorder = Recorder(lambda address, value: seen.add((address.kind, address.name)), lambda: None)
    with recorder:
        train("deepspeed", "decoder", recipe_named("decoder"), recorder=recorder,
              arguments={"DeepSpeedZeroConfig.stage": stage})  # fmt: skip
    assert ("optimizer_state", "embedding.weight.exp_avg") in seen and ("gradient", "embedding.weight") in seen
    assert recorder.updates == 6 and recorder.nameless == 0


def test_several_ranks_are_refused_where_they_hold_pieces_that_cross_parameters():
    asked = from_dict({"parallel": {"ranks": 2}})
    assert Adapter().refuse(asked) is None
    for stage in (1, 2, 3):
        assert "cross parameters" in Adapter(**{"DeepSpeedZeroConfig.stage": stage}).refuse(asked)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("deepspeed", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("deepspeed", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"to resume from: state \[checkpoint\] every"):
        train("deepspeed", "regression", from_dict({"updates": 1}), resume_from=tmp_path)


def test_a_run_resumed_between_epochs_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("tokens", "checkpoint.every=2")
    whole = train("deepspeed", "tokens", recipe).parameters()
    first = interrupted("deepspeed", "tokens", recipe, cut=3)
    resumed = train("deepspeed", "tokens", recipe, resume_from=first.workdir).parameters()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
