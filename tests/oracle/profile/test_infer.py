"""A profile claims a value only where probes exclude every other."""

from __future__ import annotations

import json

import pytest

from oracle.cli import main
from oracle.profile.infer import infer, said
from oracle.profile.look import SEARCHED
from oracle.profile.probes import NEEDS, PROBES
from oracle.profile.schema import from_dict as profile_from_dict
from oracle.tasks import load_task
from reference_loop.recipe import from_dict
from reference_loop.semantics import KNOBS


def entry(found, knob, asked=None):
    return next(entry for entry in found.knobs if entry.knob == knob and entry.asked == asked)


@pytest.fixture(scope="module")
def healthy():
    return infer("fixtures/zoo/healthy/loop.py:Trainer", probes=["ragged tail"])


def test_a_plain_loop_has_the_textbooks_semantics(healthy):
    found = entry(healthy, "accumulation.tail_divisor")
    assert (found.value, found.status, found.probes) == ("actual", "confirmed", ("ragged tail",))
    assert entry(healthy, "accumulation.tail").value == "flush"
    assert entry(healthy, "schedule.horizon").value == "ceil"


def test_what_a_probe_cannot_tell_apart_is_undetermined_with_what_it_takes(healthy):
    found = entry(healthy, "clip.moment")
    assert (found.value, found.status) == (None, "undetermined")
    assert NEEDS["clip.moment"] in found.reason
    assert entry(healthy, "scaler.unit").status == "undetermined"


def test_what_was_asked_was_seen(healthy):
    assert not [change for change in healthy.changes if change.changed]
    assert {change.subject for change in healthy.changes} == {
        "batch size", "accumulation", "precision", "device", "backend", "sampler",
    }  # fmt: skip


def test_of_a_file_no_source_is_known(healthy):
    assert not [found for found in healthy.knobs if found.source]


def test_a_profile_survives_its_file(healthy):
    assert profile_from_dict(json.loads(json.dumps(healthy.to_dict()))) == healthy


def test_a_fault_shows_in_the_profile():
    found = infer("fixtures/zoo/a_tail_divided_by_k.py:Trainer", probes=["ragged tail"])
    assert entry(found, "accumulation.tail_divisor").value == "configured"
    assert entry(found, "accumulation.tail").value == "flush"


def test_a_trainer_that_nothing_explains_claims_nothing():
    found = infer("fixtures/zoo/b_clears_matrices_only.py:Trainer", probes=["ragged tail"])
    assert found.unexplained
    assert not [one for one in found.knobs if one.status == "confirmed"]


def test_a_probe_whose_package_is_missing_is_left_out(monkeypatch):
    found = infer("fixtures/zoo/healthy/loop.py:Trainer", probes=["labels of a causal model", "last batch incomplete"])
    lacking = found.skipped.get("labels of a causal model", "it was there")
    assert lacking in ("its task needs transformers, which this environment lacks", "it was there")
    assert entry(found, "data.tail").value == "keep"


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_is_a_recipe(name):
    probe = PROBES[name]
    recipe = from_dict(dict(probe.recipe))
    assert load_task(probe.file).name == probe.task
    assert (recipe.epochs or recipe.updates) <= 6  # a probe is short
    assert set(probe.separates) <= set(KNOBS)


def test_every_knob_has_a_probe_that_is_there_for_it():
    meant = {knob for probe in PROBES.values() for knob in probe.separates}
    assert set(SEARCHED) - meant <= {"accumulation.cadence", "optimizer.velocity"}
    assert set(NEEDS) <= set(KNOBS)


def test_settings_are_written_as_a_user_writes_them():
    assert said({"Accelerator.cpu": True}) == "Accelerator(cpu=True)"
    assert said({"environ.ACCELERATE_MIXED_PRECISION": "bf16"}) == "ACCELERATE_MIXED_PRECISION=bf16"
    assert said({"float16.on_cpu": True}) == "float16 made to work on the CPU"
    assert said({}) == ""


def test_the_command_refuses_an_unknown_trainer(capsys):
    assert main(["semantics", "--trainer", "transformer"]) == 2
    assert "did you mean 'transformers'?" in capsys.readouterr().err
