"""Where a run is interrupted, and how it dies there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from oracle.errors import OracleError

DEATHS = ("exception", "SIGTERM", "SIGINT", "SIGKILL", "full-disk", "read-only")
PLACES = ("saved", "save", "evaluate")
_ONE = re.compile(r"(\d+)(?:\.(\d+)|:(\w+)(?:(?<=:save)\+(\d+))?)?")


class CutError(OracleError):
    """A cut that cannot be made: what was asked, and what can be."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One interruption.

    updates: how many are made by then. place: `update` (the optimizer's step has just been made), `saved` (the next
    window opens), `micro` (`micro` micro-batches of it are trained), `evaluate` (the model is being evaluated), `save`
    (files are being written). death: one of `DEATHS`.
    offset: of a death during a save, after how many of its bytes; None is half-way. file, byte: the same as the number
    of the file, of those that are written there, and its size by then. size: of all that is written there, in bytes.
    """

    updates: int
    place: str = "update"
    micro: int = 0
    death: str = "exception"
    offset: int | None = None
    file: int = 0
    byte: int | None = None
    size: int = 0

    @property
    def name(self) -> str:
        """As the command line takes it."""
        if self.place == "update":
            return str(self.updates)
        if self.place == "micro":
            return f"{self.updates}.{self.micro}"
        return f"{self.updates}:{self.place}" + ("" if self.offset is None else f"+{self.offset}")

    def spec(self, since: int = 0) -> dict[str, Any]:
        """What a worker is told. since: updates that were made before the worker's run began."""
        return {**vars(self), "updates": self.updates - since}


def check_death(death: str) -> None:
    """Refuse a death that there is not.

    Raises:
        CutError: names those that there are.
    """
    if death not in DEATHS:
        raise CutError(f"--death {death}: there is no such death: choose one of {', '.join(DEATHS)}")


def parse(text: str, death: str = "exception") -> tuple[Cut, ...]:
    """The cuts that a command line names, to be made one after another: `3`, `3.1`, `3:save`, `2,5:saved`.

    Raises:
        CutError: not of this form, or not in order.
    """
    check_death(death)
    cuts = []
    for one in text.split(","):
        found = _ONE.fullmatch(one.strip())
        if found is None or (found[3] or PLACES[0]) not in PLACES or found[2] == "0":
            raise CutError(
                f"--cut {text}: {one!r} names no place: write N (N updates are made), N.M (and M micro-batches of the "
                f"next window), {', '.join(f'N:{place}' for place in PLACES)}, several with commas, or all"
            )
        place = found[3] or ("micro" if found[2] else "update")
        offset = int(found[4]) if found[4] else None
        cuts.append(Cut(updates=int(found[1]), place=place, micro=int(found[2] or 0), death=death, offset=offset))
    if any(later.updates < earlier.updates for earlier, later in pairwise(cuts)):
        raise CutError(f"--cut {text}: a run is interrupted in the order in which it trains: write the smaller first")
    if cuts[0].updates == 0 and cuts[0].place == "update":
        raise CutError(f"--cut {text}: before the first update there is nothing to resume: write a number from 1 on")
    return tuple(cuts)
