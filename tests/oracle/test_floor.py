"""The noise floor: what it judges, and that it judges every recipe."""

from __future__ import annotations

import pytest

from oracle import floor
from oracle.tasks import find_task, load_task
from reference_loop.plan import plan
from reference_loop.recipe import from_dict
from reference_loop.semantics import Semantics
from reference_loop.state import State


@pytest.mark.parametrize("task", ["regression", "batchnorm", "tokens"])
def test_a_recipe_that_evaluates_can_be_judged(task):
    recipe = from_dict({"updates": 3, "accumulation": 2, "evaluate": {"every": 1}, "log": {"every": 1}})
    state = State(load_task(str(find_task(task))), recipe, drop_last=False)
    assert floor.judge(plan(recipe, Semantics.of(recipe), 16), state, {}) == []
