"""Settings that nobody set: looked at first where something differs, before the trainer is blamed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from oracle.evaluate.evidence import Evidence, NotRun, Run
from oracle.evaluate.experiments import LOGGED
from oracle.evaluate.schema import Setting
from oracle.profile.schema import Profile, Source, from_dict
from oracle.result import Result
from reference_loop.semantics import KNOBS

ASKED = ("optimizer.decay", "data.order", "data.tail", "clip.kind", "precision.compute")
"""Knobs that the recipe itself decides; of the others it means the textbook's value."""

WORDS = {
    "hyperparameter.max_norm": r"max.?(grad.?)?norm|clip",
    "precision.compute": r"bf16|bfloat16|fp16.*not|float16.*not|not supported",
    "hyperparameter.weight_decay": r"weight.?decay",
    "schedule.cadence": r"interval|per epoch|each epoch|every epoch",
}
"""What a line of output would have to say to tell of it; else the last word of its name."""


UNDECIDED = "not decided which: no probe tells them apart"
"""The source of a value that is one of several; none of them was asked for."""


def profile(evidence: Evidence) -> Profile | None:
    """The trainer's profile; None where there is none."""
    try:
        plain = evidence.get("profile")["profile"]
    except NotRun:
        return None
    return None if plain is None else from_dict(plain)


def acting(evidence: Evidence) -> list[Setting]:
    """Every value that acts without being asked for, as the trainer's profile proves it."""
    found = profile(evidence)
    if found is None:
        return []
    log = _log(evidence)
    return [*_knobs(found, log), *_numbers(found, log), *_changes(found, log)]


def of(evidence: Evidence, run: Run) -> tuple[Setting, ...]:
    """The values that nobody set and that a run's difference shows."""
    return named(evidence, run.result)


def named(evidence: Evidence, result: Result | None) -> tuple[Setting, ...]:
    """The causes of a result as settings that nobody set, numbers first: a default is more likely than a fault.

    One is not named where something stays unexplained at the same moment: it may be a likeness.
    """
    if result is None or not result.causes:
        return ()
    known = {setting.name: setting for setting in acting(evidence)}
    doubtful = {one.site.moment for one in result.unexplained}
    causes = sorted(result.causes, key=lambda cause: (cause.effect == "style", cause.knob in KNOBS))
    return tuple(
        known.get(cause.knob)
        or Setting(name=cause.knob, asked=_said(cause.reference), acts=_said(cause.candidate), effect=cause.effect)
        for cause in causes
        if cause.status == "confirmed" and cause.at.moment not in doubtful
    )


def words(settings: tuple[Setting, ...]) -> str:
    """Settings as a clause: "hyperparameter.max_norm is 1, and nobody set it (default of ...)"."""
    told = [
        f"{one.name} is {one.acts} where {one.asked} was meant, and nobody set it"
        + (f" ({one.source})" if one.source else "")
        for one in settings
    ]
    return "; ".join(told)


def _knobs(found: Profile, log: str) -> Iterator[Setting]:
    """Knobs with a proven value that is not the one asked for."""
    for entry in found.knobs:
        meant = entry.asked if entry.knob in ASKED else KNOBS[entry.knob].values[0]
        if entry.knob in ASKED and meant is None:
            continue
        if entry.asked not in (None, meant):
            continue  # an expectation of [semantics], which is no argument of a trainer
        values = [entry.value] if entry.value else list(entry.left)
        if not values or meant in values or "as_asked" in values:
            continue
        one = _setting(entry.knob, str(meant), " or ".join(values), entry.source, log, KNOBS[entry.knob].effect)
        yield one if len(values) == 1 else replace(one, source=UNDECIDED)


def _numbers(found: Profile, log: str) -> Iterator[Setting]:
    for number in found.numbers:
        name = f"hyperparameter.{number.name}"
        yield _setting(name, _said(number.recipe), _said(number.trainer), number.source, log, "semantic")


def _changes(found: Profile, log: str) -> Iterator[Setting]:
    for change in found.changes:
        if change.changed and change.setting is None and change.subject not in ("precision", "sampler"):
            if "out of memory" in change.probes:
                continue
            yield _setting(change.subject, change.asked, change.seen, Source(kind="hidden"), log, "semantic")


def _setting(name: str, asked: str, acts: str, source: Source | None, log: str, effect: Any) -> Setting:
    argument = source.name if source is not None and source.kind in ("default", "argument", "variable") else None
    told = {
        "default": f"default of {argument}={source.value if source else ''}",
        "argument": f"passed as {argument}",
        "variable": f"variable {argument}",
        "loop": "the user's own loop",
        "hidden": "the trainer's code, no argument",
    }
    pattern = WORDS.get(name, re.escape(name.rpartition(".")[2]))
    return Setting(
        name=name,
        asked=asked,
        acts=acts,
        source=None if source is None else told[source.kind],
        argument=argument,
        logged=re.search(pattern, log, re.IGNORECASE) is not None,
        effect=effect,
    )


def _log(evidence: Evidence) -> str:
    """What the candidate printed in the runs that are searched for it."""
    return "\n".join(evidence.run(name).log for name in LOGGED)


def _said(value: Any) -> str:
    return "none" if value is None else str(value)
