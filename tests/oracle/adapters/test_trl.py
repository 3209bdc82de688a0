"""The TRL adapter, where trl is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.trl import Adapter, tokenised
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from oracle.tasks import fixtures
from reference_loop.recipe import from_dict

if importlib.util.find_spec("trl") is None:
    REASON = "trl is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

FULL = {"SFTConfig.bf16": False}


@pytest.mark.parametrize("task", ["llama", str(fixtures() / "probes" / "llama_lora.py")])
def test_in_float32_it_is_the_reference_but_for_rounding(train, reference, recipe_named, task):
    pytest.importorskip("peft")
    recipe = recipe_named("llama")
    expected = reference(task, recipe, {"accumulation.normalise": "unit_mean"})
    found = train("trl", task, recipe, arguments=FULL).parameters()
    assert expected.keys() == found.keys()
    assert all(torch.allclose(expected[name], found[name], rtol=1e-4, atol=1e-6) for name in expected)


def test_it_trains_in_bfloat16_unless_told_otherwise(train, recipe_named):
    recipe = recipe_named("llama", "epochs=1")
    told = train("trl", "llama", recipe, arguments=FULL).parameters()
    silent = train("trl", "llama", recipe).parameters()
    asked = train("trl", "llama", recipe_named("llama", "epochs=1", "precision.dtype=bfloat16")).parameters()
    assert all(torch.equal(silent[name], asked[name]) for name in silent)
    assert not all(torch.equal(silent[name], told[name]) for name in silent)


def test_a_model_that_is_none_of_transformers_is_refused(train):
    with pytest.raises(TrainerError, match="SFTTrainer trains models of transformers, found Linear"):
        train("trl", "regression", from_dict({"updates": 1}))


def test_samples_without_tokens_are_refused():
    with pytest.raises(TrainerError, match="no input_ids"):
        tokenised([{"x": torch.zeros(1)}], "train")


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("llama", "epochs=1")
    bare = train("trl", "llama", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("trl", "llama", recipe, recorder=recorder).parameters()
    assert recorder.updates == 3
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"to resume from: state \[checkpoint\] every"):
        train("trl", "llama", from_dict({"updates": 1}), resume_from=tmp_path)


def test_a_resumed_run_ends_as_if_it_had_not_been_interrupted(train, interrupted, recipe_named):
    recipe = recipe_named("llama", "checkpoint.every=2")
    whole = train("trl", "llama", recipe).parameters()
    first = interrupted("trl", "llama", recipe, cut=3)
    resumed = train("trl", "llama", recipe, resume_from=first.workdir).parameters()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_what_it_passes_has_its_own_class():
    told = Adapter().passes(from_dict({"clip": {"max_norm": 0.5}}))
    assert told["SFTConfig.max_grad_norm"] == 0.5 and told["SFTConfig.dataset_kwargs"] == {"skip_prepare_dataset": True}
