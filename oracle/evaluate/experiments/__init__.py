"""What is run: each experiment by name, and what it takes; checks read what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oracle.evaluate.experiments import interruption, profiling, runs, settings, timing
from oracle.evaluate.scenario import Scenario
from oracle.evaluate.session import Session
from oracle.tasks import fixtures

SGD = {"name": "sgd", "lr": 0.05}
OFF = {"max_norm": "inf"}

CLOSED_FORM = {
    "epochs": 2, "batch_size": 2, "accumulation": 3, "optimizer": SGD, "clip": OFF, "log": {},
    "schedule": {"name": "linear", "warmup": 2},
}  # fmt: skip
"""On `regression`: 16 samples make windows of 3, 3 and 2 micro-batches, an epoch."""

REPORTS = {
    "updates": 6, "batch_size": 2, "accumulation": 3, "optimizer": SGD, "clip": OFF, "log": {},
    "evaluate": {"every": 2},
}  # fmt: skip
UNSAID = {"updates": 4, "batch_size": 2, "shuffle": True, "optimizer": {"name": "adamw", "lr": 0.01}}
RESUMED = {
    "epochs": 3, "batch_size": 3, "accumulation": 2, "shuffle": True, "optimizer": {"name": "adamw", "lr": 0.01},
    "clip": OFF, "schedule": {"name": "linear", "warmup": 2}, "checkpoint": {"every": 1},
}  # fmt: skip
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "accumulation": {"accumulation": 3},
    "bfloat16": {"precision": {"dtype": "bfloat16"}},
    "float16": {"precision": {"dtype": "float16"}},
    "clip": {"clip": {"max_norm": 0.5}},
    "schedule": {"schedule": {"name": "cosine", "warmup": 2}},
    "shuffle": {"shuffle": True},
    "workers": {"workers": 2},
}
"""What is switched on alone, on top of the scenario's recipe."""

LOGGED = ("closed form", "unsaid", "with float16")
"""Runs whose output is searched for words on the settings that acted."""

TIMED = {"batch_size": 64, "optimizer": {"name": "sgd", "lr": 0.001}, "clip": OFF}
PROCESSES = 3  # of each side, in every timing
# name: task, what is added, updates to warm up, updates a block
TIMINGS: Mapping[str, tuple[str, Mapping[str, Any], int, int]] = {
    "small": ("small", {}, 60, 40),
    "medium": ("medium", {}, 20, 12),
    "large": ("large", {}, 8, 3),
    "accumulation": ("medium", {"accumulation": 4}, 8, 4),
    "workers": ("medium", {"workers": 2}, 20, 12),
}
RANKS = 2
"""How many ranks a run on several has."""
SHARED = {**TIMED, "batch_size": 256}
"""Enough work for a rank that exchanging gradients does not take most of the time."""


@dataclass(frozen=True)
class Experiment:
    """Something that is run once, and whose result lies in one artifact.

    seconds: what it takes on two cores of a 2024 server, about; a budget is laid out by it.
    """

    seconds: float
    make: Callable[[Session], dict[str, Any]]


def experiments(scenario: Scenario) -> dict[str, Experiment]:
    """All of them for a scenario, by the name of their artifact."""
    plain = dict(scenario.recipe)
    found = {
        "closed form": _run("closed form", "regression", CLOSED_FORM),
        "reports": _run("reports", "decoder", REPORTS),
        "every second": _run("every second", "decoder", {**REPORTS, "log": {"every": 2}}),
        "unsaid": _run("unsaid", "decoder", UNSAID),
        "plain": _run("plain", scenario.task, plain),
        **{
            f"seed {seed}": _run(f"seed {seed}", scenario.task, {**plain, "seed": seed}, explain=False)
            for seed in seeds(scenario)[1:]
        },
        **{
            f"with {name}": _run(f"with {name}", scenario.task, {**plain, **option}) for name, option in OPTIONS.items()
        },
        "ranks": _run("ranks", scenario.task, {**plain, "parallel": {"ranks": RANKS}}),
        "resume": Experiment(25, lambda session: interruption.interrupted(session, "decoder", RESUMED, ("3", "2"))),
        "profile": Experiment(60, profiling.profiled),
        "settings": Experiment(5, lambda session: settings.passed(session, recipes(scenario))),
    }
    folder = fixtures()
    for name, (task, more, warmup, block) in TIMINGS.items():
        found[f"time {name}"] = _timed(f"{folder}/evaluation/{task}.py", {**TIMED, **more}, warmup, block)
    for name, ranks in (("one rank", 1), ("ranks", RANKS)):
        spread = {**SHARED, "parallel": {"ranks": ranks}}
        found[f"speed on {name}"] = _timed(f"{folder}/evaluation/large.py", spread, 4, 2)
    return found


def seeds(scenario: Scenario) -> tuple[int, ...]:
    """The seeds that a scenario is run with, its recipe's own first."""
    first = scenario.asked.seed
    return tuple(range(first, first + scenario.settings.seeds))


def recipes(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """What `settings` compares: a recipe without a feature as "", and for each feature the recipe with it."""
    plain = dict(scenario.recipe)
    features: Mapping[str, Mapping[str, Any]] = {
        "training": {},
        "validation": {"evaluate": {"every": 2}},
        "logging": {"log": {}},
        "resume": {"checkpoint": {"every": 1}},
        "mixed_precision": OPTIONS["bfloat16"],
        "accumulation": OPTIONS["accumulation"],
    }
    return {"": plain, **{name: {**plain, **more} for name, more in features.items()}}


def _run(name: str, task: str, recipe: Mapping[str, Any], explain: bool = True) -> Experiment:
    asked = dict(recipe)
    return Experiment(
        8 if explain else 5, lambda session: runs.run(session, name.replace(" ", "-"), task, asked, explain)
    )


def _timed(task: str, recipe: Mapping[str, Any], warmup: int, block: int) -> Experiment:
    asked = dict(recipe)
    return Experiment(55, lambda session: timing.timed(session, task, asked, warmup, block, PROCESSES))
