"""What it costs to start the command line, over `python -c pass`."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

from benchmarks.figure import Figure, in_pairs, main

LIMIT = 10.0
COMMANDS = (["--help"], ["list", "knobs"])


def measure() -> list[Figure]:
    """One figure for each command."""
    figures = []
    for command in COMMANDS:
        pairs = in_pairs(partial(_seconds, "-c", "pass"), partial(_seconds, "-m", "oracle", *command))
        runs = tuple(ours / bare for bare, ours in pairs)
        figures.append(Figure(name=f"oracle {' '.join(command)}", unit="x python -c pass", runs=runs, limit=LIMIT))
    return figures


def _seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(measure)
