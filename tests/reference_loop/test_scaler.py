"""The written-out scaler is torch.amp.GradScaler("cpu"), bit for bit, through skips, growth and backoff."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from reference_loop.scaler import Scaler

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def gradients(dice: random.Random, generator: torch.Generator, overflow: bool) -> list[Tensor]:
    """Scaled gradients of several shapes and dtypes; on overflow an inf, -inf or NaN somewhere."""
    found = []
    for shape in [(), (3, 5), (67,)]:
        gradient = torch.randn(shape, generator=generator) * 10 ** dice.uniform(-3, 5)
        found.append(gradient.to(dice.choice(DTYPES)))
    if overflow:
        flat = dice.choice(found).reshape(-1)
        flat[dice.randrange(flat.numel())] = dice.choice([float("inf"), float("-inf"), float("nan")])
    return found


class Counting(torch.optim.SGD):
    """SGD that counts the steps it was asked for."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


def test_a_random_run_is_that_of_torch_through_skips_growth_and_backoff():
    seen = {"skipped": 0, "grown": 0, "backed_off": 0, "stepped": 0}
    for seed in range(40):
        dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        options = {
            "init_scale": dice.choice([1.0, 2.0**16, 10 ** dice.uniform(-2, 6)]),
            "growth_factor": dice.choice([2.0, 1 + dice.random()]),
            "backoff_factor": dice.choice([0.5, 0.01 + 0.98 * dice.random()]),
            "growth_interval": dice.choice([1, 2, 5]),
        }
        theirs, ours = torch.amp.GradScaler("cpu", **options), Scaler(**options)
        for _ in range(25):
            loss = torch.randn((), generator=generator).to(dice.choice([*DTYPES, torch.float16]))
            expected_loss, found_loss = theirs.scale(loss), ours.scale(loss)
            assert expected_loss.dtype == found_loss.dtype
            assert torch.equal(bits(expected_loss), bits(found_loss))

            mine = gradients(dice, generator, overflow=dice.random() < 0.3)
            parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in mine]
            for parameter, gradient in zip(parameters, mine, strict=True):
                parameter.grad = gradient.clone()
            optimizer = Counting(parameters, lr=0.0)
            before = ours.state["scale"].item()

            theirs.unscale_(optimizer)
            overflow = ours.unscale(mine)
            for parameter, gradient in zip(parameters, mine, strict=True):
                assert torch.equal(bits(parameter.grad), bits(gradient)), options
            theirs.step(optimizer)
            assert overflow == (optimizer.steps == 0)
            theirs.update()
            ours.update(overflow)

            assert torch.equal(bits(theirs._scale), bits(ours.state["scale"])), options
            assert torch.equal(theirs._growth_tracker, ours.state["growth_tracker"])
            assert theirs._growth_tracker.dtype == ours.state["growth_tracker"].dtype
            after = ours.state["scale"].item()
            seen["skipped" if overflow else "stepped"] += 1
            seen["grown"] += after > before
            seen["backed_off"] += after < before
    assert min(seen.values()) > 100, seen


def test_a_scale_that_would_become_infinite_stays():
    options = {"init_scale": 2.0**127, "growth_factor": 2.0, "growth_interval": 1}
    theirs, ours = torch.amp.GradScaler("cpu", **options), Scaler(**options)
    parameter = torch.nn.Parameter(torch.zeros(1))
    for _ in range(3):
        theirs.scale(torch.zeros(()))
        parameter.grad = torch.zeros(1)
        theirs.step(torch.optim.SGD([parameter]))
        theirs.update()
        ours.update(overflow=False)
        assert ours.state["scale"] == theirs._scale == 2.0**127
        assert ours.state["growth_tracker"] == theirs._growth_tracker == 0


def test_every_gradient_is_unscaled_after_an_overflow_too():
    scaler = Scaler(init_scale=4.0)
    first, second = torch.tensor([float("inf"), 8.0]), torch.tensor([12.0])
    assert scaler.unscale([first, second]) is True
    assert (first.tolist(), second.tolist()) == ([float("inf"), 2.0], [3.0])


def test_float16_gradients_are_refused_as_torch_refuses_them():
    with pytest.raises(ValueError, match="float16 gradient cannot be unscaled"):
        Scaler().unscale([torch.ones(1, dtype=torch.float16)])


def test_a_loss_keeps_its_graph():
    weight = torch.tensor(3.0, requires_grad=True)
    Scaler(init_scale=8.0).scale(weight * 2).backward()
    assert weight.grad == 16.0


def test_the_defaults_are_those_of_torch():
    ours, theirs = Scaler(), torch.amp.GradScaler("cpu")
    assert ours.state["scale"] == theirs.get_scale()
    assert ours.growth_factor == theirs.get_growth_factor()
    assert ours.backoff_factor == theirs.get_backoff_factor()
    assert ours.growth_interval == theirs.get_growth_interval()
