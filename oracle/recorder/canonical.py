"""The one JSON text of a plain value, so that equal values have equal digests in any two runs."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def canonical_json(value: Any) -> str:
    """The JSON text of a value: equal values have equal texts.

    Whole floats below 2**53 are written as integers, because a recipe's 0 and a trainer's 0.0 are one number; -0.0
    stays itself. Tuples are lists, keys are sorted, and NaN and Infinity are written as Python's json does.

    Raises:
        TypeError: a value that JSON cannot hold.
    """
    return _encode(_plain(value))


def scalar_json(tensor: torch.Tensor) -> str | None:
    """The value of a one-element tensor as JSON, a complex one as [real, imaginary].

    None for dtypes that Python has no number for.
    """
    try:
        number = tensor.item()
    except (RuntimeError, NotImplementedError):
        return None
    return canonical_json([number.real, number.imag] if isinstance(number, complex) else number)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        negative_zero = value == 0 and math.copysign(1.0, value) < 0
        return int(value) if value.is_integer() and abs(value) < 2**53 and not negative_zero else float(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # a tensor in a list, a numpy number or array
        return _plain(value.tolist())
    raise TypeError(f"{type(value).__name__} is neither a tensor nor plain data")
