"""The torchtune adapter, where torchtune is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.torchtune import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import from_dict

if importlib.util.find_spec("torchtune") is None:
    REASON = "torchtune is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

OWN = {
    "accumulation.counted": "since_update",
    "accumulation.divide": "gradient_reciprocal",
    "accumulation.normalise": "unit_mean",
    "accumulation.sum": "weighed_means",
    "accumulation.tail": "leak",
    "data.tail": "drop",
    "schedule.horizon": "floor",
}
LABELS = {**OWN, "accumulation.units": "labels"}
CASES = [
    ("regression", "regression", OWN),
    ("ragged_tail", "ragged_tail", OWN),
    ("ragged_tail", "shuffle", {**OWN, "data.order": "unseeded_epoch"}),
    ("tokens", "tokens", OWN),
    ("batchnorm", "batchnorm", OWN),
    ("decoder", "decoder", LABELS),
    ("shifted", "shifted", LABELS),
    ("decoder", "adamw", LABELS),
]


@pytest.mark.parametrize(("task", "recipe", "knobs"), CASES)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(train, reference, recipe_named, task, recipe, knobs):
    recipe = recipe_named(recipe)
    expected = reference(task, recipe, knobs)
    found = train("torchtune", task, recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_labels_that_a_shifted_loss_never_uses_are_counted(train, reference, recipe_named):
    recipe = recipe_named("shifted")
    found = train("torchtune", "shifted", recipe).parameters()
    targets = reference("shifted", recipe, OWN)
    assert not all(torch.allclose(targets[name], found[name]) for name in targets)


def test_it_logs_the_mean_over_the_labels_of_the_window(train):
    job = train("torchtune", "tokens", from_dict({"updates": 2, "accumulation": 2, "log": {"every": 1}}))
    assert len(job.logged) == 2 and all(name == "loss" for name, _ in job.logged)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("torchtune", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("torchtune", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_an_epoch_shorter_than_a_window_is_refused(train):
    with pytest.raises(TrainerError, match="an epoch has no whole window"):
        train("torchtune", "ragged_tail", from_dict({"updates": 1, "accumulation": 6}))


def test_it_saves_behind_epochs_alone(train):
    asked = from_dict({"updates": 2, "accumulation": 2, "checkpoint": {"every": 1}})
    with pytest.raises(TrainerError, match="saves behind each epoch: set it to 2"):
        train("torchtune", "ragged_tail", asked)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"to resume from: state \[checkpoint\] every"):
        train("torchtune", "regression", from_dict({"updates": 1}), resume_from=tmp_path)


def test_a_run_resumed_between_epochs_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("tokens", "checkpoint.every=2")
    whole = train("torchtune", "tokens", recipe).parameters()
    first = interrupted("torchtune", "tokens", recipe, cut=3)
    resumed = train("torchtune", "tokens", recipe, resume_from=first.workdir).parameters()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"precision": {"dtype": "bfloat16"}}, "has no autocast"),
        ({"clip": {"max_value": 1.0}}, "clips by norm alone"),
        ({"parallel": {"ranks": 2}}, "trains in one process"),
    ],
)
def test_what_it_does_not_have_is_refused(values, words):
    assert words in Adapter().refuse(from_dict(values))


def test_what_it_passes_is_told_without_a_run():
    told = Adapter().passes(from_dict({"optimizer": {"name": "adamw", "betas": [0.8, 0.9]}, "clip": {"max_norm": 2.0}}))
    assert told["config.clip_grad_norm"] == 2.0
    assert told["config.optimizer"] == {"_component_": "torch.optim.AdamW", "lr": 0.1, "betas": [0.8, 0.9]}
