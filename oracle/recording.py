"""`oracle record`: runs a command as it is, with the probes in every process of it that uses torch."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffs.trace import Trace, open_trace
from diffs.verdict import NotComparable
from oracle import guard
from oracle.environment import Environment
from oracle.errors import OracleError, OutputError, near_miss
from oracle.processes import ROOT
from oracle.recorder.session import Options, known_kinds

SITE = ROOT / "oracle" / "recorder" / "site"
SUMMARY = "recording.json"


SIZES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class NothingRecorded(OracleError):
    """The command trained nothing that the probes could see."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One process's trace.

    folder, rank: where it is. updates: complete ones. addresses: recorded values.
    complete: whether the process ended normally. notes: what could not be seen, or was seen beside the addresses.
    """

    folder: str
    rank: int
    updates: int
    addresses: int
    complete: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorded command.

    exit_code: the command's; negative for the signal that ended it. seconds: wall clock.
    directory: where it ran. python, layer: the environment that it was given; None for our own.
    """

    argv: tuple[str, ...]
    folder: str
    exit_code: int
    seconds: float
    traces: tuple[Recorded, ...]
    directory: str = ""
    python: str | None = None
    layer: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"schema": 1, "command": "record", **asdict(self)}


def record(
    command: Sequence[str],
    options: Options,
    environment: Environment | None = None,
    *,
    directory: str | None = None,
    aside: bool = False,
) -> Recording:
    """Run a command to its end and return what was recorded of it.

    environment: where `python` and other programs of the command are looked for first; None for our own.
    directory: where it runs; None for here. aside: whether what it prints goes to the standard error alone.

    Raises:
        OutputError: the folder is not empty, or cannot be made.
        OracleError: the command cannot be started.
        NothingRecorded: no process of it trained.
    """
    if not options.folder:
        raise OutputError("-o '': it has no name: name a new folder")
    folder = Path(options.folder)
    _prepare(folder)
    started = time.monotonic()
    code = _run(command, _variables(options, environment), directory, aside)
    traces = tuple(_traces(folder))
    for claim in folder.rglob(".rank*"):  # of processes that were killed
        claim.unlink(missing_ok=True)
    found = Recording(
        argv=tuple(command),
        folder=str(folder),
        exit_code=code,
        seconds=round(time.monotonic() - started, 3),
        traces=traces,
        directory=str(Path(directory or Path.cwd()).resolve()),
        python=environment.python if environment else None,
        layer=str(environment.layer) if environment and environment.layer else None,
    )
    if not traces:
        how = f"it ended with exit code {code}" if code else "it ended well"
        raise NothingRecorded(
            f"{shlex.join(command)}: nothing was recorded, {how}: no process of it called a module of torch with "
            "gradients up to its first update, nothing of the kinds and updates asked for was there, or Python ran "
            "without its site (-I, -E, -S) or in an environment without torch"
        )
    (folder / SUMMARY).write_text(json.dumps(found.to_dict(), indent=1), encoding="utf-8")
    return found


def updates(text: str | None) -> tuple[int | None, int | None]:
    """The first and last update of "3:5", "3", "3:" or ":5".

    Raises:
        OracleError: it is none of these.
    """
    if text is None:
        return None, None
    found = re.fullmatch(r"(\d*)(:?)(\d*)", text)
    if not found or not (found[1] or found[3]):
        raise OracleError(f"--at {text}: give updates as 3:5, 3, 3: or :5")
    first = int(found[1]) if found[1] else None
    last = int(found[3]) if found[3] else None if found[2] else first
    if first is not None and last is not None and last < first:
        raise OracleError(f"--at {text}: the last update comes before the first")
    return first, last


def size(text: str | None) -> int | None:
    """Bytes of "500MB", "2GB" or "1000".

    Raises:
        OracleError: it is no size.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)?", text.upper())
    if not found:
        raise OracleError(f"--limit {text}: give a size such as 500MB or 2GB")
    return int(float(found[1]) * SIZES[found[2] or ""])


def kinds(text: str | None) -> tuple[str, ...] | None:
    """The kinds of "parameter,consume.gradient".

    Raises:
        OracleError: one of them is no kind.
    """
    if text is None:
        return None
    known = known_kinds()
    asked = tuple(part.strip() for part in text.split(",") if part.strip())
    if not asked:
        raise OracleError(f"--kinds {text!r}: name kinds, such as parameter,gradient")
    for one in asked:
        if one not in known:
            alike = [word for word in known if ("." in word) == ("." in one)]
            raise OracleError(f"--kinds {text}: {one!r} is no kind: {near_miss(one, alike)}")
    return asked


def _prepare(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is there already: name a new folder, or empty it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {folder}: {error.strerror}: name a folder that can be written") from error


def _variables(options: Options, environment: Environment | None) -> dict[str, str]:
    """The command's environment variables: ours, the probes, and the place where programs are looked for first."""
    known: Mapping[str, str] = os.environ
    layer = environment.layer if environment else None
    search = [str(SITE), str(layer) if layer else None, known.get("PYTHONPATH")]
    asked = {"root": str(ROOT), **asdict(options), "folder": str(Path(options.folder).resolve())}
    found = {**known, "PYTHONPATH": os.pathsep.join(filter(None, search)), "ORACLE_RECORD": json.dumps(asked)}
    activated = known.get("VIRTUAL_ENV") or known.get("CONDA_PREFIX")
    if environment is not None or activated is None:
        programs = Path(environment.python if environment else sys.executable).parent
        found["PATH"] = os.pathsep.join(filter(None, [str(programs), known.get("PATH")]))
    return found


def _run(command: Sequence[str], variables: dict[str, str], directory: str | None, aside: bool) -> int:
    """Run the command; returns its exit code. Signals are passed on, and nothing is left behind."""
    program = shutil.which(command[0], path=variables.get("PATH"))
    if program is None:
        raise OracleError(f"{command[0]}: no such program: give a command as you would type it, after --")
    process = subprocess.Popen(
        [program, *command[1:]], env=variables, start_new_session=True, cwd=directory, stdout=2 if aside else None
    )
    guard.watch(process.pid)
    before = {
        number: signal.signal(number, lambda number, frame: os.killpg(process.pid, number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        guard.release(process.pid)


def _traces(folder: Path) -> list[Recorded]:
    """What each process left, the first one's folder first."""
    places = [folder, *sorted(folder.glob("process*"), key=lambda path: int(path.name.removeprefix("process")))]
    found = []
    for place in places:
        try:
            trace = open_trace(place)
        except NotComparable:
            continue
        with trace:
            found += [_recorded(place, trace, rank) for rank in trace.processes]
    return found


def _recorded(place: Path, trace: Trace, rank: int) -> Recorded:
    suffix = f".{rank}" if rank else ""
    file = place / f"manifest{suffix}.json"
    manifest = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    process = trace.processes[rank]
    updates, addresses = process.database.execute(_COUNTS).fetchone()
    return Recorded(
        folder=str(place),
        rank=rank,
        updates=updates,
        addresses=addresses,
        complete=bool(manifest.get("ended")),
        notes=tuple(manifest.get("notes", ("the process was killed: it has what was written until then",))),
    )


_COUNTS = """
SELECT (SELECT count(DISTINCT "update") FROM record JOIN place USING (place) WHERE moment = 'update'), count(*)
FROM record
"""
