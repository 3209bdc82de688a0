"""The learning rates are those that the schedule's formula gives by hand."""

from __future__ import annotations

from oracle.evaluate import hand, unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="semantic", step=3, needs=("closed form", "profile"))

CLOSE = 1e-6
"""Relative to the largest rate."""


def judge(evidence: Evidence) -> Found:
    """Each update of the closed-form task."""
    run = evidence.run("closed form")
    if run.refused:
        return Found(status="fail", says=f"it does not train the closed-form task: {run.refused}")
    seen = dict(run.candidate["rates"])
    if not seen:
        return Found(status="cannot_tell", says="no learning rate was recorded")
    recipe = run.content["recipe"]
    expected = hand.rates(recipe, len(hand.windows(recipe)))
    allowance = CLOSE * max(expected)
    wrong = [u for u, rate in enumerate(expected)
             if u not in seen or not all(abs(value - rate) <= allowance for value in seen[u])]  # fmt: skip
    details = {"by_hand": expected, "seen": [[update, *rates] for update, rates in seen.items()]}
    if not wrong:
        says = f"the rates of {len(expected)} updates are those by hand"
        return Found(status="pass", says=says, details=details)
    names = tuple(one for one in unset.of(evidence, run)
                  if one.name.startswith(("schedule.", "hyperparameter.lr", "hyperparameter.warmup")))  # fmt: skip
    at = wrong[0]
    says = f"update {at} has a rate of {seen.get(at, ['none'])[0]}, by hand {expected[at]:.8g}"
    why = unset.words(names)
    return Found(status="fail", says=says + (f": {why}" if why else ""), unset=names, details=details)
