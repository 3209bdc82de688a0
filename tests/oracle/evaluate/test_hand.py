"""What is calculated by hand agrees with torch, which it does not use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oracle.evaluate import hand
from oracle.evaluate.experiments import CLOSED_FORM
from oracle.evaluate.experiments.settings import counted
from oracle.tasks import load_task
from reference_loop.schedules import factor

WEIGHTS = [0.3, -0.2, 0.7, 0.1, 0.5]


def test_loss_and_gradient_of_a_window_are_torchs() -> None:
    task = load_task("regression")
    model, samples = task.model().double(), task.train_data()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([WEIGHTS[:4]]))
        model.bias.copy_(torch.tensor(WEIGHTS[4:]))
    window = hand.windows(CLOSED_FORM)[2]
    losses = []
    for batch in window:
        entries = {name: torch.stack([samples[i][name] for i in batch]).double() for name in ("x", "y")}
        losses.append(task.loss(model, entries, "mean"))
        assert losses[-1].item() == pytest.approx(hand.loss(WEIGHTS, batch))
    torch.stack(losses).mean().backward()
    taken = [*model.weight.grad.flatten().tolist(), *model.bias.grad.tolist()]
    assert hand.gradient(WEIGHTS, window) == pytest.approx(taken)


def test_windows_end_with_the_epoch() -> None:
    assert [len(window) for window in hand.windows(CLOSED_FORM)] == [3, 3, 2, 3, 3, 2]


def test_rates_are_the_documented_formula() -> None:
    expected = [0.05 * factor("linear", 2, update, 6) for update in range(6)]
    assert hand.rates(CLOSED_FORM, 6) == pytest.approx(expected)


def test_a_nan_is_not_close() -> None:
    assert not hand.apart([float("nan")], [1.0]) <= 1.0


def test_lines_that_depend_on_a_field_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "t.py"
    file.write_text("def f(recipe):\n    if recipe.log:\n        a = 1\n        b = 2\n    c = recipe.clip\n")
    assert counted(file) == {"log": 3, "clip": 1}
