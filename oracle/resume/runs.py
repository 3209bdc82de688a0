"""Runs of the candidate that are interrupted, and runs that go on from what those left."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffs.trace import Trace, open_trace
from diffs.verdict import NotComparable
from oracle import processes, trainers
from oracle.candidate import FULL, CandidateUsage, Runs, WarmRuns
from oracle.processes import Ending
from oracle.replays import Server
from oracle.resume.cuts import Cut


@dataclass(frozen=True)
class Attempt:
    """A run that ended, its folder, and how."""

    folder: Path
    ending: Ending

    @property
    def workdir(self) -> Path:
        """Where its checkpoints are."""
        return self.folder / "work"

    @property
    def trace(self) -> Trace | None:
        """What it recorded; None if that is nothing."""
        try:
            trace = open_trace(self.folder)
        except NotComparable:
            return None
        return trace if len(trace) else None

    @property
    def saves(self) -> list[dict[str, Any]]:
        """The files that it wrote; none known of a run that was killed."""
        return list((self.ending.outcome or {}).get("saves", []))


class Launcher:
    """Carries out runs of one candidate, each in a new folder; threads may share one that is not warm.

    runs: how the candidate is run otherwise: in fresh processes, or in forks of a server. own: a server that goes with
        it.
    """

    def __init__(self, runs: Runs | WarmRuns, folder: Path, own: Server | None = None) -> None:
        self.runs, self.folder, self._own = runs, folder, own
        self._numbers = itertools.count(1)

    @property
    def warm(self) -> bool:
        """Whether runs are forks of a server, one at a time."""
        return isinstance(self.runs, WarmRuns)

    def __call__(self, more: dict[str, Any]) -> Attempt:
        """Carry out one run: the candidate's spec with `more`."""
        spec = self._spec(more)
        ending = self._warm([spec])[0] if isinstance(self.runs, WarmRuns) else self._fresh(spec)
        return Attempt(Path(spec["folder"]), ending)

    def many(self, wanted: list[dict[str, Any]]) -> list[Attempt]:
        """Carry out several warm runs, some at a time; returns them in order."""
        specs = list(map(self._spec, wanted))
        return [Attempt(Path(s["folder"]), ending) for s, ending in zip(specs, self._warm(specs), strict=True)]

    def close(self) -> None:
        """End a server that was started for these runs alone."""
        if self._own is not None:
            self._own.close()

    def _spec(self, more: dict[str, Any]) -> dict[str, Any]:
        folder = self.folder / f"{next(self._numbers):03d}"
        return {**self.runs.spec, **more, "folder": str(folder), "workdir": str(folder / "work")}

    def _fresh(self, spec: dict[str, Any]) -> Ending:
        assert isinstance(self.runs, Runs)
        environment = self.runs.environment
        return processes.start(spec, python=environment.python, layer=environment.layer).wait(self.runs.timeout)

    def _warm(self, specs: list[dict[str, Any]]) -> list[Ending]:
        assert isinstance(self.runs, WarmRuns)
        for spec in specs:
            Path(spec["workdir"]).mkdir(parents=True)
        outcomes = self.runs.server.ask([{**spec, "started": time.time()} for spec in specs])
        return [processes.ending_of_fork(Path(s["folder"]), o) for s, o in zip(specs, outcomes, strict=True)]


def warmed(runs: Runs, task: str, trainer: str, threads: int, folder: Path) -> WarmRuns:
    """The same runs in forks of a server of their own, which has the trainer's libraries imported."""
    server = Server(
        folder,
        task=task,
        imports=trainers.imports(trainer),
        threads=threads,
        python=runs.environment.python,
        layer=runs.environment.layer,
    )
    return WarmRuns(runs.spec, folder, server, runs.timeout)


def interrupted(cut: Cut, since: int = 0, resume_from: Path | None = None) -> dict[str, Any]:
    """The spec of a run that dies at a cut. since: updates that were made before it began."""
    return {"cut": cut.spec(since), "resume_from": str(resume_from) if resume_from else None}


def resumed(workdir: Path) -> dict[str, Any]:
    """The spec of a run that goes on from what another left, with its tensors in full."""
    return {**FULL, "resume_from": str(workdir)}


def refuse_usage(ending: Ending) -> None:
    """Raise what a run says of its task or trainer.

    Raises:
        CandidateUsage: it could not be run as asked.
    """
    if ending.status == "usage":
        assert ending.outcome is not None
        refused = CandidateUsage(ending.outcome["error"]["message"])
        refused.add_note(ending.outcome["error"]["traceback"])
        raise refused
