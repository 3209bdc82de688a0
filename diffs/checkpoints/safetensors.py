"""Reads safetensors files: a header in JSON that says where each tensor lies.

https://github.com/huggingface/safetensors#format

Runs in the candidate's own environment too: only the standard library and torch.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from diffs.checkpoints.stored import Damaged, Span, Stored, size_of

LARGEST_HEADER = 100_000_000  # bytes; the format's own limit

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
_DTYPES = {name: getattr(torch, dtype) for name, dtype in _NAMES.items() if hasattr(torch, dtype)}  # torch may be old


def recognises(head: bytes) -> bool:
    """Whether a file that begins with these bytes, 9 or more, is meant to be one."""
    return len(head) >= 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 48


def read_tensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name, in the order of its header.

    Raises:
        Damaged: the header cannot be what was written, or the file is too short for a tensor, which is named.
    """
    size = size_of(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LARGEST_HEADER, size - 8):
            raise Damaged(f"{path}: the header says that it has {length:,} bytes, the file has {size:,}")
        header = _parsed(file.read(length), path)
    header.pop("__metadata__", None)
    data = 8 + length
    tensors = {name: _tensor(path, name, entry, data, size) for name, entry in header.items()}
    _check_cover(path, tensors, data, size)
    return tensors


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path}: the header is no valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise Damaged(f"{path}: the header is no table")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _tensor(path: Path, name: str, entry: Any, data: int, size: int) -> Stored:
    try:
        dtype, shape, (start, stop) = _DTYPES.get(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"{path}: the header's entry for {name!r} is {entry!r:.200}") from None
    if dtype is None:
        raise Damaged(f"{path}: {name!r} has the dtype {entry['dtype']!r}, known are {', '.join(_DTYPES)}")
    if not whole or stop - start != math.prod(shape) * dtype.itemsize:
        raise Damaged(
            f"{path}: {name!r} has the shape {shape} and dtype {entry['dtype']}, "
            f"but its bytes are said to be {start} to {stop}"
        )
    if data + stop > size:
        raise Damaged(f"{path} ends at byte {size:,}, inside the tensor {name!r}, which ends at byte {data + stop:,}")
    return Stored.at(dtype, shape, [Span(str(path), data + start, stop - start)])


def _check_cover(path: Path, tensors: dict[str, Stored], data: int, size: int) -> None:
    """Refuse tensors that overlap, and bytes that belong to none."""
    end = data
    for start, length, name in sorted((s.start, s.size, name) for name, t in tensors.items() for s in t.spans or ()):
        if start != end:
            what = (
                f"overlaps the one before it, which ends at byte {end:,}"
                if start < end
                else f"leaves a gap from {end:,}"
            )
            raise Damaged(f"{path}: {name!r} begins at byte {start:,} and {what}")
        end = start + length
    if end != size:
        raise Damaged(f"{path}: the tensors end at byte {end:,}, the file at {size:,}")
