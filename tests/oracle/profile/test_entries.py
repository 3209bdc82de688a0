"""What probes prove together: the values that none of them excludes."""

from __future__ import annotations

from oracle.profile.entries import entries
from oracle.profile.look import SEARCHED, Seen
from oracle.profile.probes import OWN, PLAIN
from oracle.profile.signatures import Signatures
from oracle.profile.sources import Sources
from reference_loop.semantics import Semantics

NO_SOURCES = Sources("file.py:T", Signatures(), ())


def one(model=PLAIN, asked=None, **values):
    """What a probe says that saw a value of a knob and excluded some."""
    seen = Seen(model=model)
    for name in SEARCHED:
        seen.asked[name] = (asked or {}).get(name, Semantics().value(name))
        seen.values[name] = Semantics().value(name)
        seen.excluded[name], seen.equal[name] = set(), set()
    for name, (value, excluded) in values.items():
        knob = name.replace("__", ".")
        seen.values[knob], seen.excluded[knob] = value, set(excluded)
    return seen


def found(knob, **seen):
    return [entry for entry in entries(seen, NO_SOURCES) if entry.knob == knob]


def test_probes_exclude_values_together():
    a = one(clip__moment=("unscaled", ["micro", "off"]))
    b = one(clip__moment=("unscaled", ["scaled"]))
    (alone,) = found("clip.moment", a=a)
    assert (alone.status, alone.left) == ("undetermined", ("unscaled", "scaled"))
    (both,) = found("clip.moment", a=a, b=b)
    assert (both.value, both.status, set(both.probes)) == ("unscaled", "confirmed", {"a", "b"})


def test_a_probe_that_excludes_nothing_says_nothing():
    (entry,) = found("data.tail", a=one())
    assert (entry.value, entry.status, entry.left) == (None, "undetermined", ())


def test_a_value_that_is_equal_on_one_probe_does_not_speak_against_another():
    """Where a window holds one micro-batch, a sum is a mean."""
    k1 = one(accumulation__normalise=("micro_mean", ["unit_mean"]))
    k4 = one(accumulation__normalise=("sum", ["micro_mean", "unit_mean", "twice", "unit_mean_twice"]))
    (entry,) = found("accumulation.normalise", a=k1, b=k4)
    assert (entry.value, entry.status) == ("sum", "confirmed")


def test_probes_that_disagree_make_a_value_depend():
    a = one(data__tail=("keep", ["drop"]))
    b = one(data__tail=("drop", ["keep"]))
    (entry,) = found("data.tail", a=a, b=b)
    assert (entry.value, entry.status) == (None, "depends")
    assert "keep on a" in entry.reason and "drop on b" in entry.reason


def test_models_of_two_kinds_that_are_trained_otherwise_are_told_apart():
    a = one(PLAIN, accumulation__units=("labels", ["task", "samples"]))
    b = one(OWN, accumulation__units=("task", ["labels", "samples"]))
    by_model = {entry.model: entry.value for entry in found("accumulation.units", a=a, b=b)}
    assert by_model == {PLAIN: "labels", OWN: "task"}


def test_a_value_stands_for_what_was_asked():
    private = ["seeded_epoch", "unseeded_epoch", "same_every_epoch", "python"]
    a = one(data__order=("sequential", ["random_sampler", *private]))
    b = one(
        asked={"data.order": "random_sampler"},
        data__order=("seeded_epoch", ["sequential", "random_sampler", "unseeded_epoch", "same_every_epoch", "python"]),
    )
    asked = {entry.asked: entry.value for entry in found("data.order", a=a, b=b)}
    assert asked == {"sequential": "sequential", "random_sampler": "seeded_epoch"}


def test_the_type_that_is_asked_for_has_two_names_and_float32_is_not_asked_for():
    a = one(asked={"precision.compute": "bfloat16"}, precision__compute=("as_asked", ["float32"]))
    b = one(asked={"precision.compute": "float32"})
    (entry,) = found("precision.compute", a=a, b=b)
    assert (entry.value, entry.status) == ("as_asked", "confirmed")


def test_what_cannot_be_explained_says_nothing():
    silent = Seen(model=PLAIN, gap="update 0, consume: gradient w")
    assert all(entry.status == "undetermined" for entry in entries({"a": silent}, NO_SOURCES))
