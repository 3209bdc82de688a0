"""A data set of one's own comes in the batches that were asked for."""

from __future__ import annotations

from oracle.evaluate import hand, unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="functional", step=2, needs=("closed form",))


def judge(evidence: Evidence) -> Found:
    """The samples of every micro-batch against the ones that follow from the recipe."""
    run = evidence.run("closed form")
    if run.refused:
        return Found(status="fail", says=f"it does not train the closed-form task: {run.refused}")
    expected = [batch for window in hand.windows(run.content["recipe"]) for batch in window]
    seen = [ids for _, _, ids in run.candidate["ids"]]
    if not seen:
        return Found(status="cannot_tell", says="the batches that the model is given do not name their samples")
    if seen == expected:
        return Found(status="pass", says=f"all {len(expected)} micro-batches hold the samples that were asked for")
    at = next((i for i, pair in enumerate(zip(seen, expected, strict=False)) if pair[0] != pair[1]), len(seen))
    found = seen[at] if at < len(seen) else "none"
    wanted = expected[at] if at < len(expected) else "none"
    names = unset.of(evidence, run)
    says = f"micro-batch {at} holds samples {found} where {wanted} were asked for"
    return Found(status="fail", says=says, unset=names, details={"seen": seen, "expected": expected})
