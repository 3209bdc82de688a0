"""The step that the trainer logs by is the true number of updates."""

from __future__ import annotations

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="semantic", step=3, needs=("every second",))

STEPS = ("step", "global_step", "updates")
"""Names under which a trainer may report its step."""


def judge(evidence: Evidence) -> Found:
    """Asked to log every second update while each takes three micro-batches: by when it logs, its step is known."""
    run = evidence.run("every second")
    if run.refused:
        return Found(status="fail", says=f"it does not log: {run.refused}")
    every = run.content["recipe"]["log"]["every"]
    seen = [update + 1 for update, name, _ in run.candidate["logged"] if name == "loss"]
    expected = list(range(every, run.candidate["updates"] + 1, every))
    details = {"after_updates": seen, "asked": expected, "micro_batches": run.content["recipe"]["accumulation"]}
    if not seen:
        return Found(status="cannot_tell", says="it logs nothing by which its step could be told", details=details)
    extra = [update for update in seen if update not in expected]
    twice = sorted({update for update in seen if seen.count(update) > 1})
    if extra or twice or set(expected) - set(seen):
        says = f"asked to log every {every} updates, it logs after updates {seen}: its step is another than an update"
        return Found(status="fail", says=says, details=details)
    wrong = [(update + 1, name, value) for update, name, value in run.candidate["logged"]
             if name in STEPS and value != update + 1]  # fmt: skip
    if wrong:
        made, name, value = wrong[0]
        says = f"it logs a {name} of {value:g} when {made} updates are made"
        return Found(status="fail", says=says, details=details)
    says = f"it logs after updates {expected}, as asked: its step is an update, whatever is accumulated"
    return Found(status="pass", says=says, details=details)
