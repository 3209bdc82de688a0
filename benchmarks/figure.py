"""One measured number: what it is, its median, its runs and the limit that it is held to."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

ROUNDS = 9
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured number.

    name: what was measured. unit: of the numbers, such as "of the bare step". runs: all of them.
    limit: the largest median that is good; None where there is none.
    """

    name: str
    unit: str
    runs: tuple[float, ...]
    limit: float | None = None

    @property
    def median(self) -> float:
        """The middle run."""
        return statistics.median(self.runs)

    @property
    def good(self) -> bool:
        """Whether the limit is kept."""
        return self.limit is None or self.median <= self.limit

    def row(self) -> list[str]:
        """Name, median, range, limit and verdict, as text."""
        low, high = min(self.runs), max(self.runs)
        limit = "" if self.limit is None else f"{self.limit:.4g}"
        held = "" if self.limit is None else "kept" if self.good else "exceeded"
        return [self.name, f"{self.median:.4g}", f"{low:.4g} to {high:.4g}", self.unit, limit, held]


HEADINGS = ["measured", "median", "range", "unit", "limit", ""]


def in_pairs(first: Callable[[], A], second: Callable[[], B], rounds: int = ROUNDS) -> list[tuple[A, B]]:
    """Take both measurements in each round, the order changing from round to round."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            after = second()
            pairs.append((first(), after))
        else:
            before = first()
            pairs.append((before, second()))
    return pairs


def main(measure: Callable[[], Sequence[Figure]]) -> None:
    """Print what `measure` gives as text; with `--json FILE` on the command line, write it there too."""
    figures = measure()
    rows = [HEADINGS, *(figure.row() for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    if "--json" in sys.argv:
        path = Path(sys.argv[sys.argv.index("--json") + 1])
        path.write_text(json.dumps([asdict(figure) | {"median": figure.median} for figure in figures], indent=2) + "\n")
