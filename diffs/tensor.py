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
    tally = Tally(reference.dtype, tuple(reference.shape))
    if reason := mismatch(reference, candidate):
        return replace(tally.result(), mismatch=reason)
    format_of(reference.dtype)
    weighed = set()
    for start, left, right in blocks(reference, candidate, BLOCK_BYTES):
        if not equal_memory(left, right):
            tally.add(start, left, right)
            weighed.add(start)
    if weighed:
        for start, left, _ in blocks(reference, candidate, BLOCK_BYTES):
            if start not in weighed:
                tally.weigh(left)
    return tally.result()


class Tally:
    """Adds up how two tensors differ, from blocks that come in any order, each once.

    dtype, shape: of both tensors.

    If any block goes through `add`, every other one goes through `weigh`: the reference's norm needs all.
    """

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self.differing = 0
        self._first: tuple[int, Element] | None = None
        self._worst: tuple[int, Element] | None = None
        self._gaps, self._norm, self._max_abs = 0.0, 0.0, 0.0

    def add(self, start: int, left: torch.Tensor, right: torch.Tensor) -> None:
        """Measure a block: contiguous (n,) CPU tensors, `start` the flat index of their first element.

        Raises:
            NotComparable: the dtype has no order.
        """
        self.weigh(left)
        left_bits, right_bits = bit_patterns(left), bit_patterns(right)
        unequal = left_bits != right_bits
        places = np.flatnonzero(unequal if unequal.ndim == 1 else unequal.any(axis=1))
        if not len(places):
            return
        if len(places) < len(left):
            left, right = (_of_bits(bits.take(places, axis=0), self.dtype) for bits in (left_bits, right_bits))
        distance = block_distance(left, right)
        self.differing += len(places)
        self._note(start, places, left, right, distance)
        with np.errstate(invalid="ignore", over="ignore"):
            gaps = np.abs(_wide(right) - _wide(left))
            # Not max(): it would drop a NaN.
            self._max_abs = float(np.maximum(self._max_abs, gaps.max()))
            self._gaps += float(np.dot(gaps, gaps))

    def _note(
        self, start: int, places: np.ndarray, left: torch.Tensor, right: torch.Tensor, distance: np.ndarray
    ) -> None:
        """Keep the first and the worst element, if this block has them."""
        peak = int(distance.argmax())
        first, worst = start + int(places[0]), start + int(places[peak])
        ulp = int(distance[peak])
        if self._first is None or first < self._first[0]:
            self._first = first, Element((), left[0].item(), right[0].item(), int(distance[0]))
        if self._worst is None or (-ulp, worst) < (-self._worst[1].ulp, self._worst[0]):
            self._worst = worst, Element((), left[peak].item(), right[peak].item(), ulp)

    def weigh(self, left: torch.Tensor) -> None:
        """Add a block of the reference to its norm."""
        self._norm += _square_norm(left)

    def result(self) -> TensorDifference:
        """What the blocks say together."""
        agreement = TensorDifference(dtype=name_of(self.dtype), shape=self.shape, total=math.prod(self.shape))
        if self._first is None or self._worst is None:
            return agreement
        worst = self._placed(self._worst)
        return replace(
            agreement,
            differing=self.differing,
            first=self._placed(self._first),
            worst=worst,
            max_abs=self._max_abs if _inexact(self.dtype) else worst.ulp,
            relative_l2=_ratio(math.sqrt(self._gaps), math.sqrt(self._norm)),
        )

    def _placed(self, found: tuple[int, Element]) -> Element:
        flat, element = found
        index = tuple(int(i) for i in np.unravel_index(flat, self.shape)) if self.shape else ()
        return replace(element, index=index)


def _of_bits(bits: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A (n,) tensor from its bit patterns."""
    return torch.from_numpy(bits.reshape(-1).view(np.uint8)).view(dtype)


def _square_norm(flat: torch.Tensor) -> float:
    """The sum of squares of a block, to about 1e-6 of itself."""
    if flat.dtype in _NARROW:
        # A product of float32 is several times faster than one of float64, and good enough where it stays in range.
        single = flat.float()
        product = float(torch.dot(single, single))
        if _SMALLEST < product < _LARGEST:
            return product
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.square(np.abs(_wide(flat))).sum())


_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_SMALLEST, _LARGEST = 1e-20, 1e30


def _wide(flat: torch.Tensor) -> np.ndarray:
    return flat.to(torch.complex128 if flat.dtype.is_complex else torch.float64).numpy()


def _ratio(difference: float, reference: float) -> float:
    if reference == 0:
        return math.inf if difference > 0 else difference
    return difference / reference


def _inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
