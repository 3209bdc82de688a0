"""Whether what no cause explains is rounding: the noise floor asked about a whole explanation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from oracle.candidate import Candidate
from oracle.explain.explanation import Explanation
from oracle.replays import ReplayFailed, Replays

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


def measure(found: Explanation, candidate: Candidate, replays: Replays) -> Noise:
    """Judge all that differs under the understood reading; needs the candidate's tensors in full."""
    if not found.gaps or candidate.full is None or not candidate.complete or not candidate.ended:
        return Noise(covers=False)
    try:
        judged = replays.one(replace(found.reading, pins=()), local=True).local or []
    except ReplayFailed:
        return Noise(covers=False)
    seen = {tuple(entry["address"][2:4]) for entry in judged}
    covers = (
        all(entry["within"] for entry in judged)
        and all(gap.at.address.moment in ARITHMETIC and gap.at.address[2:4] in seen for gap in found.gaps)
        and candidate.trace is not None
        and candidate.trace.last_update == found.replay.trace.last_update
    )
    return Noise(covers=covers, judged=tuple(judged))
