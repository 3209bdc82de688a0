"""Bit comparison of two tensors: signed zeros differ, NaN payloads differ, equal NaN are equal.

Reads memory where it lies, with the C library's memcmp in blocks. Tensors that are not contiguous are copied a block at
a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from diffs.digest import in_memory, is_plain, refusal
from diffs.verdict import NotComparable

BLOCK_BYTES = 4 << 20

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


def identical(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits.

    Raises:
        NotComparable: one has no plain memory (sparse, meta...), with the reason.
    """
    if mismatch(reference, candidate):
        return False
    return all(equal_memory(left, right) for _, left, right in blocks(reference, candidate, BLOCK_BYTES))


def mismatch(reference: torch.Tensor, candidate: torch.Tensor) -> str | None:
    """Why no element of one tensor has a counterpart in the other, or None."""
    if reference.dtype != candidate.dtype:
        return f"dtype {name_of(reference.dtype)} against {name_of(candidate.dtype)}"
    if reference.shape != candidate.shape:
        return f"shape {tuple(reference.shape)} against {tuple(candidate.shape)}"
    return None


def blocks(
    reference: torch.Tensor, candidate: torch.Tensor, block_bytes: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Two tensors of one dtype and shape in pieces: (flat index of the first element, (n,), (n,)), in row-major order.

    The pieces are contiguous in the CPU's memory, and views where the tensors are.

    Raises:
        NotComparable: one has no plain memory, with the reason.
    """
    for tensor in (reference, candidate):
        if reason := refusal(tensor):
            raise NotComparable(reason)
    size = max(1, block_bytes // reference.element_size())
    if reference.numel() <= size or (is_plain(reference) and is_plain(candidate)):
        left, right = in_memory(reference).detach().view(-1), in_memory(candidate).detach().view(-1)
        for start in range(0, left.numel(), size):
            yield start, left[start : start + size], right[start : start + size]
        return
    row = reference[0].numel()
    rows = max(1, size // row)
    for first in range(0, len(reference), rows):
        part = first if row > size else slice(first, first + rows)
        for start, left, right in blocks(reference[part], candidate[part], block_bytes):
            yield first * row + start, left, right


def equal_memory(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether two contiguous CPU tensors of one size in bytes hold the same bytes."""
    return not memory_differs(reference.data_ptr(), candidate.data_ptr(), reference.nbytes)


def memory_differs(left: int, right: int, size: int) -> bool:
    """Whether `size` bytes at two addresses differ."""
    return _memcmp(left, right, size) != 0


def name_of(dtype: torch.dtype) -> str:
    """A dtype as reports print it: `float32`."""
    return str(dtype).removeprefix("torch.")
