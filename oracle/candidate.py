"""The candidate's runs: twice in fresh processes, once with its tensors in full, and held against itself."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from diffs.digest import digest_tensor
from diffs.first import Difference, compare, differences
from diffs.trace import Row, Trace, open_trace
from diffs.verdict import NotComparable
from oracle import processes
from oracle.environment import Environment
from oracle.errors import OracleError
from oracle.explain.standing import RULES
from oracle.processes import Ending
from oracle.replays import Server
from oracle.result import CandidateOutcome, SelfCheck


class CandidateUsage(OracleError):
    """The candidate cannot be run as asked: its own message says why."""


@dataclass(frozen=True)
class Candidate:
    """A candidate that was run twice.

    trace: the first run; None if it never began to train.
    full: the folder of the second run, with its tensors in full; None if the two are not the same run.
    complete: whether everything fitted into `full`.
    ending, outcome: how the first run ended.
    itself: whether both runs are bit-identical. wavers: the first difference between them.
    unsteady: witness places that the candidate does not repeat.
    """

    trace: Trace | None
    full: Path | None
    complete: bool
    ending: Ending
    outcome: CandidateOutcome
    itself: SelfCheck | None
    wavers: Difference | None
    unsteady: frozenset[tuple[str, str]]

    @property
    def shards(self) -> dict[str, Any]:
        """Of parameters that are dealt to ranks, each rank's shard: rank -> parameter -> (dimension, start, length)."""
        facts = {} if self.trace is None else {str(rank): self.trace.told(rank) for rank in self.trace.processes}
        return {rank: told["shards"] for rank, told in facts.items() if told.get("shards")}

    @property
    def ended(self) -> bool:
        """Whether it trained to its end."""
        return self.ending.status == "completed"


class Runs:
    """Two runs of one candidate, going on at the same time in fresh processes."""

    def __init__(self, spec: dict[str, Any], folder: Path, environment: Environment, timeout: float | None) -> None:
        self.folder, self.environment, self.timeout, self.spec = folder, environment, timeout, spec
        first, second = self._start("first", {}), self._start("second", FULL)
        self._pool = ThreadPoolExecutor(2)
        self._endings: list[Future[Ending]] = [self._pool.submit(run.wait, timeout) for run in (first, second)]

    def _start(self, name: str, more: dict[str, Any]) -> processes.Running:
        spec = {**self.spec, **more, **_folders(self.folder / name)}
        return processes.start(spec, python=self.environment.python, layer=self.environment.layer)

    def wait(self, reported: Collection[str] | None = None) -> Candidate:
        """Wait for both runs, and compare them; `reported` as `assemble` takes it.

        Raises:
            CandidateUsage: the trainer or the task cannot be run as asked.
        """
        first, second = (future.result() for future in self._endings)
        self._pool.shutdown()
        return assemble(self.folder, first, second, self.timeout, reported)

    def once_more(self, moments: list[list[Any]]) -> Path:
        """Run the candidate again with the tensors of some moments in full; returns the trace's folder."""
        run = self._start("again", {"capture": {"moments": moments}, "budget_bytes": 1 << 40})
        run.wait(self.timeout)
        return run.folder

    def otherwise(self, name: str, more: dict[str, Any]) -> tuple[Path, Ending]:
        """Run once more with a spec that differs by `more`; returns the trace's folder, and how it ended."""
        run = self._start(name, more)
        return run.folder, run.wait(self.timeout)


class WarmRuns:
    """The same two runs as forks of a server that has torch imported: for many candidates of our own environment."""

    def __init__(self, spec: dict[str, Any], folder: Path, server: Server, timeout: float | None) -> None:
        self.folder, self.server, self.timeout = folder, server, timeout
        self.spec = {**processes.DEFAULTS, "timeout": timeout, **spec}

    def _ask(self, *named: tuple[str, dict[str, Any]]) -> list[Ending]:
        now = time.time()
        asked = [{**self.spec, **more, "started": now, **_folders(self.folder / name)} for name, more in named]
        for request in asked:
            Path(request["workdir"]).mkdir(parents=True)
        return [
            processes.ending_of_fork(Path(r["folder"]), o) for r, o in zip(asked, self.server.ask(asked), strict=True)
        ]

    def wait(self, reported: Collection[str] | None = None) -> Candidate:
        """Run twice, and compare. Raises CandidateUsage as `Runs.wait` does."""
        first, second = self._ask(("first", {}), ("second", FULL))
        return assemble(self.folder, first, second, self.timeout, reported)

    def once_more(self, moments: list[list[Any]]) -> Path:
        """Run the candidate again with the tensors of some moments in full; returns the trace's folder."""
        self._ask(("again", {"capture": {"moments": moments}, "budget_bytes": 1 << 40}))
        return self.folder / "again"

    def otherwise(self, name: str, more: dict[str, Any]) -> tuple[Path, Ending]:
        """Run once more with a spec that differs by `more`; returns the trace's folder, and how it ended."""
        (ending,) = self._ask((name, more))
        return self.folder / name, ending


FULL: dict[str, Any] = {"capture": "all", "budget_bytes": 512 << 20}
"""The second run keeps its tensors, up to a size at which elements rather get a run of their own."""


def _folders(folder: Path) -> dict[str, str]:
    return {"folder": str(folder), "workdir": str(folder / "work")}


def assemble(
    folder: Path, first: Ending, second: Ending, timeout: float | None, reported: Collection[str] | None = None
) -> Candidate:
    """The candidate whose two runs, in `folder`, have ended.

    reported: the metrics that are compared, so that only they have to repeat themselves; None for all.

    Raises:
        CandidateUsage: the trainer or the task cannot be run as asked.
    """
    if first.status == "usage":
        assert first.outcome is not None
        refused = CandidateUsage(first.outcome["error"]["message"])
        refused.add_note(first.outcome["error"]["traceback"])
        raise refused
    traces = [opened_trace(folder / name) for name in ("first", "second")]
    itself, wavers, unsteady = None, None, frozenset[tuple[str, str]]()
    if traces[0] is not None and traces[1] is not None:
        both_ended = first.status == second.status == "completed"
        itself, wavers, unsteady = _against_itself(traces[0], traces[1], both_ended, reported)
    captured = traces[1].manifest.get("captured", {}) if traces[1] is not None else {}
    same = itself is not None and itself.identical and traces[1] is not None and traces[1].complete
    return Candidate(
        trace=traces[0],
        full=folder / "second" if same else None,
        complete=captured.get("left_out", 1) == 0,
        ending=first,
        outcome=_outcome(first, timeout),
        itself=itself,
        wavers=wavers,
        unsteady=unsteady,
    )


def opened_trace(folder: Path) -> Trace | None:
    """The trace in a folder; None where nothing was recorded."""
    try:
        trace = open_trace(folder)
    except NotComparable:
        return None
    return trace if len(trace) else None


def _against_itself(
    first: Trace, second: Trace, both_ended: bool, reported: Collection[str] | None
) -> tuple[SelfCheck, Difference | None, frozenset[tuple[str, str]]]:
    whole = min(first.last_whole_update(second.processes), second.last_whole_update(first.processes))
    through = None if both_ended else whole
    found = compare(first, second, RULES, through_update=through)
    exact = replace(RULES, decimals=frozenset())
    every = differences(first, second, exact, decisive_only=True, through_update=through)
    wavers = next(
        (d for d in every if reported is None or d.address.kind != "metric" or d.address.name in reported), None
    )
    unsteady = frozenset(difference.address[2:4] for difference in found.latent)
    return SelfCheck(identical=wavers is None, addresses=found.addresses), wavers, unsteady


def _outcome(ending: Ending, timeout: float | None) -> CandidateOutcome:
    status = "timed_out" if ending.status == "hung" else ending.status
    error = ending.outcome["error"] if ending.outcome else None
    return CandidateOutcome(
        status=status,  # type: ignore[arg-type]
        updates=ending.outcome["updates"] if ending.outcome else None,
        error=": ".join(filter(None, (error["type"], error["message"]))) if error else None,
        signal=ending.signal,
        exit_code=ending.exit_code,
        timeout=timeout if status == "timed_out" else None,
        last_words=tuple(ending.last_words.splitlines()[-12:]) if status != "completed" else (),
        rank=(ending.outcome or {}).get("rank"),
        at=(ending.outcome or {}).get("at"),
    )


# Runs that agree with everything


def idle_reason(reference: Trace, candidate: Trace) -> str | None:
    """Why a comparison with this candidate would prove nothing; None if it trains."""
    if not candidate.has(("consume", "gradient")):
        return "the candidate made no update: no step of an optimizer was seen"
    if all(
        _is_zero(row, candidate) for trace in (reference, candidate) for row in trace.rows_at(("consume", "gradient"))
    ):
        return "every gradient is zero in both runs"
    start = {row.address[4:]: row.digest for row in candidate.rows_at(("start", "parameter"))}
    end = {row.address[4:]: row.digest for row in candidate.rows_at(("update", "parameter"))}
    if start and all(end.get(place, digest) == digest for place, digest in start.items()):
        return "no parameter of the candidate changed"
    return None


_zeros: dict[tuple[str, tuple[int, ...], str], bytes] = {}


def _is_zero(row: Row, trace: Trace) -> bool:
    if row.dtype is None or row.shape is None:
        return False
    key = (row.dtype, tuple(row.shape), trace.digest)
    if key not in _zeros:
        _zeros[key] = digest_tensor(torch.zeros(key[1], dtype=getattr(torch, row.dtype)), trace.digest)
    return row.digest == _zeros[key]
