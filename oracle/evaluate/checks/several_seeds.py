"""Over several seeds, the difference from the baseline is inside the baseline's own run-to-run spread."""

from __future__ import annotations

import statistics

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.experiments import seeds
from oracle.evaluate.numbers import mean

ABOUT = About(dimension="consistency", step=4, needs=("plain", "seed *"))


def judge(evidence: Evidence) -> Found:
    """The mean of paired differences, with Student's interval of 95 %, against the baseline's standard deviation.

    Paired, because both sides start from the same seed. The margin is never below the agreed tolerance.
    """
    chosen = seeds(evidence.scenario)
    runs = [evidence.run("plain"), *(evidence.run(f"seed {seed}") for seed in chosen[1:])]
    ends = [None if run.refused else run.ends() for run in runs]
    if any(run.repeats is False for run in runs):
        return Found(status="cannot_tell", says="it differs from itself, so no shift can be told from that")
    known = [pair for pair in ends if pair is not None]
    if len(known) < len(runs):
        return Found(status="cannot_tell", says=f"{len(runs) - len(known)} of {len(runs)} seeds could not be measured")
    baseline = [own for own, _ in known]
    spread, level = statistics.stdev(baseline), abs(statistics.fmean(baseline))
    found = mean([theirs - own for own, theirs in known])
    margin = max(spread, evidence.scenario.settings.tolerance * level)
    quantity = evidence.quantity(
        "mean difference over seeds", found.value, "of the metric", runs[0].content,
        low=found.low, high=found.high, n=found.n,
    )  # fmt: skip
    details = {"seeds": list(chosen), "pairs": known, "baseline_sd": spread, "margin": margin}
    if -margin <= found.low and found.high <= margin:
        says = f"over {found.n} seeds the difference is inside the baseline's own spread"
        return Found(status="pass", says=says, quantities=(quantity,), details=details)
    if found.low > margin or found.high < -margin:
        says = f"over {found.n} seeds it is shifted by more than the baseline's own spread"
        return Found(status="fail", says=says, quantities=(quantity,), details=details)
    says = f"over {found.n} seeds the interval of the difference reaches beyond the baseline's spread: more are needed"
    return Found(status="cannot_tell", says=says, quantities=(quantity,), details=details)
