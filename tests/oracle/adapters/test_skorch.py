"""The skorch adapter, where skorch is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.skorch import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import from_dict

if importlib.util.find_spec("skorch") is None:
    REASON = "skorch is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

from skorch import NeuralNet

LEAKED = {"accumulation.tail": "leak"}
ON_CPU = {"float16.on_cpu": True}
EVERY_RUN = {
    "criterion", "callbacks", "device", "max_epochs", "train_split", "batch_size", "iterator_train__shuffle",
    "iterator_train__drop_last", "iterator_train__num_workers", "optimizer", "lr",
}  # fmt: skip


@pytest.fixture
def said(monkeypatch):
    """The arguments that `NeuralNet` was given."""
    seen = {}
    original = NeuralNet.__init__

    def spy(self, module, **kwargs):
        seen.update(kwargs)
        original(self, module, **kwargs)

    monkeypatch.setattr(NeuralNet, "__init__", spy)
    return seen


def test_it_says_only_what_the_recipe_states(train, said):
    recipe = from_dict({"updates": 2, "optimizer": {"name": "adamw", "weight_decay": 0.1}, "log": {}})
    train("skorch", "ragged_tail", recipe)
    assert set(said) == EVERY_RUN | {"optimizer__weight_decay"}
    told = Adapter().passes(recipe)
    assert set(told) == {f"NeuralNet.{name}" for name in set(said) - {"criterion", "callbacks", "device"}}


@pytest.mark.parametrize(
    ("task", "recipe", "knobs", "arguments"),
    [
        ("regression", "regression", {}, {}),
        ("ragged_tail", "ragged_tail", LEAKED, {}),
        ("tokens", "tokens", {}, {}),
        ("batchnorm", "batchnorm", {}, {}),
        ("decoder", "decoder", {"clip.moment": "off"}, {}),
        ("decoder", "shuffle", {}, {}),
    ],
)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(
    train, reference, recipe_named, task, recipe, knobs, arguments
):
    recipe = recipe_named(recipe)
    expected = reference(task, recipe, knobs)
    found = train("skorch", task, recipe, arguments=arguments).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("skorch", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("skorch", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"no checkpoint in .* to resume from: state \[checkpoint\] every"):
        train("skorch", "regression", from_dict({}), resume_from=tmp_path)


def test_a_step_is_clipped_where_skorch_itself_makes_it(train, reference):
    recipe = from_dict({"updates": 3, "clip": {"max_norm": 0.01}, "schedule": {"name": "linear", "warmup": 1}})
    expected = reference("regression", recipe, {})
    found = train("skorch", "regression", recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_it_reports_at_the_updates_that_the_recipe_names(train, recipe_named):
    job = train("skorch", "decoder", recipe_named("evaluate"))
    assert [name for name, _ in job.logged] == ["loss"] * 4
    assert [list(metrics) for metrics in job.metrics] == [["loss", "perplexity"]] * 2
    assert sorted(path.name for path in job.workdir.iterdir()) == ["step_2", "step_4"]


def test_a_run_resumed_between_epochs_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("regression", "checkpoint.every=1")
    whole = train("skorch", "regression", recipe).parameters()
    first = interrupted("skorch", "regression", recipe, cut=3)
    resumed = train("skorch", "regression", recipe, resume_from=first.workdir)
    assert len(resumed.ids) == 16
    assert all(torch.equal(whole[name], parameter) for name, parameter in resumed.parameters().items())
