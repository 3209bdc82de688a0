"""Times the candidate and the reference loop in turns, so that whatever else the machine does meets both alike.

Two fresh processes train the same task and take turns of a block of updates; a pair is one block of each. Nothing is
recorded. Both wall clock and processor time are taken: the first is what a user waits for, the second does not count
what other processes do.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oracle import processes, trainers
from oracle.evaluate.numbers import Interval, median
from oracle.evaluate.session import Session, baseline
from reference_loop.recipe import from_dict
from reference_loop.semantics import Semantics

STOPWATCH = processes.ROOT / "oracle" / "evaluate" / "stopwatch.py"
FEWEST, MOST = 24, 80  # pairs
NARROW = 0.03  # half the width of the interval of the overhead at which it is enough
MORE = 7  # processes of each side, where the medians of the first ones lie apart
APART = 0.10  # between the medians of processes, of the overhead


Pair = dict[str, Any]
"""`process`, and of each side [wall seconds, processor seconds, resident bytes, updates so far, peak bytes]."""


class NoTurn(Exception):
    """A side that ended, or takes too long, with what is known of it."""


class Side:
    """One of the two trainings: a process, or one for each rank.

    Every rank takes its turns, since those of a trainer that never communicates would run into the other's.
    """

    def __init__(self, session: Session, name: str, trainer: str, spec: dict[str, Any]) -> None:
        self.name, self.session = name, session
        folder = session.folder / f"time-{time.monotonic_ns()}-{name}"
        folder.mkdir(parents=True)
        ranks = range(spec["ranks"])
        for pipe in (f"{name}.{rank}" for name in ("answers", "turns") for rank in ranks):
            os.mkfifo(folder / pipe)
        self._answers = [os.open(folder / f"answers.{rank}", os.O_RDWR | os.O_NONBLOCK) for rank in ranks]
        self._turns = [os.open(folder / f"turns.{rank}", os.O_RDWR) for rank in ranks]
        self._left = [b"" for _ in ranks]
        self.started = time.time()
        own = {**spec, "trainer": trainer, "folder": str(folder), "workdir": str(folder / "work")}
        place = session.place
        self.running = processes.start(own, python=place.python, layer=place.layer, script=STOPWATCH)

    def hear(self, key: str) -> list[dict[str, Any]]:
        """The next answer of each rank that has a key.

        Raises:
            NoTurn: a process ended instead, or is silent for too long.
        """
        return [self._hear(key, rank) for rank in range(len(self._answers))]

    def _hear(self, key: str, rank: int) -> dict[str, Any]:
        """The next answer of a rank that has a key.

        Raises:
            NoTurn: the process ended instead, or is silent for too long.
        """
        until = time.monotonic() + self.session.left
        while True:
            while b"\n" in self._left[rank]:
                line, _, self._left[rank] = self._left[rank].partition(b"\n")
                answer = json.loads(line)
                if key in answer:
                    return answer
                if "ended" in answer:
                    raise NoTurn(f"the {self.name} {answer['ended']}: {self._words()}")
            if select.select([self._answers[rank]], [], [], 0.5)[0]:
                self._left[rank] += os.read(self._answers[rank], 65536)
            elif self.running.process.poll() is not None:
                raise NoTurn(f"the {self.name}'s process ended: {self._words()}")
            elif time.monotonic() > until:
                raise NoTurn(f"the {self.name} took more than {self.session.left:.0f} s")

    def turn(self) -> list[float]:
        """Let it train a block: what it took, as a `Pair` has it; of several ranks the slowest's time."""
        for turns in self._turns:
            os.write(turns, b"\n")
        found = self.hear("wall")
        self.hear("waiting")
        first = found[0]
        wall = max(one["wall"] for one in found)
        return [wall, first["cpu"], first["resident"], first["updates"], first["peak"]]

    def close(self) -> None:
        """End it."""
        self.running.kill()
        for pipe in (*self._answers, *self._turns):
            os.close(pipe)

    def _words(self) -> str:
        outcome = self.running.folder / "outcome.json"
        if outcome.is_file():
            error = json.loads(outcome.read_text(encoding="utf-8"))["error"]
            return error["message"] if error else "before its last update was timed"
        return "without a word"


def timed(
    session: Session, task: str, asked: dict[str, Any], warmup: int, block: int, processes_each: int
) -> dict[str, Any]:
    """Pairs of blocks, at least `FEWEST`, until the overhead is known closely or there are `MOST` of them.

    processes_each: how many processes of each side they are spread over; where a process's memory comes to lie, and on
        what it runs, is part of what it takes. Where they lie apart, `MORE` are asked.
    """
    recipe = {**asked, "clip": {"max_norm": float("inf")}, "updates": warmup + block * MOST + block}
    spec = {
        "task": task,
        "recipe": recipe,
        "semantics": Semantics.of(from_dict(recipe)).flat(),
        "ranks": from_dict(recipe).parallel.ranks,
        "digest": session.place.digest,
        "timed": {"warmup": warmup, "block": block},
    }
    facts = {"task": Path(task).stem, "recipe": asked, "block": block, "warmup": warmup}
    pairs: list[Pair] = []
    starts: list[dict[str, float]] = []
    try:
        for process in range(MORE):
            if process >= processes_each and not _lie_apart(pairs):
                break
            started, found = _turns(session, spec, process, processes_each)
            starts.append(started)
            pairs += found
            if session.until is not None and time.monotonic() > session.until:
                break
    except NoTurn as reason:
        return {**facts, "refused": str(reason)}
    return {**facts, "refused": None, "starts": starts, "pairs": pairs, "load": os.getloadavg()}


def _turns(session: Session, spec: dict[str, Any], process: int, of: int) -> tuple[dict[str, float], list[Pair]]:
    """The seconds to the first update of each side, and the pairs of one process of each."""
    trainer = trainers.absolute(session.trainer) if trainers.is_file(session.trainer) else session.trainer
    sides: list[Side] = []
    pairs: list[Pair] = []
    starts: dict[str, float] = {}
    try:
        for name, who in (("baseline", f"{baseline()}:Loop"), ("candidate", trainer)):
            side = Side(session, name, who, spec)
            sides.append(side)
            starts[name] = max(one["first_update"] for one in side.hear("first_update")) - side.started
            side.hear("waiting")
        while len(pairs) < FEWEST // of or (len(pairs) < MOST // of and not close(overhead(pairs, 0))):
            order = sides if len(pairs) % 2 else sides[::-1]
            pairs.append({"process": process, **{side.name: side.turn() for side in order}})
            if session.until is not None and time.monotonic() > session.until:
                break
    finally:
        for side in sides:
            side.close()
    return starts, pairs


def overhead(pairs: Sequence[Pair], clock: int) -> Interval:
    """What the candidate takes more than the baseline, relative. clock: 0 wall, 1 processor.

    The median of all pairs; its interval reaches over the medians of each process, too.
    """
    return spread(pairs, lambda pair: pair["candidate"][clock] / pair["baseline"][clock] - 1)


def spread(pairs: Sequence[Pair], of: Callable[[Pair], float]) -> Interval:
    """The median of a number over pairs, with its interval over pairs and over processes.

    Of `MORE` processes those with the lowest and the highest median are left out of the interval: it holds the median
    with 87 % then, by order statistics; that of three processes with 75 %.
    """
    found = median([of(pair) for pair in pairs])
    middles = _middles(pairs, of)
    if len(middles) >= MORE:
        middles = middles[1:-1]
    return replace(found, low=min(found.low, *middles), high=max(found.high, *middles))


def _middles(pairs: Sequence[Pair], of: Callable[[Pair], float]) -> list[float]:
    """The medians of the processes, in order."""
    each: dict[int, list[float]] = {}
    for pair in pairs:
        each.setdefault(pair["process"], []).append(of(pair))
    return sorted(statistics.median(values) for values in each.values())


def _lie_apart(pairs: Sequence[Pair]) -> bool:
    """Whether one process takes much longer beside the baseline than another."""
    middles = _middles(pairs, lambda pair: pair["candidate"][0] / pair["baseline"][0])
    return middles[-1] - middles[0] > APART


def close(found: Interval) -> bool:
    """Whether an overhead is known closely."""
    return found.high - found.low <= 2 * NARROW
