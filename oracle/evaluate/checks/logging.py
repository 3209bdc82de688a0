"""The training loss is reported as often as was asked, and is the loss that was trained."""

from __future__ import annotations

import statistics

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="functional", step=2, needs=("reports", "settings", "profile"))

CLOSE = 1e-4
"""Relative, and absolute: a trainer may print four decimals."""


def judge(evidence: Evidence) -> Found:
    """The reports of each update against the mean of its micro-batches' losses, from the same run."""
    run = evidence.run("reports")
    effort = evidence.effort("logging")
    if run.refused:
        return Found(status="fail", says=f"it does not report its loss: {run.refused}", effort=effort)
    reports: dict[int, list[float]] = {}
    for update, name, value in run.candidate["logged"]:
        if name == "loss":
            reports.setdefault(update, []).append(value)
    losses: dict[int, list[float]] = {}
    for update, _, value in run.candidate["losses"]:
        losses.setdefault(update, []).append(value)
    details = {"reported": [[update, *values] for update, values in reports.items()]}
    if not reports:
        return Found(status="fail", says="asked to report its loss, it reports none", effort=effort, details=details)
    silent = [update for update in range(run.candidate["updates"]) if update not in reports]
    if silent:
        says = f"asked to report each update, it is silent after updates {silent}"
        return Found(status="fail", says=says, effort=effort, details=details)
    for update, values in reports.items():
        mean = statistics.fmean(losses[update]) if losses.get(update) else None
        if mean is not None and not abs(values[-1] - mean) <= CLOSE * max(1.0, abs(mean)):
            names = tuple(one for one in unset.acting(evidence) if one.name.startswith("log."))
            says = f"after update {update} it reports {values[-1]:.8g}; its micro-batches have a mean of {mean:.8g}"
            says += f": {unset.words(names)}" if names else ""
            return Found(status="fail", says=says, unset=names, effort=effort, details=details)
    says = f"it reports the mean loss of each of {len(reports)} updates"
    return Found(status="pass", says=says, effort=effort, details=details)
