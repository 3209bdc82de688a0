"""What the matrix asks of every trainer: each task's own recipe, and that recipe with one thing more."""

from __future__ import annotations

import math
from dataclasses import dataclass

from oracle.adapters.levers import FLOAT16, TABLES
from oracle.recipes import load_recipe
from oracle.tasks import load_task

WINDOW = 3  # micro-batches


@dataclass(frozen=True)
class Variant:
    """A row of the matrix.

    about: what it adds to the task's recipe. sets: how, as `--set` takes it.
    """

    about: str
    sets: tuple[str, ...] = ()


VARIANTS: dict[str, Variant] = {
    "own": Variant("the task's own recipe"),
    "ragged": Variant(
        f"windows of {WINDOW} micro-batches, and an epoch that ends inside one", (f"accumulation={WINDOW}",)
    ),
    "clip": Variant("a clip that bites", ("clip={max_norm = 0.05}",)),
    "schedule": Variant("a cosine after 2 updates of warm-up", ('schedule={name = "cosine", warmup = 2}',)),
    "decay": Variant("AdamW with weight decay", ('optimizer={name = "adamw", lr = 0.01, weight_decay = 0.2}',)),
    "bfloat16": Variant("bfloat16", ('precision={dtype = "bfloat16"}',)),
    "float16": Variant("float16 with a trainer's own loss scale", ("updates=6", 'precision={dtype = "float16"}')),
    "overflow": Variant(
        "float16 with a loss scale that overflows at first, backs off and grows",
        (
            "updates=6",
            'precision={dtype = "float16"}',
            "scaler={init_scale = 16777216.0, backoff_factor = 0.00390625, growth_interval = 2}",
        ),
    ),
    "shuffled": Variant("two epochs in random order", ("epochs=2", "shuffle=true")),
    "ranks": Variant("two ranks", ("parallel.ranks=2", "accumulation=2")),
}


REDUCED = {"bfloat16": "bfloat16", "float16": FLOAT16.probe, "overflow": FLOAT16.probe}
"""The probe of a profile that a variant in half precision is like."""


def sets(variant: str, task: str) -> tuple[str, ...]:
    """What a variant sets on a built-in task's recipe."""
    stated = VARIANTS[variant].sets
    return (*stated, f"batch_size={_uneven(task)}") if variant == "ragged" else stated


def arguments(variant: str, trainer: str) -> dict[str, object]:
    """What a trainer is constructed with: in half precision, that by which its profile makes it work on a CPU."""
    if variant not in REDUCED or trainer not in TABLES:
        return {}
    levers = (lever.arguments for lever in TABLES[trainer].levers if lever.probe == REDUCED[variant])
    return dict(next(levers, {}))


def _uneven(task: str) -> int:
    """The smallest batch size from the recipe's own on whose number of batches an epoch is no multiple of a window."""
    samples = len(load_task(task).train_data())
    size = load_recipe(task, None, ()).batch_size
    return next(one for one in range(size, samples + 1) if math.ceil(samples / one) % WINDOW)
