"""Keeps chosen tensors in full: one safetensors file per commit, written whole or not at all.

A tensor's key is its row's ordinal in the trace, then its address for people: `17 1.0.backward.gradient.0.weight`.
A dtype that the format has no name for is stored as bytes (`U8`, one dimension); the row has its dtype and shape.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import torch

from diffs.digest import in_memory
from reference_loop.moments import Address

# https://github.com/huggingface/safetensors, safetensors/src/tensor.rs: the names of the dtypes.
_FORMAT_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


class Capture:
    """Tensors captured in full, up to a budget.

    folder: holds the files; made when the first is written.
    prefix: of the file names, so that several processes share a folder.
    budget_bytes: tensors that no longer fit are counted as left out.
    """

    def __init__(self, folder: Path, prefix: str, budget_bytes: int) -> None:
        self.folder = folder
        self.prefix = prefix
        self.budget_bytes = budget_bytes
        self.tensors = self.bytes = self.left_out = self._files = 0
        self._waiting: dict[str, torch.Tensor] = {}

    def put(self, ordinal: int, address: Address, tensor: torch.Tensor) -> None:
        """Copy a tensor now, since the run goes on to change it; `write` puts it on disk."""
        size = tensor.numel() * tensor.element_size()
        if self.bytes + size > self.budget_bytes:
            self.left_out += 1
            return
        plain = in_memory(tensor)
        key = f"{ordinal} {'.'.join(map(str, address[:5]))}"
        self._waiting[key] = plain.detach().clone() if plain is tensor else plain
        self.bytes += size
        self.tensors += 1

    def write(self) -> None:
        """Write the waiting tensors into a file of their own.

        Raises:
            OSError: the file cannot be written; no part of it stays.
        """
        if not self._waiting:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting, self._waiting = self._waiting, {}
        write_safetensors(self.folder / f"{self.prefix}{self._files:06d}.safetensors", waiting)
        self._files += 1

    def summary(self) -> dict[str, int]:
        """What was captured and what the budget left out, for the manifest."""
        return {"tensors": self.tensors, "bytes": self.bytes, "left_out": self.left_out}


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write contiguous CPU tensors as a safetensors file, which appears whole or not at all.

    Raises:
        OSError: the file cannot be written; no part of it stays.
    """
    header, offset = {}, 0
    # The widest elements first, so that each tensor starts at a multiple of its element size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    for key, tensor in ordered:
        name = _FORMAT_NAMES.get(str(tensor.dtype).removeprefix("torch."))
        shape = list(tensor.shape) if name else [tensor.nbytes]
        header[key] = {"dtype": name or "U8", "shape": shape, "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, tensor in ordered:
            if tensor.nbytes:
                file.write((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


class whole_file:
    """A file to write that appears under its name when the block ends, and never if the block fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")

    def __enter__(self):
        self._file = self.part.open("wb")
        return self._file

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            self._file.close()
            if kind is None:
                os.replace(self.part, self.path)
        finally:
            self.part.unlink(missing_ok=True)
