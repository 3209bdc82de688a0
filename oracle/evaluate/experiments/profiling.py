"""The trainer's semantics, knob by knob, as `oracle semantics` has it."""

from __future__ import annotations

from typing import Any

from oracle.candidate import CandidateUsage
from oracle.evaluate.session import Session
from oracle.profile.infer import infer


def profiled(session: Session) -> dict[str, Any]:
    """The profile, or why there is none."""
    try:
        found = infer(
            session.trainer,
            requirements=session.requirements,
            python=session.python,
            timeout=session.left,
            progress=session.progress,
        )
    except CandidateUsage as refused:
        return {"refused": str(refused), "profile": None}
    return {"refused": None, "profile": found.to_dict()}
