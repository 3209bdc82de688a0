"""Two runs with the same seed are the same run."""

from __future__ import annotations

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="consistency", step=4, needs=("plain", "seed *", "with *"))


def judge(evidence: Evidence) -> Found:
    """Every training of the scenario's task was made twice."""
    names = ["plain", *(name for name in evidence.experiments if name.startswith(("seed ", "with ")))]
    repeats = {name: evidence.run(name).repeats for name in names}
    known = {name: same for name, same in repeats.items() if same is not None}
    unsteady = [name for name, same in known.items() if not same]
    details = {"compared": len(known), "unsteady": unsteady}
    if unsteady:
        says = f"with the same seed it differs from itself in {len(unsteady)} of {len(known)} trainings"
        return Found(status="fail", says=says, details=details)
    if not known:
        return Found(status="cannot_tell", says="no training was made twice", details=details)
    return Found(status="pass", says=f"{len(known)} trainings, each made twice, are bit-identical", details=details)
