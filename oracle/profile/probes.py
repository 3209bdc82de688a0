"""The probes: tasks and recipes made to tell the values of knobs apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oracle.tasks import find_task, fixtures

PLAIN, OWN, HUGGING = "plain module", "module with its own loss", "model of transformers"
"""The kinds of model that a trainer may tell apart."""


@dataclass(frozen=True)
class Probe:
    """One training that tells values apart.

    task: a built-in task, or a file of `fixtures/probes`.
    recipe: as `from_dict` takes it.
    model: which kind of model it trains.
    separates: knobs that it is there for.
    needs: a package that the task imports.
    """

    task: str
    recipe: Mapping[str, Any]
    separates: tuple[str, ...]
    model: str = PLAIN
    needs: str | None = None

    @property
    def file(self) -> str:
        """The task's file."""
        folder = fixtures()
        special = folder / "probes" / f"{self.task}.py" if folder else None
        return str(special) if special is not None and special.is_file() else str(find_task(self.task))


_SGD = {"name": "sgd", "lr": 0.1}
_ADAMW = {"name": "adamw", "lr": 0.01, "weight_decay": 0.1}
_OFF = {"max_norm": float("inf")}
_UNITS = {"accumulation.normalise": "unit_mean"}

PROBES: dict[str, Probe] = {
    "ragged tail": Probe("ragged_tail", {
        "epochs": 2, "batch_size": 2, "accumulation": 4, "optimizer": _SGD, "clip": _OFF,
        "schedule": {"name": "linear", "warmup": 1},
    }, ("accumulation.tail", "accumulation.tail_divisor", "accumulation.normalise", "schedule.horizon",
        "schedule.cadence", "schedule.order", "gradient.clear")),
    "ragged tail of two": Probe("ragged_tail", {
        "epochs": 3, "batch_size": 2, "accumulation": 3, "optimizer": _SGD, "clip": _OFF, "log": {},
        "schedule": {"name": "linear", "warmup": 2},
    }, ("accumulation.tail_count", "schedule.stop", "schedule.formula", "log.loss", "log.digits")),
    "windows of five": Probe("ragged_tail", {
        "epochs": 3, "batch_size": 1, "accumulation": 5, "optimizer": _SGD, "clip": _OFF,
    }, ("accumulation.divide",)),
    "last batch incomplete": Probe("ragged_tail", {
        "epochs": 2, "batch_size": 4, "accumulation": 1, "optimizer": _SGD, "clip": _OFF,
    }, ("data.tail",)),
    "last batch left out": Probe("ragged_tail", {
        "epochs": 2, "batch_size": 4, "accumulation": 1, "drop_last": True, "optimizer": _SGD, "clip": _OFF,
    }, ("data.tail",)),
    "unequal labels": Probe("tokens", {
        "epochs": 2, "batch_size": 2, "accumulation": 3, "optimizer": _SGD, "clip": _OFF, "log": {},
    }, ("accumulation.normalise", "log.loss")),
    "a loss of the model's own": Probe("own_loss", {
        "epochs": 3, "batch_size": 2, "accumulation": 3, "optimizer": _SGD, "clip": _OFF, "semantics": _UNITS,
        "schedule": {"name": "linear", "warmup": 1},
    }, ("accumulation.normalise", "accumulation.units", "accumulation.counted", "accumulation.sum"), OWN),
    "labels of a causal model": Probe("llama", {
        "epochs": 2, "batch_size": 2, "accumulation": 4, "optimizer": _SGD, "clip": _OFF, "semantics": _UNITS,
        "schedule": {"name": "linear", "warmup": 1},
    }, ("accumulation.normalise", "accumulation.units"), HUGGING, "transformers"),
    "a cache that is left on": Probe("cached", {
        "updates": 2, "batch_size": 2, "accumulation": 2, "optimizer": _SGD, "clip": _OFF, "semantics": _UNITS,
    }, (), HUGGING, "transformers"),
    "decay and a clip that bites": Probe("decoder", {
        "updates": 4, "batch_size": 2, "accumulation": 2, "schedule": {"name": "cosine", "warmup": 1},
        "optimizer": _ADAMW, "clip": {"max_norm": 0.05},
    }, (
        "optimizer.decay", "optimizer.decay_set", "optimizer.epsilon", "optimizer.kernel", "clip.formula",
        "clip.moment", "clip.kind", "clip.kernel",
    )),
    "decay added to the gradient": Probe("decoder", {
        "updates": 3, "batch_size": 2, "optimizer": {**_SGD, "weight_decay": 0.1}, "clip": _OFF,
    }, ("optimizer.decay",)),
    "shuffled, with dropout": Probe("decoder", {
        "seed": 1, "epochs": 2, "batch_size": 4, "accumulation": 1, "shuffle": True, "optimizer": _SGD, "clip": _OFF,
    }, ("data.order", "rng.loader_draws")),
    "data that draws": Probe("noisy", {
        "epochs": 2, "batch_size": 2, "accumulation": 3, "optimizer": _SGD, "clip": _OFF,
        "schedule": {"name": "linear", "warmup": 1},
    }, ("data.lookahead",)),
    "evaluation and log": Probe("decoder", {
        "epochs": 2, "batch_size": 2, "accumulation": 3, "optimizer": _SGD, "clip": _OFF,
        "evaluate": {"every": 1}, "log": {},
    }, ("evaluate.mode", "evaluate.rng", "evaluate.gradients", "metric.aggregate")),
    "batch statistics": Probe("batchnorm", {
        "epochs": 2, "batch_size": 4, "accumulation": 1, "optimizer": _SGD, "clip": _OFF, "evaluate": {"every": 1},
    }, ("evaluate.mode",)),
    "a model given in eval mode": Probe("given_in_eval", {
        "epochs": 2, "batch_size": 2, "accumulation": 1, "optimizer": _SGD, "clip": _OFF,
    }, ("model.mode",)),
    "bfloat16": Probe("ragged_tail", {
        "updates": 3, "batch_size": 5, "accumulation": 2, "optimizer": _SGD, "clip": _OFF,
        "precision": {"dtype": "bfloat16"},
    }, ("precision.compute",)),
    "a loss in bfloat16": Probe("low_precision_loss", {
        "updates": 4, "batch_size": 2, "accumulation": 2, "optimizer": _SGD, "clip": _OFF,
        "precision": {"dtype": "bfloat16"},
    }, ("precision.loss",)),
    "float16 that overflows": Probe("regression", {
        "updates": 6, "batch_size": 2, "accumulation": 2, "optimizer": _SGD, "clip": {"max_norm": 0.05},
        "precision": {"dtype": "float16"}, "schedule": {"name": "linear", "warmup": 1},
    }, ("precision.compute", "clip.moment", "schedule.on_skip", "scaler.unit")),
    "nothing stated": Probe("decoder", {
        "updates": 2, "batch_size": 2, "shuffle": True, "optimizer": {"name": "adamw", "lr": 0.01},
    }, ("clip.moment",)),
}  # fmt: skip

OUT_OF_MEMORY = Probe("out_of_memory", {"updates": 2, "batch_size": 4, "optimizer": _SGD, "clip": _OFF}, ())
"""Trained by the candidate alone: the reference, too, would find no memory."""

NEEDS: dict[str, str] = {
    "accumulation.units": "a loss that is divided by units",
    "accumulation.counted": "a loss that is divided by units, in windows that cross into the next epoch",
    "accumulation.divide": "a divisor that is no power of two",
    "accumulation.tail": "a run that ends inside a window",
    "accumulation.tail_divisor": "a last window that is stepped and divided by micro-batches",
    "clip.moment": "gradients under a loss scale",
    "data.lookahead": "data that draws random numbers, read through",
    "evaluate.gradients": "gradients that are there when an evaluation begins",
    "log.loss": "an update of a window that holds fewer micro-batches",
    "optimizer.velocity": "SGD with momentum under a schedule",
    "precision.loss": "autocast",
    "schedule.on_skip": "an update that a loss scaler skips",
    "schedule.stop": "a planned total of updates that is not what the epochs hold",
    "scaler.unit": "a loss scaler",
}
"""What a run must have for a knob to show: where its values were replayed and none differs, the run has it not."""
