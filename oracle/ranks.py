"""A run on several ranks: one process each, started as torchrun starts them, watched, and ended together.

`python /path/to/oracle/ranks.py SPEC.json` starts a worker for each rank and leaves one outcome for all. Unlike
torchrun's agent it needs no torch, stays in the process group that the oracle kills, and says which rank ended the run
and where. Where a launcher started the oracle itself once for each rank, on several machines perhaps, it starts the
first rank's worker only, and the others' are `Remote`. Runs in the candidate's environment: only the standard library.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

GRACE = 3.0
"""Seconds in which the other ranks may say what they saw, once one ended badly."""

TICK = 0.01  # seconds between two looks at the processes
PAUSE = 0.2  # seconds between two looks at what another machine tells
SILENCE = 120.0  # seconds without a sign of life, after which another machine is gone; folders of a network lag


class Process(Protocol):
    """One rank's process."""

    def poll(self) -> int | None:
        """Its exit code, the negative number of the signal that ended it, or None while it runs."""

    def send_signal(self, number: int) -> None:
        """Send it a signal."""

    def kill(self) -> None:
        """End it."""


def main(arguments: list[str]) -> int:
    """Run the spec in the file that `arguments` names on all its ranks; returns the exit code."""
    file = Path(arguments[0])
    spec = json.loads(file.read_text(encoding="utf-8"))
    folder, launch = Path(spec["folder"]), spec["launch"]
    running: dict[int, Process] = {}
    if launch is None:
        port = free_port()
        for rank in range(spec["ranks"]):
            running[rank] = begin(spec, file, rank, {**os.environ, **environment(rank, spec["ranks"], port)})
    else:
        told = {**launch["variables"], "MASTER_PORT": str(free_port(""))}
        running |= {rank: Remote(folder, rank) for rank in range(1, spec["ranks"])}
        running[0] = begin(spec, file, 0, {**os.environ, **told})
        announce(Path(launch["calls"]), {"spec": str(file), "port": told["MASTER_PORT"]})
    outcome = supervise(running, folder)
    aside = folder / "outcome.json.tmp"
    aside.write_text(json.dumps(outcome, indent=1), encoding="utf-8")
    os.replace(aside, folder / "outcome.json")
    return {"completed": 0, "usage": 2}.get(outcome["status"], 1)


def begin(
    spec: Mapping[str, Any],
    file: Path,
    rank: int,
    variables: Mapping[str, str],
    python: str = sys.executable,
    **more: Any,
) -> subprocess.Popen[bytes]:
    """Start one rank's worker; what it prints goes to files of its own beside the spec's outcome.

    spec: what `file` holds. variables: the environment. python: the interpreter. more: as Popen takes it.
    """
    folder = Path(spec["folder"])
    with open(folder / f"stdout.{rank}.txt", "wb") as out, open(folder / f"stderr.{rank}.txt", "wb") as err:
        command = [python, spec["script"], str(file)]
        return subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **more)


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this machine that nobody listens on; host: at which of its addresses, "" for all of them."""
    with socket.socket() as found:
        found.bind((host, 0))
        return found.getsockname()[1]


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun gives to one of several processes on one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }


def supervise(running: Mapping[int, Process], folder: Path, timeout: float | None = None) -> dict[str, Any]:
    """Wait for all ranks; where one ends badly, or time is over, end the others. Returns one outcome for all.

    folder: holds `outcome.<rank>.json` of those that live to write one.
    timeout: in seconds; None leaves the time to who sends SIGUSR1, which means that it is over.

    The outcome is that of the rank that ended the run, the first one where none did, with `rank` and `at`: who that
    was, and the last place where it was seen.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
    codes: dict[int, int] = {}
    over = False
    while len(codes) < len(running):
        for rank, process in running.items():
            code = process.poll() if rank not in codes else None
            if code is not None:
                codes[rank] = code
                if code != 0:
                    now = time.monotonic()
                    deadline = min(now + GRACE, deadline or now + GRACE)
        over = bool(asked) or (deadline is not None and time.monotonic() >= deadline)
        if over:
            break
        time.sleep(TICK)
    bad = [rank for rank, code in codes.items() if code != 0]
    if over and not bad:  # all of them say where they are
        for rank in running.keys() - codes.keys():
            running[rank].send_signal(signal.SIGUSR1)
        time.sleep(GRACE / 6)
    for process in running.values():
        process.kill()
    if over and not bad:
        return _hung(folder, sorted(running.keys() - codes.keys()))
    return _ended(folder, codes)


class Remote:
    """One rank's process on another machine, which `oracle.nodes` runs there: two small files in a shared folder.

    `remote.<rank>` is what that machine tells: a number that grows while the process lives, and at last its exit code.
    `orders.<rank>` is what it is told: signals to send. Both are there from the beginning, since a file that is looked
    for too early can stay unseen for a while on a network's folder.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._tells, self._orders = folder / f"remote.{rank}", folder / f"orders.{rank}"
        for file in (self._tells, self._orders):
            file.write_text("", encoding="utf-8")
        self._last, self._heard, self._looked = "", time.monotonic(), 0.0
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code; that of SIGKILL where its machine has been silent for too long."""
        now = time.monotonic()
        if self._code is None and now - self._looked >= PAUSE:
            self._looked = now
            self._code = self._look(now)
        return self._code

    def _look(self, now: float) -> int | None:
        told = self._tells.read_text(encoding="utf-8")
        if told != self._last:
            self._last, self._heard = told, now
        if not told:  # that machine is still making ready
            return None
        return -signal.SIGKILL if now - self._heard > SILENCE else json.loads(told)["code"]

    def send_signal(self, number: int) -> None:
        with open(self._orders, "a", encoding="utf-8") as file:
            print(int(number), file=file)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def announce(calls: Path, what: Mapping[str, Any]) -> None:
    """Tell the other machines something: one more line of the file that they read."""
    with open(calls, "a", encoding="utf-8") as file:
        print(json.dumps(what), file=file)


def _hung(folder: Path, ranks: list[int]) -> dict[str, Any]:
    """The outcome of a run whose time is over: the rank that is furthest back holds the others up."""
    last = min(ranks, key=lambda rank: _place(folder, rank)[0])
    where = _place(folder, last)[1]
    others = ", ".join(f"rank {rank} at {_place(folder, rank)[1]}" for rank in ranks if rank != last)
    said = f"rank {last} was last seen at {where}" + (f"; {others}" if others else "")
    _quote(folder, last)
    return {"status": "hung", "error": {"type": "", "message": said, "traceback": ""}, **_nothing(last, where)}


def _ended(folder: Path, codes: Mapping[int, int]) -> dict[str, Any]:
    """The outcome of a run whose ranks are gone: of the first one that ended badly, if any.

    codes: of those that ended by themselves. One that left no outcome ended badly, whatever its code.
    """
    killed = [rank for rank in codes if not (folder / f"outcome.{rank}.json").exists()]
    bad = {rank for rank, code in codes.items() if code != 0}
    written = sorted(bad - set(killed), key=lambda rank: (folder / f"outcome.{rank}.json").stat().st_mtime_ns)
    culprit = next(iter([*killed, *written]), None)
    rank = 0 if culprit is None else culprit
    where = _place(folder, rank)[1]
    _quote(folder, rank)
    if rank in killed:
        code = codes[rank]
        ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        error = {"type": "", "message": f"rank {rank} was ended by {ended}", "traceback": ""}
        name = ended if code < 0 else None
        return {"status": "killed", "signal": name, "error": error, **_nothing(rank, where)}
    outcome = json.loads((folder / f"outcome.{rank}.json").read_text(encoding="utf-8"))
    if culprit is None:
        return outcome
    return {**outcome, "rank": rank, "at": where}


def _nothing(rank: int, where: str) -> dict[str, Any]:
    """What an outcome has of a run that did not live to write it."""
    empty: dict[str, Any] = {"interrupted": False, "struck": None, "saves": [], "updates": None, "batches": None}
    return {**empty, "versions": {}, "remedies": {}, "seconds": {}, "rank": rank, "at": where}


def _quote(folder: Path, rank: int) -> None:
    """Say what a rank printed last, as its own words."""
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        stream.flush()
        with open(folder / f"{name}.{rank}.txt", "rb") as file:
            shutil.copyfileobj(file, stream.buffer)
        stream.flush()


class Whereabouts:
    """Where a rank is, for others to read whenever it is killed: a small file that is mapped into memory."""

    SIZE = 256

    def __init__(self, folder: Path, rank: int) -> None:
        import mmap

        file = folder / f"place.{rank}"
        file.write_bytes(b" " * self.SIZE)
        with open(file, "r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), self.SIZE)
        self._known: tuple[Any, ...] = ()

    def note(self, order: tuple[int, ...], update: int, micro: int, moment: str) -> None:
        """Note a place; order: sorts places as training goes through them."""
        if (update, micro, moment) == self._known:
            return
        self._known = (update, micro, moment)
        where = f"update {update}, micro {micro}, {moment}" if micro >= 0 else f"update {update}, {moment}"
        self._map[:] = json.dumps([list(order), where]).encode().ljust(self.SIZE)[: self.SIZE]


def _place(folder: Path, rank: int) -> tuple[list[int], str]:
    """Where a rank was last seen: how far that is, and in words."""
    try:
        order, where = json.loads((folder / f"place.{rank}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [], "no step yet"
    return order, where


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
