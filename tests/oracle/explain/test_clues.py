"""Clues: what the numbers say where they say something, and nothing where they do not."""

from __future__ import annotations

import torch

from diffs.address import Address
from oracle.explain.clues import Update, clues

GRADIENT = Address(1, -1, "consume", "gradient", "w", 0)
PARAMETER = Address(1, -1, "update", "parameter", "w", 0)


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[str]:
    sides = [{Address(1, -1, "consume", "gradient", n, 0): t for n, t in side.items()} for side in (ours, theirs)]
    return list(clues(GRADIENT, Update(1, *sides)))


def test_one_ratio_in_every_element():
    w = noise(0, 4, 3)
    assert gradients({"w": w}, {"w": w * 4}) == ["candidate / reference is 4 in every element, exactly"]
    (told,) = gradients({"w": w}, {"w": w * 0.1234567})
    assert told == "candidate / reference is 0.123457 in every element, but for rounding"


def test_a_ratio_of_its_own_for_each():
    a, b = noise(0, 8), noise(1, 8)
    (told,) = gradients({"a": a, "b": b}, {"a": a * 0.3, "b": b * 0.7})
    assert told.endswith("for each gradient, but for rounding: a 0.3, b 0.7")


def test_which_gradients_differ_and_which_are_gone():
    a, b = noise(0, 8), noise(1, 8)
    assert gradients({"a": a, "b": b}, {"a": a, "b": torch.zeros(8)}) == [
        "1 of 2 gradients differ: b",
        "the candidate's gradient is zero: b",
    ]


def test_unrelated_gradients_say_nothing():
    assert gradients({"w": noise(0, 8)}, {"w": noise(1, 8)}) == []
    assert gradients({"w": noise(0, 8)}, {"w": torch.full((8,), float("nan"))}) == []


def adam(
    beta: tuple[float, float], gradient: torch.Tensor, moments: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        moments[0] * beta[0] + gradient * (1 - beta[0]),
        moments[1] * beta[1] + gradient**2 * (1 - beta[1]),
    )


def update(beta: tuple[float, float], step: float, moved: bool = True) -> dict[Address, torch.Tensor]:
    w, g, old = noise(0, 6), noise(1, 6), (noise(2, 6), noise(3, 6) ** 2)
    new = adam(beta, g, old)
    return {
        Address(0, -1, "update", "parameter", "w", 0): w,
        Address(0, -1, "update", "optimizer_state", "w.exp_avg", 0): old[0],
        Address(0, -1, "update", "optimizer_state", "w.exp_avg_sq", 0): old[1],
        Address(1, -1, "consume", "gradient", "w", 0): g,
        Address(1, -1, "update", "parameter", "w", 0): w - step * g if moved else w,
        Address(1, -1, "update", "optimizer_state", "w.exp_avg", 0): new[0],
        Address(1, -1, "update", "optimizer_state", "w.exp_avg_sq", 0): new[1],
    }


def test_moments_that_fit_another_beta_and_a_longer_step():
    told = list(clues(PARAMETER, Update(1, update((0.9, 0.999), 0.1), update((0.8, 0.999), 0.2))))
    assert told == [
        "the candidate's step is 2 times the reference's, in every element",
        "the candidate's exp_avg follows with beta1 = 0.8, the reference's with 0.9",
    ]
    told = list(clues(PARAMETER, Update(1, update((0.9, 0.999), 0.1), update((0.9, 0.95), 0.1))))
    assert told == ["the candidate's exp_avg_sq follows with beta2 = 0.95, the reference's with 0.999"]


def test_a_parameter_that_stands_still_or_moves_unasked():
    ours, theirs = update((0.9, 0.999), 0.1), update((0.9, 0.999), 0.1, moved=False)
    assert "the candidate does not move: w" in list(clues(PARAMETER, Update(1, ours, theirs)))
    for side in (ours, theirs):
        side[Address(1, -1, "consume", "gradient", "w", 0)] = torch.zeros(6)
    assert "the candidate moves what has no gradient: w" in list(clues(PARAMETER, Update(1, theirs, ours)))


def test_equal_updates_say_nothing():
    same = update((0.9, 0.999), 0.1)
    assert list(clues(PARAMETER, Update(1, same, same))) == []
