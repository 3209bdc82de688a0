"""What the numbers at a difference say by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch

from diffs.first import Difference
from diffs.tensor import TensorDifference, compare
from oracle.result import FirstDivergence

LARGEST_DENOMINATOR = 64


def constant_ratio(reference: torch.Tensor, candidate: torch.Tensor) -> Fraction | None:
    """candidate / reference, if it is one small fraction in every element, exactly; None otherwise.

    Elements that are zero in both say nothing; one that is zero on one side rules a ratio out.
    """
    if reference.shape != candidate.shape or not reference.is_floating_point():
        return None
    left, right = reference.double().flatten(), candidate.double().flatten()
    told = (left != 0) | (right != 0)
    left, right = left[told], right[told]
    if len(left) == 0 or bool((left == 0).any()) or bool((right == 0).any()):
        return None
    quotient = float(right[0] / left[0])
    if not abs(quotient) < 1e6:
        return None
    ratio = Fraction(quotient).limit_denominator(LARGEST_DENOMINATOR)
    if ratio in (0, 1):
        return None
    exact = bool(torch.equal(left * ratio.numerator, right * ratio.denominator))
    return ratio if exact else None


def clause(ratio: Fraction) -> str:
    """The ratio as a reason."""
    return f"candidate / reference is {ratio} in every element, exactly"


def described(
    difference: Difference, reference: torch.Tensor | None, candidate: torch.Tensor | None
) -> FirstDivergence:
    """A difference with its elements, as far as the tensors are there."""
    address = difference.address
    place: dict[str, Any] = address._asdict()
    if difference.reference is None or difference.candidate is None:
        missing = "reference" if difference.reference is None else "candidate"
        row = difference.reference or difference.candidate
        assert row is not None
        return FirstDivergence(**place, dtype=row.dtype, missing=missing)  # type: ignore[arg-type]
    if reference is None or candidate is None:
        return FirstDivergence(
            **place,
            dtype=difference.reference.dtype,
            reference=difference.reference.content,
            candidate=difference.candidate.content,
            max_abs=_gap(difference.reference.content, difference.candidate.content),
        )
    found = compare(reference, candidate)
    return FirstDivergence(**place, **_elements(found, reference, candidate))


def _elements(found: TensorDifference, reference: torch.Tensor, candidate: torch.Tensor) -> Mapping[str, Any]:
    if found.mismatch is not None or found.worst is None:
        shown = [f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in (reference, candidate)]
        return {"dtype": found.dtype, "total": found.total, "reference": shown[0], "candidate": shown[1]}
    worst = found.worst
    return {
        "dtype": found.dtype,
        "index": worst.index,
        "reference": worst.reference,
        "candidate": worst.candidate,
        "ulp": worst.ulp,
        "max_abs": float(found.max_abs),
        "differing": found.differing,
        "total": found.total,
    }


def _gap(reference: Any, candidate: Any) -> float | None:
    numbers = all(isinstance(side, (int, float)) and not isinstance(side, bool) for side in (reference, candidate))
    return abs(float(candidate) - float(reference)) if numbers else None
