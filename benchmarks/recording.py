"""What recording costs: the recorder's own time over the bare step, and bytes an address.

The recorder's own time is everything between the entry and the exit of its hooks and replaced functions, digests and
commits included, less what the replaced functions' originals take. It is steadier than the difference of two whole
steps, which is given beside it.
"""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.decoder import Training
from benchmarks.figure import ROUNDS, Figure, in_pairs, main
from oracle.recorder import patches, probes, steps
from oracle.recorder.trace import TraceWriter

STATE = (("consume", "gradient"), ("update", "parameter"), ("update", "optimizer_state"))
# What is recorded ("state": parameters, gradients, optimizer state), how many tokens a step has, and how much of the
# bare step it may cost.
CASES = (("state", STATE, 128, 0.08), ("state", STATE, 1024, 0.02), ("all", None, 128, None), ("all", None, 1024, None))
BYTES = 64


class Stopwatch:
    """Adds up the time that functions take, less that of the functions they call through `paused`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started: float | None = None

    def running(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted; it may be called inside another one that is counted."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._started is not None:
                return function(*args, **kwargs)
            self._started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - self._started
                self._started = None

        return timed

    def paused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time not counted."""

        def untimed(*args: Any, **kwargs: Any) -> Any:
            if self._started is None:
                return function(*args, **kwargs)
            self.seconds += time.perf_counter() - self._started
            self._started = None
            try:
                return function(*args, **kwargs)
            finally:
                self._started = time.perf_counter()

        return untimed

    @contextmanager
    def around_probes(self) -> Iterator[None]:
        """Count every hook and replaced function that is installed in the block."""
        hook, wrap = patches.unless_compiling, patches._wrap

        def timed_hook(probe: Callable[..., None]) -> Callable[..., None]:
            return self.running(hook(probe))

        def timed_wrap(original: Callable[..., Any], around: patches.Around) -> Callable[..., Any]:
            return self.running(wrap(self.paused(original), around))

        with (
            mock.patch.object(probes, "unless_compiling", timed_hook),
            mock.patch.object(steps, "unless_compiling", timed_hook),
            mock.patch.object(patches, "_wrap", timed_wrap),
        ):
            yield


def measure() -> list[Figure]:
    """The figures of all cases."""
    torch.set_num_threads(1)
    return [figure for case in CASES for figure in _case(*case)]


def _case(what: str, kinds: Collection[Any] | None, tokens: int, limit: float | None) -> Iterator[Figure]:
    step, watch = Training(tokens), Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        writer = TraceWriter(Path(folder) / "trace")
        recorder = probes.Recorder(writer.put, writer.commit, kinds=kinds)

        def bare() -> float:
            started = time.perf_counter()
            step()
            return time.perf_counter() - started

        def recorded() -> tuple[float, float]:
            before = watch.seconds
            with watch.around_probes(), recorder:
                whole = bare()
            return whole, watch.seconds - before

        bare(), recorded(), bare(), recorded()  # makes the optimizer's state, the trace and its dictionaries
        pairs = in_pairs(bare, recorded, ROUNDS)
        recorder.finish()
        writer.close()
        trace = Path(folder) / "trace"
        addresses = json.loads((trace / "manifest.json").read_text())["addresses"]
        size = (trace / "trace.db").stat().st_size
    name = f"record {what}, {tokens:,} tokens a step"
    own = tuple(own / alone for alone, (_, own) in pairs)
    whole = tuple(whole / alone for alone, (whole, _) in pairs)
    yield Figure(name=f"{name}: recorder", unit="of the bare step", runs=own, limit=limit)
    yield Figure(name=f"{name}: whole step", unit="x the bare step", runs=whole)
    yield Figure(name=f"{name}: trace", unit="bytes an address", runs=(size / addresses,), limit=BYTES)


if __name__ == "__main__":
    main(measure)
