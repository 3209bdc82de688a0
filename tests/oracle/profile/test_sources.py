"""A value's source: an argument's default, what the adapter passes, the user's loop, or no argument at all."""

from __future__ import annotations

import sys

import pytest

from oracle.adapters.levers import TABLES
from oracle.processes import pinned
from oracle.profile import signatures
from oracle.profile.probes import PROBES
from oracle.profile.schema import Source
from oracle.profile.signatures import Signatures
from oracle.profile.sources import Sources
from reference_loop.semantics import KNOBS

DEFAULTS = {
    "TrainingArguments.optim": "'adamw_torch_fused'",
    "TrainingArguments.fp16": "False",
    "TrainingArguments.dataloader_drop_last": "False",
}
PASSED = ({"TrainingArguments.dataloader_drop_last": "False", "TrainingArguments.fp16": "True"}, {})


@pytest.fixture
def sources():
    return Sources("transformers", Signatures(DEFAULTS, PASSED), ("a", "b"))


def test_an_argument_that_is_not_passed_is_a_default(sources):
    found = sources.of("optimizer.kernel", "fused", ["a"], asked=False)
    assert found == Source(kind="default", name="TrainingArguments.optim", value="'adamw_torch_fused'")


def test_an_argument_that_is_passed_is_one(sources):
    found = sources.of("data.tail", "keep", ["a"], asked=True)
    assert found == Source(kind="argument", name="TrainingArguments.dataloader_drop_last", value="False")


def test_what_is_done_otherwise_than_passed_is_hidden(sources):
    assert sources.of("precision.compute", "float32", ["a"], asked=False) == Source(kind="hidden")


def test_a_probe_under_a_setting_has_the_arguments_of_the_probe(sources):
    found = sources.of("data.tail", "keep", ["a, with X=1"], asked=True)
    assert found.kind == "argument"


def test_what_no_argument_carries_is_hidden(sources):
    assert sources.of("accumulation.normalise", "sum", ["a"], asked=False) == Source(kind="hidden")


def test_what_the_adapter_does_for_want_of_an_argument_is_said(sources):
    found = sources.of("data.order", "sequential", ["a"], asked=True)
    assert (found.kind, found.name) == ("argument", "Trainer._get_train_sampler")


def test_a_variable_stands_for_an_argument_that_is_not_passed():
    told = Signatures({"Accelerator.mixed_precision": "None"}, ({},))
    found = Sources("accelerate", told, ("a",), {"ACCELERATE_MIXED_PRECISION": "bf16"})
    expected = Source(kind="variable", name="ACCELERATE_MIXED_PRECISION", value="bf16")
    assert found.of("precision.compute", "bfloat16", ["a"], asked=False) == expected
    assert Sources("accelerate", told, ("a",)).of("precision.compute", "x", ["a"], asked=False).kind == "default"


def test_the_user_s_loop_is_no_secret():
    found = Sources("accelerate", Signatures({"Accelerator.mixed_precision": "None"}, ({},)), ("a",))
    assert found.of("gradient.clear", "after_update", ["a"], asked=True) == Source(kind="loop")


def test_of_what_cannot_be_read_no_source_is_claimed():
    assert Sources("transformers", Signatures(), ()).of("optimizer.kernel", "fused", ["a"], asked=False) is None


@pytest.mark.parametrize("trainer", TABLES)
def test_tables_name_knobs_values_and_probes_that_exist(trainer):
    table = TABLES[trainer]
    for name in (*table.carries, *table.chosen, *table.loop):
        knob, _, value = name.partition(" = ")
        assert knob.startswith("hyperparameter.") or knob in KNOBS
        assert not value or value in KNOBS[knob].values
    for names in table.carries.values():
        assert all(name.rpartition(".")[0] in table.classes for name in names)
    for lever in table.levers:
        assert lever.probe in ("", *PROBES)
        assert set(lever.proves) <= set(KNOBS)


def test_defaults_and_what_is_passed_are_read_where_the_trainer_lives():
    recipe = {"updates": 1, "accumulation": 3, "precision": {"dtype": "bfloat16"}}
    found = signatures.read("accelerate", [recipe], sys.executable, pinned(1))
    assert found.defaults["GradientAccumulationPlugin.sync_with_dataloader"] == "True"
    assert found.passed[0]["Accelerator.gradient_accumulation_steps"] == "3"
    assert found.passed[0]["Accelerator.mixed_precision"] == "'bf16'"


def test_a_trainer_that_cannot_be_imported_has_no_signatures(tmp_path):
    environment = {**pinned(1), "PYTHONPATH": str(tmp_path)}
    (tmp_path / "accelerate.py").write_text("raise ImportError")
    assert signatures.read("accelerate", [], sys.executable, environment) == Signatures()
