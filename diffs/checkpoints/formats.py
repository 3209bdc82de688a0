"""Opens a checkpoint of any format, known by what files begin with, and by which ones a folder has."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from diffs.checkpoints import (
    accelerate,
    deepspeed,
    distributed,
    lightning,
    peft,
    reference,
    shards,
    states,
    transformers,
)
from diffs.checkpoints.checkpoint import PARTS, Checkpoint
from diffs.checkpoints.files import Files
from diffs.checkpoints.stored import Damaged
from diffs.verdict import NotComparable

FOLDERS: tuple[ModuleType, ...] = (accelerate, transformers, peft, deepspeed, distributed)
"""Readers of folders: `recognises(names)`, `read(files, names, checkpoint)`. The first that knows a folder reads it."""

DICTIONARIES: tuple[ModuleType, ...] = (reference, lightning)
"""Readers of one saved dictionary: `recognises(saved)`, then `read(files, saved, checkpoint)`."""


def open_checkpoint(path: Path, trust: bool = False) -> Checkpoint:
    """The checkpoint in a file or folder; tensors are read when they are asked for.

    trust: unpickle files that name what is not known here; their code runs.

    Raises:
        NotComparable: it is of no format that is known; or damaged, or would run code: `Damaged`, `Unsafe`.
    """
    try:
        checkpoint = _opened(path, trust)
    except OSError as error:
        raise Damaged(f"{error.filename or path} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise Damaged(f"{path} is nested too deep to be read") from None
    except (AttributeError, IndexError, KeyError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is not laid out as it should be: {type(error).__name__}: {error!s:.200}") from error
    if not checkpoint.parts:
        raise NotComparable(f"{path} is a {checkpoint.format} checkpoint that holds nothing")
    return checkpoint


def _opened(path: Path, trust: bool) -> Checkpoint:
    if not path.is_dir():
        files = Files(path.parent, trust)
        checkpoint = Checkpoint(path, "", frozenset(), files=files.read)
        _read_file(files, path.name, checkpoint)
        return checkpoint
    files = Files(path, trust)
    checkpoint = Checkpoint(path, "", frozenset(), files=files.read)
    names = files.names()
    reader = next((reader for reader in FOLDERS if reader.recognises(names)), None)
    if reader is not None:
        reader.read(files, names, checkpoint)
    elif reference.FILE in names:
        _read_file(files, reference.FILE, checkpoint)
    elif (name := shards.find(names)) is not None:
        _read_file(files, name, checkpoint)
    else:
        raise NotComparable(
            f"{path} is no checkpoint that is known: it holds {', '.join(sorted(names)[:8]) or 'nothing'}"
            f"{', ...' if len(names) > 8 else ''}: name the folder or file that was saved"
        )
    read = {file.name.partition("/")[0] for file in files.read}
    checkpoint.unread = tuple(sorted(names - read - {"latest"}))
    return checkpoint


def _read_file(files: Files, name: str, checkpoint: Checkpoint) -> None:
    saved: Any = files.load(name)
    kind = files.read[-1].kind
    if kind == "json":
        if not shards.is_index(saved):
            raise NotComparable(f"{files.root / name} is JSON, but no index of shards: name a checkpoint")
        checkpoint.format, checkpoint.holds = "sharded weights", frozenset({"parameter"})
        checkpoint.put("parameter", shards.indexed(files, name, saved))
    elif kind == "safetensors":
        checkpoint.format, checkpoint.holds = "safetensors", frozenset({"parameter"})
        checkpoint.put("parameter", saved)
    else:
        for reader in DICTIONARIES:
            if reader.recognises(saved):
                reader.read(files, saved, checkpoint)
                return
        checkpoint.format = "torch.save"
        states.fill(checkpoint, saved)
        checkpoint.holds = frozenset(PARTS)
