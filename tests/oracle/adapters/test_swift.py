"""The ms-swift adapter, where ms-swift is installed; `test_versions.py` runs this file in a layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch

from oracle.adapters.swift import Adapter
from oracle.errors import TrainerError
from oracle.recorder.probes import Recorder
from reference_loop.recipe import from_dict

if importlib.util.find_spec("swift") is None:
    REASON = "ms-swift is not installed here: the tests of its adapter are SKIPPED; `make slow` runs them in a layer"
    warnings.warn(REASON, stacklevel=1)
    pytest.skip(REASON, allow_module_level=True)

def test_it_is_the_reference_but_for_rounding_and_a_decay_that_nobody_asked_for(train, reference, recipe_named):
    asked = recipe_named("llama", "optimizer.weight_decay=0.1")
    expected = reference("llama", asked, {"optimizer.decay_set": "names"})
    found = train("swift", "llama", recipe_named("llama")).parameters()
    assert all(torch.allclose(expected[name], found[name], rtol=1e-4, atol=1e-6) for name in expected)
    plain = reference("llama", recipe_named("llama"), {})
    assert not all(torch.allclose(plain[name], found[name], rtol=1e-4, atol=1e-6) for name in plain)


def test_a_model_that_is_none_of_transformers_is_refused(train):
    with pytest.raises(TrainerError, match="Seq2SeqTrainer trains models of transformers, found Linear"):
        train("swift", "regression", from_dict({"updates": 1}))


def test_probes_are_invisible(train, recipe_named):
    recipe = recipe_named("llama", "epochs=1")
    bare = train("swift", "llama", recipe).parameters()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with recorder:
        watched = train("swift", "llama", recipe, recorder=recorder).parameters()
    assert recorder.updates == 3
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_a_run_without_a_checkpoint_cannot_be_resumed(train, tmp_path):
    with pytest.raises(TrainerError, match=r"to resume from: state \[checkpoint\] every"):
        train("swift", "llama", from_dict({"updates": 1}), resume_from=tmp_path)


def test_what_it_passes_has_its_own_class():
    told = Adapter().passes(from_dict({"clip": {"max_norm": 0.5}}))
    assert told["Seq2SeqTrainingArguments.max_grad_norm"] == 0.5
    assert told["Seq2SeqTrainingArguments.check_model"] is False
