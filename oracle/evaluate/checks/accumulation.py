"""Gradients are accumulated over as many micro-batches as was asked, and updates are counted so."""

from __future__ import annotations

from collections import Counter

from oracle.evaluate import hand
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="functional", step=2, needs=("closed form", "settings"))


def judge(evidence: Evidence) -> Found:
    """Micro-batches of each update against the windows that the recipe makes."""
    run = evidence.run("closed form")
    effort = evidence.effort("accumulation")
    if run.refused:
        return Found(status="fail", says=f"it does not accumulate: {run.refused}", effort=effort)
    expected = [len(window) for window in hand.windows(run.content["recipe"])]
    count = Counter(update for update, _, _ in run.candidate["losses"] or run.candidate["ids"])
    seen = [count[update] for update in sorted(count)][: run.candidate["updates"]]
    details = {"micro_batches": seen, "asked": expected}
    if seen != expected:
        says = f"its {len(seen)} updates take {seen} micro-batches; the recipe asks for {len(expected)} of {expected}"
        return Found(status="fail", says=says, effort=effort, details=details)
    says = f"{len(seen)} updates take {seen} micro-batches, as asked"
    return Found(status="pass", says=says, effort=effort, details=details)
