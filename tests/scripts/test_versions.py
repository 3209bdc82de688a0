"""What is written of released versions is what is found, and the page is what is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.upgrades import BISECTION, PAGE, ROWS, Row, outcomes, page, run


def test_the_page_is_what_is_written() -> None:
    assert PAGE.read_text() == page((*ROWS, BISECTION)), "run make upgrades"


def test_every_script_is_there(root: Path) -> None:
    for row in ROWS:
        for word in row.asked:
            assert not word.endswith(".py") or (root / word).is_file()


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("row", [*ROWS, BISECTION], ids=lambda row: row.name)
def test_what_is_written_is_found(row: Row) -> None:
    assert outcomes(run(row)) == row.found
