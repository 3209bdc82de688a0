"""Ends a run at its cut, in one of the ways in which runs end before their time.

Runs in the candidate's own environment: only the standard library and torch.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any

import torch

from oracle.job import Interrupted
from oracle.resume.entry import Entry
from oracle.resume.saves import Saves, Written

SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL")


class Interruption:
    """Watches a run, and ends it where its spec says.

    entry: of a run that was resumed.

    cut: None; a number of updates; or a dict of `updates`, `place`, `micro`, `death`, `file`, `byte`.

    `place` is `update`: in the optimizer's post-hook, with `updates` made; `saved`: when the next window opens;
    `micro`: after `micro` micro-batches of the next window; `evaluate`: at the first forward without gradients after
    it; `save`: when the file number `file` of what is written there is opened, or has `byte` bytes.

    `death` is `exception`, a signal, `full-disk` (from that byte on nothing can be written in the workdir), or
    `read-only` (from `updates` updates on nothing in it can be changed). Who survives these ends at the next update.
    """

    def __init__(self, cut: Any, recorder: Any, workdir: Path, entry: Entry | None = None) -> None:
        if isinstance(cut, int):
            cut = {"updates": cut}
        self.cut = {"place": "update", "micro": 0, "death": "exception", "file": 0, "byte": None, **(cut or {})}
        self.recorder, self.entry = recorder, entry
        self.struck = False
        self._full = False
        self._hook: Any = None
        self.saves = Saves(workdir, lambda: (recorder.updates, recorder.micros))
        recorder.on_update = self._updated
        recorder.on_micro = self._goes_on
        recorder.on_backward = self._trained
        if cut is not None:
            self.saves.opening = self._opening
            self.saves.closed = self._closed
            if self.cut["death"] == "read-only":
                self.saves.changing = self._changing
            if self.cut["place"] == "evaluate":
                self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._forward)
        else:
            self.cut["updates"] = None

    def begin(self) -> None:
        """The run begins."""
        self.saves.watch()

    def enter(self) -> None:
        """A resumed run begins."""
        if self.entry is not None:
            self.entry.watch()

    def end(self) -> None:
        """The run ended; nothing strikes any more."""
        self.struck = True
        self._limit(None)
        self.saves.stop()
        if self._hook is not None:
            self._hook.remove()

    def _at(self, place: str) -> bool:
        cut = self.cut
        return not self.struck and cut["place"] == place and cut["updates"] == self.recorder.updates

    def _updated(self, updates: int) -> None:
        self.saves.settle()
        survived = self.struck and self.cut["death"] in ("full-disk", "read-only") and updates > self.cut["updates"]
        if survived or self._at("update"):
            self._strike()

    def _goes_on(self) -> None:
        """A micro-batch begins, or the run is over: what was being saved is saved."""
        if self.entry is not None:
            self.entry.entered()
            self.entry = None
        if self._full:
            self._limit(None)  # for what is written elsewhere
        written = {self.saves.path(file) for file in self.saves.settle()}
        if files := sorted(path for path in written if path.is_file()):
            self.recorder.saved(files)
        if self._at("saved") and self.recorder.micros == 0:
            self._strike()

    def _trained(self) -> None:
        if self._at("micro") and self.recorder.micros == self.cut["micro"]:
            self._strike()

    def _forward(self, module: Any, arguments: Any) -> None:
        if not torch.is_grad_enabled() and self._at("evaluate"):
            self._strike()

    def _opening(self, file: Written) -> None:
        if self._full:
            self._limit(0)
        elif self.cut["byte"] is not None and not self.struck:
            self._limit(None)
        if not (self._at("save") and file.micro == self.cut["micro"] and file.order == self.cut["file"]):
            return
        if self.cut["byte"] is None or self.cut["death"] in ("exception", "SIGTERM", "SIGINT"):
            self._strike()
        elif self.cut["death"] == "full-disk":
            self.struck = self._full = True
            self._limit(self.cut["byte"])
        elif self.cut["death"] == "SIGKILL":
            # At a size that it may not pass, the kernel ends a process as suddenly as SIGKILL does.
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            self._limit(self.cut["byte"])

    def _closed(self) -> None:
        """The file is whole: what is written elsewhere meanwhile has room, unless the disk is full."""
        if self.cut["byte"] is not None and not self._full:
            self._limit(None)

    def _changing(self, path: str) -> None:
        if self.recorder.updates >= self.cut["updates"]:
            self.struck = True
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def _strike(self) -> None:
        self.struck = True
        death = self.cut["death"]
        if death in SIGNALS:
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background job has it
                signal.signal(signal.SIGINT, signal.default_int_handler)
            os.kill(os.getpid(), signal.Signals[death])
        else:
            raise Interrupted

    def _limit(self, size: int | None) -> None:
        """No file may grow beyond a size; None: as far as the system lets it."""
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
