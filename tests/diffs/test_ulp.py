from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffs.ulp import ulp_distance, worst_ulp
from diffs.verdict import UNREACHABLE, NotComparable

SMALL_FLOATS = [
    torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
FLOATS = [torch.float64, torch.float32, *SMALL_FLOATS]
INTEGERS = [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


def apart(dtype: torch.dtype, reference: float, candidate: float) -> int:
    return worst_ulp(torch.tensor(reference, dtype=dtype), torch.tensor(candidate, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "reference", "candidate", "expected"),
    [
        (torch.float16, 65504, -65504, 63_486),
        (torch.float32, 3e38, -3e38, 4_274_217_932),
        (torch.float64, 1.7976931348623157e308, -1.7976931348623157e308, 2 * 0x7FEF_FFFF_FFFF_FFFF),
        (torch.float64, float("inf"), float("-inf"), 2 * 0x7FF0_0000_0000_0000),
        (torch.float32, 1.0, 1.0000001, 1),
        (torch.float32, 0.25, 0.0625, 16_777_216),
        (torch.float32, 5e-324, 0.0, 0),
        (torch.float32, 1e-45, -1e-45, 2),
        (torch.float16, 65504, float("inf"), 1),
        (torch.bfloat16, 1.0, 1.0078125, 1),
        (torch.bool, True, False, 1),
        (torch.uint64, 2**64 - 1, 0, 2**64 - 1),
        (torch.int64, -(2**63), 2**63 - 1, 2**64 - 1),
        (torch.int8, -128, 127, 255),
    ],
)
def test_distances_known_by_hand(dtype: torch.dtype, reference: float, candidate: float, expected: int) -> None:
    assert apart(dtype, reference, candidate) == apart(dtype, candidate, reference) == expected


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if "nuz" not in str(dtype) and "e8m0" not in str(dtype)])
def test_signed_zeros_are_no_distance_apart(dtype: torch.dtype) -> None:
    assert apart(dtype, 0.0, -0.0) == 0


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else (
        torch.arange(1 << 16).to(torch.uint16).view(dtype)
    )  # fmt: skip


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_distance_counts_the_values_in_between(dtype: torch.dtype) -> None:
    """Against every bit pattern there is, sorted by value: neighbours are one apart, and distances add up."""
    patterns = every_pattern(dtype)
    values = patterns.to(torch.float64).numpy()
    numbers = patterns[torch.from_numpy(~np.isnan(values))]
    values = values[~np.isnan(values)]
    ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
    draw = np.random.default_rng(0).permutation(len(values))
    expected = np.abs(ranks - ranks[draw]).astype(np.uint64)
    np.testing.assert_array_equal(ulp_distance(numbers, numbers[torch.from_numpy(draw)]), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_is_out_of_reach_of_everything_but_its_own_bits(dtype: torch.dtype) -> None:
    nan = torch.full((2,), float("nan"), dtype=torch.float32).to(dtype)
    one = torch.ones(2).to(dtype)
    assert ulp_distance(nan, one).tolist() == ulp_distance(one, nan).tolist() == [UNREACHABLE] * 2
    assert worst_ulp(nan, nan.clone()) == 0


def test_two_nan_with_different_bits_are_out_of_reach() -> None:
    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert worst_ulp(nans[:1], nans[1:]) == UNREACHABLE


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_integers_are_as_far_apart_as_python_says(dtype: torch.dtype, data: st.DataObject) -> None:
    limits = torch.iinfo(dtype)
    values = st.lists(st.integers(limits.min, limits.max), min_size=4, max_size=4)
    left, right = data.draw(values), data.draw(values)
    distances = ulp_distance(torch.tensor(left, dtype=dtype), torch.tensor(right, dtype=dtype))
    assert distances.tolist() == [abs(a - b) for a, b in zip(left, right, strict=True)]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2), st.booleans())
@settings(max_examples=300, deadline=None)
def test_steps_between_two_floats_are_counted(values: list[float], wide: bool) -> None:
    """As numpy's own neighbours say, on the way from one to the other, for short ways."""
    kind, dtype = (np.float64, torch.float64) if wide else (np.float32, torch.float32)
    start = kind(values[0])
    end, steps = start, 0
    while steps < 5 and end != kind(values[1]):
        end, steps = np.nextafter(end, kind(values[1])), steps + 1
    found = worst_ulp(torch.tensor(float(start), dtype=dtype), torch.tensor(float(end), dtype=dtype))
    assert found == steps


def test_a_complex_number_is_as_far_apart_as_its_worse_part() -> None:
    reference = torch.tensor([1 + 1j, 2 + 0j])
    candidate = torch.tensor([1.0000002 + 1.0000001j, 2 - 0j])
    assert ulp_distance(reference, candidate).tolist() == [2, 0]


def test_the_result_has_the_shape_of_the_tensors() -> None:
    assert ulp_distance(torch.zeros(2, 0, 3), torch.zeros(2, 0, 3)).shape == (2, 0, 3)
    assert ulp_distance(torch.zeros(()), torch.ones(())).shape == ()
    far = ulp_distance(torch.zeros(3, 2).t().contiguous().t(), torch.eye(3, 2))
    assert far.dtype == np.uint64 and np.count_nonzero(far) == 2 and far[1, 1] == far[0, 0] == 0x3F800000


def test_what_has_no_distance_is_refused() -> None:
    with pytest.raises(NotComparable, match=r"shape \(2,\) against \(3,\)"):
        ulp_distance(torch.zeros(2), torch.zeros(3))
    with pytest.raises(NotComparable, match="float4_e2m1fn_x2 has no ULP distance"):
        worst_ulp(*(torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2) for _ in range(2)))
    with pytest.raises(NotComparable, match="sparse"):
        worst_ulp(torch.eye(2).to_sparse(), torch.eye(2).to_sparse())
