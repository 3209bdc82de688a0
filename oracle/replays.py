"""Reference runs on request, each in a process of its own, answered as traces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from diffs.trace import Trace, open_trace
from oracle import guard
from oracle.errors import OracleError
from oracle.processes import ROOT, pinned
from reference_loop.recipe import Recipe, to_dict
from reference_loop.semantics import Semantics


class ReplayFailed(OracleError):
    """A reference run that raised, with what it raised."""


@dataclass(frozen=True)
class Pin:
    """Take the candidate's values at a moment and kind, from an update on."""

    moment: str
    kind: str
    update: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a run is read: what is trained, under which semantics, with which numbers and values taken from elsewhere.

    overrides: "<parameter>.<argument>" -> number, for single parameters of the optimizer.
    pins: places at which the candidate's values are taken.
    """

    recipe: Recipe
    semantics: Semantics
    overrides: Mapping[str, Any] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()

    def with_knob(self, name: str, value: str) -> Reading:
        """The same reading with one knob at another value."""
        return replace(self, semantics=self.semantics.with_(name, value))


@dataclass(frozen=True)
class Replay:
    """What a reference run left: its trace, its data's counts, the first NaN in what it keeps, the floor's findings."""

    folder: Path
    samples: int
    units: Mapping[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    nan: list[Any] | None = None
    local: list[dict[str, Any]] | None = None

    @cached_property
    def trace(self) -> Trace:
        """The recorded run."""
        return open_trace(self.folder)

    @property
    def metrics(self) -> frozenset[str]:
        """The names of all numbers that it reported."""
        places = (("evaluate", "metric"), ("log", "metric"))
        return frozenset(row.address.name for place in places for row in self.trace.rows_at(place))


class Server:
    """A process that forks for every run; see `oracle.forkserver`.

    folder: for its log. task: a task whose imports are made beforehand; imports: modules to import beforehand.
    python, layer: the environment, by default this one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        task: str | None = None,
        imports: Sequence[str] = (),
        threads: int = 1,
        python: str = sys.executable,
        layer: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "server.txt"
        spec = folder / "server.json"
        facts = {
            "root": str(ROOT),
            "task": task,
            "imports": list(imports),
            "threads": threads,
            "processes": os.cpu_count() or 1,
        }
        spec.write_text(json.dumps({**facts, "parent": os.getpid()}), encoding="utf-8")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [python, str(ROOT / "oracle" / "forkserver.py"), str(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=pinned(threads, layer),
                text=True,
                start_new_session=True,
            )
        guard.watch(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def ask(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The outcomes of requests, in order.

        Raises:
            ReplayFailed: the server is gone, with its last words.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(requests) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            words = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
            raise ReplayFailed("the reference's process ended: " + " | ".join(words))
        return json.loads(line)

    def close(self) -> None:
        """End the server, its forks and what they started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        guard.release(self._process.pid)


def _failure(error: Mapping[str, str]) -> ReplayFailed:
    """A failed run's error; its traceback is a note, which only --debug prints."""
    failed = ReplayFailed(error["message"])
    failed.add_note(error["traceback"])
    return failed


class Replays:
    """Reference runs of one task.

    folder: where traces go, one folder a reading.
    candidate: the folder of the candidate's trace with tensors in full, for pins; set once it is there.
    shards: of a candidate that deals tensors to ranks: rank -> parameter -> (dimension, start, length) of its shard.
    count: runs so far, each from the start of training. Readings that differ in knobs alone share a run up to where
        their plans part, and branch off it there.
    readings: readings carried out so far.
    """

    def __init__(self, server: Server, task: str, folder: Path, *, digest: str, device: str) -> None:
        self.server, self.task, self.folder, self.digest, self.device = server, task, folder, digest, device
        self.candidate: Path | None = None
        self.shards: Mapping[str, Mapping[str, Sequence[int]]] = {}
        self.count = self.readings = 0
        self._branches = device == "cpu"  # a process that uses an accelerator cannot fork

    def run(
        self,
        *readings: Reading,
        through: int | None = None,
        capture: dict[str, Any] | str | None = None,
        budget_bytes: int = 1 << 40,
        local: bool = False,
    ) -> list[Replay | ReplayFailed]:
        """Run the reference under each reading; one that raises gives its error in place of a run.

        Raises:
            ReplayFailed: a run could not be recorded, as on a full disk.

        through: the last update to train; None trains to the end.
        capture: tensors to keep in full, as a worker's spec has it.
        local: judge every difference from the candidate by the noise floor, in place of recording a trace.
        """
        alone = not self._branches or bool(capture) or local
        groups: dict[Any, list[int]] = {}
        for number, reading in enumerate(readings):
            groups.setdefault(number if alone else _shared(reading), []).append(number)
        requests = []
        for numbers in groups.values():
            first, *others = (self._reading(readings[number]) for number in numbers)
            reading = readings[numbers[0]]
            requests.append(
                {
                    "kind": "reference",
                    "timeout": None,
                    "task": self.task,
                    "recipe": to_dict(reading.recipe),
                    "overrides": dict(reading.overrides),
                    "pins": self._pins(reading.pins),
                    "local": str(self.candidate) if local else None,
                    "through": through,
                    "capture": capture,
                    "budget_bytes": budget_bytes if capture else 0,
                    "digest": self.digest,
                    "device": self.device,
                    "shards": self.shards,
                    **first,
                    "branches": others,
                }
            )
        self.count += len(requests)
        found: dict[int, Replay | ReplayFailed] = {}
        for numbers, request, answer in zip(groups.values(), requests, self.server.ask(requests), strict=True):
            folders = [request["folder"], *(branch["folder"] for branch in request["branches"])]
            for number, folder, outcome in zip(numbers, folders, [answer, *answer["branches"]], strict=True):
                if outcome.get("whole"):
                    self._branches = False
                else:
                    found[number] = _replay(Path(folder), outcome)
        left = [number for number in range(len(readings)) if number not in found]
        if left:
            again = self.run(*(readings[number] for number in left), through=through)
            found.update(zip(left, again, strict=True))
        return [found[number] for number in range(len(readings))]

    def one(self, reading: Reading, **options: Any) -> Replay:
        """Run the reference under one reading.

        Raises:
            ReplayFailed: it raised.
        """
        (found,) = self.run(reading, **options)
        if isinstance(found, ReplayFailed):
            raise found
        return found

    def _reading(self, reading: Reading) -> dict[str, Any]:
        self.readings += 1
        return {"folder": str(self.folder / f"{self.readings:04d}"), "semantics": reading.semantics.flat()}

    def _pins(self, pins: Sequence[Pin]) -> dict[str, Any] | None:
        if not pins:
            return None
        return {"trace": str(self.candidate), "places": [[pin.moment, pin.kind, pin.update] for pin in pins]}


def _shared(reading: Reading) -> str:
    """What readings that can share a run have in common: all but their plans."""
    return f"{reading.recipe} {sorted(reading.overrides.items())} {reading.pins} {reading.semantics.data.tail}"


def _replay(folder: Path, outcome: Mapping[str, Any]) -> Replay | ReplayFailed:
    if outcome["error"]:
        failed = _failure(outcome["error"])
        if outcome["error"]["type"] == "TraceError":  # it says nothing of the reading
            raise failed
        return failed
    units = {(epoch, index): counts for epoch, index, counts in outcome["units"]}
    return Replay(folder, outcome["samples"], units, outcome["nan"], outcome.get("local"))
