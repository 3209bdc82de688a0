"""Reads the tensors that a trace holds in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from diffs.address import Address
from diffs.trace import Process, Row, open_trace
from diffs.verdict import NotComparable


class CapturedTensors(Mapping[Address, torch.Tensor]):
    """The captured tensors of a trace by address, in causal order. Each look-up reads one tensor from disk.

    folder: the trace's.

    Raises:
        NotComparable: there is no trace, or a file of it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._places: dict[Address, tuple[Path, str, Row]] = {}
        with open_trace(folder) as trace:
            for rank, process in trace.processes.items():
                self._find(folder / "tensors", f"rank{rank}-" if rank else "", process)

    def _find(self, folder: Path, prefix: str, process: Process) -> None:
        files: dict[int, tuple[Path, str]] = {}
        for path in sorted(folder.glob(f"{prefix}[0-9]*.safetensors")):
            with _opened(path) as file:
                files.update((int(key.split(" ", 1)[0]), (path, key)) for key in list(file.keys()))
        if files:
            for row in process.rows():
                if row.ordinal in files:
                    self._places[row.address] = (*files[row.ordinal], row)

    def __getitem__(self, address: Address) -> torch.Tensor:
        path, key, row = self._places[address]
        with _opened(path) as file:
            tensor = file.get_tensor(key)
        dtype = getattr(torch, row.dtype or "")
        # What the file format has no dtype for lies there as bytes.
        return tensor if tensor.dtype == dtype else tensor.view(dtype).reshape(row.shape)

    def __contains__(self, address: object) -> bool:
        return address in self._places

    def __iter__(self) -> Iterator[Address]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_tensors(folder: str | Path) -> CapturedTensors:
    """The tensors that the trace in a folder holds in full, by address, read when asked for.

    Raises:
        NotComparable: there is no trace, or a file of it cannot be read.
    """
    return CapturedTensors(Path(folder))


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise NotComparable(f"{path} cannot be read: {error}") from None
