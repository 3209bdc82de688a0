"""The ignite adapter, where ignite is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.ignite import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import from_dict

if importlib.util.find_spec("ignite") is None:
    REASON = "ignite is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

import ignite.engine

CARRIED = {"accumulation.tail": "carry_drop"}
ON_CPU = {"float16.on_cpu": True}


@pytest.fixture
def said(monkeypatch):
    """The arguments that `create_supervised_trainer` was given."""
    seen = {}
    original = ignite.engine.create_supervised_trainer

    def spy(*args, **kwargs):
        seen.update(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(ignite.engine, "create_supervised_trainer", spy)
    return seen


ASKED = {"loss_fn", "device", "prepare_batch", "model_fn", "gradient_accumulation_steps"}
"""What every task needs."""


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"clip": {"max_norm": float("inf")}, "log": {}, "evaluate": {}, "checkpoint": {"every": 2}}, set()),
        ({"precision": {"dtype": "float16"}, "scaler": {"init_scale": 8.0}}, {"amp_mode", "scaler"}),
    ],
)
def test_it_says_only_what_the_recipe_states(train, said, values, more):
    recipe = from_dict({"updates": 2, "accumulation": 3, **values})
    train("ignite", "ragged_tail", recipe)
    assert set(said) == ASKED | more
    assert {f"create_supervised_trainer.{name}" for name in set(said) - ASKED} <= set(Adapter().passes(recipe))


def test_an_update_of_one_s_own_is_trained_where_the_function_cannot_say_the_recipe(train, said):
    for values in ({"clip": {"max_norm": 1.0}}, {"precision": {"dtype": "bfloat16"}}):
        train("ignite", "regression", from_dict({"updates": 1, **values}))
        assert not said and Adapter().passes(from_dict(values)) == {}


@pytest.mark.parametrize(
    ("task", "recipe", "knobs", "arguments"),
    [
        ("regression", "regression", {}, {}),
        ("ragged_tail", "ragged_tail", CARRIED, {}),
        ("tokens", "tokens", {}, {}),
        ("batchnorm", "batchnorm", {}, {}),
        ("decoder", "decoder", {}, {}),
        ("decoder", "adamw", {}, {}),
        ("decoder", "shuffle", {}, {}),
        ("decoder", "bfloat16", {}, {}),
        ("regression", "float16", {"precision.compute": "float32"}, {}),
        ("regression", "float16", {"schedule.on_skip": "advance"}, ON_CPU),
    ],
)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(
    train, reference, recipe_named, task, recipe, knobs, arguments
):
    recipe = recipe_named(recipe)
    expected = reference(task, recipe, knobs)
    found = train("ignite", task, recipe, arguments=arguments).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("ignite", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("ignite", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"no checkpoint in .* to resume from: state \[checkpoint\] every"):
        train("ignite", "regression", from_dict({}), resume_from=tmp_path)


def test_values_are_clipped_where_the_recipe_asks_for_it(train, reference):
    recipe = from_dict({"updates": 2, "clip": {"max_value": 0.01}})
    expected = reference("regression", recipe, {})
    found = train("ignite", "regression", recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_ignite_s_own_float16_can_be_made_to_work_on_the_cpu(train, reference):
    values = {"updates": 6, "batch_size": 2, "precision": {"dtype": "float16"}, "scaler": {"init_scale": 2.0**24}}
    recipe = from_dict(values)
    found = train("ignite", "regression", recipe, arguments=ON_CPU).parameters()
    real = reference("regression", recipe, {})
    silent = reference("regression", recipe, {"precision.compute": "float32"})
    assert all(torch.equal(real[name], found[name]) for name in real)
    assert not all(torch.equal(silent[name], found[name]) for name in silent)


def test_it_reports_at_the_updates_that_the_recipe_names(train, recipe_named):
    job = train("ignite", "decoder", recipe_named("evaluate"))
    assert [name for name, _ in job.logged] == ["loss"] * 4
    assert [list(metrics) for metrics in job.metrics] == [["loss", "perplexity"]] * 2
    assert [path.name for path in job.workdir.iterdir()] == ["checkpoint_8.pt"]


def test_a_run_resumed_between_epochs_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("regression", "checkpoint.every=1")
    whole = train("ignite", "regression", recipe).parameters()
    first = interrupted("ignite", "regression", recipe, cut=3)
    resumed = train("ignite", "regression", recipe, resume_from=first.workdir)
    assert len(resumed.ids) == 16
    assert all(torch.equal(whole[name], parameter) for name, parameter in resumed.parameters().items())
