"""A plan says what will happen, and every value of every knob makes it say something else."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from reference_loop.operations import Backward, Cursor, Evaluate, Fetch, Forward, Grow, Log, Rescale, Schedule, Update
from reference_loop.plan import can_step, plan, planned_updates, windows
from reference_loop.recipe import from_dict
from reference_loop.semantics import KNOBS, Semantics, SemanticsError

# 10 samples in batches of 2: 5 micro-batches an epoch, a window of 4 and one of 1; 9 samples have an incomplete batch.
RICH = from_dict({
    "epochs": 2, "batch_size": 2, "accumulation": 4, "shuffle": True,
    "optimizer": {"name": "adamw", "lr": 0.1}, "schedule": {"name": "linear", "warmup": 1}, "clip": {"max_norm": 1.0},
    "precision": {"dtype": "float16"}, "log": {}, "evaluate": {},
})  # fmt: skip
SAMPLES = 9
SEVERAL = ("clip.moment", "schedule.cadence", "schedule.horizon", "data.order")
"""Knobs of which some value means nothing on one rank, or under seed 0."""


def operations(recipe=RICH, samples=SAMPLES, **changes):
    s = Semantics.of(recipe)
    for name, value in changes.items():
        s = s.with_(name.replace("__", "."), value)
    return list(plan(recipe, s, samples))


@pytest.mark.parametrize(("knob", "value"), [(k.name, v) for k in KNOBS.values() for v in k.values])
def test_every_value_of_every_knob_changes_the_plan(knob, value):
    s = Semantics.of(RICH)
    others = [v for v in KNOBS[knob].values if v != value]
    by_units = knob in ("accumulation.units", "accumulation.counted", "accumulation.sum")
    base = s.with_("accumulation.normalise", "unit_mean") if by_units else s
    recipe, samples = RICH, SAMPLES
    if knob == "accumulation.counted":  # chunks differ where windows cross epochs, what leaked where windows leak
        late = value == "since_update"
        base = base.with_("accumulation.tail", "leak" if late else "carry")
        others = ["window"] if late else [v for v in others if v != "since_update"]
    if knob == "optimizer.velocity":
        recipe = from_dict({**_plain(RICH), "optimizer": {"name": "sgd", "momentum": 0.9}})
    if knob == "optimizer.kernel" and value == "steps":
        recipe, others = from_dict({"optimizer": {"name": "sgd", "momentum": 0.9}}), ["loop", "fused"]
    elif knob == "optimizer.kernel":
        others = [v for v in others if v != "steps"]
    if knob.startswith("reduce.") or knob in ("data.shard", "evaluate.ranks", "log.ranks", "rng.ranks", *SEVERAL):
        recipe, samples = from_dict({**_plain(RICH), "seed": 1, "parallel": {"ranks": 2}}), 22
        base = Semantics.of(recipe)
    if knob == "reduce.units":
        base = base.with_("accumulation.normalise", "unit_mean")
    if knob == "accumulation.tail_count":  # two batches are left of an epoch, and one sample
        recipe, samples = from_dict({**_plain(RICH), "accumulation": 3}), 10
    if knob in ("accumulation.divide", "schedule.stop"):  # a reciprocal of 4 is exact; carrying makes fewer updates
        recipe = from_dict({**_plain(RICH), "accumulation": 3})
        base = base.with_("schedule.horizon", "floor")
    resume = Cursor(1, 0, 4) if knob == "resume.missing" else None
    plans = [list(plan(recipe, base.with_(knob, v), samples, resume)) for v in (value, *others)]
    assert all(plans[0] != other for other in plans[1:])


def _plain(recipe):
    from reference_loop.recipe import to_dict

    return to_dict(recipe)


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_every_value_has_a_motive_and_a_citation(knob):
    for value in knob.values:
        assert knob.motives[value].endswith(".")
        assert cites_a_page(knob.citations[value])


ON_GITHUB = r"github\.com/[\w.-]+/[\w.-]+/((issues|pull)/\d+|blob/[\w.-]+/\S+\.py)"
ELSEWHERE = r"(?!github\.com/)[\w.]+/\S+"


def cites_a_page(url):
    """Whether a citation names a page: a thread, a file or a document, not a project as a whole."""
    return re.fullmatch(f"https://({ON_GITHUB}|{ELSEWHERE})", url) is not None


@pytest.mark.parametrize("url", ["https://github.com/a/b", "http://a.org/b", "https://github.com/a/b/issues/x", "#1"])
def test_a_citation_of_no_page_is_found(url):
    assert not cites_a_page(url)


def test_a_recipe_with_a_typo_in_a_knob_is_told_the_near_miss():
    with pytest.raises(SemanticsError, match=r"did you mean accumulation\.normalise\?"):
        Semantics().with_("accumulation.normalize", "sum")
    with pytest.raises(SemanticsError, match="it is one of micro_mean, unit_mean, sum"):
        Semantics().with_("accumulation.normalise", "mean")


def test_flat_semantics_come_back():
    s = Semantics.of(RICH).with_("clip.moment", "micro")
    assert Semantics.from_flat(s.flat()) == s


def updates(**changes):
    return [op.update for op in operations(**changes) if isinstance(op, Update)]


@pytest.mark.parametrize(
    ("tail", "expected"), [("flush", 4), ("carry", 3), ("carry_drop", 2), ("drop", 2), ("leak", 2)]
)
def test_an_incomplete_window_is_treated_as_the_knob_says(tail, expected):
    assert len(updates(accumulation__tail=tail)) == expected


def test_a_leaked_window_keeps_its_micro_batches_and_the_next_one_goes_on_counting():
    micros = [op.micro for op in operations(accumulation__tail="leak") if isinstance(op, Forward)]
    assert micros == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0]


def test_the_last_window_is_divided_by_what_it_holds_or_by_what_is_configured():
    def divisors(value):
        return [op.divisor.micros for op in operations(accumulation__tail_divisor=value) if isinstance(op, Backward)]

    assert divisors("actual") == [4, 4, 4, 4, 1] * 2
    assert divisors("configured") == [4] * 10


def test_an_update_at_each_micro_batch():
    assert len(updates(accumulation__cadence="micro")) == 10


def test_totals_are_counted_as_the_knob_says():
    s = Semantics()
    counted = {h: planned_updates(RICH, s.with_("schedule.horizon", h), 10) for h in ("ceil", "floor", "micro")}
    assert counted == {"ceil": 4, "floor": 2, "micro": 10}


def test_schedules_move_as_often_as_the_knob_says():
    plans = {cadence: operations(schedule__cadence=cadence) for cadence in ("update", "micro", "epoch")}
    moves = {cadence: sum(isinstance(op, Schedule) for op in found) for cadence, found in plans.items()}
    assert moves == {"update": 4, "micro": 10, "epoch": 2}


def test_growth_is_counted_in_micro_batches_or_in_updates_and_shown_once_an_update():
    def counted(unit):
        found = operations(scaler__unit=unit)
        shown = [op.counts for op in found if isinstance(op, Rescale)]
        return sum(isinstance(op, Grow) for op in found), shown

    assert counted("update") == (0, [True] * 4)
    assert counted("micro") == (10, [False] * 4)


def test_batches_are_fetched_ahead_but_never_across_epochs():
    def fetched_before(position, value):
        done = operations(data__lookahead=value)
        forwards = [i for i, op in enumerate(done) if isinstance(op, Forward)]
        return [(op.epoch, op.index) for op in done[: forwards[position]] if isinstance(op, Fetch)]

    assert fetched_before(0, "none") == [(0, 0)]
    assert fetched_before(0, "one") == [(0, 0), (0, 1)]
    assert fetched_before(0, "window") == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert fetched_before(4, "one")[-1] == (0, 4)


def test_a_run_that_can_never_step_ends():
    recipe = from_dict({"updates": 3, "batch_size": 2, "accumulation": 8})
    s = Semantics.of(recipe).with_("accumulation.tail", "drop")
    assert not can_step(recipe, s, 10)
    assert not [op for op in plan(recipe, s, 10) if isinstance(op, Update)]


def test_a_recipe_that_counts_updates_runs_as_many_epochs_as_it_needs():
    recipe = from_dict({"updates": 5, "batch_size": 2, "accumulation": 4})
    assert len([op for op in plan(recipe, Semantics.of(recipe), 10) if isinstance(op, Update)]) == 5
    assert len(list(islice(windows(recipe, Semantics.of(recipe), 10), 9))) == 9


def test_what_the_recipe_does_not_state_is_not_planned():
    recipe = from_dict({"epochs": 1, "batch_size": 2})
    assert not [op for op in plan(recipe, Semantics.of(recipe), 10) if isinstance(op, (Evaluate, Log))]


@pytest.mark.parametrize(
    ("samples", "accumulation", "indices"),
    [
        (10, 3, [0, 1, 2, 3]),  # 5 batches, 2 left over; 1 sample left over
        (12, 4, [0, 1, 2, 3, 4, 5]),  # no sample left over counts as a whole window
        (9, 4, [0, 1, 2, 3, 4]),
    ],
)
def test_a_last_window_counted_in_samples_leaves_batches_behind_untrained(samples, accumulation, indices):
    recipe = from_dict({"batch_size": 2, "accumulation": accumulation})
    s = Semantics.of(recipe).with_("accumulation.tail_count", "samples")
    assert [op.index for op in plan(recipe, s, samples) if isinstance(op, Forward)] == indices


@pytest.mark.parametrize(
    ("value", "fetched"),
    [("none", [1, 2, 3, 4, 5]), ("one", [2, 3, 4, 5, 5]), ("window", [3, 3, 3, 5, 5]), ("window_one", [4, 4, 4, 5, 5])],
)
def test_lookahead_fetches_batches_before_they_are_trained(value, fetched):
    recipe = from_dict({"batch_size": 2, "accumulation": 3})
    seen, count = [], 0
    for operation in plan(recipe, Semantics.of(recipe).with_("data.lookahead", value), 10):
        count += isinstance(operation, Fetch)
        if isinstance(operation, Forward):
            seen.append(count)
    assert seen == fetched


def test_where_the_loss_is_computed_makes_no_other_plan_without_autocast():
    recipe = from_dict({"updates": 1})
    s = Semantics.of(recipe)
    assert list(plan(recipe, s.with_("precision.loss", "outside_autocast"), 4)) == list(plan(recipe, s, 4))


def test_units_counted_by_chunk_divide_micro_batches_of_one_window_otherwise():
    recipe = from_dict({"epochs": 2, "batch_size": 2, "accumulation": 4})
    s = Semantics.of(recipe).with_("accumulation.normalise", "unit_mean").with_("accumulation.tail", "carry")
    s = s.with_("accumulation.counted", "chunk")
    second = [op.divisor.batches for op in plan(recipe, s, 10) if isinstance(op, Backward) and op.update == 1]
    chunk = tuple((1, index) for index in range(4))
    assert second == [((0, 4),), chunk, chunk, chunk]


RANKED = [
    (knob, value, same)
    for knob, same in {
        "data.shard": "interleave", "evaluate.ranks": "all", "log.ranks": "own", "rng.ranks": "shared",
        "clip.moment": "off",
        "schedule.cadence": "update", "schedule.horizon": "ceil",
        **{name: KNOBS[name].values[0] for name in KNOBS if name.startswith("reduce.")},
    }.items()
    for value in {"clip.moment": ("local",), "schedule.cadence": ("rank",), "schedule.horizon": ("unsharded",)}.get(
        knob, KNOBS[knob].values
    )
]  # fmt: skip


@pytest.mark.parametrize(("knob", "value", "same"), RANKED)
@pytest.mark.parametrize("normalise", ["micro_mean", "unit_mean"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_what_several_ranks_decide_means_nothing_to_one(knob, value, same, normalise, drop_last):
    recipe = from_dict({**_plain(RICH), "drop_last": drop_last})
    s = Semantics.of(recipe).with_("accumulation.normalise", normalise)
    for samples in (8, 9, 17):
        assert list(plan(recipe, s.with_(knob, value), samples)) == list(plan(recipe, s.with_(knob, same), samples))
