"""The written-out clipping is torch.nn.utils, bit for bit."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from reference_loop.clip import clip_norm, clip_value

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SHAPES = [(), (1,), (3, 5), (2, 3, 4), (1000,), (5, 0)]


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(ours: Tensor, theirs: Tensor, what: object) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), what
    assert torch.equal(bits(ours), bits(theirs)), what


def draw(seed: int) -> list[Tensor]:
    """Gradients of random shapes and magnitudes, of one dtype or mixed, sometimes with an inf or NaN."""
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtypes = [torch.float32] if seed % 2 else dice.sample(DTYPES, dice.randint(1, 4))
    drawn = []
    for _ in range(dice.randint(1, 9)):
        gradient = torch.randn(dice.choice(SHAPES), generator=generator) * 10 ** dice.uniform(-4, 3)
        drawn.append(gradient.to(dice.choice(dtypes)))
    largest = max(drawn, key=Tensor.numel).reshape(-1)
    if seed % 5 == 0:
        largest[dice.randrange(largest.numel()) if largest.numel() else slice(0)] = dice.choice(
            [float("inf"), float("nan")]
        )
    return drawn


def parameters_with(gradients: list[Tensor]) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


@pytest.mark.parametrize("foreach", [None, False])
def test_the_norm_and_the_clipped_gradients_are_those_of_torch(foreach):
    for seed in range(300):
        for max_norm in (1.0, 1e-3, 1e4, float("inf")):
            ours = draw(seed)
            theirs = parameters_with(ours)
            total = torch.nn.utils.clip_grad_norm_(theirs, max_norm, foreach=foreach)
            assert_same(clip_norm(ours, max_norm), total, (seed, max_norm))
            for mine, parameter in zip(ours, theirs, strict=True):
                assert_same(mine, parameter.grad, (seed, max_norm))


def of_squares(gradients: list[Tensor], max_norm: float) -> Tensor:
    """As `clip_grad_norm_` of deepspeed/runtime/utils.py does in 0.19.8."""
    total = torch.stack([gradient.detach().float().norm(2.0) for gradient in gradients]).pow(2.0).sum().float()
    total = total.pow(1.0 / 2.0)
    factor = torch.min(torch.tensor(1.0), torch.tensor(float(max_norm)) / (total + 1e-6))
    for gradient in gradients:
        gradient.mul_(factor)
    return total


def by_a_reciprocal(gradients: list[Tensor], max_norm: float) -> Tensor:
    """As `step` of deepspeed/runtime/zero/stage_1_and_2.py does in 0.19.8, with one group and no loss scale."""
    norms = [torch.linalg.vector_norm(gradient.to(torch.double), ord=2.0) for gradient in gradients]
    total = torch.linalg.vector_norm(torch.stack([torch.stack(norms).pow(2.0).sum().float().pow(0.5)]), ord=2)
    factor = torch.clamp(((total / 1.0) + 1e-6) / max_norm, min=1.0)
    for gradient in gradients:
        gradient.mul_(1.0 / factor)
    return total


def in_float64(gradients: list[Tensor], max_norm: float) -> Tensor:
    """As `step` of deepspeed/runtime/zero/stage3.py does in 0.19.8."""
    norms = [gradient.to(torch.double).norm(2.0) for gradient in gradients]
    total = torch.linalg.vector_norm(torch.stack([torch.sum(torch.pow(torch.stack(norms), 2.0)) ** (1.0 / 2.0)]), ord=2)
    factor = torch.clamp(((total / 1.0) + 1e-6) / max_norm, min=1.0)
    for gradient in gradients:
        gradient.mul_(1.0 / factor)
    return total


KERNELS = [("squares", of_squares), ("reciprocal", by_a_reciprocal), ("float64", in_float64)]


@pytest.mark.parametrize(("kernel", "theirs"), KERNELS)
def test_the_other_kernels_are_those_of_deepspeed(kernel, theirs):
    rounds_otherwise = False
    for seed in range(300):
        for max_norm in (1.0, 1e-3, 1e4):
            given = [gradient for gradient in draw(seed) if gradient.dtype is torch.float32]
            if not given:
                continue
            ours, expected, usual = ([gradient.clone() for gradient in given] for _ in range(3))
            assert_same(clip_norm(ours, max_norm, kernel), theirs(expected, max_norm), (seed, max_norm))
            for mine, other in zip(ours, expected, strict=True):
                assert_same(mine, other, (seed, max_norm))
            clip_norm(usual, max_norm)
            rounds_otherwise |= any(not torch.equal(a, b) for a, b in zip(usual, ours, strict=True))
    assert rounds_otherwise


@pytest.mark.parametrize("foreach", [None, False])
def test_values_are_limited_as_torch_limits_them(foreach):
    for seed in range(300):
        for limit in (0.1, 1.0, float("inf")):
            ours = draw(seed)
            theirs = parameters_with(ours)
            torch.nn.utils.clip_grad_value_(theirs, limit, foreach=foreach)
            clip_value(ours, limit)
            for mine, parameter in zip(ours, theirs, strict=True):
                assert_same(mine, parameter.grad, (seed, limit))


def test_a_norm_within_the_limit_leaves_every_bit():
    gradient = torch.tensor([3e-5, -0.0, 4e-5])
    before = gradient.clone()
    assert clip_norm([gradient], 1.0) == pytest.approx(5e-5)
    assert_same(gradient, before, "unclipped")


def test_a_norm_above_the_limit_is_brought_to_it():
    gradients = [torch.tensor([3.0]), torch.tensor([[4.0]])]
    assert clip_norm(gradients, 1.0) == 5.0
    assert torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in gradients])) <= 1.0
    assert gradients[0].item() == pytest.approx(0.6, rel=1e-6)


def test_no_gradients_have_norm_zero():
    assert_same(clip_norm([], 1.0), torch.nn.utils.clip_grad_norm_([], 1.0), "empty")
