"""Reads what torch.save wrote: a zip archive of a pickle and a record for each storage, or the older form, one stream.

Only the pickle is read; tensors are known by where they lie.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from diffs.checkpoints.pickled import LARGEST_PICKLE, Record, Unpickler, unpickle
from diffs.checkpoints.stored import Damaged, Span, Stored, size_of

MAGIC = 0x1950A86A20F9469CFC6C  # of the older form
_LOCAL = struct.Struct("<4s5H3I2H")  # a zip record's own header
_BLOCK_BYTES = 1 << 20
_SIGNATURE = b"PK\x03\x04"


def recognises(head: bytes) -> bool:
    """Whether a file that begins with these bytes is meant to be one, or a pickle at least."""
    return head.startswith(_SIGNATURE) or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05")


def load(path: Path, region: Span | None = None) -> tuple[Any, set[str]]:
    """What was saved, with a `Stored` for each tensor and a `Record` for each object of a class that is not plain data.

    region: where in the file it lies, if it is not all of it. Returns the object and the foreign names in it.

    Raises:
        Unsafe: it calls functions. Damaged: the file is not whole, with the record or tensor where it breaks.
    """
    span = region or Span(str(path), 0, size_of(path))
    try:
        with open(path, "rb") as file:
            file.seek(span.start)
            if file.read(4) == _SIGNATURE:
                return _Archive(file, span).load()
            file.seek(span.start)
            return _load_stream(file, span)
    except Damaged as error:
        raise (error if str(path) in str(error) else Damaged(f"{path}: {error}")) from None


def broken_record(path: Path) -> str | None:
    """The first record of an archive whose checksum does not fit, with the tensor in it, or None.

    torch.save can be told to compute none; an archive in which no storage's fits says nothing.
    """
    with open(path, "rb") as file:
        if file.read(4) != _SIGNATURE:
            return None
        whole = _Archive(file, Span(str(path), 0, size_of(path)))
        storages = [name for name in whole.records if name.startswith("data/")]
        broken = [name for name in ("data.pkl", *storages) if not whole.fits(name)]
        if not broken or (len(storages) > 1 and len([name for name in broken if name in storages]) == len(storages)):
            return None
        saved, _ = unpickle(whole.content("data.pkl"), str(path), lambda key, size: Span(f"data/{key}", 0, size))
    tensor = next((name for name, record in named_tensors(saved) if record == broken[0]), None)
    return f"the record {broken[0]!r}" + (f", the tensor {tensor!r}" if tensor else "")


class _Archive:
    """A zip archive in a part of a file."""

    def __init__(self, file: BinaryIO, span: Span) -> None:
        self.file, self.span = file, span
        try:
            directory = zipfile.ZipFile(_Part(file, span.start, span.size))  # type: ignore[arg-type]
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
            raise Damaged(self._where_it_ends(str(error))) from None
        self.records: dict[str, zipfile.ZipInfo] = {}
        for record in directory.infolist():
            name = record.filename.partition("/")[2]
            if name in self.records:
                raise Damaged(f"{span.path}: the record {name!r} occurs twice")
            self.records[name] = record

    def load(self) -> tuple[Any, set[str]]:
        """The object in the archive, and the foreign names in it."""
        if "data.pkl" not in self.records:
            names = ", ".join(sorted(self.records)[:5])
            raise Damaged(
                f"{self.span.path} is a zip archive without data.pkl, it holds {names}: torch.save wrote it not"
            )
        if "byteorder" in self.records and self.content("byteorder") != b"little":
            raise Damaged(f"{self.span.path} was written on a big-endian machine: save it again on this one")
        if self.records["data.pkl"].file_size > LARGEST_PICKLE:
            raise Damaged(f"{self.span.path}: data.pkl has {self.records['data.pkl'].file_size:,} bytes")
        return unpickle(self.content("data.pkl"), self.span.path, self._storage)

    def content(self, name: str) -> bytes:
        """The bytes of a record."""
        span = self._place(name)
        self.file.seek(span.start)
        return self.file.read(span.size)

    def fits(self, name: str) -> bool:
        """Whether a record's bytes have the checksum that was saved with them."""
        span = self._place(name)
        checksum = 0
        for start in range(0, span.size, _BLOCK_BYTES):
            block = os.pread(self.file.fileno(), min(_BLOCK_BYTES, span.size - start), span.start + start)
            checksum = zlib.crc32(block, checksum)
        return checksum == self.records[name].CRC

    def _storage(self, key: Any, size: int) -> Span:
        name = f"data/{key}"
        if name not in self.records:
            raise Damaged(f"the record {name!r} is missing")
        span = self._place(name)
        if span.size < size:
            raise Damaged(f"the record {name!r} has {span.size:,} bytes, its tensors need {size:,}")
        return span._replace(size=size)

    def _place(self, name: str) -> Span:
        record, path = self.records[name], self.span.path
        if (
            record.compress_type != zipfile.ZIP_STORED
            or record.compress_size != record.file_size
            or record.flag_bits & 1
        ):
            raise Damaged(
                f"the record {name!r} is compressed, {record.compress_size:,} bytes for {record.file_size:,}: "
                "torch.save compresses nothing"
            )
        header = os.pread(self.file.fileno(), _LOCAL.size, self.span.start + record.header_offset)
        if len(header) < _LOCAL.size or not header.startswith(_SIGNATURE):
            raise Damaged(f"the record {name!r} has no header at byte {self.span.start + record.header_offset:,}")
        *_, name_length, extra_length = _LOCAL.unpack(header)
        start = record.header_offset + _LOCAL.size + name_length + extra_length
        if start + record.file_size > self.span.size:
            raise Damaged(
                f"the record {name!r} ends at byte {start + record.file_size:,}, the file at {self.span.size:,}"
            )
        return Span(path, self.span.start + start, record.file_size)

    def _where_it_ends(self, reason: str) -> str:
        """What can be said of an archive without a directory: which of its tensors is the last one that was begun."""
        span = self.span
        message = (
            f"{span.path} ends at byte {span.size:,} without the directory of a zip archive: it is cut off or damaged"
        )
        try:
            starts = _found_records(self.file, span)
            storages = {key[5:]: start for key, start in starts.items() if key.startswith("data/")}
            begin = starts["data.pkl"]
            end = min((start for start in starts.values() if start > begin), default=span.size)
            self.file.seek(span.start + begin)
            needed: dict[str, int] = {}

            def note(key: Any, size: int) -> Span:
                needed[str(key)] = size
                return Span(f"data/{key}", 0, size)

            saved, _ = unpickle(self.file.read(max(0, min(end - begin, LARGEST_PICKLE))), span.path, note)
        except (Damaged, KeyError):
            return f"{message} ({reason})"
        for key, size in needed.items():
            if key not in storages or storages[key] + size > span.size:
                name = next((name for name, path in named_tensors(saved) if path == f"data/{key}"), f"data/{key}")
                return f"{message}; it breaks in the tensor {name!r}"
        return f"{message}; its tensors are whole"


def _found_records(file: BinaryIO, span: Span) -> dict[str, int]:
    """The contents of the records whose headers can be found: name to the first byte, counted from the span's."""
    found: dict[str, int] = {}
    file.seek(span.start)
    tail, base = b"", 0
    while base < span.size:
        chunk = tail + file.read(min(4 << 20, span.size - base - len(tail)))
        if len(chunk) == len(tail):
            break
        place = chunk.find(_SIGNATURE)
        while 0 <= place <= len(chunk) - _LOCAL.size:
            *_, name_length, extra_length = _LOCAL.unpack_from(chunk, place)
            name = chunk[place + _LOCAL.size : place + _LOCAL.size + name_length]
            if name.isascii() and b"/" in name:
                found.setdefault(
                    name.decode().partition("/")[2], base + place + _LOCAL.size + name_length + extra_length
                )
            place = chunk.find(_SIGNATURE, place + 4)
        keep = min(len(chunk), 512)
        base, tail = base + len(chunk) - keep, chunk[len(chunk) - keep :]
        if base + keep >= span.size:
            break
    return found


def named_tensors(value: Any, prefix: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """(path, file) of the tensors in nested dictionaries and lists, as far as a person would look."""
    if isinstance(value, Stored):
        spans = value.spans or ()
        return [(prefix, spans[0].path)] if spans else []
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    elif isinstance(value, Record) and isinstance(value.state, dict):
        items = list(value.state.items())
    if depth > 20:
        return []
    return [one for key, item in items for one in named_tensors(item, f"{prefix}.{key}".lstrip("."), depth + 1)]


def _load_stream(file: BinaryIO, span: Span) -> tuple[Any, set[str]]:
    """The older form: pickles one after another, then the storages; or a pickle alone."""
    path = span.path

    def unpickled(locate: Callable[[Any, int], Span]) -> tuple[Any, set[str]]:
        reader = Unpickler(file, path, locate)
        return reader.load(), reader.foreign

    sizes: dict[str, int] = {}

    def note(key: Any, size: int) -> Span:
        sizes[str(key)] = max(size, sizes.get(str(key), 0))
        return Span(path, 0, size)

    first, foreign = unpickled(note)
    if first != MAGIC:
        if sizes:
            raise Damaged(f"{path} names storages that it does not hold")
        return first, foreign
    unpickled(note)  # the protocol
    system, _ = unpickled(note)
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise Damaged(f"{path} was written on a big-endian machine: save it again on this one")
    begin = file.tell()
    unpickled(note)
    keys, _ = unpickled(note)
    places: dict[str, Span] = {}
    place = file.tell()
    for key in keys if isinstance(keys, list) else []:
        size = sizes.get(str(key), 0)
        if place + 8 + size > span.start + span.size:
            raise Damaged(f"{path} ends at byte {span.size:,}, inside the storage {str(key)!r} of {size:,} bytes")
        places[str(key)] = Span(path, place + 8, size)
        place += 8 + size
    file.seek(begin)

    def locate(key: Any, size: int) -> Span:
        if str(key) not in places:
            raise Damaged(f"the storage {str(key)!r} is missing")
        return places[str(key)]._replace(size=size)

    return unpickled(locate)


class _Part(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        content = os.pread(self._file.fileno(), wanted, self._start + self._position)
        self._position += len(content)
        return content
