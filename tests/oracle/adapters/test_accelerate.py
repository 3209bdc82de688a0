"""The accelerate adapter: says what the recipe states, nothing else, and trains as accelerate's documentation does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from oracle.adapters.accelerate import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import Recipe, from_dict

pytest.importorskip("accelerate")

CONFIGURED = {"accumulation.tail_divisor": "configured"}


def allowed(recipe: Recipe) -> set[str]:
    """The arguments of `Accelerator` that a recipe states."""
    names = {"gradient_accumulation_steps", "cpu"}
    if recipe.precision.dtype != "float32":
        names.add("mixed_precision")
    if recipe.scaler is not None:
        names.add("kwargs_handlers")
    return names


@pytest.fixture
def said(monkeypatch):
    """The arguments that `Accelerator` was given, one dict for each."""
    import accelerate

    seen = []
    original = accelerate.Accelerator.__init__

    def spy(self, *args, **kwargs):
        assert not args
        seen.append(kwargs)
        original(self, **kwargs)

    monkeypatch.setattr(accelerate.Accelerator, "__init__", spy)
    return seen


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"accumulation": 3, "shuffle": True, "clip": {"max_norm": 1.0}, "schedule": {"name": "linear", "warmup": 1}},
        {"precision": {"dtype": "bfloat16"}},
        {"precision": {"dtype": "float16"}, "scaler": {"init_scale": 8.0}},
        {"log": {}, "evaluate": {}, "checkpoint": {"every": 2}},
    ],
)
def test_it_says_only_what_the_recipe_states(train, said, values):
    recipe = from_dict({"updates": 2, **values})
    train("accelerate", "ragged_tail", recipe)
    (arguments,) = said
    assert set(arguments) == allowed(recipe)
    assert arguments["gradient_accumulation_steps"] == recipe.accumulation


@pytest.mark.parametrize(
    ("task", "recipe", "knobs"),
    [
        ("regression", "regression", {}),
        ("ragged_tail", "ragged_tail", CONFIGURED),
        ("ragged_tail", "adamw", CONFIGURED),
        ("tokens", "tokens", {}),
        ("batchnorm", "batchnorm", {}),
        ("decoder", "decoder", {}),
        ("decoder", "shuffle", {}),
        ("decoder", "bfloat16", {}),
    ],
)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(train, reference, recipe_named, task, recipe, knobs):
    recipe = recipe_named(recipe)
    expected = reference(task, recipe, knobs)
    found = train("accelerate", task, recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("accelerate", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("accelerate", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_it_reports_at_the_updates_that_the_recipe_names(train, recipe_named):
    job = train("accelerate", "ragged_tail", recipe_named("evaluate"))
    assert [name for name, _ in job.logged] == ["loss"] * 4
    assert [list(metrics) for metrics in job.metrics] == [["loss", "absolute"]] * 2
    assert sorted(path.name for path in job.workdir.iterdir()) == ["step_2", "step_4"]


def test_a_run_resumed_between_epochs_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("decoder", "checkpoint.every=3")
    whole = train("accelerate", "decoder", recipe).parameters()
    first = interrupted("accelerate", "decoder", recipe, cut=4)
    resumed = train("accelerate", "decoder", recipe, resume_from=first.workdir)
    assert resumed.ids == [[2 * i, 2 * i + 1] for i in range(6)]
    assert all(torch.equal(whole[name], parameter) for name, parameter in resumed.parameters().items())


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"no checkpoint in .* to resume from: state \[checkpoint\] every"):
        train("accelerate", "regression", from_dict({}), resume_from=tmp_path)


def test_values_are_clipped_where_the_recipe_asks_for_it(train, reference):
    recipe = from_dict({"updates": 2, "clip": {"max_value": 0.01}})
    expected = reference("ragged_tail", recipe, CONFIGURED)
    found = train("accelerate", "ragged_tail", recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_what_it_passes_is_told_without_a_run(said):
    recipe = from_dict({"accumulation": 3, "precision": {"dtype": "bfloat16"}})
    told = Adapter().passes(recipe)
    assert set(told) == {f"Accelerator.{name}" for name in allowed(recipe)}
    assert told["Accelerator.gradient_accumulation_steps"] == 3 and not said


def test_an_environment_variable_moves_what_the_recipe_states(train, reference):
    recipe = from_dict({"updates": 2, "batch_size": 2, "accumulation": 4})
    moved = {"environ.ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}
    found = train("accelerate", "regression", recipe, arguments=moved).parameters()
    expected = reference("regression", replace(recipe, accumulation=2), CONFIGURED)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_float16_can_be_made_to_work_on_the_cpu(train, reference):
    recipe = from_dict({"updates": 4, "batch_size": 2, "precision": {"dtype": "float16"}})
    knobs = CONFIGURED | {"precision.loss": "outside_autocast"}
    found = train("accelerate", "regression", recipe, arguments={"float16.on_cpu": True}).parameters()
    expected = reference("regression", recipe, knobs)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    silent = reference("regression", recipe, CONFIGURED | {"precision.compute": "float32"})
    assert not all(torch.equal(silent[name], found[name]) for name in silent)
