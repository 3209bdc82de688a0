"""The metric that the trainer reports is the task's metric of its model."""

from __future__ import annotations

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="functional", step=2, needs=("reports", "profile"))

CLOSE = 1e-5
"""Relative: what adding up in another order can do."""


def judge(evidence: Evidence) -> Found:
    """The last report against the same model measured by the task's own metrics."""
    run = evidence.run("reports")
    tolerance = evidence.scenario.settings.tolerance
    ends = None if run.refused else run.ends()
    reported = [value for _, name, value in run.candidate["evaluated"] if name == "loss"] if ends else []
    if ends is None or not reported:
        says = f"it reports no metric: {run.refused}" if run.refused else "it reports no metric of the name `loss`"
        return Found(status="fail" if run.refused else "cannot_tell", says=says)
    apart = abs(reported[-1] - ends[1]) / abs(ends[1])
    quantity = evidence.quantity("metric reported against measured", apart, "relative", run.content)
    details = {"reported": reported[-1], "measured": ends[1], "tolerance": tolerance}
    if apart <= CLOSE:
        return Found(status="pass", says="the metric that it reports is the task's own of the same model",
                     quantities=(quantity,), details=details)  # fmt: skip
    names = tuple(one for one in unset.acting(evidence) if one.name == "metric.aggregate")
    why = unset.words(names) or "no setting explains it"
    says = f"the metric that it reports is not the task's own of the same model: {why}"
    status = "conditional" if apart <= tolerance else "fail"
    return Found(status=status, says=says, quantities=(quantity,), unset=names, details=details)  # type: ignore[arg-type]
