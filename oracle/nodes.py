"""Ranks on several machines: torchrun or another launcher starts the same command once for each rank.

Rank 0 leads: it runs the reference, compares and reports. The others follow: of every run of the candidate they start
their own rank, until the first says that it is over. All that they tell one another goes through files in the folder
that the command keeps its runs in, which every machine sees; traces are written there, one for each rank.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle import guard
from oracle.environment import Environment
from oracle.errors import OracleError
from oracle.processes import pinned
from oracle.ranks import PAUSE, announce, begin

CALLS = "calls.jsonl"
"""In the shared folder: a line for each run that the followers are to take part in, and a last one."""

VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR",
)  # fmt: skip
"""What a launcher tells of a process's place, and each of a trainer's processes is told in turn."""


@dataclass(frozen=True)
class Launch:
    """This process's place among those that a launcher started."""

    rank: int
    variables: Mapping[str, str]


def launched(ranks: int, folder: Path | None) -> Launch | None:
    """How a launcher started this process, if one did for a recipe of so many ranks.

    folder: that runs are kept in.

    Raises:
        OracleError: it started another number of processes, did not say where the first one is, or there is no folder.
    """
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if ranks == 1 or "RANK" not in found or found.get("WORLD_SIZE", "1") == "1":
        return None
    if found["WORLD_SIZE"] != str(ranks):
        raise OracleError(
            f"a launcher started {found['WORLD_SIZE']} processes (WORLD_SIZE), and the recipe asks for {ranks} ranks: "
            f"start {ranks}, or set parallel.ranks={found['WORLD_SIZE']}, or unset WORLD_SIZE to run all of them here"
        )
    if "MASTER_ADDR" not in found:
        raise OracleError(
            "a launcher set RANK and WORLD_SIZE, but not MASTER_ADDR: set it to the machine of rank 0, as torchrun does"
        )
    if folder is None:
        raise OracleError(
            f"this is rank {found['RANK']} of {ranks} of a launcher, and ranks meet in a folder that all machines see: "
            "name a new one with --keep, or unset WORLD_SIZE to run all ranks here"
        )
    return Launch(int(found["RANK"]), found)


@contextmanager
def leading(launch: Launch | None, folder: Path) -> Iterator[dict[str, Any] | None]:
    """Lead the followers while the block lasts; gives what a spec has as `launch`, None where nobody follows."""
    if launch is None:
        yield None
        return
    calls = folder / CALLS
    calls.touch()
    try:
        yield {"variables": dict(launch.variables), "calls": str(calls)}
    finally:
        announce(calls, {"over": True})


def follow(launch: Launch, folder: Path, place: Environment, threads: int) -> None:
    """Take part in the first rank's runs until they are over; nothing of them is left behind.

    folder: the shared one. place, threads: what this machine's processes run in.
    """
    calls, read = folder / CALLS, 0
    while not calls.exists():
        time.sleep(PAUSE)
    running: list[_Followed] = []
    try:
        while True:
            lines = _lines(calls)
            for line in lines[read:]:
                call = json.loads(line)
                if "over" in call:
                    return
                running.append(_started(launch, call, place, threads))
            read = len(lines)
            running = [one for one in running if not one.ended()]
            time.sleep(PAUSE)
    finally:
        for one in running:
            one.kill()


def _lines(calls: Path) -> list[str]:
    """The whole lines of the calls. A file that is gone says that it is over: the leader removed what it failed at."""
    try:
        text = calls.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [json.dumps({"over": True})]
    return text[: text.rfind("\n") + 1].splitlines()


def _started(launch: Launch, call: Mapping[str, Any], place: Environment, threads: int) -> _Followed:
    """This rank's part of a run that was called for."""
    file = Path(call["spec"])
    spec = json.loads(file.read_text(encoding="utf-8"))
    variables = {**pinned(threads, place.layer), **launch.variables, "MASTER_PORT": call["port"]}
    process = begin(spec, file, launch.rank, variables, python=place.python, start_new_session=True)
    guard.watch(process.pid)
    return _Followed(process, Path(spec["folder"]), launch.rank)


@dataclass
class _Followed:
    """This rank's process in one run; `oracle.ranks.Remote` is its other side."""

    process: subprocess.Popen[bytes]
    folder: Path
    rank: int
    _beats: int = 0
    _obeyed: int = field(default=0, init=False)

    def ended(self) -> bool:
        """Whether the process has ended; tells the first rank so, or that it lives, and does what that one orders."""
        code = self.process.poll()
        if code is None:
            self._obey()
        else:
            self.kill()
        self._flush()
        self._beats += 1
        self._tell({"beat": self._beats, "code": code})
        return code is not None

    def kill(self) -> None:
        """End the process and all that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        guard.release(self.process.pid)

    def _obey(self) -> None:
        orders = (self.folder / f"orders.{self.rank}").read_text(encoding="utf-8").splitlines()
        for number in orders[self._obeyed :]:
            self.process.send_signal(int(number))
        self._obeyed = len(orders)

    def _flush(self) -> None:
        """Have the place that the process notes in memory reach the machine that reads it."""
        with suppress(FileNotFoundError), open(self.folder / f"place.{self.rank}", "r+b") as file:
            os.fsync(file.fileno())

    def _tell(self, what: Mapping[str, Any]) -> None:
        aside = self.folder / f"remote.{self.rank}.tmp"
        aside.write_text(json.dumps(what), encoding="utf-8")
        os.replace(aside, self.folder / f"remote.{self.rank}")
