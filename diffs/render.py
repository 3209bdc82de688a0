"""Writes differences as lines for people, as many as asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from diffs.tensor import Element, Number, TensorDifference
from diffs.verdict import UNREACHABLE


def tensor_lines(difference: TensorDifference) -> Iterator[str]:
    """A tensor's difference in at most three lines, labels in a column of eleven.

    differs    32 of 32 elements, worst 16,777,216 ULP at (0, 2)
    reference  0.25
    candidate  0.0625
    """
    if difference.mismatch is not None:
        yield f"differs    {difference.mismatch}"
        return
    if difference.worst is None:
        yield f"agrees     {count(difference.total, 'element')}, bit for bit"
        return
    worst = difference.worst
    place = f" at {place_of(worst.index)}" if worst.index else ""
    elements = count(difference.total, "element")
    yield f"differs    {difference.differing:,} of {elements}, worst {distance(worst, difference.dtype)}{place}"
    yield f"reference  {number(worst.reference, difference.dtype)}"
    yield f"candidate  {number(worst.candidate, difference.dtype)}"


def distance(element: Element, dtype: str) -> str:
    """How far an element's two values are apart, with its unit."""
    if element.ulp == UNREACHABLE and "int" not in dtype:
        nans = [value for value in (element.reference, element.candidate) if value != value]
        return "NaN on one side only" if len(nans) == 1 else "two NaN with different bits"
    if element.ulp == 0:
        return "0 ULP (zeros of either sign)"
    return f"{element.ulp:,} {'apart' if 'int' in dtype or dtype == 'bool' else 'ULP'}"


def number(value: Number, dtype: str = "float64") -> str:
    """A value in the shortest form that reads back as the same value of that dtype: 0.1 for the float32 nearest to it.

    dtype: as torch names it; what is no float of torch prints as Python has it.

    Whole numbers below ten million print exactly: 65504.0, although 65500 reads back as the same float16.
    """
    kind = getattr(torch, dtype, None)
    if not isinstance(value, float) or not isinstance(kind, torch.dtype) or kind.itemsize == 8:
        return repr(value)
    if not math.isfinite(value) or (value.is_integer() and abs(value) < 1e7):
        return repr(value)
    for digits in range(1, 17):
        shortest = float(f"{value:.{digits}g}")
        if torch.tensor(shortest, dtype=kind).item() == value:
            return repr(shortest)
    return repr(value)


def place_of(index: tuple[int, ...]) -> str:
    """An index as Python writes it, with thousands separators kept out: `(0, 2)`."""
    return f"({', '.join(map(str, index))}{',' if len(index) == 1 else ''})"


def count(number_of: int, noun: str) -> str:
    """A number and what it counts: `1 element`, `1,024 elements`."""
    return f"{number_of:,} {noun}{'' if number_of == 1 else 's'}"


def shortened(lines: Iterable[str], limit: int, flag: str) -> Iterator[str]:
    """At most `limit` lines, then one that says how many are left and which flag shows them."""
    left = 0
    for position, line in enumerate(lines):
        if position < limit:
            yield line
        else:
            left += 1
    if left:
        yield f"... {count(left, 'more line')}: {flag} shows all"
