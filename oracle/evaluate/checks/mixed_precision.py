"""A type that is asked for is computed in."""

from __future__ import annotations

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence, Run

ABOUT = About(dimension="functional", step=2, needs=("with bfloat16", "with float16", "settings"))


def judge(evidence: Evidence) -> Found:
    """bfloat16 and float16, each asked for alone; the reference computes in both on any processor."""
    effort = evidence.effort("mixed_precision")
    wrong, unknown, details, names = [], [], {}, []
    for dtype in ("bfloat16", "float16"):
        run = evidence.run(f"with {dtype}")
        details[dtype] = computed(run)
        if run.refused:
            wrong.append(f"{dtype} is refused: {run.refused}")
        elif details[dtype] is None:
            unknown.append(dtype)
        elif details[dtype] != dtype:
            silent = [one for one in unset.of(evidence, run) if one.name == "precision.compute"]
            names += silent
            said = "its output says so" if any(one.logged for one in silent) else "nothing says so"
            wrong.append(f"asked for {dtype} on {_device()}, it computes in {details[dtype]}, and {said}")
    if wrong:
        return Found(status="fail", says="; ".join(wrong), unset=tuple(names), effort=effort, details=details)
    if unknown:
        says = f"what it computes in is not known where {' and '.join(unknown)} is asked for"
        return Found(status="cannot_tell", says=says, effort=effort, details=details)
    return Found(
        status="pass", says="bfloat16 and float16 are computed in when asked for", effort=effort, details=details
    )


def computed(run: Run) -> str | None:
    """The type that a run computes in; None where that is not proven."""
    result = run.result
    if result is None or not run.ended or run.repeats is False:
        return None
    cause = next((one for one in result.causes if one.knob == "precision.compute"), None)
    if cause is not None:
        return str(cause.candidate) if cause.status == "confirmed" else None
    asked = run.content["recipe"]["precision"]["dtype"]
    first = result.first_divergence
    early = first is not None and not result.causes and first.update <= 0 and first.moment in ("consume", "update")
    return None if early else asked


def _device() -> str:
    return "a CPU"
