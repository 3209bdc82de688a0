"""Worker processes: started with a pinned environment, watched, and never left behind."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from oracle import guard
from oracle.errors import OutputError
from oracle.worker import UNWRITABLE

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "oracle" / "worker.py"
RANKS = ROOT / "oracle" / "ranks.py"

Status = Literal["completed", "raised", "killed", "hung", "usage"]

DEFAULTS: dict[str, Any] = {
    "kind": "candidate",
    "command": None,
    "arguments": {},
    "capture": None,
    "budget_bytes": 0,
    "threads": 1,
    "device": "cpu",
    "resume_from": None,
    "cut": None,
    "watch": False,
    "rank": 0,
    "ranks": 1,
    "launch": None,
}
"""What a spec need not state."""

LEFTOVERS = re.compile(
    r"ACCELERATE_.*|FSDP_.*|TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
)
"""Variables that a launcher left behind; they would make a trainer believe that it runs on several ranks."""

WORDS = 2000  # characters of the last words that a report can quote
GRACE = 1.0  # seconds in which a hung process may say where it is


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a worker ended.

    status: `completed`, `raised` (the trainer raised), `usage` (what was asked cannot be run), `killed`, `hung`.
    detail: the exception, the signal's name, the exit status or the time limit, in words; empty when completed.
    signal: the name of the signal that ended it, None where none did.
    exit_code: what the process returned; a signal's number, negative, where one ended it.
    last_words: the end of the standard error, which is where crashes speak; of the standard output if that is empty.
    outcome: the content of outcome.json, None if the process did not live to write it.
    seconds: from the start until the end was seen, wall clock.
    """

    status: Status
    detail: str
    signal: str | None
    exit_code: int
    last_words: str
    outcome: Mapping[str, Any] | None
    seconds: float


@dataclass
class Running:
    """A worker that was started; `wait` for it, or `kill` it."""

    process: subprocess.Popen[bytes]
    folder: Path
    started: float = field(default_factory=time.monotonic)

    def wait(self, timeout: float | None = None) -> Ending:
        """Wait for the end, at most until `timeout` seconds after the start; then the whole process group is killed.

        Also on Ctrl-C, or any other exception, nothing of the group survives. Safe to call from a thread.

        Raises:
            OutputError: the worker could not write into its folder.
        """
        try:
            left = None if timeout is None else max(0.0, self.started + timeout - time.monotonic())
            code = self.process.wait(left)
        except subprocess.TimeoutExpired:
            self._ask_where_it_is()
            self.kill()
            code = self.process.returncode
            outcome = _read_outcome(self.folder)
            if outcome is None or outcome["status"] == "hung":  # otherwise it had finished, and hung on its way out
                where = f": {outcome['error']['message']}" if outcome else ""
                return self._ending("hung", f"no end after {timeout:g} s{where}", code, outcome)
        finally:
            self.kill()
        if code == UNWRITABLE:
            said = self._last_words() or "a run could not write what it came to"
            room = f"{_free(self.folder)} free in {self.folder}"
            raise OutputError(f"{said} ({room}): free space, or choose another folder")
        return self._judge(code)

    def kill(self) -> None:
        """Kill the process and all it started; does nothing once they are gone."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if _live.pop(self.process.pid, None) is not None:
            guard.release(self.process.pid)

    def _judge(self, code: int) -> Ending:
        """The ending: what outcome.json says where there is one, otherwise how the process went."""
        outcome = _read_outcome(self.folder)
        if outcome is not None:
            error = outcome["error"]
            detail = ": ".join(filter(None, (error["type"], error["message"]))) if error else ""
            return self._ending(outcome["status"], detail, code, outcome)
        if code < 0:
            return self._ending("killed", f"killed by {_signal(code)}", code)
        return self._ending("killed", f"the process ended itself with exit status {code}", code)

    def _ending(self, status: Status, detail: str, code: int, outcome: Mapping[str, Any] | None = None) -> Ending:
        return Ending(
            status=status,
            detail=detail,
            signal=((outcome or {}).get("signal") or _signal(code)) if status == "killed" else None,
            exit_code=code,
            last_words=self._last_words(),
            outcome=outcome,
            seconds=time.monotonic() - self.started,
        )

    def _last_words(self) -> str:
        return _tail(self.folder / "stderr.txt") or _tail(self.folder / "stdout.txt")

    def _ask_where_it_is(self) -> None:
        """Make a hung worker write the stack of every thread to its standard error."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)


def start(
    spec: Mapping[str, Any], *, python: str | None = None, layer: Path | None = None, script: Path = WORKER
) -> Running:
    """Start a worker for a spec. Several may run at once.

    spec: as `worker.py` takes it; what `DEFAULTS` has may be left out. Its `folder` and `workdir` are made.
    python: the interpreter of the candidate's environment; None is this one.
    layer: a folder of packages that come before that environment's.
    script: what is run with the spec, the worker or another that takes one; on several ranks, on each.

    The folder gets spec.json, stdout.txt, stderr.txt and what the worker writes. The worker leads a process group,
    which is killed when we end, however we do.

    Raises:
        OutputError: a folder cannot be made or written.
    """
    folder, workdir = Path(spec["folder"]).resolve(), Path(spec["workdir"]).resolve()
    places = {"root": str(ROOT), "script": str(script), "folder": str(folder), "workdir": str(workdir)}
    full = {**DEFAULTS, **spec, **places}
    full["started"] = time.time()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        workdir.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            (folder / "outcome.json").unlink()
        file = folder / "spec.json"
        file.write_text(json.dumps(full, indent=1), encoding="utf-8")
        with open(folder / "stdout.txt", "wb") as stdout, open(folder / "stderr.txt", "wb") as stderr:
            process = subprocess.Popen(
                [python or sys.executable, str(RANKS) if full["ranks"] > 1 else full["script"], str(file)],
                env=pinned(full["threads"], layer),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
    except OSError as error:
        if error.filename == (python or sys.executable):
            raise OutputError(f"cannot run {error.filename}: {error.strerror}: choose another --python") from error
        place = error.filename or folder
        raise OutputError(f"cannot write {place}: {error.strerror}: choose another folder") from error
    guard.watch(process.pid)
    running = Running(process, folder)
    _live[process.pid] = running
    return running


def ending_of_fork(folder: Path, outcome: Mapping[str, Any]) -> Ending:
    """How a candidate's run in a fork of a server ended, from what the server answered."""
    code = outcome["exit_code"]
    alarm = code == -signal.SIGALRM
    ended = "status" in outcome
    error = outcome["error"]
    return Ending(
        status=outcome["status"] if ended else "hung" if alarm else "killed",
        detail=": ".join(filter(None, (error["type"], error["message"]))) if error else "",
        signal=outcome.get("signal") if ended else None if alarm else _signal(code),
        exit_code=code,
        last_words=_tail(folder / "stderr.txt") or _tail(folder / "stdout.txt"),
        outcome=outcome if ended else None,
        seconds=0.0,
    )


def pinned(threads: int, layer: Path | None = None) -> dict[str, str]:
    """Our environment variables with all that decides bits, or reaches for the network, set to one value.

    threads: of every numeric library.
    layer: put first on PYTHONPATH, so that the processes a trainer starts see it too.
    """
    kept = {name: value for name, value in os.environ.items() if not LEFTOVERS.fullmatch(name)}
    if layer is not None:
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(layer), kept.get("PYTHONPATH")]))
    return kept | {
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "WANDB_DISABLED": "true",
    }


_live: dict[int, Running] = {}


@atexit.register
def kill_all() -> None:
    """Kill every worker that is still running."""
    for running in list(_live.values()):
        running.kill()


def _signal(code: int) -> str | None:
    """The name of the signal behind a negative exit code."""
    return signal.Signals(-code).name if code < 0 else None


def _read_outcome(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _tail(path: Path) -> str:
    """The last whole lines of a file, at most `WORDS` characters."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4 * WORDS))
            text = file.read().decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
    if len(text) <= WORDS:
        return text
    return text[-WORDS:].partition("\n")[2] or text[-WORDS:]


def _free(folder: Path) -> str:
    return f"{shutil.disk_usage(folder).free / 1e6:,.0f} MB"
