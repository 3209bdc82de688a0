"""Traces to compare, written by the real writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from diffs.trace import Trace, open_trace
from oracle.recorder.trace import TraceWriter
from reference_loop.moments import Address

Record = Callable[..., Trace]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """A function that records (address, value) pairs and opens the trace; options go to the writer."""
    count = 0

    def write(rows: Iterable[tuple[Address, Any]], **options: Any) -> Trace:
        nonlocal count
        folder = tmp_path / f"trace{count}"
        count += 1
        writer = TraceWriter(folder, **options)
        for address, value in rows:
            writer.put(address, value)
        writer.close()
        return open_trace(folder)

    return write
