"""A run trains to its end: all updates are made, parameters move, the loss falls."""

from __future__ import annotations

import statistics

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="functional", step=2, needs=("plain", "settings"))


def judge(evidence: Evidence) -> Found:
    """Judged on the scenario's task and recipe."""
    run = evidence.run("plain")
    effort = evidence.effort("training")
    if run.refused:
        return Found(status="fail", says=f"it does not train the scenario's recipe: {run.refused}", effort=effort)
    made, planned = run.candidate["updates"], run.reference["updates"]
    losses = [value for _, _, value in run.candidate["losses"] if value is not None]
    quarter = max(1, len(losses) // 4)
    falls = bool(losses) and statistics.fmean(losses[-quarter:]) < statistics.fmean(losses[:quarter])
    details = {"updates": made, "planned": planned, "first_loss": losses[:1], "last_loss": losses[-1:]}
    wrong = []
    if not run.ended:
        outcome = run.result.candidate_outcome if run.result else None
        wrong.append(f"it does not train to its end ({outcome.status if outcome else 'no outcome'})")
    if made != planned:
        wrong.append(f"it makes {made} updates of {planned}")
    if not run.candidate["moved"]:
        wrong.append("no parameter moves")
    if losses and not falls:
        wrong.append("the loss does not fall")
    if wrong:
        return Found(status="fail", says="; ".join(wrong), effort=effort, details=details)
    says = f"it makes all {made} updates, parameters move" + (", and the loss falls" if falls else "")
    return Found(status="pass", says=says, effort=effort, details=details)
