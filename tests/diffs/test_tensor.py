from __future__ import annotations

import math
import resource

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffs.tensor import Element, compare
from diffs.ulp import ulp_distance
from diffs.verdict import UNREACHABLE, NotComparable


def test_identical_tensors_have_no_difference() -> None:
    found = compare(torch.eye(3), torch.eye(3))
    assert found.identical and found.differing == 0 and found.first is found.worst is None
    assert (found.dtype, found.shape, found.total) == ("float32", (3, 3), 9)


def test_the_first_and_the_worst_element_are_named() -> None:
    reference = torch.full((4, 8), 0.25)
    candidate = reference.clone()
    candidate[1, 3] = 0.25000003
    candidate[2, 5] = 0.0625
    found = compare(reference, candidate)
    assert found.first == Element((1, 3), 0.25, 0.25000002980232239, 1)
    assert found.worst == Element((2, 5), 0.25, 0.0625, 16_777_216)
    assert (found.differing, found.total, found.max_abs) == (2, 32, 0.1875)
    assert found.relative_l2 == pytest.approx(0.1875 / math.sqrt(32 * 0.0625))


def test_dtype_and_shape_mismatches_are_the_difference() -> None:
    assert compare(torch.ones(2), torch.ones(2).double()).mismatch == "dtype float32 against float64"
    found = compare(torch.ones(2), torch.ones(1, 2))
    assert found.mismatch == "shape (2,) against (1, 2)" and not found.identical


def test_signed_zeros_differ_by_no_distance() -> None:
    found = compare(torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.0]))
    assert not found.identical and found.differing == 1
    assert found.worst == found.first == Element((1,), 0.0, -0.0, 0)
    assert found.max_abs == 0 and found.relative_l2 == 0


def test_a_nan_on_one_side_is_the_worst_there_is() -> None:
    found = compare(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, float("nan"), 1e30]))
    assert found.worst is not None and found.worst.index == (1,) and found.worst.ulp == UNREACHABLE
    assert math.isnan(found.max_abs) and math.isnan(found.relative_l2)


def test_the_same_nan_and_infinity_on_both_sides_are_no_difference() -> None:
    found = compare(torch.tensor([float("nan"), float("inf"), 1.0]), torch.tensor([float("nan"), float("inf"), 2.0]))
    assert (found.differing, found.max_abs) == (1, 1.0)


def test_integers_are_measured_exactly() -> None:
    found = compare(torch.tensor([2**62, 5]), torch.tensor([-(2**62) - 1, 5]))
    assert found.max_abs == 2**63 + 1 and found.worst == Element((0,), 2**62, -(2**62) - 1, 2**63 + 1)


def test_bools_are_counted() -> None:
    found = compare(torch.tensor([True, False, True]), torch.tensor([True, True, False]))
    assert (found.differing, found.max_abs, found.first) == (2, 1, Element((1,), False, True, 1))


def test_a_zero_reference_is_infinitely_far_in_relative_terms() -> None:
    assert compare(torch.zeros(2), torch.ones(2)).relative_l2 == math.inf


def test_scalars_and_empty_tensors_are_compared() -> None:
    found = compare(torch.tensor(1.0), torch.tensor(2.0))
    assert found.first is not None and found.first.index == () and found.total == 1
    assert compare(torch.zeros(0, 2), torch.zeros(0, 2)).identical


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex32, torch.complex64, torch.complex128, torch.uint16,
        torch.uint32, torch.uint64, torch.int8,
    ],
    ids=str,
)  # fmt: skip
def test_every_dtype_is_compared(dtype: torch.dtype) -> None:
    reference = (torch.arange(48, dtype=torch.uint8) + 1).view(dtype)
    candidate = reference.clone()
    candidate.view(torch.uint8)[dtype.itemsize] += 1
    found = compare(reference, candidate)
    assert found.differing == 1 and found.worst == found.first
    assert found.first is not None and found.first.index == (1,) and found.first.ulp >= 1


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_the_summary_agrees_with_whole_tensor_arithmetic(seed: int, rows: int, changes: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    reference = torch.randn(rows, 300, generator=draw)
    candidate = reference.clone()
    places = torch.randint(reference.numel(), (changes,), generator=draw)
    candidate.view(-1)[places] += torch.randn(changes, generator=draw)
    found = compare(reference, candidate.t().contiguous().t())
    wide = (candidate.double() - reference.double()).numpy()
    distances = ulp_distance(reference, candidate)
    assert found.differing == np.count_nonzero(candidate.numpy() != reference.numpy())
    assert found.max_abs == np.abs(wide).max()
    assert found.relative_l2 == pytest.approx(np.linalg.norm(wide) / np.linalg.norm(reference.double().numpy()))
    if found.worst is not None and found.first is not None:
        assert found.worst.ulp == distances.max() == distances[found.worst.index]
        assert found.first.index == tuple(np.argwhere(candidate.numpy() != reference.numpy())[0])


def test_two_large_tensors_take_no_memory_of_their_size() -> None:
    reference = torch.zeros(24 << 20)
    candidate = torch.zeros(24 << 20)
    candidate[::1000] = 1.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert compare(reference, candidate).differing == (24 << 20) // 1000 + 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 24 << 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_comparing_changes_neither_tensor(dtype: torch.dtype) -> None:
    reference, candidate = torch.arange(6).to(dtype), torch.arange(6).to(dtype) * 3 + 1
    before = reference.clone(), candidate.clone()
    assert compare(reference, candidate).differing == 6
    assert torch.equal(reference, before[0]) and torch.equal(candidate, before[1])


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
def test_the_norm_holds_where_float32_would_leave_its_range(scale: float) -> None:
    reference = torch.full((100,), scale)
    candidate = reference * 1.5
    assert compare(reference, candidate).relative_l2 == pytest.approx(0.5)


def test_sparse_and_meta_tensors_are_refused() -> None:
    with pytest.raises(NotComparable, match="sparse"):
        compare(torch.eye(2).to_sparse(), torch.eye(2).to_sparse())
    with pytest.raises(NotComparable, match="meta"):
        compare(torch.eye(2, device="meta"), torch.eye(2))
