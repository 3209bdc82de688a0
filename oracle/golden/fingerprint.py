"""What a golden remembers of a recorded run: one digest for each update and kind."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from diffs.trace import Row, Trace
from oracle.result import Moved
from reference_loop.moments import place_rank

Fingerprint = dict[str, dict[str, str]]
"""Update to "moment kind" to digest, in causal order; what comes after everything stands under "end"."""

END = "end"
GIVEN = (("start", "parameter"), ("start", "buffer"), ("batch", "batch_ids"), ("batch", "input"))
"""What training is given: no arithmetic of its own is in it."""


def fingerprint(trace: Trace, *, last: int | None = None) -> Fingerprint:
    """The digests of all decisive values of a run.

    last: the last update to take, without what comes after everything; None takes all.
    """
    groups: dict[tuple[bool, int, int, str], list[Row]] = {}
    for row in trace.rows():
        at = row.address
        end = at.moment == "end"
        if row.decisive and (last is None or (not end and at.update <= last)):
            key = (end, at.update, place_rank(at.moment, at.kind), f"{at.moment} {at.kind}")
            groups.setdefault(key, []).append(row)
    found: Fingerprint = {}
    for (end, update, _, place), rows in sorted(groups.items()):
        found.setdefault(END if end else str(update), {})[place] = _digest(rows)
    return found


def given(trace: Trace) -> str:
    """One digest of what training is given: the model at its start, and every batch."""
    return _digest(row for place in GIVEN for row in trace.rows_at(place))


def form(trace: Trace) -> str:
    """The same, of floats only dtype and shape: what rounding leaves as it is."""
    rows = [row for place in GIVEN for row in trace.rows_at(place)]
    return _digest(row._replace(digest=f"{row.dtype} {row.shape}".encode()) if _is_float(row) else row for row in rows)


def floats(trace: Trace, tensors: Mapping[Any, Any]) -> list[Any]:
    """The float tensors of what training is given, in the order of their addresses; none unless all are there.

    tensors: what was recorded in full, by address.
    """
    rows = [row.address for place in GIVEN for row in trace.rows_at(place) if _is_float(row)]
    return [tensors[address] for address in sorted(rows)] if all(address in tensors for address in rows) else []


def _is_float(row: Row) -> bool:
    return row.dtype is not None and "float" in row.dtype


def condensed(fingerprint: Fingerprint) -> dict[str, str]:
    """One digest an update: says whether a run moved and when, not where."""
    return {
        update: _hashed(f"{place} {digest}\n".encode() for place, digest in places.items())
        for update, places in fingerprint.items()
    }


def first_losses(trace: Trace) -> list[list[Any]]:
    """The losses of the micro-batches of update 0, as [value, dtype]; none if one of them is not finite."""
    rows = [row for row in trace.rows_at(("forward", "loss")) if row.address.update == 0]
    losses = [(row.content, row.dtype) for row in rows]
    if not all(isinstance(loss, float) and math.isfinite(loss) and dtype for loss, dtype in losses):
        return []
    return [list(loss) for loss in losses]


def first_moved(old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> Moved | None:
    """The first place, in causal order, whose digest differs or that one side lacks; None where none does."""
    moved = [
        (update == END, _number(update), place_rank(*place.split(" ")) if place else 0, place)
        for update in old.keys() | new.keys()
        for place in old.get(update, {}).keys() | new.get(update, {}).keys()
        if old.get(update, {}).get(place) != new.get(update, {}).get(place)
    ]
    if not moved:
        return None
    end, update, _, place = min(moved)
    moment, _, kind = place.partition(" ")
    last = max((_number(one) for one in old.keys() | new.keys() if one != END), default=-1)
    return Moved(update=last if end else update, moment=moment or _moment(end, update), kind=kind)


def first_moved_update(old: Mapping[str, str], new: Mapping[str, str]) -> Moved | None:
    """The same of condensed digests."""
    return first_moved(*({update: {"": digest} for update, digest in side.items()} for side in (old, new)))


def _moment(end: bool, update: int) -> str:
    """Where an update of which only the whole is known ends."""
    return "end" if end else "start" if update < 0 else "update"


def _number(update: str) -> int:
    return -1 if update == END else int(update)


def _digest(rows: Iterable[Row]) -> str:
    """One digest of rows in any order."""
    named = sorted((tuple(row.address), row.digest) for row in rows)
    return _hashed(" ".join(map(str, address)).encode() + b"\0" + digest for address, digest in named)


def _hashed(parts: Iterable[bytes]) -> str:
    """16 hexadecimal digits."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(len(part).to_bytes(4, "little") + part)
    return found.hexdigest()
