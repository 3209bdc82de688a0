from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffs.render import count, number, place_of, shortened, tensor_lines
from diffs.tensor import compare


def lines(reference: torch.Tensor, candidate: torch.Tensor) -> list[str]:
    return list(tensor_lines(compare(reference, candidate)))


def test_the_report_of_the_style_page() -> None:
    reference, candidate = torch.full((4, 8), 0.25), torch.full((4, 8), 0.25000003)
    candidate[0, 2] = 0.0625
    assert lines(reference, candidate) == [
        "differs    32 of 32 elements, worst 16,777,216 ULP at (0, 2)",
        "reference  0.25",
        "candidate  0.0625",
    ]


@pytest.mark.parametrize(
    ("reference", "candidate", "first"),
    [
        (torch.ones(2), torch.ones(3), "differs    shape (2,) against (3,)"),
        (torch.ones(1234), torch.ones(1234), "agrees     1,234 elements, bit for bit"),
        (torch.tensor(1.0), torch.tensor(1.0000001), "differs    1 of 1 element, worst 1 ULP"),
        (torch.zeros(1), -torch.zeros(1), "differs    1 of 1 element, worst 0 ULP (zeros of either sign) at (0,)"),
        (torch.ones(1), torch.ones(1) * math.nan, "differs    1 of 1 element, worst NaN on one side only at (0,)"),
        (torch.tensor([1]), torch.tensor([5001]), "differs    1 of 1 element, worst 5,000 apart at (0,)"),
        (torch.tensor([True]), torch.tensor([False]), "differs    1 of 1 element, worst 1 apart at (0,)"),
        (
            torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32),
            torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32),
            "differs    1 of 1 element, worst two NaN with different bits at (0,)",
        ),
    ],
)  # fmt: skip
def test_the_first_line_says_what_differs(reference: torch.Tensor, candidate: torch.Tensor, first: str) -> None:
    assert lines(reference, candidate)[0] == first


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@given(bits=st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_a_float_prints_in_a_short_form_that_reads_back(dtype: str, bits: int) -> None:
    kind = getattr(torch, dtype)
    tensor = torch.tensor([bits - 2**31], dtype=torch.int32).view(torch.uint8)[: kind.itemsize].view(kind)
    text = number(tensor.item(), dtype)
    again = torch.tensor(float(text), dtype=kind)
    assert again.isnan() if tensor.isnan() else again.item() == tensor.item()
    assert len(text) <= 24


def test_numbers_print_as_their_dtype_has_them() -> None:
    assert number(torch.tensor(0.1).item(), "float32") == "0.1"
    assert number(0.1) == "0.1"
    assert number(torch.tensor(0.1).item()) == "0.10000000149011612"
    assert number(-0.0, "float32") == "-0.0"
    assert number(math.inf, "float16") == "inf"
    assert number(3, "int64") == "3" and number(True, "bool") == "True"
    assert number(65504.0, "float16") == "65504.0"


def test_counts_have_separators_and_a_plural() -> None:
    assert [count(n, "element") for n in (0, 1, 12345)] == ["0 elements", "1 element", "12,345 elements"]
    assert [place_of(index) for index in [(), (3,), (0, 12345)]] == ["()", "(3,)", "(0, 12345)"]


def test_a_shortened_report_names_the_flag_that_shows_the_rest() -> None:
    assert list(shortened("abc", 3, "--all")) == ["a", "b", "c"]
    assert list(shortened("abcde", 3, "--all")) == ["a", "b", "c", "... 2 more lines: --all shows all"]
