"""The model is evaluated during training when it was asked for, and training goes on as without."""

from __future__ import annotations

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="functional", step=2, needs=("reports", "settings"))


def judge(evidence: Evidence) -> Found:
    """After which updates a metric was reported, and whether a cause says that evaluating disturbs training."""
    run = evidence.run("reports")
    effort = evidence.effort("validation")
    if run.refused:
        return Found(status="fail", says=f"it does not evaluate during training: {run.refused}", effort=effort)
    every = run.content["recipe"]["evaluate"]["every"]
    expected = list(range(every, run.reference["updates"] + 1, every))
    seen = sorted({update + 1 for update, _, _ in run.candidate["evaluated"]})
    details = {"after_updates": seen, "asked": expected}
    missing = [update for update in expected if update not in seen]
    if missing:
        says = f"asked to evaluate after updates {expected}, it reports after {seen or 'none'}"
        return Found(status="fail", says=says, effort=effort, details=details)
    causes = run.result.causes if run.result else ()
    disturbed = [f"{one.knob} = {one.candidate}" for one in causes if one.knob.startswith("evaluate.")]
    if disturbed:
        says = f"evaluating changes what is trained afterwards: {', '.join(disturbed)}"
        return Found(status="fail", says=says, effort=effort, details=details)
    more = [update for update in seen if update not in expected]
    says = f"it evaluates after updates {expected}, as asked" + (f", and after {more}" if more else "")
    return Found(status="conditional" if more else "pass", says=says, effort=effort, details=details)
