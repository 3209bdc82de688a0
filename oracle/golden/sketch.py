"""A few numbers that stand for many tensors: they move as little as the tensors do, and with all of them.

A digest says whether two sets of tensors are the same. Where both cannot be had at once, because one of them was seen
by another torch on another processor, a sketch says whether they are the same but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

NUMBERS = 4
BLOCK = 1 << 16  # elements at a time: they stay in the processor's cache


def sketch(tensors: Iterable[torch.Tensor]) -> list[float]:
    """`NUMBERS` numbers of tensors of any float dtype, in their order.

    Each tensor x adds +-(sum of +-x / |x| + log |x|), where signs change from element to element, from tensor to tensor
    and from number to number without a pattern. So relative rounding of r moves a number by about r; other values of
    the same distribution, an order or a sign move it by about 1, and a factor by its logarithm, however large the
    tensor is. A NaN anywhere makes all of them NaN.
    """
    numbers = torch.zeros(NUMBERS, dtype=torch.float64)
    for place, tensor in enumerate(tensors):
        blocks = tensor.detach().reshape(-1).split(BLOCK)
        norm = math.sqrt(sum(float(block.double().square().sum()) for block in blocks))
        if norm == 0:
            continue
        found = torch.zeros(NUMBERS, dtype=torch.float64)
        for number, block in enumerate(blocks):
            found += _signs(number * BLOCK, len(block)) @ block.double()
        numbers += _signs(place, 1)[:, 0] * (found / norm + math.log(norm))
    return numbers.tolist()


def alike(old: Sequence[float], new: Sequence[float], allowance: float) -> bool:
    """Whether two sketches are there and agree to within an allowance, in every number."""
    pairs = list(zip(old, new, strict=False))
    return len(old) == len(new) == NUMBERS and all(abs(one - two) <= allowance for one, two in pairs)


def _signs(begin: int, count: int) -> torch.Tensor:
    """(NUMBERS, count) float64 of +1 and -1 for the places from `begin` on: bits of a hash of the place."""
    mixed = torch.arange(begin + 1, begin + count + 1)
    for factor in (0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35):
        mixed = mixed * factor  # in 64 bits, so it wraps around
        mixed = mixed ^ (mixed >> 29)
    bits = (mixed >> (8 * torch.arange(1, NUMBERS + 1))[:, None]) & 1
    return (bits * 2 - 1).double()
