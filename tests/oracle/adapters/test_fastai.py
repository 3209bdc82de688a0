"""The fastai adapter, where fastai is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.fastai import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import from_dict

if importlib.util.find_spec("fastai") is None:
    REASON = "fastai is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

OWN = {
    "accumulation.tail": "carry_drop",
    "optimizer.kernel": "averages",
    "schedule.cadence": "fraction",
    "schedule.formula": "fraction",
}
SHUFFLED = {**OWN, "data.order": "python"}
NUMBERS = {"eps": 1e-5, "betas": (0.9, 0.99)}
CASES = [
    ("regression", "regression", OWN, {}),
    ("ragged_tail", "ragged_tail", OWN, {}),
    ("ragged_tail", "shuffle", SHUFFLED, {}),
    ("tokens", "tokens", OWN, {}),
    ("batchnorm", "batchnorm", OWN, {}),
    ("decoder", "decoder", OWN, {**NUMBERS, "weight_decay": 0.0}),
    ("tokens", "adamw", OWN, {"eps": 1e-5, "weight_decay": 0.0}),
]


@pytest.mark.parametrize(("task", "recipe", "knobs", "hyper"), CASES)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(
    train, reference, recipe_named, task, recipe, knobs, hyper
):
    decay = [] if "weight_decay" not in hyper else ["optimizer.weight_decay=0.0"]
    recipe = recipe_named(recipe, *decay)
    expected = reference(task, recipe, knobs, **hyper)
    found = train("fastai", task, recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("fastai", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("fastai", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"to resume from: state \[checkpoint\] every"):
        train("fastai", "regression", from_dict({"updates": 1}), resume_from=tmp_path)


def test_what_it_passes_is_told_without_a_run():
    recipe = from_dict({"optimizer": {"name": "adam", "weight_decay": 0.1, "betas": [0.8, 0.9]}})
    told = Adapter().passes(recipe)
    assert told == {
        "Adam.mom": 0.8, "Adam.sqr_mom": 0.9, "Adam.decouple_wd": False, "Learner.lr": recipe.optimizer.lr,
        "Learner.wd": 0.1,
    }  # fmt: skip


def test_mixed_precision_names_cuda_and_does_nothing_elsewhere(train):
    values = {"updates": 4, "batch_size": 2}
    whole = train("fastai", "regression", from_dict(values)).parameters()
    asked = from_dict({**values, "precision": {"dtype": "bfloat16"}})
    assert all(torch.equal(whole[name], p) for name, p in train("fastai", "regression", asked).parameters().items())


def test_float16_can_be_made_to_work_on_the_cpu_and_skips_count(train, reference):
    recipe = from_dict(
        {"updates": 6, "batch_size": 2, "precision": {"dtype": "float16"}, "scaler": {"init_scale": 16777216.0}}
    )
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        job = train("fastai", "regression", recipe, arguments={"float16.on_cpu": True}, recorder=recorder)
    expected = reference("regression", recipe, {})
    assert recorder.updates == 6
    assert all(torch.equal(expected[name], p) for name, p in job.parameters().items())


def test_a_run_resumed_between_epochs_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("tokens", "checkpoint.every=2")
    whole = train("fastai", "tokens", recipe).parameters()
    first = interrupted("fastai", "tokens", recipe, cut=3)
    resumed = train("fastai", "tokens", recipe, resume_from=first.workdir).parameters()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
