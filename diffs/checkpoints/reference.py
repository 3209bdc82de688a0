"""Reads the reference loop's own checkpoints: a folder with state.pt, a dictionary by part."""

from __future__ import annotations

from typing import Any

from diffs.checkpoints.checkpoint import PARTS, Checkpoint
from diffs.checkpoints.files import Files
from diffs.checkpoints.states import put_generators

FORMAT = "reference loop"
FILE = "state.pt"
KEYS = frozenset({"parameter", "optimizer", "scheduler", "scaler", "rng", "order", "cursor", "counter", "ema"})


def recognises(saved: Any) -> bool:
    """Whether what a file holds is one."""
    return isinstance(saved, dict) and saved.keys() >= KEYS


def read(files: Files, saved: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Fill a checkpoint from what a state.pt holds."""
    checkpoint.format = FORMAT
    checkpoint.holds = frozenset(PARTS) - {"arguments", "other"}
    for part in PARTS:
        value = saved.get(part)
        if part == "rng":
            put_generators(checkpoint, value or {})
        elif part == "scheduler":
            checkpoint.put(part, {"last_epoch": value})
        elif isinstance(value, dict):
            checkpoint.put(part, value)
        elif value is not None:
            checkpoint.put(part, {"epoch": value[0], "batch": value[1]} if part == "cursor" else {part: value})
