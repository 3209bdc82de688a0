"""The Fabric adapter, where Lightning is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.fabric import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import Recipe, from_dict

if importlib.util.find_spec("lightning") is None:
    REASON = "lightning is not installed here: its tests are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

from lightning.fabric import Fabric

LEAK = {"accumulation.tail": "leak"}
OUTSIDE = {"precision.loss": "outside_autocast"}
SILENT = {"clip_gradients.error_if_nonfinite": False}


def allowed(recipe: Recipe) -> set[str]:
    """The arguments of `Fabric` that a recipe states, those of every run included."""
    names = {"accelerator", "devices"}
    if recipe.precision.dtype != "float32":
        names.add("plugins" if recipe.scaler else "precision")
    return names


@pytest.fixture
def said(monkeypatch):
    """The arguments that `Fabric` was given."""
    seen = {}
    original = Fabric.__init__

    def spy(self, *args, **kwargs):
        assert not args
        seen.update(kwargs)
        original(self, **kwargs)

    monkeypatch.setattr(Fabric, "__init__", spy)
    return seen


@pytest.mark.parametrize(
    "values",
    [
        {"accumulation": 3, "shuffle": True, "clip": {"max_norm": 1.0}, "schedule": {"name": "linear", "warmup": 1}},
        {"precision": {"dtype": "bfloat16"}},
        {"precision": {"dtype": "float16"}, "scaler": {"init_scale": 8.0}},
        {"log": {}, "evaluate": {}, "checkpoint": {"every": 2}},
    ],
)
def test_it_says_only_what_the_recipe_states(train, said, values):
    recipe = from_dict({"updates": 2, **values})
    train("fabric", "ragged_tail", recipe)
    assert set(said) == allowed(recipe)


def test_what_it_passes_is_told_without_a_run(said):
    recipe = from_dict({"precision": {"dtype": "bfloat16"}})
    assert set(Adapter().passes(recipe)) == {f"Fabric.{name}" for name in allowed(recipe)} and not said


@pytest.mark.parametrize(
    ("task", "recipe", "knobs", "arguments"),
    [
        ("regression", "regression", {}, {}),
        ("ragged_tail", "ragged_tail", LEAK, {}),
        ("tokens", "tokens", {}, {}),
        ("batchnorm", "batchnorm", {}, {}),
        ("decoder", "decoder", {}, {}),
        ("decoder", "adamw", {}, {}),
        ("decoder", "shuffle", {}, {}),
        ("ragged_tail", "evaluate", LEAK, {}),
        ("decoder", "bfloat16", {}, {}),
        ("regression", "float16", {"schedule.on_skip": "advance", **OUTSIDE}, SILENT),
    ],
)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(
    train, reference, recipe_named, task, recipe, knobs, arguments
):
    recipe = recipe_named(recipe)
    expected = reference(task, recipe, knobs)
    found = train("fabric", task, recipe, arguments=arguments).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("fabric", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("fabric", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_values_are_clipped_where_the_recipe_asks_for_it(train, reference):
    recipe = from_dict({"updates": 2, "clip": {"max_value": 0.01}})
    expected = reference("regression", recipe, {})
    found = train("fabric", "regression", recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("arguments", [{}, {"float16.on_cpu": True}])
def test_float16_is_bfloat16_on_the_cpu_unless_it_is_made_to_work(train, reference, arguments):
    recipe = from_dict({"updates": 4, "batch_size": 2, "precision": {"dtype": "float16"}})
    found = train("fabric", "regression", recipe, arguments=arguments).parameters()
    silent = reference("regression", recipe, {"precision.compute": "bfloat16", **OUTSIDE})
    real = reference("regression", recipe, OUTSIDE)
    for expected, same in ((silent, not arguments), (real, bool(arguments))):
        assert all(torch.equal(expected[name], found[name]) for name in expected) == same


def test_an_overflow_raises_where_it_clips_by_norm(train, recipe_named):
    with pytest.raises(RuntimeError, match="non-finite"):
        train("fabric", "regression", recipe_named("float16", "scaler.init_scale=16777216.0"))


def test_it_reports_at_the_updates_that_the_recipe_names(train, recipe_named):
    job = train("fabric", "decoder", recipe_named("evaluate"))
    assert [name for name, _ in job.logged] == ["loss"] * 4
    assert len(job.metrics) == 2
    assert sorted(path.name for path in job.workdir.iterdir()) == ["step_2.ckpt", "step_4.ckpt"]


def test_without_dropout_a_resumed_run_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("regression", "accumulation=2", "checkpoint.every=3")
    whole = train("fabric", "regression", recipe).parameters()
    first = interrupted("fabric", "regression", recipe, cut=4)
    resumed = train("fabric", "regression", recipe, resume_from=first.workdir)
    assert all(torch.equal(whole[name], parameter) for name, parameter in resumed.parameters().items())


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"no checkpoint in .* to resume from: state \[checkpoint\] every"):
        train("fabric", "regression", from_dict({}), resume_from=tmp_path)
