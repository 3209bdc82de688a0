"""The effective configuration can be exported, and every value that nobody asked for has a source."""

from __future__ import annotations

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="semantic", step=3, needs=("profile",))


def judge(evidence: Evidence) -> Found:
    """The profile is the export; a value that is not the recipe's needs an argument, a variable, or known code."""
    profile = unset.profile(evidence)
    if profile is None:
        return Found(status="fail", says=f"its semantics are not known: {evidence.get('profile')['refused']}")
    settings = unset.acting(evidence)
    known = sum(entry.value is not None for entry in profile.knobs)
    details = {
        "proven": known,
        "not_known": {entry.knob: entry.reason for entry in profile.knobs if entry.value is None},
        "sources": {one.name: one.source for one in settings},
        "unexplained": dict(profile.unexplained),
    }
    lost = [one for one in settings if one.source is None and one.effect == "semantic"]
    if lost:
        says = f"no source is to be found for {', '.join(f'{one.name} = {one.acts}' for one in lost)}"
        return Found(status="fail", says=says, unset=tuple(lost), details=details)
    if profile.unexplained:
        says = f"{known} values are proven, but on {len(profile.unexplained)} probes no reading explains what it does"
        return Found(status="fail", says=f"{says}: {', '.join(profile.unexplained)}", details=details)
    return Found(
        status="pass", says=f"{known} values are proven; each that nobody asked for has a source", details=details
    )
