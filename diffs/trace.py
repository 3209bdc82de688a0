"""Reads one trace: its rows, in causal order or by address. `docs/trace.md` describes the files."""

from __future__ import annotations

import json
import re
import sqlite3
from bisect import bisect_left
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from diffs.address import Address
from diffs.verdict import NotComparable

FORMAT = 1
NO_MICRO = (1 << 23) - 1
LAST = (1 << 62) - 1

Place = tuple[str, str]

COLUMNS = '"update", micro, place, name, ordinal, form, digest, value'


class Row(NamedTuple):
    """One recorded value.

    address: where it lives.
    ordinal: how many rows the process recorded before it.
    dtype, shape: of a tensor; None for plain data.
    digest: 16 bytes over dtype, shape and every bit, or over the JSON text.
    value: canonical JSON of plain data and of one-element tensors; None for larger tensors.
    decisive: whether a difference here makes a verdict.
    """

    address: Address
    ordinal: int
    dtype: str | None
    shape: tuple[int, ...] | None
    digest: bytes
    value: str | None
    decisive: bool

    @property
    def content(self) -> Any:
        """The value as Python has it: a number, a string, a list...; None for larger tensors."""
        return None if self.value is None else json.loads(self.value)


class Process:
    """The rows that one process of a run recorded: one database.

    path: the database; it must exist.

    Raises:
        NotComparable: it is not a trace, or not of a format that this version reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.database = sqlite3.connect(self.uri, uri=True, isolation_level=None)
            facts = self.database.execute("SELECT format, digest, rank FROM trace_format").fetchone()
            if facts is None or facts[0] != FORMAT:
                found = "no format" if facts is None else f"format {facts[0]}"
                raise NotComparable(f"{path} has {found}, this version reads {FORMAT}: record it again")
            _, self.digest, self.rank = facts
            self.places: dict[int, tuple[str, str, bool, bool]] = {
                place: (moment, kind, bool(decisive), bool(closing))
                for place, moment, kind, decisive, closing in self.database.execute("SELECT * FROM place")
            }
            self.names: dict[int, str] = dict(self.database.execute("SELECT id, name FROM name"))
            self.forms: dict[int | None, tuple[str | None, tuple[int, ...] | None]] = {
                form: (dtype, tuple(json.loads(shape)))
                for form, dtype, shape in self.database.execute("SELECT id, dtype, shape FROM form")
            }
        except sqlite3.Error as error:
            raise NotComparable(f"{path} cannot be read as a trace: {error}") from None
        self.forms[None] = (None, None)
        self.place_ids = {place[:2]: identifier for identifier, place in self.places.items()}
        self._present: dict[Place, bool] = {}

    @property
    def uri(self) -> str:
        """How SQLite opens it: read-only, unless a killed run left a journal that must be rolled back first."""
        journal = self.path.with_name(self.path.name + "-journal")
        interrupted = journal.exists() and journal.stat().st_size > 0
        return f"{self.path.resolve().as_uri()}?mode={'rw' if interrupted else 'ro'}"

    @cached_property
    def name_ids(self) -> dict[str, int]:
        return {name: identifier for identifier, name in self.names.items()}

    def row(self, raw: tuple[Any, ...]) -> Row:
        """A row of the table `record` as a Row."""
        update, micro, place, name, ordinal, form, digest, value = raw
        moment, kind, decisive, _ = self.places[place]
        address = Address(update, -1 if micro == NO_MICRO else micro, moment, kind, self.names[name], self.rank)
        return Row(address, ordinal, *self.forms[form], digest, value, decisive)

    def at(self, address: tuple[int, int, str, str, str, int]) -> Row | None:
        """The row at an address, or None."""
        update, micro, moment, kind, name, _ = address
        key = (update, NO_MICRO if micro < 0 else micro, self.place_ids.get((moment, kind)), self.name_ids.get(name))
        found = self.database.execute(
            f'SELECT {COLUMNS} FROM record WHERE "update" = ? AND micro = ? AND place = ? AND name = ?', key
        ).fetchone()
        return self.row(found) if found else None

    def rows(self, through_update: int = LAST) -> Iterator[Row]:
        """Every row in causal order: the closing places come last."""
        for at_end in (False, True):
            for raw in self.database.execute(
                f'SELECT {COLUMNS} FROM record WHERE "update" <= ? AND place >= ? AND place < ? '
                'ORDER BY "update", micro, place, ordinal',
                (through_update, *self.place_bounds(at_end)),
            ):
                yield self.row(raw)

    def place_bounds(self, at_end: bool) -> tuple[int, int]:
        """First and past-the-last id of the closing places, which rank after all others, or of the others."""
        closing = min((identifier for identifier, place in self.places.items() if place[3]), default=LAST)
        return (closing, LAST) if at_end else (0, closing)

    def rows_at(self, place: Place) -> Iterator[Row]:
        """Every row of one moment and kind, by update."""
        query = f'SELECT {COLUMNS} FROM record WHERE place = ? ORDER BY "update", micro'
        for raw in self.database.execute(query, (self.place_ids.get(place),)):
            yield self.row(raw)

    def has(self, place: Place) -> bool:
        """Whether any row has this moment and kind."""
        if place not in self._present:
            query = "SELECT 1 FROM record WHERE place = ? LIMIT 1"
            found = self.database.execute(query, (self.place_ids.get(place),)).fetchone()
            self._present[place] = found is not None
        return self._present[place]

    def count(self) -> int:
        """How many rows there are."""
        return self.database.execute("SELECT count(*) FROM record").fetchone()[0]

    def last_update(self) -> int:
        """The largest update that has a row; -1 where there is none."""
        return self.database.execute('SELECT coalesce(max("update"), -1) FROM record').fetchone()[0]


class Trace:
    """A recorded run, read-only.

    folder: holds `trace.db`, `trace.<rank>.db`...

    processes: by rank, ascending.
    digest: the algorithm of its digests.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = [path for path in folder.glob("trace*.db") if re.fullmatch(r"trace(\.[0-9]+)?\.db", path.name)]
        if not paths:
            raise NotComparable(f"{folder} holds no trace: it has no trace.db")
        processes = sorted(map(Process, paths), key=lambda process: process.rank)
        self.processes = {process.rank: process for process in processes}
        self.digest = processes[0].digest
        self._changes: dict[tuple[int, Place, Place], dict[str, list[Row]]] = {}
        self._names: dict[Place, set[str]] = {}
        if others := {process.digest for process in processes} - {self.digest}:
            found = ", ".join(sorted({self.digest, *others}))
            raise NotComparable(f"{folder}: its processes used different digests ({found}): record it again with one")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What the run said about itself at its end; empty where it did not get there."""
        return self.told(0)

    def told(self, rank: int) -> dict[str, Any]:
        """What one process of the run said about itself at its end; empty where it did not get there."""
        try:
            return json.loads((self.folder / f"manifest{f'.{rank}' if rank else ''}.json").read_text())
        except (OSError, ValueError):
            return {}

    @property
    def complete(self) -> bool:
        """Whether the run closed its trace; a killed one did not."""
        return self.manifest.get("complete") is True

    @property
    def last_update(self) -> int:
        """The largest update that has a row; -1 where training did not begin."""
        return max(process.last_update() for process in self.processes.values())

    def last_whole_update(self, ranks: Collection[int]) -> int:
        """The last update that a run without an end recorded as far as it went; -2 where not even the start is.

        ranks: those that it has. Of several, one that is stopped because another failed stops anywhere, so the last
        update that has rows does not count.
        """
        if any(rank not in self.processes or not self.processes[rank].count() for rank in ranks):
            return -2
        last = min(self.processes[rank].last_update() for rank in ranks)
        return last if len(ranks) == 1 else max(last - 1, -2)

    def __len__(self) -> int:
        return sum(process.count() for process in self.processes.values())

    def rows(self, through_update: int = LAST) -> Iterator[Row]:
        """Every row, process by process, each in causal order."""
        for process in self.processes.values():
            yield from process.rows(through_update)

    def row(self, address: tuple[int, int, str, str, str, int]) -> Row | None:
        """The row at an address, or None."""
        process = self.processes.get(address[5])
        return process.at(address) if process else None

    def has(self, place: Place) -> bool:
        """Whether any row has this moment and kind."""
        return any(process.has(place) for process in self.processes.values())

    def rows_at(self, place: Place) -> Iterator[Row]:
        """Every row of one moment and kind, process by process, by update."""
        for process in self.processes.values():
            yield from process.rows_at(place)

    def has_name(self, place: Place, name: str) -> bool:
        """Whether any row of this moment and kind has this name."""
        if place not in self._names:
            self._names[place] = {row.address.name for row in self.rows_at(place)}
        return name in self._names[place]

    def latest(self, address: Address, since: Place) -> Row | None:
        """What held just before an address of a place that is recorded only on change.

        since: the place that has the value from before the first change.
        Returns the latest earlier row of that rank, moment, kind and name, else the one at `since`, else None.
        """
        update, _, moment, kind, name, rank = address
        key = (rank, (moment, kind), since)
        if key not in self._changes:
            changes = self._changes[key] = {}
            for place in (since, (moment, kind)):
                for row in self.processes[rank].rows_at(place) if rank in self.processes else ():
                    changes.setdefault(row.address.name, []).append(row)
        rows = self._changes[key].get(name, [])
        earlier = bisect_left(rows, update, key=lambda row: row.address.update)
        return rows[earlier - 1] if earlier else None

    def close(self) -> None:
        """Let go of the files."""
        for process in self.processes.values():
            process.database.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_trace(folder: str | Path) -> Trace:
    """The trace in a folder, complete or as far as a killed run got.

    Raises:
        NotComparable: there is no trace, or one that this version cannot read.
    """
    return Trace(Path(folder))
