"""Runs of the candidate that are interrupted, and runs that go on from what those left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffs.trace import Trace, open_trace
from diffs.verdict import NotComparable
from oracle import processes
from oracle.candidate import FULL, CandidateUsage, Runs, WarmRuns
from oracle.processes import Ending
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
    """Starts runs of one candidate, each in a new folder, a few at a time.

    runs: how the candidate is run otherwise: in fresh processes, or in forks of a server.
    """

    def __init__(self, runs: Runs | WarmRuns, folder: Path, abreast: int = 2) -> None:
        self.runs, self.folder, self.abreast = runs, folder, abreast
        self.count = 0

    def __call__(self, *wanted: dict[str, Any]) -> list[Attempt]:
        """Carry out specs, each with what it has beyond the candidate's own; returns them in order."""
        specs = []
        for more in wanted:
            self.count += 1
            folder = self.folder / f"{self.count:03d}"
            specs.append({**self.runs.spec, **more, "folder": str(folder), "workdir": str(folder / "work")})
        with ThreadPoolExecutor(self.abreast) as pool:
            endings = self._warm(specs) if isinstance(self.runs, WarmRuns) else list(pool.map(self._fresh, specs))
        return [Attempt(Path(spec["folder"]), ending) for spec, ending in zip(specs, endings, strict=True)]

    def _fresh(self, spec: dict[str, Any]) -> Ending:
        assert isinstance(self.runs, Runs)
        environment = self.runs.environment
        return processes.start(spec, python=environment.python, layer=environment.layer).wait(self.runs.timeout)

    def _warm(self, specs: list[dict[str, Any]]) -> list[Ending]:
        assert isinstance(self.runs, WarmRuns)
        for spec in specs:
            Path(spec["workdir"]).mkdir(parents=True)
        outcomes = self.runs.server.ask(specs)
        return [processes.ending_of_fork(Path(s["folder"]), o) for s, o in zip(specs, outcomes, strict=True)]


def interrupted(cut: Cut, since: int = 0, resume_from: Path | None = None) -> dict[str, Any]:
    """The spec of a run that dies at a cut. since: updates that were made before it began."""
    return {"cut": cut.spec(since), "resume_from": str(resume_from) if resume_from else None}


def resumed(attempt: Attempt) -> dict[str, Any]:
    """The spec of a run that goes on from what another left, with its tensors in full."""
    return {**FULL, "resume_from": str(attempt.workdir)}


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
