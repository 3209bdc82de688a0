"""Sees the files that a trainer writes: which, when, and how large they become.

Runs in the candidate's own environment: only the standard library and torch. Python's own files are seen by an audit
hook; torch and safetensors open theirs in native code, so the two functions that do are replaced while a run lasts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oracle.recorder.patches import Patches

WRITES = os.O_WRONLY | os.O_RDWR
CHANGES = {
    "os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.truncate": 1, "os.link": 2, "os.symlink": 2,
}  # fmt: skip
"""Audit events that change a folder, and how many of their first arguments are paths."""


@dataclass
class Written:
    """A file that was opened for writing.

    updates, micro: how far the run was, in updates and in micro-batches of the next one.
    order: the file's place among those that were opened at this point of the run, from 0.
    path: relative to the workdir, the last name that it had. bytes: its size once the run went on.
    """

    updates: int
    micro: int
    order: int
    path: str
    bytes: int = 0


class Saves:
    """Notes every file that is written in a folder.

    folder: the run's workdir. place: tells (updates, micro-batches of the next one) now.
    opening: called before a file is opened for writing, with its entry; what it raises ends the opening.
    changing: called before any change of the folder, the opening of a file included, with the path.

    files: what was written, in order.
    """

    def __init__(self, folder: Path, place: Callable[[], tuple[int, int]]) -> None:
        self.folder, self.place = str(folder.resolve()), place
        self.opening: Callable[[Written], None] = lambda file: None
        self.closed: Callable[[], None] = lambda: None
        self.changing: Callable[[str], None] = lambda path: None
        self.files: list[Written] = []
        self._process = os.getpid()
        self._watching = False
        self._unsettled: list[Written] = []
        self._patches = Patches()

    def watch(self) -> None:
        """Begin to watch; until `stop`."""
        import torch

        self._watching = True
        sys.addaudithook(self._heard)  # it cannot be removed, but it can be told to be deaf
        self._patches.method(torch.serialization._open_zipfile_writer_file, "__init__", self._torch_opens)
        self._patches.method(torch.serialization._open_zipfile_writer_file, "__exit__", self._ends)
        try:
            import safetensors.torch
        except ImportError:
            return
        self._patches.function(safetensors, "serialize_file", self._safetensors_opens)

    def stop(self) -> None:
        """See nothing more."""
        self.settle()
        self._watching = False
        self._patches.undo()

    def settle(self) -> list[Written]:
        """The run goes on: note how large the files have become; returns those written since the last time."""
        written, self._unsettled = self._unsettled, []
        for file in written:
            with suppress(OSError):
                file.bytes = os.stat(os.path.join(self.folder, file.path)).st_size
        return written

    def path(self, file: Written) -> Path:
        """Where a file is."""
        return Path(self.folder, file.path)

    def plain(self) -> list[dict[str, Any]]:
        """What was written, as JSON-able data."""
        return [asdict(file) for file in self.files]

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching or (event != "open" and event not in CHANGES) or os.getpid() != self._process:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITES and (inside := self._inside(path)) is not None:
                self._opens(inside)
            return
        paths = [self._inside(path) for path in arguments[: CHANGES[event]]]
        if any(path is not None for path in paths):
            self.changing(next(path for path in paths if path is not None))
        if event == "os.rename" and None not in paths:
            self._renamed(*paths)  # type: ignore[arg-type]

    def _opens(self, path: str) -> None:
        self.changing(path)
        updates, micro = self.place()
        order = sum((file.updates, file.micro) == (updates, micro) for file in self.files)
        file = Written(updates, micro, order, path)
        self.files.append(file)
        self._unsettled.append(file)
        self.opening(file)

    def _renamed(self, old: str, new: str) -> None:
        for file in self._unsettled:
            if file.path == old or file.path.startswith(old + os.sep):
                file.path = new + file.path[len(old) :]

    def _inside(self, path: Any) -> str | None:
        """A path relative to the folder; None for one that is not in it."""
        if isinstance(path, (int, type(None))):
            return None
        whole = os.path.realpath(os.fsdecode(path))
        return os.path.relpath(whole, self.folder) if whole.startswith(self.folder + os.sep) else None

    def _torch_opens(self, original: Callable[..., None], writer: Any, name: Any) -> None:
        if (inside := self._inside(name)) is not None and str(name).isascii():  # torch leaves other names to Python
            self._opens(inside)
        original(writer, name)

    def _safetensors_opens(self, original: Callable[..., Any], tensors: Any, name: Any, *rest: Any, **more: Any) -> Any:
        if (inside := self._inside(name)) is not None:
            self._opens(inside)
        return self._ends(original, tensors, name, *rest, **more)

    def _ends(self, original: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """A native writer closes its file."""
        result = original(*arguments, **more)
        self.closed()
        return result
