"""The Lightning adapter, where Lightning is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.lightning import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import Recipe, from_dict

if importlib.util.find_spec("lightning") is None:
    REASON = "lightning is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

from lightning.pytorch import Trainer

CONFIGURED = {"accumulation.tail_divisor": "configured"}
STEP = {"LRSchedulerConfig.interval": "step"}
EVERY_RUN = {
    "accelerator", "devices", "default_root_dir", "logger", "enable_progress_bar", "enable_model_summary",
    "accumulate_grad_batches",
}  # fmt: skip


def allowed(recipe: Recipe) -> set[str]:
    """The arguments of `Trainer` that a recipe states, those of every run included."""
    names = EVERY_RUN | {"max_steps" if recipe.updates is not None else "max_epochs"}
    if recipe.precision.dtype != "float32":
        names.add("plugins" if recipe.scaler else "precision")
    for table, more in {
        "clip": {"gradient_clip_val", "gradient_clip_algorithm"},
        "log": {"log_every_n_steps"},
        "evaluate": {"val_check_interval", "check_val_every_n_epoch"},
        "checkpoint": {"callbacks"},
    }.items():
        if getattr(recipe, table) is not None:
            names |= more
    return names


@pytest.fixture
def said(monkeypatch):
    """The arguments that `Trainer` was given."""
    seen = {}
    original = Trainer.__init__

    def spy(self, *args, **kwargs):
        assert not args
        seen.update(kwargs)
        original(self, **kwargs)

    monkeypatch.setattr(Trainer, "__init__", spy)
    return seen


@pytest.mark.parametrize(
    "values",
    [
        {"updates": 2},
        {"accumulation": 3, "shuffle": True, "clip": {"max_norm": 1.0}, "schedule": {"name": "linear", "warmup": 1}},
        {"updates": 2, "clip": {"max_value": 1.0}},
        {"updates": 2, "precision": {"dtype": "bfloat16"}},
        {"updates": 2, "precision": {"dtype": "float16"}, "scaler": {"init_scale": 8.0}},
        {"updates": 2, "log": {}, "evaluate": {}, "checkpoint": {"every": 2}},
    ],
)
def test_it_says_only_what_the_recipe_states(train, said, values):
    recipe = from_dict(values)
    train("lightning", "ragged_tail", recipe)
    assert set(said) == allowed(recipe)


def test_what_it_passes_is_told_without_a_run(said):
    recipe = from_dict({"accumulation": 3, "clip": {"max_norm": 1.0}})
    told = Adapter().passes(recipe)
    assert set(told) == {f"Trainer.{name}" for name in allowed(recipe)}
    assert told["Trainer.accumulate_grad_batches"] == 3 and not said


@pytest.mark.parametrize(
    ("task", "recipe", "knobs", "arguments"),
    [
        ("regression", "regression", {}, {}),
        ("ragged_tail", "ragged_tail", CONFIGURED, {}),
        ("tokens", "tokens", {}, {}),
        ("batchnorm", "batchnorm", {}, {}),
        ("decoder", "decoder", {"schedule.cadence": "epoch"}, {}),
        ("decoder", "decoder", {}, STEP),
        ("decoder", "adamw", {}, STEP),
        ("decoder", "shuffle", {}, {}),
        ("decoder", "evaluate", {}, {}),
        ("decoder", "bfloat16", {}, {}),
        ("regression", "float16", {"schedule.on_skip": "advance"}, STEP),
    ],
)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(
    train, reference, recipe_named, task, recipe, knobs, arguments
):
    recipe = recipe_named(recipe)
    expected = reference(task, recipe, knobs)
    found = train("lightning", task, recipe, arguments=arguments).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("lightning", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("lightning", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_values_are_clipped_where_the_recipe_asks_for_it(train, reference):
    recipe = from_dict({"updates": 2, "clip": {"max_value": 0.01}})
    expected = reference("regression", recipe, {})
    found = train("lightning", "regression", recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("arguments", [{}, {"float16.on_cpu": True}])
def test_float16_is_bfloat16_on_the_cpu_unless_it_is_made_to_work(train, reference, arguments):
    recipe = from_dict({"updates": 4, "batch_size": 2, "precision": {"dtype": "float16"}})
    found = train("lightning", "regression", recipe, arguments=arguments).parameters()
    silent = reference("regression", recipe, {"precision.compute": "bfloat16"})
    real = reference("regression", recipe, {})
    for expected, same in ((silent, not arguments), (real, bool(arguments))):
        assert all(torch.equal(expected[name], found[name]) for name in expected) == same


def test_it_reports_at_the_updates_that_the_recipe_names(train, recipe_named):
    job = train("lightning", "decoder", recipe_named("evaluate"))
    assert [name for name, _ in job.logged] == ["loss"] * 4
    assert [list(metrics) for metrics in job.metrics] == [["loss"]] * 2
    assert [path.name for path in job.workdir.iterdir()] == ["epoch=1-step=4.ckpt"]


def test_a_run_resumed_between_epochs_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("ragged_tail", "checkpoint.every=2")
    whole = train("lightning", "ragged_tail", recipe).parameters()
    first = interrupted("lightning", "ragged_tail", recipe, cut=3)
    resumed = train("lightning", "ragged_tail", recipe, resume_from=first.workdir)
    assert resumed.ids == [[2 * i, 2 * i + 1] for i in range(5)]
    assert all(torch.equal(whole[name], parameter) for name, parameter in resumed.parameters().items())


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"no checkpoint in .* to resume from: state \[checkpoint\] every"):
        train("lightning", "regression", from_dict({}), resume_from=tmp_path)
