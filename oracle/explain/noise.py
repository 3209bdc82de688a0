"""Whether what no cause explains is rounding: the noise floor, asked at a place and about a whole explanation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from diffs.address import Address
from oracle.candidate import Candidate
from oracle.explain.explanation import Explanation
from oracle.replays import Reading, ReplayFailed, Replays

ARITHMETIC = frozenset({"consume", "update", "schedule"})
"""Moments whose values are computed; what enters a step, such as a batch, is never a matter of rounding."""


@dataclass(frozen=True)
class Noise:
    """What the floor says.

    covers: whether every difference is within it.
    judged: every value that differs, with its error and allowance; empty where the floor could not be measured.
    """

    covers: bool
    judged: tuple[dict[str, Any], ...] = ()

    def at(self, address: tuple[Any, ...]) -> tuple[float | None, float | None]:
        """Error and allowance at an address; None where they were not measured."""
        entry = next((entry for entry in self.judged if tuple(entry["address"]) == tuple(address)), None)
        return (entry["error"], entry["allowance"]) if entry else (None, None)


@dataclass
class Floor:
    """The noise floor of one candidate; each reading is measured once."""

    candidate: Candidate
    replays: Replays
    _known: dict[str, list[dict[str, Any]] | None] = field(default_factory=dict)

    def measure(self, found: Explanation) -> Noise:
        """Judge all that differs under the understood reading; needs the candidate's tensors in full."""
        judged = self._judged(found.reading) if found.gaps else None
        if judged is None:
            return Noise(covers=False)
        seen = {tuple(entry["address"][2:4]) for entry in judged}
        covers = (
            all(entry["within"] for entry in judged)
            and all(gap.at.address.moment in ARITHMETIC and gap.at.address[2:4] in seen for gap in found.gaps)
            and self.candidate.trace is not None
            and self.candidate.trace.last_update == found.replay.trace.last_update
        )
        return Noise(covers=covers, judged=tuple(judged))

    def within(self, reading: Reading, address: Address) -> bool:
        """Whether what differs at an address is no more than rounding, judged from the candidate's own state."""
        if address.moment not in ARITHMETIC:
            return False
        return any(tuple(entry["address"]) == address and entry["within"] for entry in self._judged(reading) or ())

    def _judged(self, reading: Reading) -> list[dict[str, Any]] | None:
        candidate = self.candidate
        if candidate.full is None or not candidate.complete or not candidate.ended:
            return None
        reading = replace(reading, pins=())
        key = str(reading)
        if key not in self._known:
            try:
                self._known[key] = self.replays.one(reading, local=True).local or []
            except ReplayFailed:
                self._known[key] = None
        return self._known[key]
