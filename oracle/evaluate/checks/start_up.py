"""The first update comes within the time that the team allows."""

from __future__ import annotations

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.experiments import TIMINGS
from oracle.evaluate.numbers import median

ABOUT = About(dimension="performance", step=5, needs=("time *",))


def judge(evidence: Evidence) -> Found:
    """From the start of the process to the end of its first update, over every timed process."""
    found = [evidence.get(f"time {name}") for name in TIMINGS]
    known = [content for content in found if not content["refused"]]
    if not known:
        return Found(status="cannot_tell", says=f"it could not be timed: {found[0]['refused']}")
    starts = {
        side: median([one[side] for content in known for one in content["starts"]])
        for side in ("baseline", "candidate")
    }
    quantities = tuple(
        evidence.quantity(f"start-up, {side}", one.value, "s", known[0], low=one.low, high=one.high, n=one.n)
        for side, one in starts.items()
    )
    allowed = evidence.scenario.settings.start_up_s
    if starts["candidate"].value <= allowed:
        return Found(
            status="pass", says=f"its first update ends within the allowed {allowed:g} s", quantities=quantities
        )
    return Found(status="fail", says=f"its first update ends after the allowed {allowed:g} s", quantities=quantities)
