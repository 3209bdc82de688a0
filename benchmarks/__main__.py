"""Take every figure and write docs/performance.md: `make bench`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from benchmarks.figure import HEADINGS, Figure
from oracle.result import write_text

SUBJECTS = ("start", "check", "recording", "values", "traces", "checkpoints")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
INTRO = """\
# Performance

Written by `make bench`. Ratios are medians of 9 pairs, the two of a pair taken one right after the other; other
programs ran on the machine. Recording is measured on a decoder of ten million parameters with AdamW, on one thread.
"state" is what makes a verdict at each update: parameters, gradients, optimizer state; "all" is every kind. The
recorder's own time is what passes inside its hooks and replaced functions, digests and commits included, over the
bare step. Whole steps are given beside it; other load moves them by more than the recorder does. Checkpoints are those
of a decoder with AdamW state; "plain memcmp" maps both files in windows of 4 MB and knows no tensors; memory is the
rise of the process's peak.
"""


def main() -> int:
    """Run the subjects one after another, each in a process of its own; 1 if a limit is exceeded."""
    figures = [figure for subject in SUBJECTS for figure in _taken(subject)]
    lines = [f"| {' | '.join(row)} |" for row in [HEADINGS, ["---"] * len(HEADINGS), *(f.row() for f in figures)]]
    write_text(PAGE, f"{INTRO}\n{_machine()}\n\n" + "\n".join(lines) + "\n")
    print(f"\nwritten to {PAGE}")
    return int(not all(figure.good for figure in figures))


def _taken(subject: str) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        subprocess.run([sys.executable, "-m", f"benchmarks.{subject}", "--json", str(file)], check=True)
        plain = json.loads(file.read_text())
    return [Figure(name=f["name"], unit=f["unit"], runs=tuple(f["runs"]), limit=f["limit"]) for f in plain]


def _machine() -> str:
    import torch

    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    processor = models[0] if models else platform.processor() or platform.machine()
    return (
        f"Taken on {date.today()}: {os.cpu_count()} cores, {processor}; Python {platform.python_version()}, "
        f"torch {torch.__version__}; load average over the last 5 minutes {os.getloadavg()[1]:.1f}."
    )


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


if __name__ == "__main__":
    sys.exit(main())
