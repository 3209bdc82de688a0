"""Calibrates the noise floor: how often it calls healthy arithmetic wrong, and from which size on it sees an error.

A trial is a small model, a recipe and a seed, all random. Healthy candidates divide elsewhere, multiply by reciprocals,
use fused kernels, sum batches in another order or with two threads. Then the same run has one gradient scaled by
1 + error at one update, and the floor must see it.

    python -m benchmarks.floor --trials 1000
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from typing import Any

import torch

from oracle.floor import judge
from reference_loop import interpreter
from reference_loop.moments import Address
from reference_loop.plan import plan
from reference_loop.recipe import Recipe, from_dict
from reference_loop.semantics import Semantics
from reference_loop.state import State
from reference_loop.task import Task

DTYPES = ("float32", "bfloat16", "float16")
ERRORS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6)
STYLES = (
    ("accumulation.divide", "gradient"),
    ("accumulation.divide", "gradient_reciprocal"),
    ("accumulation.divide", "loss_reciprocal"),
    ("optimizer.kernel", "fused"),
)
SAMPLES = 12


def trial(seed: int, dtype: str) -> tuple[Task, Recipe, random.Random]:
    """A task, a recipe and the choices of one trial."""
    choose = random.Random(seed)
    width, depth = choose.choice((3, 8, 17)), choose.choice((1, 2, 3))
    norm = choose.random() < 0.5

    def model() -> torch.nn.Module:
        layers: list[torch.nn.Module] = [torch.nn.Linear(4, width)]
        for _ in range(depth):
            layers += [torch.nn.GELU(), *([torch.nn.LayerNorm(width)] if norm else []), torch.nn.Linear(width, width)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))

    def data() -> list[dict[str, torch.Tensor]]:
        source = torch.Generator().manual_seed(seed)
        return [{"x": torch.randn(4, generator=source), "y": torch.randn(1, generator=source)} for _ in range(SAMPLES)]

    def loss(net: torch.nn.Module, batch: Any, reduction: str) -> torch.Tensor:
        return torch.nn.functional.mse_loss(net(batch["x"]).float(), batch["y"], reduction=reduction)

    recipe = from_dict(
        {
            "seed": seed % 1000,
            "updates": 3,
            "batch_size": choose.choice((1, 2)),
            "accumulation": choose.choice((1, 2, 3, 5)),
            "optimizer": {"name": choose.choice(("sgd", "adamw")), "lr": 10.0 ** choose.uniform(-3, -1)},
            "precision": {"dtype": dtype},
            **({"scaler": {"init_scale": 256.0}} if dtype == "float16" else {}),
        }
    )
    return Task(name="trial", model=model, train_data=data, loss=loss), recipe, choose


def values(
    task: Task, recipe: Recipe, s: Semantics, scaled: tuple[int, str, float] | None = None
) -> dict[Address, Any]:
    """A run's values in full; `scaled` = (update, parameter, error) multiplies one gradient by 1 + error."""
    state = State(task, recipe, drop_last=False)
    seen: dict[Address, Any] = {}

    def observe(address: Address, value: Any) -> None:
        if scaled and address[:1] == scaled[:1] and address[2:5] == ("consume", "gradient", scaled[1]):
            value.mul_(1 + scaled[2])
        seen[address] = value.clone() if isinstance(value, torch.Tensor) else value

    interpreter.run(plan(recipe, s, SAMPLES), state, observe)
    return seen


def beyond(task: Task, recipe: Recipe, candidate: dict[Address, Any]) -> list[dict[str, Any]]:
    """What the floor calls more than rounding."""
    state = State(task, recipe, drop_last=False)
    found = judge(plan(recipe, Semantics.of(recipe), SAMPLES), state, candidate)
    return [entry for entry in found if not entry["within"]]


def healthy(seed: int, dtype: str) -> bool:
    """Whether the floor calls a healthy candidate wrong."""
    task, recipe, choose = trial(seed, dtype)
    s = Semantics.of(recipe).with_(*choose.choice(STYLES))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(choose.choice((1, 2)))
        candidate = values(task, recipe, s)
    finally:
        torch.set_num_threads(threads)
    return bool(beyond(task, recipe, candidate))


def planted(seed: int, dtype: str, error: float) -> bool:
    """Whether the floor sees one gradient that is off by a relative error."""
    task, recipe, choose = trial(seed, dtype)
    update = choose.randrange(recipe.updates or 1)
    names = [name for name, _ in task.model().named_parameters()]
    candidate = values(task, recipe, Semantics.of(recipe), (update, choose.choice(names), error))
    return bool(beyond(task, recipe, candidate))


def calibrate(trials: int, dtypes: tuple[str, ...] = DTYPES) -> Iterator[dict[str, Any]]:
    """False alarms and the share of planted errors that is seen, by dtype."""
    for dtype in dtypes:
        alarms = sum(healthy(seed, dtype) for seed in range(trials))
        share = max(1, trials // len(ERRORS))
        seen = {error: sum(planted(seed, dtype, error) for seed in range(share)) / share for error in ERRORS}
        always = [error for error in ERRORS if all(seen[larger] == 1.0 for larger in ERRORS if larger >= error)]
        yield {
            "dtype": dtype,
            "trials": trials,
            "false_alarms": alarms,
            "planted": share * len(ERRORS),
            "seen": {f"{error:g}": share for error, share in seen.items()},
            "always_seen_from": min(always) if always else None,
        }


def main() -> None:
    """Calibrate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="healthy trials a dtype, and planted ones together")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = list(calibrate(arguments.trials))
    for row in rows:
        least = "at none of the sizes" if row["always_seen_from"] is None else f"from {row['always_seen_from']:g} on"
        print(f"{row['dtype']:<9} {row['false_alarms']} false alarms in {row['trials']}; always seen {least}")
        print("          seen:", ", ".join(f"{share:.0%} at {error}" for error, share in row["seen"].items()))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
