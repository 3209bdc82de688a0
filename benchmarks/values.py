"""What one value costs: a row whatever its size, each byte of it, and one that is passed over. See `docs/scale.md`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.figure import ROUNDS, Figure, main
from diffs.digest import available, digest_tensor
from oracle.recorder.session import Options, Session
from oracle.recorder.trace import TraceWriter
from reference_loop.moments import Address

ROWS = 2000  # of an update
BYTES = 256 << 20  # of a large tensor


def measure() -> list[Figure]:
    """Microseconds a row, and seconds a GB of a large tensor: its digest and, where there is a GPU, its copy."""
    torch.set_num_threads(1)
    large = torch.ones(BYTES // 4)
    figures = [
        Figure(name="record a small tensor, commit included", unit="us a row", runs=_rows()),
        Figure(name="pass over a value that is not kept", unit="us a value", runs=_passed()),
        _large(f"{available()[0]} of a large tensor", lambda: digest_tensor(large, available()[0])),
    ]
    if torch.cuda.is_available():
        figures.append(_large(f"copy of a large tensor from {torch.cuda.get_device_name()}", large.cuda().cpu))
    return figures


def _large(name: str, do: Callable[[], object]) -> Figure:
    do()
    found = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        do()
        found.append((time.perf_counter() - started) * 1e9 / BYTES)
    return Figure(name=name, unit="s per GB", runs=tuple(found))


def _rows() -> tuple[float, ...]:
    small = torch.ones(16)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        writer = TraceWriter(Path(folder) / "trace")
        for update in range(ROUNDS + 1):
            started = time.perf_counter()
            for number in range(ROWS):
                writer.put(Address(update, -1, "update", "parameter", f"layers.{number}.weight"), small)
            writer.commit()
            found.append((time.perf_counter() - started) * 1e6 / ROWS)
        writer.close()
    return tuple(found[1:])


def _passed() -> tuple[float, ...]:
    small = torch.ones(16, requires_grad=True)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Session(Options(folder=folder, every=2)).recorder
        found = []
        for _ in range(ROUNDS + 1):
            rows = ((f"layers.{number}.weight", small) for number in range(ROWS))
            started = time.perf_counter()
            recorder._record(1, -1, "update", "parameter", rows)
            found.append((time.perf_counter() - started) * 1e6 / ROWS)
    return tuple(found[1:])


if __name__ == "__main__":
    main(measure)
