"""The learning rate's factor at each update, as a pure function of its number."""

from __future__ import annotations

from math import cos, pi

SCHEDULES = ("constant", "linear", "cosine")
FORMULAS = ("progress", "remaining")


def factor(schedule: str, warmup: int, t: int, total: int, formula: str = "progress") -> float:
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
