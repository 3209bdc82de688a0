"""No optimisation, switched on alone, shifts the result from that of the baseline with the same one."""

from __future__ import annotations

from typing import Any

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.experiments import OPTIONS
from oracle.evaluate.schema import Quantity, Setting, Status

ABOUT = About(dimension="consistency", step=4, needs=("plain", "profile", "with *"))


def judge(evidence: Evidence) -> Found:
    """The validation metric with each option on, against the baseline's with it on; what plain shows is not blamed."""
    tolerance = evidence.scenario.settings.tolerance
    plain = evidence.run("plain")
    before = set() if plain.refused else {one.name for one in unset.of(evidence, plain)}
    shifted: list[str] = []
    unknown: list[str] = []
    quantities: list[Quantity] = []
    names: list[Setting] = []
    details: dict[str, Any] = {}
    status: Status
    for option in OPTIONS:
        run = evidence.run(f"with {option}")
        ends = None if run.refused or run.repeats is False else run.ends()
        if ends is None:
            unknown.append(f"{option} ({run.refused or 'it could not be compared'})")
            continue
        apart = (ends[1] - ends[0]) / abs(ends[0])
        quantities.append(evidence.quantity(f"with {option}", apart, "relative", run.content))
        fresh = [one for one in unset.of(evidence, run) if one.name not in before and one.effect == "semantic"]
        details[option] = {"difference": apart, "settings": [f"{one.name} = {one.acts}" for one in fresh]}
        if not abs(apart) <= tolerance:
            why = unset.words(tuple(fresh)) or ("as without it" if before else "no setting explains it")
            shifted.append(f"{option} ({why})")
            names += fresh
    if shifted:
        status, says = "fail", f"shifted beyond {tolerance:.3g} with {'; '.join(shifted)}"
    elif unknown:
        status, says = "cannot_tell", f"not known with {'; '.join(unknown)}"
    else:
        status, says = "pass", f"within {tolerance:.3g} with each of {', '.join(OPTIONS)}"
    return Found(status=status, says=says, quantities=tuple(quantities), unset=tuple(names), details=details)
