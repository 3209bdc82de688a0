"""What is said of an upgrade."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oracle.upgrade import Step, Upgrade


def upgrade_lines(found: Upgrade) -> Iterator[str]:
    """Each step, what changes in it, and how each version stands against the reference loop."""
    for step in found.steps:
        yield f"{step.reference} -> {step.candidate}: {_said(step)}"
        for change in step.changes:
            how = "" if change.confirmed else " (suggested)"
            yield f"  {change.knob}: {_value(change.old)} -> {_value(change.new)}, {change.effect}{how}"
        yield from (f"  interface  {told}" for told in step.interfaces)
        first = step.first_divergence
        if first is not None:
            yield f"  first differs at update {first.update}, {first.moment}: {first.kind} {first.name}".rstrip()
    if found.between:
        yield f"not run, because nothing changes around them: {'; '.join(found.between)}"
    for side in found.sides:
        known = (
            ", ".join(f"{knob} = {_value(value)}" for knob, value in side.decisions.items())
            or "the reference's semantics"
        )
        unknown = "" if side.understood else ", and what no knob explains"
        yield f"{side.name}: {side.result.verdict} against the reference loop: {known}{unknown}"


def _said(step: Step) -> str:
    words: Mapping[str, str] = {
        "match": "nothing changes, bit for bit",
        "rounding": "only rounding changes",
        "diverged": "training changes" if step.changes else "training changes, and no knob says how",
    }
    return words.get(step.verdict, f"not comparable: {step.reason}")


def _value(value: Any) -> str:
    return "none" if value is None else str(value)
