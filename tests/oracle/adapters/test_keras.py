"""The Keras adapter, where keras is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.keras import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import from_dict

if importlib.util.find_spec("keras") is None:
    REASON = "keras is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

OWN = {
    "accumulation.divide": "gradient",
    "accumulation.tail": "carry_drop",
    "clip.formula": "exact",
    "optimizer.epsilon": "before_correction",
    "optimizer.kernel": "steps",
    "optimizer.velocity": "step",
    "rng.loader_draws": "twice",
    "schedule.cadence": "micro",
    "schedule.formula": "float32",
}
NUMBERS = {"eps": 1e-7}


@pytest.mark.parametrize(
    ("task", "name", "hyper"),
    [
        ("regression", "regression", {}),
        ("ragged_tail", "shuffle", {}),
        ("batchnorm", "batchnorm", {}),
        ("decoder", "decoder", NUMBERS),
        ("decoder", "adamw", NUMBERS),
    ],
)
def test_it_is_the_reference_bit_for_bit_under_its_own_semantics(train, reference, recipe_named, task, name, hyper):
    recipe = recipe_named(name)
    expected = reference(task, recipe, OWN, **hyper)
    found = train("keras", task, recipe).parameters()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_momentum_holds_steps_under_a_schedule(train, reference):
    recipe = from_dict({"updates": 4, "optimizer": {"name": "sgd", "momentum": 0.9}, "schedule": {"name": "linear"}})
    found = train("keras", "regression", recipe).parameters()
    expected = reference("regression", recipe, OWN)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    held = reference("regression", recipe, {**OWN, "optimizer.velocity": "gradient"})
    assert not all(torch.equal(held[name], found[name]) for name in held)


def test_every_number_is_recorded_under_torch_s_names(train):
    seen = {}
    recorder = Recorder(lambda address, value: seen.setdefault(address[2:], value), lambda: None)
    recipe = from_dict({"updates": 2, "accumulation": 2, "optimizer": {"name": "adamw"}, "clip": {"max_norm": 1.0}})
    with recorder:
        train("keras", "regression", recipe, recorder=recorder)
    names = {(address[1], address[2]) for address in seen}
    assert {("optimizer_state", f"weight.{key}") for key in ("step", "exp_avg", "exp_avg_sq")} <= names
    assert {("hyperparameter", f"weight.{key}") for key in ("eps", "betas", "weight_decay")} <= names
    assert ("hyperparameter", "max_norm") in names and ("learning_rate", "weight") in names


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("decoder")
    bare = train("keras", "decoder", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("keras", "decoder", recipe, recorder=recorder).parameters()
    assert recorder.updates == 6
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"to resume from: state \[checkpoint\] every"):
        train("keras", "regression", from_dict({"updates": 1}), resume_from=tmp_path)


def test_what_it_passes_is_told_without_a_run():
    recipe = from_dict(
        {"accumulation": 3, "optimizer": {"name": "adamw", "betas": [0.8, 0.9]}, "clip": {"max_norm": 2}}
    )
    told = Adapter().passes(recipe)
    assert told.pop("AdamW.learning_rate") == recipe.optimizer.lr
    assert told == {
        "AdamW.beta_1": 0.8, "AdamW.beta_2": 0.9, "AdamW.gradient_accumulation_steps": 3, "AdamW.global_clipnorm": 2.0
    }  # fmt: skip
