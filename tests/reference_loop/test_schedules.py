"""The learning rate's factor is the documented formula and, times the rate, what torch's LambdaLR sets."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from reference_loop.schedules import FORMULAS, SCHEDULES, factor

LENGTHS = [(0, 1), (0, 7), (1, 7), (3, 7), (7, 7), (9, 7), (10, 49), (100, 1000)]


def documented(schedule: str, w: int, t: int, T: int) -> float:
    """The formulas of docs and DESIGN, one to one."""
    if t < w:
        return t / max(1, w)
    p = (t - w) / max(1, T - w)
    return {"constant": 1.0, "linear": max(0, 1 - p), "cosine": 0.5 * (1 + math.cos(math.pi * p))}[schedule]


def transformers_form(schedule: str, w: int, t: int, T: int) -> float:
    """transformers.optimization, as released: its arithmetic, written again."""
    if t < w:
        return float(t) / float(max(1.0, w))
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return max(0.0, float(T - t) / float(max(1, T - w)))
    progress = float(t - w) / float(max(1, T - w))
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * progress)))


def rates_of_torch(formula: Callable[[int], float], updates: int, lr: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, formula)
    rates = []
    for _ in range(updates):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("formula", "written_again"), [("progress", documented), ("remaining", transformers_form)])
def test_rates_are_those_of_lambda_lr_bit_for_bit(schedule, formula, written_again):
    for warmup, total in LENGTHS:
        for lr in (0.1, 3e-5):
            expected = rates_of_torch(lambda t: written_again(schedule, warmup, t, total), total, lr)  # noqa: B023
            assert [lr * factor(schedule, warmup, t, total, formula) for t in range(total)] == expected


@pytest.mark.parametrize("formula", FORMULAS)
def test_warm_up_starts_at_zero_and_the_decay_ends_just_above_it(formula):
    assert factor("linear", 4, 0, 8, formula) == 0.0
    assert factor("linear", 4, 4, 8, formula) == 1.0
    assert factor("linear", 4, 7, 8, formula) == 0.25
    assert factor("linear", 4, 8, 8, formula) == factor("linear", 4, 99, 8, formula) == 0.0


def test_without_warm_up_the_first_update_has_the_full_rate():
    assert {factor(schedule, 0, 0, 10) for schedule in SCHEDULES} == {1.0}


def test_progress_and_remaining_differ_in_the_last_bit_of_a_line():
    progress, remaining = (factor("linear", 0, 6, 10, formula) for formula in FORMULAS)
    assert (progress, remaining) == (0.4, 0.4)
    progress, remaining = (factor("linear", 0, 7, 10, formula) for formula in FORMULAS)
    assert (progress, remaining) == (0.30000000000000004, 0.3)
    assert progress == math.nextafter(remaining, 1)


def test_progress_and_remaining_agree_on_a_cosine():
    for warmup, total in LENGTHS:
        for t in range(total + 3):
            assert factor("cosine", warmup, t, total, "progress") == factor("cosine", warmup, t, total, "remaining")


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no schedule 'polynomial' .*schedules are constant, linear, cosine"):
        factor("polynomial", 0, 0, 10)
    with pytest.raises(ValueError, match=r"formula 'other'.*formulas are progress, remaining"):
        factor("linear", 0, 0, 10, "other")
