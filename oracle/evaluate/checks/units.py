"""What a step, a schedule and a loss scale count in can be told."""

from __future__ import annotations

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.profile.schema import Entry

ABOUT = About(dimension="semantic", step=3, needs=("profile",))

UNITS = {"step": "accumulation.cadence", "schedule": "schedule.cadence", "loss scale": "scaler.unit"}
NO_RUN = "no run of this trainer had that"


def judge(evidence: Evidence) -> Found:
    """Each unit as the profile proves it by replay; a loss scale that never ran has none."""
    profile = unset.profile(evidence)
    if profile is None:
        return Found(status="fail", says=f"its semantics are not known: {evidence.get('profile')['refused']}")
    found: dict[str, str | None] = {}
    unknown = []
    for what, knob in UNITS.items():
        entries = [entry for entry in profile.knobs if entry.knob == knob]
        values = sorted({value for entry in entries for value in _told(entry)})
        found[what] = values[0] if len(values) == 1 else None
        absent = what == "loss scale" and all(NO_RUN in (entry.reason or "") for entry in entries)
        if found[what] is None and not absent:
            why = next((entry.reason for entry in entries if entry.reason), "it differs from case to case")
            unknown.append(f"the unit of the {what} ({why})")
    if found["schedule"] is not None and (other := _unexplained(profile.unexplained)):
        found["schedule"] = None
        unknown.append(f"the unit of the schedule (no reading explains it on {', '.join(other)})")
    if unknown:
        return Found(status="fail", says=f"not to be found: {'; '.join(unknown)}", details=found)
    told = ", ".join(f"a {what} counts by {value}" for what, value in found.items() if value)
    none = "" if found["loss scale"] else "; no loss scale ran here"
    names = tuple(one for one in unset.acting(evidence) if one.name in UNITS.values())
    if names:
        return Found(status="conditional", says=f"{told}{none}: {unset.words(names)}", unset=names, details=found)
    return Found(status="pass", says=told + none, details=found)


def _told(entry: Entry) -> list[str]:
    """The values that are left; on one rank, a move for each rank is a move for each update."""
    left = [entry.value] if entry.value else list(entry.left)
    return [value for value in left if value != "rank" or len(left) == 1]


def _unexplained(probes: object) -> list[str]:
    """Probes with a schedule that no reading explains, where the place is a learning rate."""
    return [name for name, place in dict(probes).items() if "learning_rate" in place]  # type: ignore[call-overload]
