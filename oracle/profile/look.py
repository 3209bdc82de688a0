"""What one probe says of a trainer: the reading that makes the reference equal to it, and every value that does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diffs.first import differences
from diffs.trace import Trace, open_trace
from diffs.verdict import NotComparable
from oracle.check import Case
from oracle.explain.standing import rules
from oracle.profile.facts import Facts, facts
from oracle.replays import Reading, Replay
from reference_loop.plan import plan
from reference_loop.semantics import KNOBS

RANKED = frozenset(
    (
        "clip.moment = local", "data.shard", "evaluate.ranks", "log.ranks", "rng.ranks", "schedule.cadence = rank",
        "schedule.horizon = unsharded",
    )
)  # fmt: skip
"""Knobs and values that mean something to several ranks alone, as all of `reduce` does; probes train on one."""

SEARCHED = tuple(name for name in KNOBS if name not in {"resume.missing", *RANKED} and not name.startswith("reduce."))
"""The knobs of a profile: how a run resumes is seen by `oracle resume`."""


@dataclass
class Seen:
    """What one run says of each knob.

    model: the kind of model that was trained.
    asked, values: what the recipe asks for, and what the trainer does.
    excluded: values that it does not have, because the reference differs under them.
    equal: values that would be another plan, and do not show.
    numbers: (name, the recipe's, the trainer's).
    gap: where no reading makes the reference equal; nothing is claimed then.
    """

    model: str = ""
    asked: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    excluded: dict[str, set[str]] = field(default_factory=dict)
    equal: dict[str, set[str]] = field(default_factory=dict)
    numbers: list[tuple[str, Any, Any]] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    gap: str | None = None


def look(case: Case, model: str) -> Seen:
    """What a candidate's run says of its semantics."""
    candidate = case.findings.candidate
    outcome = candidate.ending.outcome or {}
    seen = Seen(model=model, versions=outcome.get("versions", {}))
    if candidate.trace is None or not candidate.ended or candidate.wavers is not None:
        seen.gap = candidate.outcome.error or ("it differs from itself" if candidate.wavers else "it did not end")
        return seen
    seen.facts = facts(candidate.trace)
    found = case.explanation()
    if found.standing.decisive is not None or found.gaps:
        at = found.gaps[0].at.address if found.gaps else found.standing.decisive.address  # type: ignore[union-attr]
        seen.gap = f"update {at.update}, {at.moment}: {at.kind} {at.name}".rstrip()
        return seen
    for cause in found.causes:
        if cause.knob.startswith("hyperparameter."):
            name = cause.knob.removeprefix("hyperparameter.")
            seen.numbers.append((name, _plain(cause.reference), _plain(cause.candidate)))
    _separate(case, found.reading, found.replay, candidate.trace, seen)
    return seen


def look_again(case: Case, model: str, arguments: Mapping[str, Any], name: str) -> Seen:
    """What the trainer's run says when it is constructed with other arguments.

    name: of the run's folder, new.
    """
    folder, ending = case.findings.runs.otherwise(name, {"arguments": dict(arguments)})
    if ending.status != "completed":
        return Seen(model=model, gap=ending.detail or ending.status)
    candidate = replace(
        case.findings.candidate, trace=open_trace(folder), full=None, complete=False, ending=ending, wavers=None
    )
    return look(_as_trained(replace(case, findings=replace(case.findings, candidate=candidate))), model)


def _as_trained(case: Case) -> Case:
    """The case with a recipe that states the batch size and the accumulation that the run shows.

    With them the reference may be equal to the run; without, its batches are others from the first one on.
    """
    findings = case.findings
    assert findings.candidate.trace is not None
    shown, recipe = facts(findings.candidate.trace), findings.reading.recipe
    size, micros = shown.batch_size or recipe.batch_size, shown.accumulation or recipe.accumulation
    if (size, micros) == (recipe.batch_size, recipe.accumulation):
        return case
    reading = replace(findings.reading, recipe=replace(recipe, batch_size=size, accumulation=micros))
    return replace(case, findings=replace(findings, reading=reading, reference=findings.replays.one(reading)))


def facts_of(folder: Any) -> Facts:
    """What a run's folder shows; nothing where the run recorded nothing."""
    try:
        return facts(open_trace(folder))
    except NotComparable:
        return Facts()


def _separate(case: Case, reading: Reading, understood: Replay, trace: Trace, seen: Seen) -> None:
    """Replay every other value of every knob under the understood reading, and keep those that differ.

    understood: the replay that is equal to the candidate. A value differs where something decisive does, or a witness
        that is the candidate's own in `understood`.
    """
    samples = understood.samples
    now = list(plan(reading.recipe, reading.semantics, samples))
    others: list[tuple[str, str, Reading]] = []
    for name in SEARCHED:
        seen.asked[name] = asked(case, name)
        seen.values[name] = reading.semantics.value(name)
        seen.excluded[name], seen.equal[name] = set(), set()
        for value in KNOBS[name].values:
            changed = reading.with_knob(name, value)
            if list(plan(changed.recipe, changed.semantics, samples)) != now:
                others.append((name, value, changed))
    known = differences(understood.trace, trace, rules(understood.trace, trace))
    latent = {difference.address[2:4] for difference in known}
    replays = case.findings.replays.run(*(changed for _, _, changed in others))
    for (name, value, _), replay in zip(others, replays, strict=True):
        if isinstance(replay, Replay):
            found = differences(replay.trace, trace, rules(replay.trace, trace))
            differs = any(difference.decisive or difference.address[2:4] not in latent for difference in found)
            (seen.excluded if differs else seen.equal)[name].add(value)


def asked(case: Case, knob: str) -> str:
    """What the recipe asks for of a knob; of the type to compute in, its name."""
    reading = case.findings.reading
    return reading.recipe.precision.dtype if knob == "precision.compute" else reading.semantics.value(knob)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
