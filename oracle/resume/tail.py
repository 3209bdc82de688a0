"""The part of a run that an interrupted and resumed one repeats, and where that part begins.

Both parts are written as traces of their own, with the numbers of the uninterrupted run, so that they are paired by
address as any two runs are. Their `start` is the state that the resumed run starts with: it carries the number of the
last update that was made before.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffs.digest import digest_bytes
from diffs.trace import COLUMNS, NO_MICRO, Process, Trace, open_trace
from oracle.recorder.canonical import canonical_json


@dataclass(frozen=True, order=True)
class Point:
    """A place between two micro-batches: updates made, and micro-batches trained of the next window."""

    updates: int
    micro: int = 0


State = dict[str, bytes]
"""Digests of parameters and buffers, by name; a buffer's has `buffer ` before it."""


def start_state(trace: Trace) -> State:
    """What a run starts with."""
    return _state(trace, "start", -1)


def states(trace: Trace) -> list[State]:
    """What a run holds after 0, 1, 2... updates."""
    return [start_state(trace), *(_state(trace, "update", update) for update in range(trace.last_update + 1))]


def _state(trace: Trace, moment: str, update: int) -> State:
    found = {}
    for kind, prefix in (("parameter", ""), ("buffer", "buffer ")):
        for row in trace.rows_at((moment, kind)):
            if row.address.update == update:
                found[prefix + row.address.name] = row.digest
    return found


def fitting(begun: State, held: Sequence[State]) -> list[int]:
    """After how many updates the parameters are those that a run starts with; buffers decide where that is not all."""

    def parameters(state: State) -> State:
        return {name: digest for name, digest in state.items() if not name.startswith("buffer ")}

    mine = parameters(begun)
    found = [updates for updates, state in enumerate(held) if mine and parameters(state) == mine]
    return [updates for updates in found if held[updates] == begun] or found


def batches(trace: Trace) -> dict[tuple[int, int], tuple[Any, ...]]:
    """What tells each batch from another, by (update, micro), in order: its samples' ids, else its tensors' digests."""
    for kind in ("batch_ids", "input"):
        found: dict[tuple[int, int], list[tuple[str, bytes]]] = {}
        for row in trace.rows_at(("batch", kind)):
            found.setdefault(row.address[:2], []).append((row.address.name, row.digest))
        if found:
            return {place: tuple(sorted(rows)) for place, rows in sorted(found.items())}
    return {}


def micros_before(trace: Trace, point: Point) -> int:
    """How many micro-batches a run trains before a point."""
    for place in (("forward", "mode"), ("backward", "objective")):
        seen = {row.address[:2] for row in trace.rows_at(place)}
        if seen:
            return sum(at < (point.updates, point.micro) for at in seen)
    return 0


def uninterrupted(trace: Trace, point: Point, folder: Path) -> Trace:
    """The part of a run that comes after a point, as a trace in a new folder."""

    def moved(process: Process, rows: Iterable[list[Any]]) -> Iterable[list[Any]]:
        kinds, base = _Places(process), point.updates - 1
        latest: dict[int, list[Any]] = {}
        for row in rows:
            update, micro, place = row[:3]
            if place == kinds.hyperparameter or (place == kinds.changed and update < point.updates):
                latest[row[3]] = [base, NO_MICRO, kinds.hyperparameter, *row[3:]]
            elif place >= kinds.closing:
                yield row
            elif place in kinds.starts:
                if base < 0:
                    yield row
            elif update == base and place in kinds.starting:
                yield [base, NO_MICRO, kinds.starting[place], *row[3:]]
            elif update > base and (update, micro) >= (point.updates, point.micro):
                yield row
                if place == kinds.entering and (update, micro) == (point.updates, point.micro) and base >= 0:
                    yield [base, NO_MICRO, kinds.random, *row[3:]]
        yield from latest.values()

    return _written(trace, folder, moved)


def resumed(trace: Trace, point: Point, before: int, folder: Path) -> Trace:
    """A run that began at a point, with the numbers of the run that it resumes, as a trace in a new folder.

    before: micro-batches that were trained before the point.
    """

    def moved(process: Process, rows: Iterable[list[Any]]) -> Iterable[list[Any]]:
        kinds = _Places(process)
        for update, micro, place, *rest in rows:
            if place == kinds.count:
                name, text = process.names[rest[0]], rest[-1]
                number = int(text) + {"updates": point.updates, "batches": before}.get(name, 0)
                text = canonical_json(number)
                rest[-2:] = [digest_bytes(text.encode(), process.digest), text]
            if update >= 0:
                offset = point.micro if update == 0 and micro != NO_MICRO else 0
                yield [update + point.updates, micro + offset, place, *rest]
            elif place in kinds.starts or place >= kinds.closing:
                yield [update + point.updates, micro, place, *rest]

    return _written(trace, folder, moved)


class _Places:
    """The numbers of some places in one trace."""

    def __init__(self, process: Process) -> None:
        ids = process.place_ids
        self.starting = {ids["update", kind]: ids["start", kind] for kind in ("parameter", "buffer", "scaler")}
        self.starts = {number for (moment, _), number in ids.items() if moment == "start"}
        self.hyperparameter, self.changed = ids["start", "hyperparameter"], ids["consume", "hyperparameter"]
        self.entering, self.random = ids["forward", "rng"], ids["start", "rng"]
        self.count = ids["end", "count"]
        self.closing = process.place_bounds(at_end=True)[0]


def _written(trace: Trace, folder: Path, moved: Any) -> Trace:
    """A copy of a trace, its rows replaced by what `moved` makes of them."""
    folder.mkdir(parents=True)
    for process in trace.processes.values():
        path = folder / process.path.name
        shutil.copyfile(process.path, path)
        raw = process.database.execute(f'SELECT {COLUMNS} FROM record ORDER BY "update", micro, place, ordinal')
        rows = list(moved(process, map(list, raw)))
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN")
            database.execute("DELETE FROM record")
            database.executemany("INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            database.execute("COMMIT")
    for path in (trace.folder / "tensors", *trace.folder.glob("manifest*.json")):
        if path.exists():
            (folder / path.name).symlink_to(path.resolve())
    return open_trace(folder)
