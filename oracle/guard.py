"""Kills process groups when the process that started them is gone, however it went.

One small process in a session of its own reads group numbers from a pipe that only we hold open. When we end, also by
SIGKILL, the pipe does, and it kills the groups that are still on its list. Linux's parent death signal would reach only
the worker, not what a trainer started, and would fire when the starting thread ends.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress

CODE = """
import os, signal, sys
groups = set()
for line in sys.stdin.buffer:
    (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""

_lock = threading.Lock()
_process: subprocess.Popen[bytes] | None = None


def watch(group: int) -> None:
    """Have a process group killed when this process ends before `release`."""
    global _process
    with _lock:
        if _process is None or _process.poll() is not None:
            command = [sys.executable, "-S", "-E", "-c", CODE]
            _process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        _tell(f"+{group}\n")


def release(group: int) -> None:
    """Forget a process group: it is gone."""
    with _lock:
        _tell(f"-{group}\n")


def _tell(line: str) -> None:
    if _process is not None and _process.stdin is not None:
        with suppress(BrokenPipeError):
            _process.stdin.write(line.encode())
            _process.stdin.flush()
