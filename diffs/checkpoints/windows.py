"""Compares the bytes of stored tensors where they lie in their files, through windows of 4 MB.

A window is mapped, compared by memcmp and let go, so that memory stays flat however large the files are. What lies side
by side in both files is compared as one, whatever tensors it belongs to; a window that differs is looked at tensor by
tensor.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np
import torch

from diffs import tensor as tensors
from diffs.bits import memory_differs
from diffs.checkpoints.stored import Damaged, Span, Stored
from diffs.tensor import Tally, TensorDifference
from diffs.ulp import format_of

WINDOW_BYTES = 4 << 20
BLOCK_BYTES = 1 << 20  # of what differs, measured at a time: smaller ones cost more calls than the cache saves
HUGE_BYTES = 2 << 20  # a large page
LARGEST_ELEMENT = 16  # bytes, of complex128
GAP_BYTES = 4096  # what two tensors in a file may leave between them and still be read as one
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


class Window:
    """A window onto one file at a time."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._file = -1
        self._map: mmap.mmap | None = None
        self._bytes: np.ndarray | None = None

    def address(self, path: str, start: int, size: int) -> int:
        """Where in memory `size` bytes of a file lie from the byte `start` on; until the next call.

        Raises:
            Damaged: the file ends before they do.
        """
        if path != self._path:
            self.close()
            self._file, self._path = os.open(path, os.O_RDONLY), path
        self.shut()
        if start + size > (end := os.fstat(self._file).st_size):
            raise Damaged(f"{path} ends at byte {end:,}, {start + size:,} are needed")
        # Large windows are aligned as large pages are, which are mapped several times faster.
        unit = HUGE_BYTES if size >= HUGE_BYTES else mmap.ALLOCATIONGRANULARITY
        first = start - start % unit
        last = min(end, -(-(start + size) // unit) * unit)
        self._map = mmap.mmap(
            self._file, last - first, flags=mmap.MAP_SHARED | _POPULATE, prot=mmap.PROT_READ, offset=first
        )
        self._bytes = np.frombuffer(self._map, np.uint8)
        return self._bytes.__array_interface__["data"][0] + start - first

    def shut(self) -> None:
        """Let the memory go, and keep the file."""
        self._bytes = None  # first: a map with a view cannot be closed
        if self._map is not None:
            self._map.close()
        self._map = None

    def close(self) -> None:
        """Let the file go."""
        self.shut()
        if self._file >= 0:
            os.close(self._file)
        self._file, self._path = -1, None


@dataclass(slots=True)
class _Piece:
    """Bytes of a tensor that lie together on both sides.

    number: of the pair that it belongs to. element: the flat index of its first one.
    """

    number: int
    element: int
    left: str
    start: int
    right: str
    other: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.size


def compare(pairs: Sequence[tuple[Stored, Stored]]) -> list[TensorDifference]:
    """What comparing the two tensors of each pair finds; both of a pair have one dtype and shape.

    Raises:
        NotComparable: a dtype without an order differs. Damaged: a file ends too early.
    """
    found: list[TensorDifference | None] = [None] * len(pairs)
    pieces: list[_Piece] = []
    for number, (left, right) in enumerate(pairs):
        if left.spans is None or right.spans is None:
            found[number] = tensors.compare(left.tensor(), right.tensor())
        elif left.spans != right.spans:
            pieces.extend(_pieces(number, left, right))
    comparison = _Comparison(pairs)
    try:
        for run in _runs(pieces):
            comparison.run(run)
        differences = comparison.results()
    finally:
        comparison.close()
    return [
        known or differences.get(number) or Tally(pairs[number][0].dtype, pairs[number][0].shape).result()
        for number, known in enumerate(found)
    ]


class _Comparison:
    """Compares runs, and keeps what differs."""

    def __init__(self, pairs: Sequence[tuple[Stored, Stored]]) -> None:
        self.pairs = pairs
        self.left, self.right = Window(), Window()
        self.tallies: dict[int, Tally] = {}
        self.weighed: dict[int, list[tuple[int, int]]] = {}

    def close(self) -> None:
        self.left.close()
        self.right.close()

    def run(self, pieces: list[_Piece]) -> None:
        """Compare pieces that lie side by side in both files."""
        first, position, stop = pieces[0], pieces[0].start, pieces[-1].stop
        shift, current = first.other - first.start, 0
        while position < stop:
            end = position - position % WINDOW_BYTES + WINDOW_BYTES
            end = min(end if end - position > LARGEST_ELEMENT else end + WINDOW_BYTES, stop)
            while pieces[current].stop <= position:
                current += 1
            last = current
            while last + 1 < len(pieces) and pieces[last + 1].start < end:
                last += 1
            if end < stop and end < pieces[last].stop:  # not in the middle of an element
                end -= (end - pieces[last].start) % self._itemsize(pieces[last])
            self.right.shut()  # before the next is mapped, so that it takes the same place
            left = self.left.address(first.left, position, end - position)
            right = self.right.address(first.right, position + shift, end - position)
            # Where tensors leave gaps, as in archives, the gaps may differ: only the tensors are looked at.
            solid = (
                len({piece.start - before.stop for before, piece in pairwise(pieces[current : last + 1])} | {0}) == 1
            )
            if not solid or memory_differs(left, right, end - position):
                for piece in pieces[current : last + 1]:
                    start = max(piece.start, position)
                    place, size = start - position, min(piece.stop, end) - start
                    if memory_differs(left + place, right + place, size):
                        self._piece(piece, start - piece.start, left + place, right + place, size)
            position = end

    def _itemsize(self, piece: _Piece) -> int:
        return self.pairs[piece.number][0].dtype.itemsize

    def _piece(self, piece: _Piece, offset: int, left: int, right: int, size: int) -> None:
        """Measure the blocks that differ, of a piece from `offset` on, which lies in memory."""
        dtype, itemsize = self.pairs[piece.number][0].dtype, self._itemsize(piece)
        for start in range(0, size, BLOCK_BYTES):
            length = min(BLOCK_BYTES, size - start)
            if not memory_differs(left + start, right + start, length):
                continue
            if piece.number not in self.tallies:
                format_of(dtype)
                self.tallies[piece.number] = Tally(dtype, self.pairs[piece.number][0].shape)
            element = piece.element + (offset + start) // itemsize
            self.tallies[piece.number].add(
                element, _view(left + start, length, dtype), _view(right + start, length, dtype)
            )
            self.weighed.setdefault(piece.number, []).append((element, element + length // itemsize))

    def results(self) -> dict[int, TensorDifference]:
        """What differs, by the number of its pair."""
        for number, tally in self.tallies.items():
            for address, size in self._unweighed(number):
                tally.weigh(_view(address, size, tally.dtype))
        return {number: tally.result() for number, tally in self.tallies.items()}

    def _unweighed(self, number: int) -> Iterator[tuple[int, int]]:
        """(address, bytes) of the parts of a reference that did not go into its norm yet."""
        reference = self.pairs[number][0]
        itemsize, begin = reference.dtype.itemsize, 0
        done = sorted(self.weighed[number])
        for span in reference.spans or ():
            end = begin + span.size // itemsize
            position = begin
            for start, stop in [*((a, b) for a, b in done if a < end and b > begin), (end, end)]:
                while position < min(start, end):
                    place = span.start + (position - begin) * itemsize
                    size = min((min(start, end) - position) * itemsize, WINDOW_BYTES - place % WINDOW_BYTES)
                    size = max(itemsize, size - size % itemsize)
                    address = self.left.address(span.path, place, size)
                    for offset in range(0, size, BLOCK_BYTES):
                        yield address + offset, min(BLOCK_BYTES, size - offset)
                    position += size // itemsize
                position = max(position, stop)
            begin = end


def _pieces(number: int, left: Stored, right: Stored) -> Iterator[_Piece]:
    """The pieces of two tensors of one size."""
    itemsize, element = left.dtype.itemsize, 0
    ours, theirs = list(left.spans or ())[::-1], list(right.spans or ())[::-1]
    while ours and theirs:
        a, b = ours.pop(), theirs.pop()
        size = min(a.size, b.size)
        yield _Piece(number, element // itemsize, a.path, a.start, b.path, b.start, size)
        element += size
        for span, waiting in ((a, ours), (b, theirs)):
            if span.size > size:
                waiting.append(Span(span.path, span.start + size, span.size - size))


def _runs(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces in the order of the reference's files, those that lie side by side in both files together."""
    run: list[_Piece] = []
    for piece in sorted(pieces, key=attrgetter("left", "right", "start")):
        if run:
            before = run[-1]
            gap = piece.start - before.stop
            if not (
                (piece.left, piece.right) == (before.left, before.right)
                and 0 <= gap <= GAP_BYTES
                and piece.other - piece.start == before.other - before.start
            ):
                yield run
                run = []
        run.append(piece)
    if run:
        yield run


def _view(address: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory as a (n,) tensor; a copy where it does not lie as the dtype needs it."""
    memory = (ctypes.c_char * size).from_address(address)
    if address % dtype.itemsize:
        return torch.frombuffer(bytearray(memory.raw), dtype=torch.uint8).view(dtype)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def digest(tensor: Stored) -> bytes:
    """Sixteen bytes that are equal for tensors of one dtype, shape and content, in memory of one window."""
    import xxhash

    state = xxhash.xxh3_128(f"{tensor.dtype} {tensor.shape}\n".encode())
    if tensor.spans is None:
        state.update(tensor.tensor().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return state.digest()
    window = Window()
    try:
        for span in tensor.spans:
            for start in range(0, span.size, WINDOW_BYTES):
                size = min(WINDOW_BYTES, span.size - start)
                address = window.address(span.path, span.start + start, size)
                state.update((ctypes.c_char * size).from_address(address))
    finally:
        window.close()
    return state.digest()
