"""Reads torch.distributed.checkpoint folders: a table of chunks, and files that hold them.

https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import torch

from diffs.checkpoints import archive
from diffs.checkpoints.checkpoint import PARTS, Checkpoint
from diffs.checkpoints.files import Files
from diffs.checkpoints.pickled import Record
from diffs.checkpoints.states import fill
from diffs.checkpoints.stored import Damaged, Span, Stored, size_of

FORMAT = "torch.distributed.checkpoint"
METADATA = ".metadata"

Chunk = tuple[tuple[int, ...], tuple[int, ...], Stored]


def recognises(names: set[str]) -> bool:
    """Whether a folder with these files is one."""
    return METADATA in names


def read(files: Files, names: set[str], checkpoint: Checkpoint) -> None:
    """Fill a checkpoint from a folder."""
    checkpoint.format = FORMAT
    fill(checkpoint, nested(files, ""), ordered=False)
    checkpoint.holds = frozenset(PARTS)


def nested(files: Files, folder: str) -> dict[str, Any]:
    """What was saved into a folder, as it was nested.

    Raises:
        Damaged: the table or a file of chunks is not whole, with the entry where it breaks.
    """
    table = files.load(f"{folder}/{METADATA}" if folder else METADATA)
    place = files.root / folder / METADATA
    if not isinstance(table, Record) or not isinstance(table.state, dict):
        raise Damaged(f"{place} is no table of torch.distributed.checkpoint")
    entries, stored = table.state.get("state_dict_metadata"), table.state.get("storage_data")
    if not isinstance(entries, dict) or not isinstance(stored, dict):
        raise Damaged(f"{place} lists no entries")
    paths = table.state.get("planner_data") or {}
    where: dict[str, list[tuple[Any, Span]]] = {}
    for index, info in stored.items():
        name, offset = _index(index)
        where.setdefault(name, []).append((offset, _span(files, folder, name, info)))
    saved: dict[str, Any] = {}
    for name, entry in entries.items():
        if name not in where:
            raise Damaged(f"{place} says where no part of {name!r} lies")
        try:
            value = _value(entry, where[name])
        except (Damaged, KeyError, TypeError, ValueError, AttributeError) as error:
            raise Damaged(f"{place}: {name!r} cannot be read: {error}") from None
        _put(saved, paths.get(name) or (name,), value)
    return _listed(saved)


def _index(index: Any) -> tuple[str, tuple[int, ...] | None]:
    state = index.state if isinstance(index, Record) else None
    if isinstance(state, dict) and isinstance(state.get("fqn"), str):
        offset = state.get("offset")
        return state["fqn"], None if offset is None else tuple(offset)
    raise Damaged("an entry of the table has no name")


def _span(files: Files, folder: str, name: str, info: Any) -> Span:
    state = info.state if isinstance(info, Record) and isinstance(info.state, dict) else {}
    file, offset, length = state.get("relative_path"), state.get("offset"), state.get("length")
    if not isinstance(file, str) or not file or file in (".", "..") or set(file) & set("/\\\0"):
        raise Damaged(f"{files.root / folder} looks for {name!r} in {file!r}: it must be a file of its own folder")
    if type(offset) is not int or type(length) is not int or min(offset, length) < 0:
        raise Damaged(f"{files.root / folder} looks for {name!r} at the bytes {offset!r} to {length!r} of {file!r}")
    path = files.root / folder / file
    files.note(f"{folder}/{file}" if folder else file, "chunks")
    if offset + length > (end := size_of(path)):
        raise Damaged(f"{path} ends at byte {end:,}, inside {name!r}, which ends at byte {offset + length:,}")
    return Span(str(path), offset, length)


def _value(entry: Any, where: list[tuple[Any, Span]]) -> Any:
    if not isinstance(entry, Record) or not isinstance(entry.state, dict) or "size" not in entry.state:
        return _loaded(where[0][1])
    shape = tuple(entry.state["size"])
    spans = dict(where)
    chunks = []
    for chunk in entry.state["chunks"]:
        offsets, sizes = tuple(chunk.state["offsets"]), tuple(chunk.state["sizes"])
        tensor = _loaded(spans[offsets] if offsets in spans else spans[None])
        if not isinstance(tensor, Stored) or tensor.shape != sizes:
            raise Damaged(f"its chunk at {offsets} is {getattr(tensor, 'shape', 'no tensor')}, {sizes} was expected")
        chunks.append((offsets, sizes, tensor))
    return joined(shape, sorted(chunks, key=lambda chunk: chunk[0]))


def _loaded(span: Span) -> Any:
    return archive.load(Path(span.path), span)[0]


def joined(shape: tuple[int, ...], chunks: list[Chunk]) -> Stored:
    """One tensor of its chunks: (offsets, sizes, content), in the order of their offsets.

    Raises:
        Damaged: they do not cover it, each element once.
    """
    if len(chunks) == 1 and chunks[0][1] == shape:
        return chunks[0][2]
    inside = all(
        len(offsets) == len(sizes) == len(shape)
        and all(
            min(start, size) >= 0 and start + size <= whole
            for start, size, whole in zip(offsets, sizes, shape, strict=True)
        )
        for offsets, sizes, _ in chunks
    )
    if not inside or sum(math.prod(sizes) for _, sizes, _ in chunks) != math.prod(shape) or _overlap(chunks):
        raise Damaged(f"its {len(chunks)} chunks do not cover the shape {shape}")
    dtype = chunks[0][2].dtype
    by_rows = all(sizes[1:] == shape[1:] and tensor.spans is not None for _, sizes, tensor in chunks)
    if by_rows:
        return Stored.at(dtype, shape, itertools.chain.from_iterable(tensor.spans or () for _, _, tensor in chunks))

    def load() -> torch.Tensor:
        whole = torch.empty(shape, dtype=dtype)
        for offsets, sizes, tensor in chunks:
            whole[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))] = (
                tensor.tensor()
            )
        return whole

    return Stored(dtype, shape, None, load, tuple(tensor.place for _, _, tensor in chunks))


def _overlap(chunks: list[Chunk]) -> bool:
    """Whether two chunks share an element; those of one size and no element do not."""
    filled = [(offsets, sizes) for offsets, sizes, _ in chunks if math.prod(sizes)]
    if len(filled) > 1 and all(
        sizes[1:] == filled[0][1][1:] and offsets[1:] == filled[0][0][1:] for offsets, sizes in filled
    ):
        return any(a[0][0] + a[1][0] > b[0][0] for a, b in itertools.pairwise(filled))
    return any(
        all(a < d + n and d < a + m for a, m, d, n in zip(*one, *other, strict=True))
        for one, other in itertools.combinations(filled, 2)
    )


def _put(saved: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        saved = saved.setdefault(key, {})
        if not isinstance(saved, dict):
            raise Damaged(f"{'.'.join(map(str, path))!r} lies inside a value")
    saved[path[-1]] = value


def _listed(value: Any) -> Any:
    """Dictionaries whose keys count from 0 as the lists that they were."""
    if not isinstance(value, dict):
        return value
    found = {key: _listed(item) for key, item in value.items()}
    if found and all(type(key) is int for key in found) and sorted(found) == list(range(len(found))):
        return [found[place] for place in range(len(found))]
    return found
