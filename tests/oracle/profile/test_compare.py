"""Two profiles: what differs, what one alone knows, and what the command says."""

from __future__ import annotations

import json

from oracle.cli import main
from oracle.profile.compare import compare, recognises
from oracle.profile.schema import Change, Entry, Number, Profile


def entry(knob, value=None, **more):
    return Entry(knob=knob, value=value, status="confirmed" if value else "undetermined", **more)


def profile(*knobs, version="1", **more):
    return Profile(trainer="t", versions={"python": "3.11", "t": version}, knobs=knobs, **more)


def test_a_profile_is_equal_to_itself():
    one = profile(entry("data.tail", "keep"))
    assert compare(one, one).verdict == "match"


def test_another_value_is_a_difference():
    found = compare(profile(entry("data.tail", "keep")), profile(entry("data.tail", "drop"), version="2"))
    assert (found.verdict, found.reference, found.candidate) == ("diverged", "t 1", "t 2")
    (row,) = found.differences
    assert (row.about, row.name, row.reference, row.candidate) == ("knob", "data.tail", "keep", "drop")


def test_what_one_side_does_not_know_is_no_difference():
    tail, log = entry("data.tail", "keep"), entry("log.loss", "divided")
    found = compare(profile(tail, log), profile(tail))
    assert found.verdict == "match"
    assert [row.name for row in found.unknown] == ["log.loss"]


def test_values_that_are_left_differ_from_one_that_is_not_among_them():
    left = entry("accumulation.tail", left=("carry", "carry_drop"))
    flush, carry = (entry("accumulation.tail", value) for value in ("flush", "carry"))
    assert compare(profile(left), profile(flush)).verdict == "diverged"
    assert not compare(profile(left), profile(carry)).differences


def test_nothing_known_in_common_is_not_a_match():
    assert compare(profile(), profile()).verdict == "not_comparable"


def test_what_one_says_of_every_model_goes_with_what_the_other_says_of_each():
    one = profile(entry("accumulation.units", "labels"))
    two = profile(
        entry("accumulation.units", "labels", model="plain module"), entry("accumulation.units", "task", model="own")
    )
    (row,) = compare(one, two).differences
    assert (row.name, row.reference, row.candidate) == ("accumulation.units (own)", "labels", "task")
    assert not compare(one, two).unknown


def test_a_number_that_is_not_named_is_the_recipe_s():
    one = profile(entry("data.tail", "keep"), numbers=(Number(name="max_norm", recipe=None, trainer=1.0),))
    two = profile(entry("data.tail", "keep"))
    (row,) = compare(one, two).differences
    assert (row.name, row.reference, row.candidate) == ("max_norm (recipe none)", "1.0", "none")
    assert compare(one, one).verdict == "match"


def test_changes_are_compared_under_settings_that_both_have():
    change = Change(subject="batch size", asked="4", seen="2", probes=("p",))
    knob = entry("data.tail", "keep")
    (row,) = compare(profile(knob, changes=(change,)), profile(knob)).differences
    assert (row.name, row.reference, row.candidate) == ("batch size, asked 4", "2", "4")
    special = Change(subject="batch size", asked="4", seen="2", probes=("p",), setting="X=1")
    assert compare(profile(knob, changes=(special,)), profile(knob)).verdict == "match"


def test_the_command_compares_two_files(tmp_path, capsys):
    for name, value in (("a", "keep"), ("b", "drop")):
        (tmp_path / f"{name}.json").write_text(json.dumps(profile(entry("data.tail", value)).to_dict()))
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    assert recognises(tmp_path / "a.json")
    assert main(["diff", a, a]) == 0
    assert main(["diff", a, b]) == 1
    said = capsys.readouterr().out
    assert "DIVERGED: t 1 against t 1: 1 of 1 differ" in said and "data.tail  keep, drop" in said
    assert main(["diff", a, b, "--json", str(tmp_path / "out")]) == 1
    assert json.loads((tmp_path / "out").read_text())["differences"][0]["candidate"] == "drop"


def test_a_profile_of_another_schema_cannot_be_compared(tmp_path, capsys):
    data = profile(entry("data.tail", "keep")).to_dict()
    (tmp_path / "a.json").write_text(json.dumps({**data, "schema": 1}))
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 3
    assert "a profile of schema 1" in capsys.readouterr().err
