"""Writing a run to disk and bringing it back, part by part."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from reference_loop import randomness

if TYPE_CHECKING:
    from reference_loop.state import State

FILE = "state.pt"
DIGEST = "state.blake2b"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, with its path and what is wrong."""


def save(state: State, folder: Path, update: int) -> None:
    """Write `state`, as it is after `update`, aside, and rename it once it is on the disk.

    Wherever the process or the machine stops, `load` finds this checkpoint, or the one that `folder` held before.
    """
    aside, before = folder.with_name(f"{folder.name}.writing"), _before(folder)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    with open(aside / FILE, "wb") as file:
        torch.save(parts(state, update), file)
        file.flush()
        os.fsync(file.fileno())
    with open(aside / DIGEST, "w", encoding="ascii") as text:
        text.write(_digest(aside / FILE))
        text.flush()
        os.fsync(text.fileno())
    _sync(aside)
    if folder.exists():
        shutil.rmtree(before, ignore_errors=True)
        folder.rename(before)
    aside.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(before, ignore_errors=True)


def _before(folder: Path) -> Path:
    """Where a checkpoint is while the next one takes its place."""
    return folder.with_name(f"{folder.name}.before")


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parts(state: State, update: int) -> dict[str, Any]:
    """What a resume needs, by the names of `resume.missing`; tensors are not copied.

    `window`: what is left of the window if the run is interrupted inside it.
    """
    scaler = state.scaler
    return {
        "parameter": {name: value.detach() for name, value in [*state.parameters.items(), *state.buffers.items()]},
        "optimizer": state.optimizer_state,
        "scheduler": state.position,
        "scaler": {"state": scaler.state, "skipped": state.skipped} if scaler else None,
        "rng": randomness.snapshot(),
        "order": {"epoch": state.loader.order, "first": state.loader.first_order},
        "cursor": state.cursor,
        "counter": {"updates": update + 1, "micros": state.micros},
        "accumulated_gradient": state.gradients(),
        "window": {
            "losses": [list(entry) for entry in state.losses],
            "units": [[*batch, counts] for batch, counts in state.units.items()],
        },
        "ema": state.ema,
    }


def load(folder: Path) -> dict[str, Any]:
    """Read what `save` wrote; never unpickles anything but tensors and plain values.

    Where the process ended while a checkpoint took another's place, that other one is read.

    Raises:
        CheckpointError: no checkpoint there, or a damaged one.
    """
    if not folder.exists() and _before(folder).is_dir():
        folder = _before(folder)
    path = folder / FILE
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {FILE}: give a checkpoint folder that the reference loop wrote")
    try:
        if (folder / DIGEST).read_text(encoding="ascii") != _digest(path):
            raise ValueError("its digest is another")
        return torch.load(path, weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {error}: it is damaged, or not ours") from error


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def restore(state: State, saved: dict[str, Any], missing: frozenset[str]) -> None:
    """Put the saved parts back into a freshly begun state, but those in `missing`."""
    with torch.no_grad():
        if "parameter" not in missing:
            for name, value in saved["parameter"].items():
                (state.parameters.get(name, state.buffers.get(name))).copy_(value)  # type: ignore[union-attr]
        if "accumulated_gradient" not in missing:
            for name, value in saved["accumulated_gradient"].items():
                state.parameters[name].grad = value.clone()
    state.losses = [tuple(entry) for entry in saved["window"]["losses"]]
    state.units = {(epoch, index): counts for epoch, index, counts in saved["window"]["units"]}
    if "optimizer" not in missing:
        state.optimizer_state = {n: {k: v.clone() for k, v in s.items()} for n, s in saved["optimizer"].items()}
    if "scheduler" not in missing:
        state.position = saved["scheduler"]
        state.set_rate()
    if "scaler" not in missing and state.scaler and saved["scaler"]:
        state.scaler.state = {name: value.clone() for name, value in saved["scaler"]["state"].items()}
        state.skipped = saved["scaler"]["skipped"]
    if "ema" not in missing:
        state.ema = {name: value.clone() for name, value in saved["ema"].items()}
    if "counter" not in missing:
        state.micros = saved["counter"]["micros"]
    if "order" not in missing:
        state.loader.first_order = list(saved["order"]["first"])
