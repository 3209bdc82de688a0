"""The mmengine adapter, where mmengine is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.mmengine import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import from_dict

if importlib.util.find_spec("mmengine") is None:
    REASON = "mmengine is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

from mmengine.runner import Runner

CARRIED = {"accumulation.tail": "carry"}
ON_CPU = {"float16.on_cpu": True}
EVERY_RUN = {
    "model", "work_dir", "optim_wrapper", "custom_hooks", "randomness", "train_cfg", "train_dataloader",
}  # fmt: skip


@pytest.fixture
def said(monkeypatch):
    """The arguments that `Runner` was given."""
    seen = {}
    original = Runner.__init__

    def spy(self, *args, **kwargs):
        assert not args
        seen.update(kwargs)
        original(self, **kwargs)

    monkeypatch.setattr(Runner, "__init__", spy)
    return seen


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"accumulation": 2, "shuffle": True, "clip": {"max_norm": 1.0}, "log": {}, "evaluate": {}}, set()),
        ({"schedule": {"name": "linear", "warmup": 1}}, {"param_scheduler"}),
        ({"checkpoint": {"every": 2}}, {"default_hooks"}),
    ],
)
def test_it_says_only_what_the_recipe_states(train, said, values, more):
    recipe = from_dict({"epochs": 1, **values})
    train("mmengine", "ragged_tail", recipe)
    assert set(said) == EVERY_RUN | more
    wrapper = Adapter().passes(recipe)
    assert ("OptimWrapper.clip_grad" in wrapper) == (recipe.clip is not None)
    assert wrapper["OptimWrapper.accumulative_counts"] == recipe.accumulation


@pytest.mark.parametrize(
    ("task", "recipe", "knobs", "arguments"),
    [
        ("regression", "regression", {}, {}),
        ("ragged_tail", "ragged_tail", CARRIED, {}),
        ("tokens", "tokens", {}, {}),
        ("batchnorm", "batchnorm", {}, {}),
        ("decoder", "decoder", {}, {}),
        ("decoder", "adamw", {}, {}),
        ("decoder", "shuffle", {"data.order": "seeded_epoch"}, {}),
        ("decoder", "bfloat16", {}, ON_CPU),
        ("regression", "float16", {"schedule.on_skip": "advance"}, ON_CPU),
    ],
)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(
    train, reference, recipe_named, task, recipe, knobs, arguments
):
    recipe = recipe_named(recipe)
    expected = reference(task, recipe, knobs)
    found = train("mmengine", task, recipe, arguments=arguments).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("mmengine", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("mmengine", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"no checkpoint in .* to resume from: state \[checkpoint\] every"):
        train("mmengine", "regression", from_dict({}), resume_from=tmp_path)


def test_values_are_clipped_where_the_recipe_asks_for_it(train, reference):
    recipe = from_dict({"updates": 2, "clip": {"max_value": 0.01}})
    expected = reference("regression", recipe, {})
    found = train("mmengine", "regression", recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_reduced_precision_is_refused_by_mmengine_on_the_cpu(train, recipe_named):
    with pytest.raises(AssertionError, match="only available training"):
        train("mmengine", "decoder", recipe_named("bfloat16"))


def test_it_reports_at_the_updates_that_the_recipe_names(train, recipe_named):
    job = train("mmengine", "ragged_tail", recipe_named("evaluate", "epochs=1", "accumulation=1"))
    assert [name for name, _ in job.logged] == ["loss"] * 5
    assert [list(metrics) for metrics in job.metrics] == [["loss", "absolute"]] * 2
    assert [path.name for path in sorted(job.workdir.glob("*.pth"))] == ["iter_2.pth", "iter_4.pth", "iter_5.pth"]
