"""Values calculated by hand: the closed-form task in plain arithmetic, sharing nothing with what trains it.

The task is linear regression, `y = w x + b` with the squared error: of a set of samples the loss is the mean of
`(w x + b - y)^2` and its gradient the mean of `2 (w x + b - y) (x, 1)`. A window's gradient is the mean of the means
of its micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

SLOPES, OFFSET, RESIDUAL = (1.0, -2.0, 0.5, 0.25), 3.0, 0.5
CORNERS = list(product((-1.0, 1.0), repeat=4))
TARGETS = [sum(s * x for s, x in zip(SLOPES, c, strict=True)) + OFFSET + RESIDUAL * c[0] * c[1] * c[2] for c in CORNERS]

Weights = Sequence[float]


def windows(recipe: Mapping[str, Any]) -> list[list[list[int]]]:
    """The samples of each micro-batch of each window, epoch after epoch, in the data's order."""
    size, depth = recipe["batch_size"], recipe["accumulation"]
    samples = list(range(len(CORNERS)))
    batches = [samples[at : at + size] for at in range(0, len(samples), size)]
    epoch = [batches[at : at + depth] for at in range(0, len(batches), depth)]
    return epoch * recipe["epochs"]


def rates(recipe: Mapping[str, Any], updates: int) -> list[float]:
    """The learning rate of each update: a linear warm-up, then down to 0 at the last update's end."""
    warmup = recipe["schedule"]["warmup"]
    found = []
    for update in range(updates):
        over = (update - warmup) / max(1, updates - warmup)
        found.append(recipe["optimizer"]["lr"] * (update / max(1, warmup) if update < warmup else max(0.0, 1 - over)))
    return found


def error(weights: Weights, sample: int) -> float:
    """The prediction less the target. weights: of (4,), then the bias."""
    return sum(w * x for w, x in zip(weights, (*CORNERS[sample], 1.0), strict=True)) - TARGETS[sample]


def loss(weights: Weights, samples: Sequence[int]) -> float:
    """The mean squared error."""
    return sum(error(weights, sample) ** 2 for sample in samples) / len(samples)


def gradient(weights: Weights, window: Sequence[Sequence[int]]) -> list[float]:
    """The mean over micro-batches of their mean gradients."""
    found = [0.0] * 5
    for batch in window:
        for sample in batch:
            for index, x in enumerate((*CORNERS[sample], 1.0)):
                found[index] += 2 * error(weights, sample) * x / len(batch) / len(window)
    return found


def flat(tensors: Mapping[str, Sequence[float]]) -> list[float] | None:
    """A layer's weight and bias as one list of 5; None where they are not there."""
    weight = next((value for name, value in tensors.items() if name.endswith("weight")), None)
    bias = next((value for name, value in tensors.items() if name.endswith("bias")), None)
    return None if weight is None or bias is None else [*weight, *bias]


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference, relative to the largest element."""
    scale = max(map(abs, other)) or 1.0
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) / scale
