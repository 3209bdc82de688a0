"""A run that is interrupted goes on as if nothing had happened."""

from __future__ import annotations

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.result import Result

ABOUT = About(dimension="functional", step=6, needs=("resume", "settings"))


def judge(evidence: Evidence) -> Found:
    """Inside an epoch and at its end; equal to the uninterrupted run, bit for bit, so the loss curve is continuous."""
    content = evidence.get("resume")
    effort = evidence.effort("resume")
    if content["refused"]:
        return Found(status="fail", says=f"it does not save or resume: {content['refused']}", effort=effort)
    result = Result.from_dict(content["result"])
    if result.verdict == "nondeterministic":
        return Found(status="cannot_tell", says="it differs from itself, so a resume cannot be told from that",
                     effort=effort)  # fmt: skip
    places = dict(zip(("inside an epoch", "at the end of an epoch"), result.resumptions, strict=False))
    details = {where: {"cut": one.cut, "verdict": one.verdict, "missing": one.missing, "reason": one.reason}
               for where, one in places.items()}  # fmt: skip
    if not places:
        words = result.reason or "the uninterrupted run did not come to its end"
        return Found(status="cannot_tell", says=f"nothing could be resumed: {words}", effort=effort)
    broken = {where: one for where, one in places.items() if one.verdict != "match"}
    if not broken:
        says = "interrupted inside an epoch and at its end, it goes on bit for bit; the loss curve is continuous"
        return Found(status="pass", says=says, effort=effort, details=details)
    words = "; ".join(
        f"{where} it " + (f"does not restore {one.missing}" if one.missing else one.reason or "goes on otherwise")
        for where, one in broken.items()
    )
    whole = [where for where in places if where not in broken]
    more = f"; {' and '.join(whole)} it goes on bit for bit" if whole else ""
    return Found(status="fail", says=f"interrupted {words}{more}", effort=effort, details=details)
