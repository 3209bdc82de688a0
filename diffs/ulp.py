"""How far apart two tensors are, in representable values of their dtype: exact, and unsigned so that nothing wraps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from diffs.bits import blocks, equal_memory, mismatch, name_of
from diffs.verdict import UNREACHABLE, NotComparable

BLOCK_BYTES = 128 << 10


class Format(NamedTuple):
    """How a dtype's bits order its values.

    bits: the unsigned integer of the same width.
    order: "sign_magnitude" (floats), "unsigned" or "signed".
    largest: the largest magnitude that is a number; None where every pattern is one.
    negative_zero_is_nan: in the `fnuz` floats the pattern of -0 is the only NaN.
    """

    bits: type[np.unsignedinteger]
    order: str
    largest: int | None = None
    negative_zero_is_nan: bool = False


def ulp_distance(reference: torch.Tensor, candidate: torch.Tensor) -> np.ndarray:
    """Count the representable values between two tensors, element by element.

    reference, candidate: (*S), any float, integer, bool or complex dtype, the same for both.
    Returns (*S) uint64 counts in ULP of that dtype; 0 means numerically equal. Integers and bools: their difference.
    Complex: the larger count of the two parts.

    Signed zeros are 0 ULP apart; `diffs.bits` tells them apart. Infinity is one ULP from the largest number. A NaN
    against anything but the same bits gets the largest count, 2**64 - 1, so no policy can accept it. Unsigned, because
    the span from -max to +max of float64 does not fit in int64.

    Raises:
        NotComparable: shapes or dtypes differ, or the dtype has no distance.
    """
    if reason := mismatch(reference, candidate):
        raise NotComparable(reason)
    result = np.zeros(reference.numel(), np.uint64)
    for start, left, right in blocks(reference, candidate, BLOCK_BYTES):
        if not equal_memory(left, right):
            result[start : start + len(left)] = block_distance(left, right)
    return result.reshape(tuple(reference.shape))


def worst_ulp(reference: torch.Tensor, candidate: torch.Tensor) -> int:
    """The largest `ulp_distance` of two tensors, in constant extra memory; 0 for tensors without elements.

    Raises:
        NotComparable: shapes or dtypes differ, or the dtype has no distance.
    """
    if reason := mismatch(reference, candidate):
        raise NotComparable(reason)
    format_of(reference.dtype)
    pieces = blocks(reference, candidate, BLOCK_BYTES)
    return max((int(block_distance(a, b).max()) for _, a, b in pieces if not equal_memory(a, b)), default=0)


def block_distance(reference: torch.Tensor, candidate: torch.Tensor) -> np.ndarray:
    """`ulp_distance` of two contiguous (n,) CPU tensors: counts of the dtype's width, uint64 where a NaN needs it."""
    form = format_of(reference.dtype)
    left, right = bit_patterns(reference), bit_patterns(candidate)
    if form.order == "sign_magnitude":
        distance = _sign_magnitude(left, right, form)
    elif form.order == "signed":
        signed = left.dtype.name.removeprefix("u")
        low, high = np.minimum(left.view(signed), right.view(signed)), np.maximum(left.view(signed), right.view(signed))
        distance = high.view(form.bits) - low.view(form.bits)
    else:
        distance = np.maximum(left, right) - np.minimum(left, right)
        if form.largest is not None:
            distance = _unreachable(distance, (np.maximum(left, right) > form.largest) & (left != right))
    return distance if distance.ndim == 1 else distance.max(axis=1)


def bit_patterns(flat: torch.Tensor) -> np.ndarray:
    """The bits of a contiguous (n,) CPU tensor as unsigned integers, without a copy: (n,), or (n, 2) if it is complex.

    Raises:
        NotComparable: the dtype has no distance.
    """
    form = format_of(flat.dtype)
    patterns = flat.detach().view(torch.uint8).numpy().view(form.bits)
    return patterns.reshape(-1, 2) if flat.dtype.is_complex else patterns


def format_of(dtype: torch.dtype) -> Format:
    """How a dtype orders its values.

    Raises:
        NotComparable: it has no order that is known here, for example because it packs several values into a byte.
    """
    form = _FORMATS.get(name_of(dtype))
    if form is None:
        raise NotComparable(f"{name_of(dtype)} has no ULP distance: compare .view(torch.uint8), or its bits")
    return form


def _sign_magnitude(left: np.ndarray, right: np.ndarray, form: Format) -> np.ndarray:
    sign = form.bits(1 << (left.dtype.itemsize * 8 - 1))
    left_size, right_size = left & ~sign, right & ~sign
    # Both branches fit the width: two magnitudes sum to at most 2**w - 2.
    apart = left_size + right_size
    near = np.maximum(left_size, right_size) - np.minimum(left_size, right_size)
    distance = np.where((left ^ right) < sign, near, apart)
    if form.negative_zero_is_nan:
        nan = (left == sign) | (right == sign)
    else:
        nan = np.maximum(left_size, right_size) > form.largest
    return _unreachable(distance, nan & (left != right))


def _unreachable(distance: np.ndarray, where: np.ndarray) -> np.ndarray:
    if not where.any():
        return distance
    distance = distance.astype(np.uint64)
    distance[where] = UNREACHABLE
    return distance


_FORMATS = {
    "float64": Format(np.uint64, "sign_magnitude", 0x7FF0_0000_0000_0000),
    "float32": Format(np.uint32, "sign_magnitude", 0x7F80_0000),
    "float16": Format(np.uint16, "sign_magnitude", 0x7C00),
    "bfloat16": Format(np.uint16, "sign_magnitude", 0x7F80),
    # The OCP 8-bit formats, and the fnuz ones of https://arxiv.org/abs/2206.02915.
    "float8_e4m3fn": Format(np.uint8, "sign_magnitude", 0x7E),
    "float8_e5m2": Format(np.uint8, "sign_magnitude", 0x7C),
    "float8_e4m3fnuz": Format(np.uint8, "sign_magnitude", negative_zero_is_nan=True),
    "float8_e5m2fnuz": Format(np.uint8, "sign_magnitude", negative_zero_is_nan=True),
    "float8_e8m0fnu": Format(np.uint8, "unsigned", 0xFE),  # an exponent alone: powers of two
    "complex128": Format(np.uint64, "sign_magnitude", 0x7FF0_0000_0000_0000),
    "complex64": Format(np.uint32, "sign_magnitude", 0x7F80_0000),
    "complex32": Format(np.uint16, "sign_magnitude", 0x7C00),
    "bool": Format(np.uint8, "unsigned"),
    "uint8": Format(np.uint8, "unsigned"),
    "uint16": Format(np.uint16, "unsigned"),
    "uint32": Format(np.uint32, "unsigned"),
    "uint64": Format(np.uint64, "unsigned"),
    "int8": Format(np.uint8, "signed"),
    "int16": Format(np.uint16, "signed"),
    "int32": Format(np.uint32, "signed"),
    "int64": Format(np.uint64, "signed"),
}
