"""The noise floor: what it judges, and that it judges every recipe."""

from __future__ import annotations

import math

import pytest
import torch

from oracle import floor
from oracle.tasks import find_task, load_task
from reference_loop.moments import Address
from reference_loop.plan import plan
from reference_loop.recipe import from_dict
from reference_loop.semantics import Semantics
from reference_loop.state import State


@pytest.mark.parametrize("task", ["regression", "batchnorm", "tokens"])
def test_a_recipe_that_evaluates_can_be_judged(task):
    recipe = from_dict({"updates": 3, "accumulation": 2, "evaluate": {"every": 1}, "log": {"every": 1}})
    state = State(load_task(str(find_task(task))), recipe, drop_last=False)
    assert floor.judge(plan(recipe, Semantics.of(recipe), 16), state, {}) == []


def compared(reference, candidate, truth, *beside, short=False):
    """Whether a gradient is within the floor; None where there is nothing to judge. beside: (own, size) of others."""
    tensors = [torch.tensor(values) for values in (reference, candidate)]
    address = Address(0, -1, "consume", "gradient", "weight")
    found = floor._compare(address, *tensors, torch.tensor(truth, dtype=torch.float64))
    place = [found, *(floor.Measured(address, own, own, 0.0, size, 1e-7, differs=False) for own, size in beside)]
    error, allowance = floor._allowance(found, place, short=short)
    within = found.settled or (allowance is not None and error <= allowance)
    return within if found.differs else None


def test_the_same_nan_is_nothing_to_judge():
    assert compared([math.nan, 1.0], [math.nan, 1.0], [0.0, 1.0]) is None
    assert compared([0.0, 1.0], [math.nan, 1.0], [0.0, 1.0]) is False


def test_a_step_of_the_type_is_rounding_whatever_the_truth():
    assert compared([1.0, 1.0], [1.0, 1.0 + 2**-23], [2.0, 2.0])
    assert not compared([1.0, 1.0], [1.0, 1.001], [2.0, 2.0])
    assert not compared([1.0, 1.0], [math.inf, 1.0], [2.0, 2.0])
    assert not compared([math.inf, 1.0], [0.0, 1.0], [2.0, 2.0])


def test_a_gradient_of_nothing_but_rounding_is_measured_by_the_others():
    assert not compared([1e-8], [-2e-8], [0.0])
    assert compared([1e-8], [-2e-8], [0.0], (1e-8, 1.0))
    assert not compared([1e-8], [1e-3], [0.0], (1e-8, 1.0))


def test_a_reference_far_from_the_truth_all_in_all_accepts_nothing():
    assert not compared([1.0], [1.2], [1.0], (0.5, 1.0))
    assert not compared([1.0], [1.2], [1.0], (2.0, 1.0), short=True)


def test_a_short_type_may_be_far_from_the_truth_but_not_by_a_factor_of_two():
    assert compared([1.0], [1.2], [1.0], (0.5, 1.0), short=True)
    assert not compared([1.0], [2.0], [1.0], (0.5, 1.0), short=True)
    assert not compared([1.0], [0.0], [1.0], (0.5, 1.0), short=True)
    assert not compared([1.0], [math.nan], [1.0], (0.5, 1.0), short=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_healthy_arithmetic_is_within_the_floor(dtype):
    from benchmarks.floor import healthy

    assert not any(healthy(seed, dtype) for seed in range(12))


def test_a_systematic_error_of_a_thousandth_is_always_beyond_it_in_float32():
    from benchmarks.floor import planted

    assert all(planted(seed, "float32", 1e-3) for seed in range(12))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_large_systematic_error_is_beyond_it_in_reduced_precision(dtype):
    from benchmarks.floor import planted

    assert sum(planted(seed, dtype, 0.3) for seed in range(12)) >= 11  # a gradient that cancels is noise in either


def test_what_overflowed_in_a_skipped_update_decides_nothing():
    recipe = from_dict({
        "updates": 1, "clip": {"max_norm": 1.0}, "precision": {"dtype": "float16"}, "scaler": {"init_scale": 2.0**40}
    })  # fmt: skip

    def judged(**changed):
        state = State(load_task(str(find_task("tokens"))), recipe, drop_last=False)
        gradients = {
            Address(0, -1, "consume", "gradient", name): torch.full_like(parameter, changed.get("value", math.inf))
            for name, parameter in state.parameters.items()
        }
        return [entry["within"] for entry in floor.judge(plan(recipe, Semantics.of(recipe), 12), state, gradients)]

    assert judged() and all(judged())
    assert not any(judged(value=1.0))
