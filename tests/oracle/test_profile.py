"""A profile claims a value only where probes exclude every other."""

from __future__ import annotations

import json

import pytest

from oracle import profile
from oracle.cli import main
from oracle.profile import PROBES, Seen, infer, lines, markdown
from oracle.tasks import list_tasks
from reference_loop.recipe import from_dict
from reference_loop.semantics import KNOBS, Semantics


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


def test_what_a_probe_cannot_tell_apart_is_undetermined_with_what_is_left(healthy):
    found = entry(healthy, "clip.moment")
    assert (found.value, found.status) == (None, "undetermined")
    assert entry(healthy, "scaler.unit").status == "undetermined"


def test_a_fault_shows_in_the_profile():
    found = infer("fixtures/zoo/a_tail_divided_by_k.py:Trainer", probes=["ragged tail"])
    assert entry(found, "accumulation.tail_divisor").value == "configured"
    assert entry(found, "accumulation.tail").value == "flush"


def test_a_trainer_that_nothing_explains_claims_nothing():
    found = infer("fixtures/zoo/b_clears_matrices_only.py:Trainer", probes=["ragged tail"])
    assert found.unexplained
    assert not [one for one in found.knobs if one.status == "confirmed"]


def one(**values):
    """What a probe says that asked for the textbook's value of a knob and saw another, excluding some."""
    seen = Seen()
    for name in KNOBS:
        seen.asked[name] = Semantics().value(name)
        seen.values[name] = Semantics().value(name)
        seen.excluded[name] = set()
    for name, (value, excluded) in values.items():
        seen.values[name.replace("__", ".")], seen.excluded[name.replace("__", ".")] = value, set(excluded)
    return seen


def entries(**seen):
    return {found.knob: found for found in profile._entries(seen)}


def test_probes_exclude_values_together():
    a = one(clip__moment=("unscaled", ["micro", "off"]))
    b = one(clip__moment=("unscaled", ["scaled"]))
    assert entries(a=a)["clip.moment"].status == "undetermined"
    found = entries(a=a, b=b)["clip.moment"]
    assert (found.value, found.status, set(found.probes)) == ("unscaled", "confirmed", {"a", "b"})


def test_probes_that_disagree_make_a_value_depend():
    a = one(data__tail=("keep", ["drop"]))
    b = one(data__tail=("drop", ["keep"]))
    found = entries(a=a, b=b)["data.tail"]
    assert (found.value, found.status) == (None, "depends")
    assert "keep on a" in found.reason
    assert "drop on b" in found.reason


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_is_a_recipe(name):
    task, values = PROBES[name]
    recipe = from_dict(values)
    assert task in list_tasks()
    assert (recipe.epochs or recipe.updates) <= 6  # a probe is short


def test_profiles_are_written_as_text_page_and_json(healthy, tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "PROBES", {"ragged tail": PROBES["ragged tail"]})
    assert "accumulation.tail_divisor" in "\n".join(lines(healthy))
    assert "| `accumulation.tail_divisor` | `actual` | confirmed | ragged tail |" in markdown(healthy, "oracle ...")
    json.dumps(healthy.to_dict())


def test_the_command_refuses_an_unknown_trainer(capsys):
    assert main(["semantics", "--trainer", "transformer"]) == 2
    assert "did you mean 'transformers'?" in capsys.readouterr().err
