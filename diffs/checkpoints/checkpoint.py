"""What a checkpoint is, whatever format it has: named parts, each of tensors and of plain state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffs.checkpoints.pickled import Record, _Array, _Dtype
from diffs.checkpoints.stored import Damaged, Stored

PARTS = (
    "parameter",
    "optimizer",
    "scheduler",
    "scaler",
    "rng",
    "order",
    "cursor",
    "counter",
    "accumulated_gradient",
    "ema",
    "arguments",
    "other",
)
"""What a resume may need, by the names of the knob `resume.missing`; then the arguments, and what fits nowhere."""

DEEPEST, MOST_VALUES = 100, 2_000_000
# What would change the line that a name is printed on: control characters, line ends, turns of direction.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass
class Part:
    """One part of a checkpoint.

    tensors: by name. plain: all else, as nested dictionaries, lists, numbers and text; empty if there is nothing.
    by_index: whether the tensors' names begin with a parameter's number, because its name is not known.
    """

    tensors: dict[str, Stored] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    by_index: bool = False

    def __bool__(self) -> bool:
        return bool(self.tensors or self.plain)


@dataclass(frozen=True)
class File:
    """A file that was read.

    name: below the checkpoint's folder. kind: "safetensors", "torch.save", "json", or "chunks" of a distributed one.
    foreign: classes and functions that its pickle names and that torch.load would have to import.
    """

    name: str
    kind: str
    foreign: tuple[str, ...] = ()


@dataclass
class Checkpoint:
    """A checkpoint as it was found.

    path: the file or folder. format: its name, such as "transformers.Trainer".
    holds: the parts that the format has a place for.
    parts: those that are there. files: what was read. unread: files of the folder that were not.
    notes: what is worth knowing, a sentence each.
    derived: parts that the trainer works out anew on a resume, with what it does so from.
    partial: parts of which something is lacking, with what follows.
    """

    path: Path
    format: str
    holds: frozenset[str]
    parts: dict[str, Part] = field(default_factory=dict)
    files: list[File] = field(default_factory=list)
    unread: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    derived: dict[str, str] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)

    def put(self, part: str, value: Any, prefix: str = "") -> None:
        """Add a nested value to a part, under a name or at its top.

        Raises:
            Damaged: a name has control characters, or the value is nested too deep, or without end.
        """
        if value is None:
            return
        tensors, plain = split(value)
        target = self.parts.setdefault(part, Part())
        for name, tensor in tensors.items():
            target.tensors[".".join(filter(None, (prefix, name)))] = tensor
        if isinstance(plain, dict) and not prefix:
            target.plain.update(plain)
        elif plain not in ({}, []):
            target.plain[prefix or "value"] = plain
        if not target:
            del self.parts[part]


def split(value: Any) -> tuple[dict[str, Stored], Any]:
    """The tensors in a nested value by dotted path, and what is left without them.

    Raises:
        Damaged: a name has control characters, or the value is nested too deep, without end, or too large.
    """
    taken = _Split()
    plain = taken.take(value, (), 0)
    return taken.tensors, {} if plain is _TENSOR else plain


_TENSOR = object()


class _Split:
    """Takes a nested value apart."""

    def __init__(self) -> None:
        self.tensors: dict[str, Stored] = {}
        self.left = MOST_VALUES
        self.within: set[int] = set()

    def take(self, value: Any, path: tuple[str, ...], depth: int) -> Any:
        if isinstance(value, _Array):
            value = value.content
        if isinstance(value, np.ndarray) and value.size > 1:
            value = Stored.of(torch.tensor(value.astype(value.dtype.newbyteorder("="))))
        if isinstance(value, torch.Tensor):
            value = Stored.of(value)
        if isinstance(value, Stored):
            self._keep(value, path)
            return _TENSOR
        if isinstance(value, Record):
            value = value.plain()
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return self._inside(value, path, depth)
        return _leaf(value)

    def _inside(self, value: Any, path: tuple[str, ...], depth: int) -> Any:
        if depth > DEEPEST or id(value) in self.within:
            raise Damaged(f"{'.'.join(path)[:100]!r} is nested without end, or more than {DEEPEST} deep")
        self.left -= 1 + len(value) // 100  # an order of millions of samples is one list
        if self.left < 0:
            raise Damaged(f"more than {MOST_VALUES:,} lists and tables are in one state")
        self.within.add(id(value))
        try:
            if isinstance(value, Mapping):
                items = {self._key(key): (key, item) for key, item in value.items()}
                kept = {name: self.take(item, (*path, name), depth + 1) for name, (_, item) in items.items()}
                # A table of tensors alone leaves nothing behind.
                return {name: kept[name] for name, (_, item) in items.items() if _is_left(item, kept[name])}
            if isinstance(value, (set, frozenset)):
                return sorted(map(str, value))
            found = [self.take(item, (*path, str(place)), depth + 1) for place, item in enumerate(value)]
            return ["tensor" if item is _TENSOR else item for item in found] if found != [_TENSOR] * len(found) else []
        finally:
            self.within.discard(id(value))

    def _key(self, key: Any) -> str:
        name = key if isinstance(key, str) else ".".join(map(str, key)) if isinstance(key, tuple) else str(key)
        check_name(name)
        return name

    def _keep(self, tensor: Stored, path: tuple[str, ...]) -> None:
        name = ".".join(path)
        number = 2
        while name in self.tensors:
            name = f"{'.'.join(path)}#{number}"
            number += 1
        self.tensors[name] = tensor


def _is_left(value: Any, plain: Any) -> bool:
    """Whether something is left of a value without its tensors, or there was nothing in it."""
    return plain is not _TENSOR and not (plain in ({}, []) and isinstance(value, (Mapping, list, tuple)) and value)


def _leaf(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.item() if value.size else []
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int) and value.bit_length() > 10_000:
        return hex(value)  # Python refuses to print it as a decimal
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes, {bytes(value[:16]).hex()}..." if len(value) > 16 else bytes(value).hex()
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, _Dtype):
        return value.code
    if isinstance(value, type):
        return getattr(value, "name", value.__name__)
    return repr(value)[:200]


def check_name(name: str) -> None:
    """Refuse a name that would break the lines that it is printed on.

    Raises:
        Damaged: it has control characters.
    """
    if found := _CONTROL.search(name):
        raise Damaged(f"the name {name[:80]!a} holds the control character {found[0]!a}: such names are refused")


def names_of(parts: Iterable[str]) -> str:
    """Parts as people read them, in order."""
    chosen = set(parts)
    return ", ".join(TITLES[part] for part in PARTS if part in chosen)


TITLES = {
    "parameter": "parameters",
    "optimizer": "optimizer state",
    "scheduler": "scheduler",
    "scaler": "loss scaler",
    "rng": "random states",
    "order": "data order",
    "cursor": "place in the data",
    "counter": "counters",
    "accumulated_gradient": "accumulated gradient",
    "ema": "averaged parameters",
    "arguments": "arguments",
    "other": "other",
}
