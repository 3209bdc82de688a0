"""Writes a trace: every recorded value of one process of a run, one row per address.

A trace is a folder: `trace.db` (SQLite, one commit per update), `manifest.json` (written last) and
`tensors/*.safetensors` for what is captured in full. `docs/trace.md` describes it for readers that are not us.

Runs in the candidate's own environment: only the standard library and torch.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from diffs.digest import available, digest_bytes, digest_tensor
from oracle.recorder.canonical import canonical_json, scalar_json
from oracle.recorder.capture import Capture, whole_file
from reference_loop.moments import MOMENTS, Address, place_rank

FORMAT = 1

# Stands for "the moment has no micro-batch" (-1 in an address), so that the key's order is the causal one.
NO_MICRO = (1 << 23) - 1

SCHEMA = """\
CREATE TABLE trace_format (format INTEGER NOT NULL, digest TEXT NOT NULL, rank INTEGER NOT NULL);
CREATE TABLE place (
    place INTEGER PRIMARY KEY,      -- causal rank inside one update
    moment TEXT NOT NULL,
    kind TEXT NOT NULL,
    decisive INTEGER NOT NULL,      -- 1: a difference makes the verdict; 0: it locates and explains
    closing INTEGER NOT NULL        -- 1: comes after every other place, whatever its update
);
CREATE TABLE name (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE form (id INTEGER PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, UNIQUE (dtype, shape));
CREATE TABLE record (
    "update" INTEGER NOT NULL,
    micro INTEGER NOT NULL,         -- 8388607: none
    place INTEGER NOT NULL,
    name INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,       -- 0, 1, 2... as recorded
    form INTEGER,                   -- NULL: not a tensor
    digest BLOB NOT NULL,           -- 16 bytes
    value TEXT,                     -- canonical JSON; NULL: a tensor of more than one element
    PRIMARY KEY ("update", micro, place, name)
) WITHOUT ROWID;
CREATE VIEW trace AS
SELECT record.ordinal, record."update", CASE record.micro WHEN 8388607 THEN -1 ELSE record.micro END AS micro,
    place.moment, place.kind, name.name, trace_format.rank, form.dtype, form.shape,
    lower(hex(record.digest)) AS digest, record.value
FROM record JOIN place USING (place) JOIN name ON name.id = record.name
    LEFT JOIN form ON form.id = record.form CROSS JOIN trace_format;
"""

_INSERT = "INSERT OR IGNORE INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_PLACES = {(moment, kind): place_rank(moment, kind) for moment, kinds in MOMENTS.items() for kind in kinds}
_FLUSH_ROWS = 1 << 13


class TraceError(Exception):
    """A trace that cannot be written, with what was asked, what was found and what to do."""


def _connected(path: Path) -> sqlite3.Connection:
    # A trainer may compute in threads; what it computes comes in turn.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    # The operating system keeps what a killed process wrote; only a power loss needs a sync.
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA journal_mode = TRUNCATE")
    return database


class TraceWriter:
    """Writes the trace of one process.

    folder: made when the first row is written, so after any fork; it must not hold a trace of this rank yet.
    rank: the process; rank 0 writes `trace.db` and `manifest.json`, rank r `trace.<r>.db` and `manifest.<r>.json`.
    digest: one of `diffs.digest.available()`; the first of them where None.
    capture: which tensors are also written in full; None for no tensor.
    budget_bytes: captured tensors stop fitting here; what is left out is counted in the manifest.

    Rows are buffered and written once per `commit`. A process killed at any point leaves the rows of every commit
    that returned, and no half of another. A forked child writes nothing.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int = 0,
        digest: str | None = None,
        capture: Callable[[Address], bool] | None = None,
        budget_bytes: int = 0,
    ) -> None:
        self.folder = Path(folder)
        self.rank = rank
        self.digest = digest or available()[0]
        self._process: int | None = None
        self._suffix = f".{rank}" if rank else ""
        self._wanted = capture
        self._capture = Capture(self.folder / "tensors", f"rank{rank}-" if rank else "", budget_bytes)
        self._database: sqlite3.Connection | None = None
        self._rested = False
        self._rows: list[tuple[Any, ...]] = []
        self._names: dict[str, int] = {}
        self._forms: dict[tuple[torch.dtype, tuple[int, ...]], int] = {}
        self._new_names: list[tuple[int, str]] = []
        self._new_forms: list[tuple[int, str, str]] = []
        self._ordinal = 0
        self._failure: TraceError | None = None

    def put(self, address: Address, value: Any) -> None:
        """Record one value: a tensor by its digest, anything else as canonical JSON.

        value: a tensor, or what JSON can hold (numbers, strings, None, lists, dicts).

        An address that was recorded before gets `#2`, `#3`... after its name. A tensor of one element keeps its value
        next to the digest.

        Raises:
            NotComparable: a tensor without plain memory, with the reason.
            TraceError: a value that JSON cannot hold, a place that no moment has, or another rank.
        """
        if self._process is None:  # a child that is forked from here on has a copy of what is recorded
            self._process = os.getpid()
        update, micro, moment, kind, name, rank = address
        if rank != self.rank:
            raise TraceError(f"{address} is of another process: this trace is of rank {self.rank}")
        place = _PLACES.get((moment, kind))
        if place is None:
            raise TraceError(f"no moment has the place {moment!r}, {kind!r}: use one of reference_loop.moments.MOMENTS")
        form = text = None
        if isinstance(value, torch.Tensor):
            digest = digest_tensor(value, self.digest)
            form = self._form(value.dtype, value.shape)
            if value.numel() == 1:
                text = scalar_json(value)
            if self._wanted is not None and self._wanted(address):
                self._capture.put(self._ordinal, address, value)
        else:
            try:
                text = canonical_json(value)
            except (TypeError, RecursionError) as error:
                raise TraceError(f"cannot record {type(value).__name__} at {address}: {error}") from None
            digest = digest_bytes(text.encode(), self.digest)
        name_id = self._names.get(name)
        if name_id is None:
            name_id = self._add_name(name)
        window = micro if micro >= 0 else NO_MICRO
        self._rows.append((update, window, place, name_id, self._ordinal, form, digest, text))
        self._ordinal += 1
        if len(self._rows) >= _FLUSH_ROWS:
            self._flush()

    def commit(self) -> None:
        """Make everything recorded so far survive the process.

        Raises:
            TraceError: the folder cannot be written, or the disk is full.
        """
        self._flush()
        with self._writing():
            if self._database is not None and self._database.in_transaction and not self._forked():
                self._database.execute("COMMIT")

    def close(self, manifest: dict[str, Any] | None = None) -> None:
        """Commit, close the database and write the manifest, which says that the trace is complete.

        manifest: JSON-able facts about the run; `complete`, `format`, `digest`, `rank`, `addresses` and `captured`
            are added.

        Raises:
            TraceError: the folder cannot be written, or the disk is full. The manifest is whole or absent.
        """
        if self._forked():
            return
        self.commit()
        database = self._opened()
        facts = {
            "complete": True,
            "format": FORMAT,
            "digest": self.digest,
            "rank": self.rank,
            "addresses": self._ordinal,
            "captured": self._capture.summary(),
        }
        text = json.dumps({**(manifest or {}), **facts}, indent=2)
        with self._writing():
            database.execute("PRAGMA journal_mode = DELETE")
            database.close()
            with whole_file(self.folder / f"manifest{self._suffix}.json") as file:
                file.write(text.encode() + b"\n")

    @property
    def bytes(self) -> int:
        """How much is on disk by now, tensors in full included."""
        return self._capture.bytes + (self._path.stat().st_size if self._database is not None else 0)

    def part(self, folder: Path) -> None:
        """Commit, let go of the database until the next row, and leave a copy of it in `folder`.

        The process can be forked then: the child goes on with the copy once it called `move`.

        Raises:
            TraceError: a folder cannot be written, or the disk is full.
        """
        self.commit()
        if self._database is not None:
            self._database.close()
            self._database, self._rested = None, True
        if self._rested:
            with self._writing():
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._path, folder / self._path.name)

    def move(self, folder: Path) -> None:
        """Go on in the folder to which the parent of this process parted. Tensors in full stay behind."""
        self.folder, self._process = folder, os.getpid()

    @property
    def _path(self) -> Path:
        return self.folder / f"trace{self._suffix}.db"

    def _opened(self) -> sqlite3.Connection:
        """The database, made on first use."""
        if self._database is None:
            with self._writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                if self._rested:
                    self._database = _connected(self._path)
                elif self._path.exists():
                    raise TraceError(f"{self._path} exists already: record into a new folder, or remove it first")
                else:
                    self._database = self._created(self._path)
        return self._database

    def _created(self, path: Path) -> sqlite3.Connection:
        database = _connected(path)
        last = next(reversed(MOMENTS))
        places = [(place, *pair, MOMENTS[pair[0]][pair[1]], pair[0] == last) for pair, place in _PLACES.items()]
        try:
            database.executescript(f"BEGIN;\n{SCHEMA}")
            database.execute("INSERT INTO trace_format VALUES (?, ?, ?)", (FORMAT, self.digest, self.rank))
            database.executemany("INSERT INTO place VALUES (?, ?, ?, ?, ?)", places)
            database.execute("COMMIT")
        except sqlite3.Error:
            database.close()
            path.unlink(missing_ok=True)
            raise
        return database

    def _flush(self) -> None:
        """Write the buffered rows into the open transaction."""
        rows, self._rows = self._rows, []
        if not rows or self._forked():
            return
        database = self._opened()
        rows.sort()  # in the key's order; the ordinal settles what repeats
        with self._writing():
            self._capture.write()
            if not database.in_transaction:
                database.execute("BEGIN")
            self._write_dictionaries(database)
            before = database.total_changes
            database.executemany(_INSERT, rows)
            if database.total_changes - before < len(rows):
                self._rename_repeated(database, rows)
                self._write_dictionaries(database)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Explains why the folder cannot be written, now and at every later call: rows are lost from here on."""
        if self._failure:
            raise self._failure
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            self._failure = TraceError(
                f"the trace in {self.folder} cannot be written: {error}: give a folder that can be written, on a disk "
                "with free space"
            )
            raise self._failure from error

    def _forked(self) -> bool:
        """Whether this is a child of the process that records, such as a data loader's worker."""
        return self._process is not None and os.getpid() != self._process

    def _write_dictionaries(self, database: sqlite3.Connection) -> None:
        database.executemany("INSERT INTO name VALUES (?, ?)", self._new_names)
        database.executemany("INSERT INTO form VALUES (?, ?, ?)", self._new_forms)
        self._new_names.clear()
        self._new_forms.clear()

    def _rename_repeated(self, database: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
        """Write the rows that an earlier one with the same address kept out, as `name#2`, `name#3`..."""
        at_address = 'SELECT ordinal FROM record WHERE "update" = ? AND micro = ? AND place = ? AND name = ?'
        names = {identifier: name for name, identifier in self._names.items()}
        for row in rows:
            if database.execute(at_address, row[:4]).fetchone() == (row[4],):
                continue
            count = 2
            while True:
                name = f"{names[row[3]]}#{count}"
                identifier = self._names.get(name)
                if identifier is None:
                    identifier = self._add_name(name)
                inserted = database.execute(_INSERT, (*row[:3], identifier, *row[4:])).rowcount
                if inserted:
                    break
                count += 1

    def _add_name(self, name: str) -> int:
        identifier = self._names[name] = len(self._names)
        self._new_names.append((identifier, name))
        return identifier

    def _form(self, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
        form = self._forms.get((dtype, shape))
        if form is None:
            form = self._forms[dtype, shape] = len(self._forms)
            self._new_forms.append((form, str(dtype).removeprefix("torch."), json.dumps(list(shape))))
        return form
