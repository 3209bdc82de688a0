"""How far apart two tensors are, in representable values of their dtype: exact, and unsigned so that nothing wraps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from diffs.bits import blocks, equal_memory, mismatch, name_of
from diffs.verdict import UNREACHABLE, NotComparable

BLOCK_BYTES = 256 << 10


class Format(NamedTuple):
    """How a dtype's bits order its values.

    bits: the unsigned integer of the same width.
    order: "sign_magnitude" (floats), "unsigned" or "signed".
    largest: the largest magnitude that is a number. None: every pattern is one, except in floats that of the negative
        zero (the `fnuz` ones).
    """

    bits: type[np.unsignedinteger]
    order: str
    largest: int | None = None


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
    low, high = _ordered(left), _ordered(right)
    # In place, because allocating a block costs as much as a pass over it. The span fits: it is at most 2**w - 2.
    distance = np.maximum(low, high)
    np.minimum(low, high, out=low)
    np.subtract(distance, low, out=distance)
    nan = _is_nan(left, form) | _is_nan(right, form) if _holds_nan(left, form) or _holds_nan(right, form) else None
    return distance.view(form.bits) if nan is None else _unreachable(distance.view(form.bits), nan & (left != right))


def _ordered(patterns: np.ndarray) -> np.ndarray:
    """Signed integers in the order of the floats: the magnitude, negated where the sign is set. Both zeros are 0."""
    bits = patterns.view(patterns.dtype.name.removeprefix("u"))
    sign = bits >> (bits.dtype.itemsize * 8 - 1)  # 0 or -1
    ordered = bits & np.iinfo(bits.dtype).max
    ordered ^= sign
    ordered -= sign
    return ordered


def _holds_nan(patterns: np.ndarray, form: Format) -> bool:
    """Whether a NaN may be among floats: two reductions, cheaper than a mask."""
    if form.largest is None:
        return True
    signed = patterns.view(patterns.dtype.name.removeprefix("u"))
    return signed.max() > form.largest or patterns.max() > form.largest + _sign_bit(form)


def _is_nan(patterns: np.ndarray, form: Format) -> np.ndarray:
    sign = form.bits(_sign_bit(form))
    return patterns == sign if form.largest is None else (patterns & ~sign) > form.largest


def _sign_bit(form: Format) -> int:
    return 1 << (np.dtype(form.bits).itemsize * 8 - 1)


def _unreachable(distance: np.ndarray, where: np.ndarray) -> np.ndarray:
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
    "float8_e4m3fnuz": Format(np.uint8, "sign_magnitude"),
    "float8_e5m2fnuz": Format(np.uint8, "sign_magnitude"),
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
