"""With the same seed, the validation metric and the loss curve are the baseline's."""

from __future__ import annotations

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="consistency", step=4, needs=("plain", "profile"))


def judge(evidence: Evidence) -> Found:
    """The metric of both models at the end, measured alike; randomness is told from a shift first."""
    run = evidence.run("plain")
    if run.refused:
        return Found(status="fail", says=f"it does not train the scenario's recipe: {run.refused}")
    if run.repeats is False:
        return Found(status="cannot_tell", says="it differs from itself, so no shift can be told from that")
    ends = run.ends()
    if ends is None:
        return Found(status="cannot_tell", says="one of the two models could not be measured")
    tolerance = evidence.scenario.settings.tolerance
    apart = (ends[1] - ends[0]) / abs(ends[0])
    theirs = {(u, m): value for u, m, value in run.candidate["losses"]}
    pairs = [(v, theirs[u, m]) for u, m, v in run.reference["losses"] if (u, m) in theirs and v]
    curve = max((abs(b - a) / abs(a) for a, b in pairs), default=0.0)
    quantities = (
        evidence.quantity("validation metric against the baseline's", apart, "relative", run.content),
        evidence.quantity("loss curve, largest difference", curve, "relative", run.content),
    )
    verdict = run.result.verdict if run.result else ""
    names = unset.of(evidence, run)
    details = {"baseline": ends[0], "candidate": ends[1], "tolerance": tolerance, "verdict": verdict}
    if not abs(apart) <= tolerance:
        why = unset.words(names) or "no setting that nobody set explains it"
        says = f"the validation metric is outside the agreed tolerance of {tolerance:.3g}: {why}"
        return Found(status="fail", says=says, quantities=quantities, unset=names, details=details)
    if verdict in ("match", "rounding"):
        same = "bit for bit" if verdict == "match" else "but for rounding"
        return Found(status="pass", says=f"it trains what the baseline trains, {same}", quantities=quantities,
                     unset=names, details=details)  # fmt: skip
    says = f"the validation metric is within the agreed tolerance of {tolerance:.3g}"
    if names:
        return Found(status="conditional", says=f"{says}, though {unset.words(names)}", quantities=quantities,
                     unset=names, details=details)  # fmt: skip
    return Found(status="conditional", says=f"{says}, though training differs and no setting explains it",
                 quantities=quantities, details=details)  # fmt: skip
