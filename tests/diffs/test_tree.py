from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffs.tree import differences
from diffs.verdict import NotComparable

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3),
    max_leaves=10,
)


def kinds(reference: Any, candidate: Any) -> list[tuple[tuple[Any, ...], str]]:
    return [(difference.path, difference.kind) for difference in differences(reference, candidate)]


def state(step: Any = 3) -> dict[str, Any]:
    return {
        "model": {"weight": torch.ones(2, 2), "bias": torch.zeros(2)},
        "optimizer": {"state": {0: {"step": step}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.999)}]},
        "epoch": 1,
    }


@given(PLAIN)
@settings(max_examples=100, deadline=None)
def test_a_state_does_not_differ_from_itself(value: Any) -> None:
    assert differences(value, value) == []


def test_every_difference_is_found_in_the_order_of_the_reference() -> None:
    other = state(step=4)
    other["model"]["bias"][1] = 1.0
    del other["epoch"]
    other["optimizer"]["groups"][0]["betas"] = (0.9, 0.99)
    other["scheduler"] = {"last": 2}
    assert kinds(state(), other) == [
        (("model", "bias"), "tensor"),
        (("optimizer", "state", 0, "step"), "value"),
        (("optimizer", "groups", 0, "betas", 1), "value"),
        (("epoch",), "missing"),
        (("scheduler",), "added"),
    ]


def test_a_tensor_is_compared_element_by_element() -> None:
    other = state()
    other["model"]["weight"][1, 0] = 3.0
    (difference,) = differences(state(), other)
    assert difference.tensor is not None and difference.tensor.first is not None
    assert (difference.tensor.differing, difference.tensor.first.index) == (1, (1, 0))
    assert difference.candidate is other["model"]["weight"]


def test_a_tensor_of_another_shape_or_dtype_is_a_difference_of_tensors() -> None:
    (difference,) = differences({"w": torch.ones(2)}, {"w": torch.ones(3)})
    assert difference.kind == "tensor" and difference.tensor is not None
    assert difference.tensor.mismatch == "shape (2,) against (3,)"


def test_a_tensor_against_something_else_differs_in_type() -> None:
    assert kinds({"w": torch.tensor(1.0)}, {"w": 1.0}) == [(("w",), "type")]


def test_a_missing_tensor_is_handed_back() -> None:
    (difference,) = differences({"w": torch.ones(2)}, {})
    assert difference.kind == "missing" and torch.equal(difference.reference, torch.ones(2))


@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        (0.0, -0.0, [((), "value")]),
        (float("nan"), float("nan"), []),
        (1.0, float("nan"), [((), "value")]),
        (0, 0.0, [((), "type")]),
        (True, 1, [((), "type")]),
        (None, 0, [((), "type")]),
        (0.1 + 0.2, 0.3, [((), "value")]),
        ([1, 2], (1, 2), [((), "type")]),
        ([1, 2, 3], [1, 3], [((1,), "value"), ((2,), "missing")]),
        ({1: "a"}, {"1": "a"}, [((1,), "missing"), (("1",), "added")]),
        ({"a": {1, 2}}, {"a": {2, 3}}, [(("a",), "added"), (("a",), "missing")]),
        (collections.OrderedDict(a=1), {"a": 1}, []),
        ({"a": 1, "b": 2, "c": 3}, {"x": 1, "y": 2, "a": 2}, None),
        (2**70, 2**70 + 1, [((), "value")]),
        (b"ab", b"ac", [((), "value")]),
        ({"x.y['q']": 1}, {"x.y['q']": 2}, [(("x.y['q']",), "value")]),
    ],
)
def test_plain_values_are_compared_without_tolerance(reference: Any, candidate: Any, expected: Any) -> None:
    found = kinds(reference, candidate)
    if expected is None:
        assert ("a",) in dict(found) and len(found) == 5
    else:
        assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_numpy_arrays_are_compared_as_tensors() -> None:
    (difference,) = differences({"a": np.zeros(3)}, {"a": np.array([0.0, -0.0, 1.0])})
    assert difference.tensor is not None and difference.tensor.differing == 2


def test_a_refused_tensor_is_named() -> None:
    with pytest.raises(NotComparable, match=r"model\.w: a sparse_coo tensor"):
        differences({"model": {"w": torch.eye(2).to_sparse()}}, {"model": {"w": torch.eye(2).to_sparse()}})
