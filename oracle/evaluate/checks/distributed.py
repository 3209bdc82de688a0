"""Several ranks train what one would."""

from __future__ import annotations

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence, NotRun
from oracle.evaluate.ranks import refusal

ABOUT = About(dimension="functional", step=4, needs=("ranks",))


def judge(evidence: Evidence) -> Found:
    """Two ranks against the reference loop with two ranks."""
    reason = refusal()
    if reason is not None:
        raise NotRun(reason)
    run = evidence.run("ranks")
    if run.refused:
        raise NotRun(run.refused)  # what is refused says nothing of the trainer: its adapter has one process
    result = run.result
    if result is None or result.verdict in ("nondeterministic", "not_comparable"):
        return Found(status="cannot_tell", says="two ranks cannot be compared with the reference loop")
    if result.verdict in ("match", "rounding"):
        return Found(status="pass", says="two ranks train what the reference loop's two ranks do")
    names = unset.of(evidence, run)
    why = unset.words(names) or "no setting explains it"
    return Found(status="fail", says=f"two ranks train something else: {why}", unset=names)
