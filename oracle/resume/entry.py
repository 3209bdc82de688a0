"""Keeps the generators' state as it was when a resumed run began to read its data.

An epoch's order is drawn from it before the first micro-batch, where a trace has no address. Runs in the candidate's
own environment: only the standard library and torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from oracle.recorder.capture import write_safetensors
from oracle.recorder.patches import Patches
from reference_loop import randomness

FILE = "entry.safetensors"
"""Of the first rank; another rank's has its number before the ending."""


class Entry:
    """Watches data loaders begin until the first micro-batch does, then writes the state at the last beginning.

    folder: where `FILE` goes. rank: whose it is.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.name = f"entry.{rank}.safetensors" if rank else FILE
        self._states: dict[str, torch.Tensor] = {}
        self._patches = Patches()

    def watch(self) -> None:
        """Begin to watch."""
        self._patches.method(DataLoader, "__iter__", self._begins)

    def entered(self) -> None:
        """The first micro-batch begins."""
        self._patches.undo()
        if self._states:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_safetensors(self.folder / self.name, self._states)
            self._states = {}

    def _begins(self, original: Callable[..., Iterator[Any]], loader: Any) -> Iterator[Any]:
        self._states = {name: state.clone() for name, state in randomness.states().items()}
        return original(loader)
