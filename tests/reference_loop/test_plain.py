"""The plan under default semantics is the textbook loop, bit for bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from oracle.tasks import load_task
from reference_loop import interpreter, plain
from reference_loop.loader import count_samples
from reference_loop.moments import Address
from reference_loop.plan import plan, planned_updates
from reference_loop.recipe import load
from reference_loop.schedules import factor
from reference_loop.semantics import Semantics
from reference_loop.state import State

RECIPES = sorted(Path("fixtures/recipes").glob("*.toml"))
TASKS = ("regression", "ragged_tail", "tokens", "decoder", "batchnorm")
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def by_plan(task, recipe):
    """Parameters, optimizer state and scale after each update, by address."""
    rows: dict[Address, object] = {}
    s = Semantics.of(recipe)
    state = State(task, recipe, drop_last=s.data.tail == "drop")

    def observe(address, value):
        if address.moment == "update" and address.kind != "rng":
            rows[address] = value.clone()

    interpreter.run(plan(recipe, s, count_samples(state.loader.data)), state, observe)
    return rows


def by_hand(task, recipe):
    rows: dict[Address, object] = {}
    samples = count_samples(task.train_data())
    total = planned_updates(recipe, Semantics.of(recipe), samples)

    def note(update, model, optimizer, scaler):
        for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, value in named:
                rows[Address(update, -1, "update", kind, name)] = value.detach().clone()
        names = {parameter: name for name, parameter in model.named_parameters()}
        for parameter, kept in optimizer.state.items():
            for key, value in kept.items():
                if value is not None:
                    rows[Address(update, -1, "update", "optimizer_state", f"{names[parameter]}.{key}")] = value.clone()
        if scaler.is_enabled():
            rows[Address(update, -1, "update", "scaler", "scale")] = torch.tensor(scaler.get_scale())

    def make_schedule(optimizer, batches):
        if recipe.schedule is None:
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1.0)
        name, warmup = recipe.schedule.name, recipe.schedule.warmup
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: factor(name, warmup, t, total))

    def make_optimizer(model):
        return CLASSES[recipe.optimizer.name](model.parameters(), foreach=False, **recipe.optimizer.arguments())

    plain.train(task, recipe, make_optimizer, make_schedule, note)
    return rows


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("task", TASKS)
def test_the_plan_is_the_plain_loop_bit_for_bit(task, recipe):
    task, recipe = load_task(task), load(recipe)
    recipe = dataclasses.replace(recipe, semantics={})
    ours, hand = by_plan(task, recipe), by_hand(task, recipe)
    assert hand
    for address, value in hand.items():
        same = torch.equal(ours[address].view(-1).view(torch.uint8), value.view(-1).view(torch.uint8))
        assert same, address


def test_the_comparison_can_fail():
    recipe = load("fixtures/recipes/ragged_tail.toml")
    other = load("fixtures/recipes/ragged_tail.toml", ["optimizer.lr=0.11"])
    task = load_task("ragged_tail")
    assert any(not torch.equal(v, by_hand(task, other)[a]) for a, v in by_plan(task, recipe).items())
