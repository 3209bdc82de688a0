"""The peak of memory against the baseline's is within what the team allows."""

from __future__ import annotations

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="performance", step=5, needs=("time {size}",))

MIB = 1 << 20


def judge(evidence: Evidence) -> Found:
    """Resident memory of the whole process, the trainer's libraries with it."""
    content = evidence.get(f"time {evidence.scenario.settings.size}")
    if content["refused"]:
        return Found(status="cannot_tell", says=f"it could not be measured: {content['refused']}")
    peaks = {side: max(pair[side][4] for pair in content["pairs"]) / MIB for side in ("baseline", "candidate")}
    allowed = evidence.scenario.settings.memory_mib
    quantities = tuple(
        evidence.quantity(f"peak memory, {side}", value, "MiB", content) for side, value in peaks.items()
    )
    if peaks["candidate"] - peaks["baseline"] <= allowed:
        says = f"its peak is at most the allowed {allowed:.0f} MiB above the baseline's"
        return Found(status="pass", says=says, quantities=quantities)
    says = f"its peak is more than the allowed {allowed:.0f} MiB above the baseline's"
    return Found(status="fail", says=says, quantities=quantities)
