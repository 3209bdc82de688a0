"""Opens the files of one checkpoint, each by what it begins with, and keeps account of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from diffs.checkpoints import archive, safetensors
from diffs.checkpoints.checkpoint import File, check_name
from diffs.checkpoints.stored import Damaged, Stored, Unsafe, size_of

LARGEST_JSON = 256 << 20  # bytes


class Files:
    """The files of a checkpoint.

    root: its folder; of a single file, the folder that it is in.
    trust: whether a pickle that names what is not known here is left to torch, which runs its code.
    read: what was read, in order.
    """

    def __init__(self, root: Path, trust: bool = False) -> None:
        self.root, self.trust = root, trust
        self.read: list[File] = []

    def names(self, folder: str = "") -> set[str]:
        """What is in the folder, or in one below it."""
        return set(os.listdir(self.root / folder))

    def note(self, name: str, kind: str, foreign: tuple[str, ...] = ()) -> None:
        """Keep account of a file, once."""
        if all(file.name != name for file in self.read[-1:]):
            self.read.append(File(name, kind, foreign))

    def load(self, name: str) -> Any:
        """What a file holds: nested data with a `Stored` for each tensor. The tensors of a safetensors file by name.

        name: below the folder.

        Raises:
            Damaged: it is not whole, or of no form that is known. Unsafe: it would run code.
        """
        path = self.root / name
        with self._opened(path) as file:
            head = file.read(16)
        if safetensors.recognises(head):
            self.note(name, "safetensors")
            return _checked(safetensors.read_tensors(path), path)
        if archive.recognises(head):
            return self._unpickled(name, path)
        if head.lstrip()[:1] in (b"{", b"["):
            self.note(name, "json")
            return load_json(path)
        found = f"begins with {head[:8].hex(' ')}" if head else "is empty"
        raise Damaged(f"{path} {found}: it is no safetensors, torch.save or JSON file")

    def _opened(self, path: Path) -> Any:
        size_of(path)
        try:
            return open(path, "rb")
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from None

    def _unpickled(self, name: str, path: Path) -> Any:
        try:
            value, foreign = archive.load(path)
        except Unsafe:
            if not self.trust:
                raise
            self.note(name, "torch.save", ("(trusted)",))
            return torch.load(path, map_location="cpu", weights_only=False)
        self.note(name, "torch.save", tuple(sorted(foreign)))
        return value


def load_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        Damaged: it is no valid JSON, or too large.
    """
    if (size := size_of(path)) > LARGEST_JSON:
        raise Damaged(f"{path} has {size:,} bytes, {LARGEST_JSON:,} are read at most")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is no valid JSON: {error}") from None


def _checked(tensors: dict[str, Stored], path: Path) -> dict[str, Stored]:
    for name in tensors:
        try:
            check_name(name)
        except Damaged as error:
            raise Damaged(f"{path}: {error}") from None
    return tensors
