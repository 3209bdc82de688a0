"""Kills process groups and removes folders when the process that made them is gone, however it went.

One small process in a session of its own reads what to end from a pipe that only we hold open. When we end, also by
SIGKILL, the pipe does, and it ends what is still on its list. Linux's parent death signal would reach only
the worker, not what a trainer started, and would fire when the starting thread ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CODE = """
import os, shutil, signal, sys
if os.fork():  # what ends us may end our children first
    os._exit(0)
watched = {}
for line in sys.stdin.buffer:
    sign, what = line[:1], line[1:-1]
    if sign == b"+":
        watched[what] = None
    else:
        watched.pop(what, None)
for what in watched:
    if what.isdigit():
        try:
            os.killpg(int(what), signal.SIGKILL)
        except OSError:
            pass
for what in watched:
    if not what.isdigit():
        shutil.rmtree(what, ignore_errors=True)
"""

ROOM = 4 << 30  # bytes that must be free in memory for a folder there

_lock = threading.Lock()
_process: subprocess.Popen[bytes] | None = None


def watch(what: int | Path) -> None:
    """Have a process group killed, or a folder removed, when this process ends before `release`."""
    global _process
    with _lock:
        if _process is None:
            command = [sys.executable, "-S", "-E", "-c", CODE]
            _process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            _process.wait()
        _tell(b"+", what)


def release(what: int | Path) -> None:
    """Forget a process group or a folder: it is gone."""
    with _lock:
        _tell(b"-", what)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that goes away with the block, and with this process, however it ends; in memory where there is room."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM else None
    with tempfile.TemporaryDirectory(prefix="oracle-", dir=where, ignore_cleanup_errors=True) as name:
        watch(Path(name))
        try:
            yield Path(name)
        finally:
            release(Path(name))


def _tell(sign: bytes, what: int | Path) -> None:
    if _process is not None and _process.stdin is not None:
        with suppress(BrokenPipeError):
            _process.stdin.write(sign + os.fsencode(str(what)) + b"\n")
            _process.stdin.flush()
