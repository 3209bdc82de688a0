"""docs/scale.md holds what the arithmetic gives, and its options keep what it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.scale import ALL, KEPT, MODELS, Figures, Setting, page, settings


def test_the_page_holds_the_tables(root: Path) -> None:
    text = (root / "docs/scale.md").read_text()
    missing = [table for table in page(Figures()).split("\n\n") if table.strip() not in text]
    assert missing == [], "python -m benchmarks.scale prints them"


def test_the_page_names_the_figures_and_the_kinds(root: Path) -> None:
    text = (root / "docs/scale.md").read_text()
    figures = Figures()
    for shown in (f"{figures.digest * 1e9:g} ns", f"{figures.row * 1e6:g} µs", f"{figures.passed * 1e6:g} µs",
                  f"{figures.address:g} bytes", f"{figures.copy * 1e9:g} ns", f"{figures.flops / 1e12:g} TFLOP/s",
                  f"{figures.used:.0%}".replace("%", " %"), f"{figures.tokens:,.0f} a rank"):  # fmt: skip
        assert shown in text
    assert all(kept.kinds in text for kept in KEPT)


def test_no_figure_is_better_than_what_was_measured(root: Path) -> None:
    measured = re.findall(r"trace \| ([\d.]+) .* bytes an address", (root / "docs/performance.md").read_text())
    assert measured and max(map(float, measured)) <= Figures().address


def test_a_cost_can_be_worked_out_by_hand() -> None:
    small, kept = MODELS[0], KEPT[-1]
    one = Setting(small, 8, sharded=True)
    read = 4 * 6_738_415_616 / 8
    passed = 7 * 291 * 1.5e-6
    assert one.seconds(kept) == pytest.approx(read * (0.08e-9 + 0.125e-9) + 291 * 12e-6 + passed)
    assert one.written(kept) == 291 * 56
    assert one.memory == 4 * 32000 * 4096 / 8
    assert one.step == pytest.approx(6 * 6_738_415_616 * 16384 / (989e12 * 0.4))
    assert Setting(small, 1024, sharded=False).seconds(kept) == Setting(small, 8, sharded=False).seconds(kept)


def test_the_models_are_what_their_layers_add_up_to() -> None:
    for model, layers, width, inner, keys in zip(MODELS, (32, 80), (4096, 8192), (11008, 28672), (4096, 1024),
                                                 strict=True):  # fmt: skip
        layer = 2 * width * width + 2 * width * keys + 3 * width * inner + 2 * width
        assert model.parameters == 2 * 32000 * width + layers * layer + width
        assert model.tensors == 9 * layers + 3
        assert model.largest == max(32000 * width, width * inner)


@pytest.mark.parametrize("one", list(settings(Figures())), ids=lambda s: f"{s.model.name}-{s.ranks}-{s.sharded}")
@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_every_nth_update_is_the_least_that_keeps_the_goal(one: Setting, kept) -> None:
    def share(every: int) -> float:
        return (one.seconds(kept) + (every - 1) * one.passed(ALL.rows)) / (every * one.step)

    every = one.every(kept)
    assert share(every) <= 0.03 + 1e-9
    assert every == 1 or share(every - 1) > 0.03
