"""The committed profiles hold what was measured of these trainers by other means, and a run holds it still."""

from __future__ import annotations

import json

import pytest

from oracle.adapters.levers import TABLES
from oracle.cli import main
from oracle.profile.__main__ import index, profiles, stem
from oracle.profile.infer import infer
from oracle.profile.probes import HUGGING, OWN
from oracle.profile.schema import Profile, from_dict
from oracle.tasks import ROOT

FOLDER = ROOT / "docs" / "trainers" / "profiles"

# What all of these trainers do.
ALL = {
    "accumulation.cadence": {"window"},
    "clip.kind": {"norm"},
    "clip.moment": {"unscaled"},
    "gradient.clear": {"after_update"},
    "schedule.cadence": {"update"},
    "schedule.on_skip": {"hold"},
    "schedule.order": {"after_update"},
    ("precision.compute", "float16"): {"float32"},
    ("precision.compute", "bfloat16"): {"as_asked"},
    "rng.loader_draws": {"torch"},
}
TRANSFORMERS = {**ALL, ("data.order", "random_sampler"): {"seeded_epoch"}}
CLIPS_UNASKED = {("max_norm", None): 1.0, ("weight_decay", 0.01): 0.0}
RECENT = {
    **TRANSFORMERS,
    "accumulation.tail": {"flush"},
    "accumulation.tail_count": {"batches"},
    ("accumulation.normalise", "micro_mean"): {"micro_mean"},
    ("accumulation.normalise", "unit_mean"): {"unit_mean"},
    "optimizer.decay_set": {"names"},
    "optimizer.kernel": {"fused"},
    "schedule.horizon": {"ceil"},
}
OLD = {
    **TRANSFORMERS,
    "accumulation.tail": {"carry", "carry_drop"},
    "optimizer.kernel": {"loop"},
    "schedule.horizon": {"floor"},
    "schedule.stop": {"horizon"},
}
ON_LIGHTNING = {
    **{case: values for case, values in ALL.items() if case not in ("schedule.cadence", "schedule.order")},
    ("accumulation.normalise", "micro_mean"): {"micro_mean"},
    ("data.order", "random_sampler"): {"random_sampler"},
    ("precision.compute", "float16"): {"bfloat16"},
    "schedule.horizon": {"ceil"},
    "schedule.on_skip": {"advance"},
}
# By version: knob, (knob, asked) or (knob, asked, model) -> the values that it may have.
KNOWN = {
    "accelerate-1.15.0": {
        **ALL,
        ("accumulation.normalise", "micro_mean"): {"micro_mean"},
        "accumulation.tail": {"flush"},
        "accumulation.tail_divisor": {"configured"},
        ("data.order", "random_sampler"): {"random_sampler"},
        "schedule.horizon": {"ceil"},
    },
    "fabric-2.6.6": {
        **ON_LIGHTNING,
        "accumulation.tail": {"leak"},
        "log.loss": {"window_mean"},
        "model.mode": {"train"},
        "precision.loss": {"outside_autocast"},
        "schedule.cadence": {"update"},
        "schedule.order": {"after_update"},
    },
    "deepspeed-0.19.8": {"accumulation.tail": {"carry_drop"}, "log.loss": {"last_micro"}},
    "fastai-2.8.12": {
        "accumulation.tail": {"carry_drop"},
        "log.loss": {"smoothed"},
        "optimizer.kernel": {"averages"},
        "schedule.cadence": {"fraction"},
        "schedule.formula": {"fraction"},
    },
    "keras-3.15.1": {
        "accumulation.divide": {"gradient"},
        "accumulation.tail": {"carry_drop"},
        "log.loss": {"epoch_mean"},
        "optimizer.epsilon": {"before_correction"},
        "rng.loader_draws": {"twice"},
        "schedule.cadence": {"micro"},
        "schedule.formula": {"float32"},
    },
    "torchtune-0.6.1": {
        "accumulation.divide": {"gradient_reciprocal"},
        "accumulation.sum": {"weighed_means"},
        "accumulation.tail": {"leak"},
    },
    "ignite-0.5.5": {
        **ALL,
        ("accumulation.normalise", "micro_mean"): {"micro_mean"},
        "accumulation.tail": {"carry_drop"},
        ("data.order", "random_sampler"): {"random_sampler"},
        "log.loss": {"last_micro"},
        "schedule.on_skip": {"advance"},
    },
    "lightning-2.6.6": {
        **ON_LIGHTNING,
        "accumulation.tail": {"flush"},
        "accumulation.tail_divisor": {"configured"},
        "log.loss": {"last_micro"},
        "model.mode": {"as_given"},
        "precision.loss": {"inside_autocast"},
        "schedule.cadence": {"epoch"},
    },
    "mmengine-0.10.7": {
        **{case: values for case, values in ALL.items() if case != ("precision.compute", "float16")},
        "accumulation.tail": {"carry"},
        "accumulation.tail_divisor": {"actual"},
        ("data.order", "random_sampler"): {"seeded_epoch"},
        "log.loss": {"last_micro"},
        "schedule.on_skip": {"advance"},
    },
    "skorch-1.4.0": {
        **{case: values for case, values in ALL.items() if case not in ("clip.moment", "gradient.clear")},
        "accumulation.tail": {"leak"},
        ("data.order", "random_sampler"): {"random_sampler"},
        "log.loss": {"last_micro_divided"},
    },
    "transformers-4.45.2": {
        **OLD,
        ("accumulation.normalise", "micro_mean"): {"micro_mean"},
        ("accumulation.normalise", "unit_mean"): {"micro_mean"},
        "accumulation.tail_count": {"batches"},
    },
    "transformers-4.46.3": {
        **OLD,
        ("accumulation.normalise", "micro_mean"): {"sum"},
        ("accumulation.normalise", "unit_mean"): {"unit_mean"},
        "accumulation.counted": {"chunk"},
        "accumulation.tail_count": {"samples"},
        "accumulation.units": {"labels"},
        "optimizer.decay_set": {"no_bias_layer_norm"},
    },
    "transformers-4.54.0": {
        **RECENT,
        "accumulation.tail_divisor": {"configured"},
        "accumulation.units": {"labels"},
        "log.loss": {"configured_mean"},
    },
    "transformers-4.57.6": {**RECENT, "accumulation.tail_divisor": {"actual"}, "accumulation.units": {"labels"}},
    "transformers-5.24.0": {
        **RECENT,
        "accumulation.tail_divisor": {"actual"},
        ("accumulation.units", None, HUGGING): {"task"},
        ("accumulation.units", None, OWN): {"labels"},
    },
}
# Probes of which nothing is claimed: mmengine's autocast raises on a CPU, skorch's casts what the model returns.
UNEXPLAINED = {
    "deepspeed-0.19.8": {"decay and a clip that bites", "float16 that overflows", "nothing stated"},
    "keras-3.15.1": {"a loss of the model's own", "decay and a clip that bites", "evaluation and log"},
    "torchtune-0.6.1": {"data that draws"},
    "mmengine-0.10.7": {"bfloat16", "a loss in bfloat16", "float16 that overflows"},
    "skorch-1.4.0": {"a loss in bfloat16"},
}
MOVED = ("LRSchedulerConfig(interval='step')", "schedule.cadence", "update")
MOVES = {
    ("GradientAccumulationPlugin(sync_with_dataloader=False)", "accumulation.tail", "carry_drop"),
    ("DataLoaderConfiguration(use_seedable_sampler=True)", "data.order", "seeded_epoch"),
    ("Accelerator(step_scheduler_with_optimizer=False)", "schedule.cadence", "micro"),
}


def values(profile: Profile, case: object) -> set[str]:
    """The values that a profile leaves for a case."""
    knob, asked, model = (*case, None, None)[:3] if isinstance(case, tuple) else (case, None, None)
    (entry,) = (e for e in profile.knobs if e.knob == knob and asked in (None, e.asked) and model in (None, e.model))
    return {entry.value} if entry.value else set(entry.left)


def committed(name: str) -> Profile:
    return from_dict(json.loads((FOLDER / f"{name}.json").read_text()))


@pytest.mark.parametrize("name", KNOWN)
def test_a_committed_profile_holds_what_is_known(name):
    profile = committed(name)
    assert {case: values(profile, case) for case in KNOWN[name]} == KNOWN[name]
    assert set(profile.unexplained) == UNEXPLAINED.get(name, set())


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith("transformers")])
def test_transformers_has_numbers_of_its_own(name):
    used = {(number.name, number.recipe): number.trainer for number in committed(name).numbers}
    assert used == CLIPS_UNASKED
    assert all(number.source.kind == "default" for number in committed(name).numbers)


def test_accelerate_s_arguments_move_what_they_carry():
    found = {(move.setting, move.knob, move.after) for move in committed("accelerate-1.15.0").moves}
    assert found >= MOVES


def test_lightning_s_scheduler_moves_with_the_updates_where_its_interval_says_so():
    assert MOVED in {(move.setting, move.knob, move.after) for move in committed("lightning-2.6.6").moves}


def test_the_newest_turns_off_a_cache_that_it_was_given():
    seen = {(c.asked, c.seen) for c in committed("transformers-5.24.0").changes if c.changed and c.subject == "backend"}
    assert seen == {("model.config.use_cache = true", "model.config.use_cache = false")}
    older = committed("transformers-4.57.6").changes
    assert not [change for change in older if change.changed and change.subject == "backend"]


def test_a_batch_that_finds_no_memory_shrinks_where_the_user_asks_for_it():
    tried = [name for name in KNOWN if any(not lever.probe for lever in TABLES[name.rpartition("-")[0]].levers)]
    assert {name.partition("-")[0] for name in tried} >= {"accelerate", "lightning", "transformers"}
    for name in tried:
        rows = {c.setting: c.seen for c in committed(name).changes if c.probes == ("out of memory",)}
        assert rows.pop(None) == "it ends: RuntimeError"
        assert set(rows.values()) <= {"2"}
        assert bool(rows) == name.startswith("transformers")


def test_the_index_is_made_of_the_profiles():
    assert {stem(profile) for profile in profiles(FOLDER)} == set(KNOWN)
    assert (FOLDER / "README.md").read_text() == index(profiles(FOLDER))


@pytest.mark.trainers
@pytest.mark.timeout(1800)
@pytest.mark.sweep
@pytest.mark.parametrize("name", ["accelerate-1.15.0", "lightning-2.6.6", "transformers-4.46.3", "transformers-5.24.0"])
def test_a_run_finds_what_is_known(name):
    trainer, _, version = name.partition("-")
    found = infer(trainer, requirements=(f"{trainer}=={version}",))
    assert {case: values(found, case) for case in KNOWN[name]} == KNOWN[name]
    assert not found.unexplained


@pytest.mark.slow
def test_a_scheduler_that_was_not_prepared_moves_at_every_micro_batch(tmp_path):
    file = tmp_path / "result.json"
    code = main([
        "check", "ragged_tail", "--trainer", str(ROOT / "fixtures/trainers/accelerate_unprepared.py:Unprepared"),
        "--set", "schedule.name=linear", "--set", "schedule.warmup=1", "--json", str(file),
    ])  # fmt: skip
    assert code == 1
    causes = {cause["knob"]: cause["candidate"] for cause in json.loads(file.read_text())["causes"]}
    assert causes["schedule.cadence"] == "micro"
