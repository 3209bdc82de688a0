"""Compares two nested states, such as checkpoints: their structure by deepdiff, their tensors by `diffs.tensor`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from deepdiff import DeepDiff

from diffs.tensor import TensorDifference, compare
from diffs.verdict import NotComparable

Path = tuple[Any, ...]
Kind = Literal["missing", "added", "type", "value", "tensor"]


@dataclass(frozen=True)
class StateDifference:
    """One place at which two states differ.

    path: the keys and indices that lead there.
    kind: "missing" (the candidate lacks it), "added" (the reference lacks it), "type", "value" or "tensor".
    reference, candidate: what stands there; None where it is lacking.
    tensor: what comparing two tensors found; None for the other kinds.
    """

    path: Path
    kind: Kind
    reference: Any
    candidate: Any
    tensor: TensorDifference | None = None


def differences(reference: Any, candidate: Any) -> list[StateDifference]:
    """Every place at which two nested states differ, in the order of the reference, then of the candidate.

    Mappings of any type are compared by key, lists and tuples by position, numpy arrays as tensors, all else by value.
    No tolerance: 0 and 0.0 differ in type, 0.0 and -0.0 in value; NaN equals NaN.

    Raises:
        NotComparable: a tensor that has no plain memory, with its path and the reason.
    """
    left, right = _State(reference), _State(candidate)
    found = [*_plain(left, right), *_tensors(left, right)]
    places = [*left.items, *(path for path in right.items if path not in left.items)]
    order = {path: place for place, path in enumerate(places)}
    return sorted(found, key=lambda difference: order.get(difference.path, len(order)))


class _Mark:
    """Stands for what deepdiff must not look into; equal only to itself."""


_TENSOR, _NEGATIVE_ZERO = _Mark(), _Mark()


class _State:
    """A nested state taken apart.

    items: everything in it by path, in order.
    plain: the state with marks for its tensors and negative zeros.
    """

    def __init__(self, value: Any) -> None:
        self.items: dict[Path, Any] = {}
        self.plain = self._take(value, ())

    def _take(self, value: Any, path: Path) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            value = torch.tensor(value)
        self.items[path] = value
        if isinstance(value, torch.Tensor):
            return _TENSOR
        if isinstance(value, Mapping):
            return {key: self._take(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self._take(item, (*path, index)) for index, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, float) and value == 0 and math.copysign(1.0, value) < 0:
            return _NEGATIVE_ZERO
        return value


def _plain(left: _State, right: _State) -> Iterator[StateDifference]:
    """What differs besides the tensors that both have."""
    # By position and to the bottom: by default deepdiff aligns lists, and gives up on mappings with few common keys.
    report = DeepDiff(
        left.plain,
        right.plain,
        view="tree",
        ignore_nan_inequality=True,
        zip_ordered_iterables=True,
        threshold_to_diff_deeper=0,
    )
    for change, levels in report.items():
        for level in levels:
            path = tuple(level.path(output_format="list"))
            if change.startswith("set_item"):
                path = path[:-1]
                reference, candidate = level.t1, level.t2
            else:
                reference, candidate = left.items.get(path, level.t1), right.items.get(path, level.t2)
            if change.endswith("_removed"):
                yield StateDifference(path, "missing", reference, None)
            elif change.endswith("_added"):
                yield StateDifference(path, "added", None, candidate)
            else:
                kind: Kind = "value" if type(reference) is type(candidate) else "type"
                yield StateDifference(path, kind, reference, candidate)


def _tensors(left: _State, right: _State) -> Iterator[StateDifference]:
    """The tensors that both have and that are not identical."""
    for path, reference in left.items.items():
        candidate = right.items.get(path)
        if not isinstance(reference, torch.Tensor) or not isinstance(candidate, torch.Tensor):
            continue
        try:
            found = compare(reference, candidate)
        except NotComparable as error:
            raise NotComparable(f"{'.'.join(map(str, path)) or 'the tensor'}: {error}") from None
        if not found.identical:
            yield StateDifference(path, "tensor", reference, candidate, found)
