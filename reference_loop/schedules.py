"""The learning rate's factor at each update, as a pure function of its number."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, cos, pi

import torch

from reference_loop.recipe import Recipe

SCHEDULES = ("constant", "linear", "cosine")
FORMULAS = ("progress", "remaining")


@dataclass(frozen=True)
class Course:
    """How far a schedule goes, and by which arithmetic.

    total: updates planned; a fraction where they are counted in micro-batches.
    formula: a value of the knob `schedule.formula`.
    parts: positions that make one update.
    epoch: micro-batches of an epoch, where the formula is "fraction".
    """

    total: float
    formula: str = "progress"
    parts: int = 1
    epoch: int = 0


def rate(recipe: Recipe, position: int, course: Course, base: float) -> float:
    """The learning rate at a position of a schedule's course.

    position: how often the schedule moved. base: the rate at the top.
    """
    asked = recipe.schedule
    schedule, warmup = (asked.name, asked.warmup) if asked else ("constant", 0)
    t = position / course.parts if course.parts > 1 else position
    if course.formula == "float32":
        return _float32(schedule, warmup, t, course.total, base)
    if course.formula == "fraction" and (schedule != "constant" or warmup):
        return _fraction(recipe, t, course, base)
    formula = course.formula if course.formula in FORMULAS else "progress"
    return base * factor(schedule, warmup, t, course.total, formula)


def _float32(schedule: str, warmup: int, t: float, total: float, base: float) -> float:
    """The rate by Keras's arithmetic: keras/src/optimizers/schedules/learning_rate_schedule.py of 3.15.1."""
    top, step = (torch.tensor(float(number), dtype=torch.float32) for number in (base, t))
    if t < warmup:
        return float(top * (step / warmup))
    if schedule == "constant":
        return float(top)
    rest = float(max(1, total - warmup))
    share = torch.clamp(step - warmup, max=rest) / rest
    if schedule == "linear":
        return float(top * (1 - share))
    return float(top * (0.5 * (1.0 + torch.cos(torch.tensor(pi, dtype=torch.float32) * share))))


def _fraction(recipe: Recipe, t: float, course: Course, base: float) -> float:
    """The rate by fastai's arithmetic: `combine_scheds` of fastai/callback/schedule.py, `pct_train` of core.py."""
    assert recipe.schedule is not None  # a constant rate goes nowhere
    k, warmup = recipe.accumulation, recipe.schedule.warmup
    micros = course.total * k
    epochs = ceil(micros / course.epoch)
    asked, done = epochs * course.epoch, round(t * k)
    share = (done // course.epoch) / epochs
    for _ in range(done % course.epoch):
        share += 1.0 / asked
    if recipe.updates is not None:
        share *= asked / micros
    share, rising = min(1.0, share), warmup * k / micros
    if rising:
        borders = torch.cumsum(torch.tensor([0, rising, 1 - rising], dtype=torch.float32), 0)
        part = min(int((share >= borders).nonzero().max()), 1)
        share = ((share - borders[part]) / (borders[part + 1] - borders[part])).item()
        if part == 0:
            return 0.0 + share * (base - 0.0)
    if recipe.schedule.name == "linear":
        return base + share * (0.0 - base)
    return base if recipe.schedule.name == "constant" else base + (1 + cos(pi * (1 - share))) * (0.0 - base) / 2


def factor(schedule: str, warmup: int, t: float, total: float, formula: str = "progress") -> float:
    """By how much update `t` multiplies the recipe's learning rate.

    schedule: one of `SCHEDULES`.
    warmup: updates over which the factor rises from 0; update 0 of a warm-up trains with a rate of 0.
    t: number of the update, from 0.
    total: updates planned. An update past it gets 0 from linear, and the way back up from cosine.
    formula: how the line to 0 is computed, one of `FORMULAS`. Both mean the same and differ in the last bit:
        `progress` is 1 - (t - warmup) / (total - warmup), `remaining` is (total - t) / (total - warmup).
    Returns a float64 number, without unit; its product with the learning rate is what torch's LambdaLR sets.

    A `total` that does not exceed `warmup` makes the decay one update long. The cosine is one arithmetic for both
    formulas: transformers' factors of 0.5 and 2.0 cancel exactly.

    Source: `remaining` is transformers.optimization.get_linear_schedule_with_warmup; the warm-up and the cosine are
    those of get_cosine_schedule_with_warmup with half a cycle.

    Raises:
        ValueError: no such schedule or formula.
    """
    if schedule not in SCHEDULES or formula not in FORMULAS:
        raise ValueError(
            f"no schedule {schedule!r} by formula {formula!r}: schedules are {', '.join(SCHEDULES)}, "
            f"formulas are {', '.join(FORMULAS)}"
        )
    if t < warmup:
        return t / max(1, warmup)
    if schedule == "constant":
        return 1.0
    decay = max(1, total - warmup)
    progress = (t - warmup) / decay
    if schedule == "cosine":
        return 0.5 * (1 + cos(pi * progress))
    left = 1 - progress if formula == "progress" else (total - t) / decay
    return max(0.0, left)
