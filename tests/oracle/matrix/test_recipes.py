"""What the matrix asks is what it says, of every built-in task."""

from __future__ import annotations

import math

import pytest

from oracle.matrix.recipes import VARIANTS, WINDOW, arguments, sets
from oracle.recipes import load_recipe
from oracle.tasks import list_tasks, load_task


def recipe(variant: str, task: str):
    return load_recipe(task, None, sets(variant, task))


@pytest.mark.parametrize("task", list_tasks())
def test_every_variant_is_a_recipe_of_every_task(task: str) -> None:
    own = recipe("own", task)
    assert own == load_recipe(task, None, [])
    assert all(recipe(variant, task) != own for variant in VARIANTS if variant not in ("own", "shuffled"))
    assert recipe("decay", task).optimizer.arguments() == {"lr": 0.01, "weight_decay": 0.2}
    assert recipe("clip", task).clip.max_norm == 0.05
    assert recipe("shuffled", task).shuffle and recipe("ranks", task).parallel.ranks == 2


@pytest.mark.parametrize("task", list_tasks())
def test_an_epoch_ends_inside_a_window(task: str) -> None:
    asked = recipe("ragged", task)
    batches = math.ceil(len(load_task(task).train_data()) / asked.batch_size)
    assert asked.accumulation == WINDOW and batches % WINDOW


def test_float16_is_made_to_work_where_a_lever_does() -> None:
    assert arguments("overflow", "accelerate") == arguments("float16", "accelerate") == {"float16.on_cpu": True}
    assert arguments("float16", "fabric")["float16.on_cpu"] is True
    assert arguments("float16", "deepspeed") == {} == arguments("float16", "unheard_of")
    assert arguments("bfloat16", "mmengine") == {"float16.on_cpu": True}  # which has none on a CPU by itself
    assert all(arguments(variant, "accelerate") == {} for variant in VARIANTS if variant not in ("float16", "overflow"))
