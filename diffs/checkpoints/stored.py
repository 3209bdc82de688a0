"""Tensors as they lie in files: known by dtype, shape and bytes, read when asked for."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from diffs.verdict import NotComparable


class Damaged(NotComparable):
    """A file that is not what it says: cut off, corrupted or made to mislead, with the place."""


class Unsafe(NotComparable):
    """A file that would run code of its own if it were read as it asks to be."""


class Span(NamedTuple):
    """Bytes of a file: `size` of them from `start` on."""

    path: str
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a file.

    spans: where its elements lie, in row-major order; None where they do not lie so, and `load` puts them together.
    load: gives the tensor in memory; None where there are spans.
    place: equal for two tensors that are the same memory.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    spans: tuple[Span, ...] | None = None
    load: Callable[[], torch.Tensor] | None = None
    place: Hashable = None

    @classmethod
    def at(cls, dtype: torch.dtype, shape: tuple[int, ...], spans: Iterable[Span]) -> Stored:
        """The tensor whose bytes are those of some spans, one after another; they must be as many as it needs."""
        kept = tuple(span for span in spans if span.size)
        return cls(dtype, shape, kept, None, (kept, dtype, shape) if kept else None)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Stored:
        """A tensor that is in memory already."""
        tensor = tensor.detach()
        plain = tensor.layout is torch.strided and not tensor.is_meta
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if plain else None
        return cls(tensor.dtype, tuple(tensor.shape), None, lambda: tensor, place)

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return self.numel * self.dtype.itemsize

    def tensor(self) -> torch.Tensor:
        """The tensor in memory.

        Raises:
            Damaged: a file ends before it does.
        """
        if self.load is not None:
            return self.load()
        content = bytearray()
        for span in self.spans or ():
            content += read(span)
        if not content:
            return _empty(self.dtype, self.shape)
        return torch.frombuffer(content, dtype=torch.uint8).view(self.dtype).reshape(self.shape)


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError as error:
        raise Damaged(f"a tensor without elements has the shape {shape}: {error!s:.100}") from None


def strided(
    dtype: torch.dtype, storage: Span, offset: int, shape: tuple[int, ...], stride: Sequence[int], limit: int
) -> Stored:
    """A view of a storage.

    storage: all of it. offset: of the first element, in elements. limit: the largest tensor that may be made of it,
        in bytes, where it repeats elements.

    Raises:
        Damaged: the view leaves the storage, or is larger than the limit.
    """
    ends = [offset, *((size - 1) * step for size, step in zip(shape, stride, strict=True))]
    if min(offset, *shape, *stride, 0) < 0:
        raise Damaged(f"a tensor has the offset {offset}, shape {shape} and stride {tuple(stride)}")
    numel = math.prod(shape)
    if numel and (sum(ends) + 1) * dtype.itemsize > storage.size:
        raise Damaged(
            f"a tensor of shape {shape} needs {sum(ends) + 1:,} elements of a storage of {storage.size:,} bytes"
        )
    if _row_major(shape, stride):
        return Stored.at(
            dtype, shape, [Span(storage.path, storage.start + offset * dtype.itemsize, numel * dtype.itemsize)]
        )
    if numel * dtype.itemsize > max(limit, storage.size):
        raise Damaged(
            f"a tensor of shape {shape} repeats the {storage.size:,} bytes of its storage: {numel:,} elements"
        )

    def load() -> torch.Tensor:
        whole = Stored.at(
            dtype,
            (storage.size // dtype.itemsize,),
            [storage._replace(size=storage.size // dtype.itemsize * dtype.itemsize)],
        )
        return whole.tensor().as_strided(shape, tuple(stride), offset).contiguous()

    return Stored(dtype, shape, None, load, (storage, dtype, offset, shape, tuple(stride)))


def _row_major(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size == 0:
            return True
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def cut(spans: Iterable[Span], start: int, size: int) -> list[Span]:
    """The spans that hold `size` bytes from the byte `start` of other spans on.

    Raises:
        Damaged: they are too short.
    """
    found, left = [], size
    for span in spans:
        if start < span.size and left:
            taken = min(span.size - start, left)
            found.append(Span(span.path, span.start + start, taken))
            left -= taken
            start = 0
        else:
            start -= min(start, span.size)
    if left:
        raise Damaged(f"{size:,} bytes are asked of a part that is {left:,} bytes too short")
    return found


def read(span: Span) -> bytes:
    """The bytes of a span.

    Raises:
        Damaged: the file ends before it.
    """
    with open(span.path, "rb") as file:
        file.seek(span.start)
        content = file.read(span.size)
    if len(content) < span.size:
        raise Damaged(f"{span.path} ends at byte {span.start + len(content):,}, {span.start + span.size:,} are needed")
    return content


def size_of(path: Path) -> int:
    """How many bytes a file has.

    Raises:
        Damaged: there is none, or it is no regular file, such as a pipe that would never end.
    """
    try:
        facts = os.stat(path)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(facts.st_mode):
        raise Damaged(f"{path} is no regular file")
    return facts.st_size
