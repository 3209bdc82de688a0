"""A run that is interrupted and resumed, as `oracle resume` has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diffs.verdict import Policy
from oracle.candidate import CandidateUsage
from oracle.evaluate.scenario import numbers
from oracle.evaluate.session import Session
from oracle.replays import ReplayFailed
from oracle.resume import cuts
from oracle.resume.command import resume
from reference_loop.recipe import from_dict


def interrupted(session: Session, task: str, asked: dict[str, Any], places: tuple[str, ...]) -> dict[str, Any]:
    """What came of an interruption at each place, each resumed in a process of its own."""
    facts = {"task": task, "recipe": asked, "cuts": list(places)}
    request = replace(session.request(task, from_dict(numbers(asked))), policy=Policy.parse("exact"))
    chains = [cuts.parse(place, "exception") for place in places]
    try:
        found = resume(request, chains, lambda words: None, session.server)
    except (CandidateUsage, ReplayFailed) as refused:
        return {**facts, "refused": str(refused)}
    return {**facts, "refused": None, "result": found.to_dict()}
