"""What a check of the smallest task costs in seconds, its process starts and imports shown apart."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Figure, in_pairs, main
from oracle.result import Result

LIMIT = 15.0
TRAINER = Path(__file__).resolve().parent.parent / "fixtures" / "trainers" / "healthy.py"


def measure() -> list[Figure]:
    """The whole command, what of it one candidate process spends on starting and importing, and the import of torch."""
    pairs = in_pairs(_import_torch, _check)
    imports = tuple(alone for alone, _ in pairs)
    whole = tuple(seconds for _, (seconds, _) in pairs)
    starting = tuple(_starting(result) for _, (_, result) in pairs)
    trained = tuple(result.seconds["candidate_train"] for _, (_, result) in pairs)
    name = "oracle check regression"
    return [
        Figure(name=name, unit="s", runs=whole, limit=LIMIT),
        Figure(name=f"{name}: one candidate process, start and imports", unit="s", runs=starting),
        Figure(name=f"{name}: one candidate process, training", unit="s", runs=trained),
        Figure(name="python -c 'import torch'", unit="s", runs=imports),
        Figure(
            name=name,
            unit="x python -c 'import torch'",
            runs=tuple(ours / alone for ours, alone in zip(whole, imports, strict=True)),
        ),
    ]


def _import_torch() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - started


def _check() -> tuple[float, Result]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = ["check", "regression", "--trainer", f"{TRAINER}:Healthy", "--json", str(file)]
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "oracle", *command], check=True, capture_output=True)
        return time.perf_counter() - started, Result.read(file)


def _starting(result: Result) -> float:
    return result.seconds["candidate_start"] + result.seconds["candidate_import"]


if __name__ == "__main__":
    main(measure)
