"""Where a run is interrupted, and how it dies there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from oracle.errors import OracleError

DEATHS = ("exception", "SIGTERM", "SIGINT", "SIGKILL", "full-disk", "read-only")
IN_A_SAVE = ("full-disk", "read-only")
"""Deaths of which a run notices when it writes."""
MOST_RUNS = 8  # of numbers that follow one another, in a message
PLACES = ("saved", "save", "evaluate")
_ONE = re.compile(r"(\d+)(?:\.(\d+))?(?::(\w+)(?:(?<=:save)\+(\d+))?)?")


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
        name = f"{self.updates}.{self.micro}" if self.micro else str(self.updates)
        if self.place in ("update", "micro"):
            return name
        return f"{name}:{self.place}" + ("" if self.offset is None else f"+{self.offset}")

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

    A death that a run notices when it writes comes with the next save, where the cut names none.

    Raises:
        CutError: not of this form, or not in order.
    """
    check_death(death)
    cuts = []
    for one in text.split(","):
        found = _ONE.fullmatch(one.strip())
        place = "" if found is None else found[3] or ("micro" if found[2] else "update")
        named = found is not None and place in ("update", "micro", *PLACES) and found[2] != "0"
        if found is None or not named or (found[2] and place not in ("micro", "save")):
            raise CutError(
                f"--cut {text}: {one!r} names no place: write N (N updates are made), N.M (and M micro-batches of the "
                f"next window), {', '.join(f'N:{place}' for place in PLACES)}, N.M:save, several with commas, or all"
            )
        if death in IN_A_SAVE:
            if place in ("saved", "evaluate"):
                raise CutError(
                    f"--cut {text} --death {death}: a run notices it when it writes, not at {one.strip()}: write "
                    f"{found[1]}:save"
                )
            place = "save"
        offset = int(found[4]) if found[4] else None
        cuts.append(Cut(updates=int(found[1]), place=place, micro=int(found[2] or 0), death=death, offset=offset))
    if any(later.updates < earlier.updates for earlier, later in pairwise(cuts)):
        raise CutError(f"--cut {text}: a run is interrupted in the order in which it trains: write the smaller first")
    if cuts[0].updates == 0 and cuts[0].place == "update":
        raise CutError(f"--cut {text}: before the first update there is nothing to resume: write a number from 1 on")
    return tuple(cuts)


def check_sweep(text: str, death: str | None) -> None:
    """Refuse what a sweep of kills over one save cannot mean.

    Raises:
        CutError: several cuts, a place that is no save, a byte of it, or another death.
    """
    if text == "all":
        raise CutError("--cut all --kill-sweep: a sweep kills in one save: write --cut N")
    chain = parse(text)
    if len(chain) > 1:
        raise CutError(
            f"--cut {text} --kill-sweep: a sweep kills in one save: write --cut {chain[0].name}, then the next"
        )
    (cut,) = chain
    if cut.place in ("saved", "evaluate") or cut.offset is not None:
        raise CutError(f"--cut {text} --kill-sweep: a sweep kills over all bytes of a save: write --cut {cut.updates}")
    if death not in (None, "SIGKILL"):
        raise CutError(f"--death {death} --kill-sweep: a sweep kills by SIGKILL: leave one of the two out")


def listed(numbers: Iterable[int]) -> str:
    """Numbers in order, those that follow one another as a range: 1 to 4, 6."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:MOST_RUNS]]
    return ", ".join(shown) + ("..." if len(runs) > MOST_RUNS else "")
