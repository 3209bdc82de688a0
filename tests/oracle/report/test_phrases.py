"""Numbers, places and lists."""

from __future__ import annotations

import math

import pytest
import torch

from oracle.report import phrases
from oracle.report.phrases import Count
from oracle.result import Site


@pytest.mark.parametrize(
    ("count", "unit", "expected"),
    [
        (1, "micro-batch", "1 micro-batch"),
        (4, "micro-batch", "4 micro-batches"),
        (0, "address", "0 addresses"),
        (1840, "update", "1,840 updates"),
        (16777216, "", "16,777,216"),
    ],
)
def test_counts_carry_their_unit(count: int, unit: str, expected: str) -> None:
    assert format(Count(count), unit) == expected


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_float_prints_in_the_shortest_form_that_round_trips(dtype: str) -> None:
    kind = getattr(torch, dtype)
    integers = torch.int32 if dtype == "float32" else torch.int16
    bounds = torch.iinfo(integers)
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(bounds.min, bounds.max, (2000,), dtype=integers, generator=generator)
    numbers = bits.view(kind)
    for number in numbers[numbers.isfinite()]:
        text = phrases.value(number.item(), dtype)
        again = torch.tensor(float(text), dtype=torch.float64).to(kind)
        assert torch.equal(again, number), text
        digits = len(text.partition("e")[0].strip("-0").replace(".", "").strip("0"))
        shorter = f"{number.item():.{max(digits - 1, 1)}g}"
        if digits > 1:
            assert not torch.equal(torch.tensor(float(shorter), dtype=torch.float64).to(kind), number)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (0.10000000149011612, "float32", "0.1"),
        (0.10000000149011612, "torch.float32", "0.1"),
        (0.10000000149011612, None, "0.10000000149011612"),
        (0.1, "float32", "0.1"),  # not a float32: left as it is
        (65504.0, "float16", "65500.0"),
        (-0.0, "float32", "-0.0"),
        (math.nan, "float32", "NaN"),
        (-math.inf, None, "-inf"),
        (1e-45, None, "1e-45"),
        (3, None, "3"),
        (True, None, "true"),
        (None, None, "none"),
        ("eval", None, "eval"),
        ([0.9, 0.999], None, "[0.9, 0.999]"),
    ],
)
def test_values(value: object, dtype: str | None, expected: str) -> None:
    assert phrases.value(value, dtype) == expected


def test_places() -> None:
    site = Site(update=1, micro=0, moment="backward", kind="gradient", name="0.weight", rank=2)
    assert phrases.place(site) == "rank 2, update 1, micro 0, backward: gradient of 0.weight"
    assert phrases.moment(-1, -1, "evaluate") == "before the first update, evaluate"
    assert phrases.moment(-1, -1, "start") == "start"


def test_lists() -> None:
    assert phrases.listing(["a"]) == "a"
    assert phrases.listing(["a", "b", "c"]) == "a, b and c"
    assert phrases.few(list("abcdefgh")) == "a, b, c and 5 more"
    assert phrases.few([]) == ""


def test_terminal_codes_are_removed() -> None:
    assert phrases.printable("\x1b[1;31mred\x1b[0m \x1b]0;title\x07end\r") == "red end?"
