"""Compares two tensors element by element: how many differ, where, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from diffs.bits import blocks, equal_memory, mismatch, name_of
from diffs.ulp import BLOCK_BYTES, bit_patterns, block_distance, format_of

Number = bool | int | float | complex


@dataclass(frozen=True)
class Element:
    """One element that differs.

    index: its place, one number for each dimension.
    reference, candidate: its two values.
    ulp: how far apart they are; 2**64 - 1 where a NaN stands against anything but the same bits.
    """

    index: tuple[int, ...]
    reference: Number
    candidate: Number
    ulp: int


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """What comparing two tensors found.

    dtype, shape, total: of the reference; total counts elements.
    mismatch: why elements could not be paired (another dtype or shape); None if they were.
    differing: elements whose bits differ.
    first, worst: the first that differs, and the one furthest apart (the first of them); None where none differs.
    max_abs: the largest absolute difference, exact for integers; it is inf or NaN where an element's difference is.
    relative_l2: the L2 norm of the difference over the reference's; inf where the reference is all zeros.
    """

    dtype: str
    shape: tuple[int, ...]
    total: int
    mismatch: str | None = None
    differing: int = 0
    first: Element | None = None
    worst: Element | None = None
    max_abs: float | int = 0
    relative_l2: float = 0.0

    @property
    def identical(self) -> bool:
        """Whether dtype, shape and every bit agree."""
        return self.mismatch is None and self.differing == 0


def compare(reference: torch.Tensor, candidate: torch.Tensor) -> TensorDifference:
    """Compare two tensors bit by bit, and measure what differs.

    reference, candidate: any tensors with plain memory; constant extra memory unless they are on a device.

    Raises:
        NotComparable: one has no plain memory (sparse, meta...), or a dtype without an order, with the reason.
    """
    shape = tuple(reference.shape)
    agreement = TensorDifference(dtype=name_of(reference.dtype), shape=shape, total=reference.numel())
    if reason := mismatch(reference, candidate):
        return replace(agreement, mismatch=reason)
    format_of(reference.dtype)
    differing, squares, max_abs = 0, 0.0, 0.0
    first: Element | None = None
    worst: Element | None = None
    for start, left, right in blocks(reference, candidate, BLOCK_BYTES):
        if equal_memory(left, right):
            continue
        unequal = _unequal(left, right)
        distance = block_distance(left, right)
        differing += len(unequal)
        peak = int(unequal[distance[unequal].argmax()])
        if first is None:
            first = _element(left, right, distance, int(unequal[0]), start, shape)
        if worst is None or distance[peak] > worst.ulp:
            worst = _element(left, right, distance, peak, start, shape)
        gaps = _gaps(left, right, unequal)
        squares += float(np.square(gaps).sum())
        # Not max(): it would drop a NaN.
        max_abs = float(np.maximum(max_abs, gaps.max()))
    if worst is None:
        return agreement
    return replace(
        agreement,
        differing=differing,
        first=first,
        worst=worst,
        max_abs=max_abs if _inexact(reference.dtype) else worst.ulp,
        relative_l2=_ratio(math.sqrt(squares), _norm(reference)),
    )


def _unequal(left: torch.Tensor, right: torch.Tensor) -> np.ndarray:
    """The places in a block at which the bits differ."""
    unequal = bit_patterns(left) != bit_patterns(right)
    return np.flatnonzero(unequal if unequal.ndim == 1 else unequal.any(axis=1))


def _element(
    left: torch.Tensor, right: torch.Tensor, distance: np.ndarray, place: int, start: int, shape: tuple[int, ...]
) -> Element:
    index = tuple(int(i) for i in np.unravel_index(start + place, shape)) if shape else ()
    return Element(index, left[place].item(), right[place].item(), int(distance[place]))


def _gaps(left: torch.Tensor, right: torch.Tensor, unequal: np.ndarray) -> np.ndarray:
    """The absolute differences of the elements that differ, in float64."""
    if len(unequal) < len(left):
        left, right = (flat[torch.from_numpy(unequal)] for flat in (left, right))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.abs(_wide(right) - _wide(left))


def _norm(reference: torch.Tensor) -> float:
    """The L2 norm of a tensor, in float64."""
    with np.errstate(invalid="ignore", over="ignore"):
        pieces = blocks(reference, reference, BLOCK_BYTES)
        return math.sqrt(sum(float(np.square(np.abs(_wide(block))).sum()) for _, block, _ in pieces))


def _wide(flat: torch.Tensor) -> np.ndarray:
    return flat.to(torch.complex128 if flat.dtype.is_complex else torch.float64).numpy()


def _ratio(difference: float, reference: float) -> float:
    if reference == 0:
        return math.inf if difference > 0 else difference
    return difference / reference


def _inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
