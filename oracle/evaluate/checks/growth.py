"""Memory does not grow with the number of updates."""

from __future__ import annotations

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.numbers import slope

ABOUT = About(dimension="performance", step=5, needs=("time small",))

KIB = 1024
SETTLED = 1 / 3  # of the run, after which allocators have what they need


def judge(evidence: Evidence) -> Found:
    """The median slope of resident memory over hundreds of updates, less the baseline's."""
    content = evidence.get("time small")
    if content["refused"]:
        return Found(status="cannot_tell", says=f"it could not be measured: {content['refused']}")
    pairs = [pair for pair in content["pairs"] if pair["process"] == 0]
    pairs = pairs[int(len(pairs) * SETTLED) :]
    slopes = {
        side: slope([(pair[side][3], pair[side][2] / KIB) for pair in pairs]) for side in ("baseline", "candidate")
    }
    updates = int(pairs[-1]["candidate"][3] - pairs[0]["candidate"][3])
    allowed = evidence.scenario.settings.growth_kib
    quantities = tuple(
        evidence.quantity(f"growth per update, {side}", value, "KiB", content, n=updates)
        for side, value in slopes.items()
    )
    limit = f"the allowed {allowed:g} KiB per update"
    if slopes["candidate"] - slopes["baseline"] <= allowed:
        return Found(status="pass", says=f"memory grows by no more than {limit}", quantities=quantities)
    return Found(status="fail", says=f"memory grows by more than {limit}", quantities=quantities)
