"""Which single decisions could explain a difference: those whose plan departs no later than it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, zip_longest
from math import inf

from oracle.replays import Reading
from reference_loop.operations import Operation
from reference_loop.plan import plan
from reference_loop.semantics import KNOBS

Option = tuple[str, str]
"""A knob and a value for it."""

# Knobs whose effects meet in one moment, so that two of them may have to change together.
RELATED: dict[str, tuple[str, ...]] = {
    "batch": ("data", "accumulation.tail", "accumulation.cadence", "schedule.stop", "rng"),
    "forward": ("precision", "model", "evaluate", "rng", "data.lookahead", "accumulation.normalise"),
    "backward": ("accumulation", "gradient", "clip", "precision"),
    "consume": ("accumulation", "gradient", "clip", "schedule", "scaler"),
    "update": ("optimizer", "scaler", "evaluate"),
    "schedule": ("schedule",),
    "evaluate": ("evaluate", "metric", "model"),
    "log": ("log", "accumulation.normalise"),
}


def options(reading: Reading, samples: int, through: int) -> list[Option]:
    """Every knob value other than the reading's whose plan departs from its plan by update `through`.

    Of several values that mean the same plan, the first stands for all.
    Style knobs come first, so that they win where a semantic one does no better.
    """
    known = _operations(reading, samples)
    found: list[Option] = []
    plans = [known]
    for style in (True, False):
        for name, knob in KNOBS.items():
            if name == "resume.missing" or (knob.effect == "style") != style:
                continue
            for value in knob.values:
                if value == reading.semantics.value(name):
                    continue
                other = _operations(reading.with_knob(name, value), samples)
                if _departs(known, other) <= through and other not in plans:
                    plans.append(other)
                    found.append((name, value))
    return found


def pairs(single: list[Option], moment: str) -> Iterator[tuple[Option, Option]]:
    """Two options at once, of different knobs that both act at `moment`."""
    related = RELATED.get(moment, ())
    near = [option for option in single if any(option[0].startswith(prefix) for prefix in related)]
    return ((a, b) for a, b in combinations(near, 2) if a[0] != b[0])


def _operations(reading: Reading, samples: int) -> list[Operation]:
    return list(plan(reading.recipe, reading.semantics, samples))


def _departs(known: list[Operation], other: list[Operation]) -> float:
    """The update in which two plans begin to differ; infinite if they are one."""
    update = -1
    for ours, theirs in zip_longest(known, other):
        if ours != theirs:
            return update
        update = max(update, getattr(ours, "update", -1))
    return inf
