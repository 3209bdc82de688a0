"""Remedies: the candidate's own argument that restores the reference's meaning, believed only after a rerun with it.

A trainer states them as data, for a cause ("knob", or "knob = value" for one value that is to be restored) the
arguments that its class is constructed with. In a value, "{reference}" stands for the reference's value of the cause,
"{updates}" for the updates of its run, and a text in angle brackets for an expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from diffs.trace import Trace
from oracle.candidate import CandidateUsage, opened_trace
from oracle.explain.explanation import Explanation, Found
from oracle.explain.standing import Standing, stand
from oracle.findings import Findings
from oracle.replays import Reading, Replay
from oracle.report import phrases
from oracle.result import Cause
from reference_loop.moments import Address, causal_key
from reference_loop.recipe import ScalerOptions
from reference_loop.semantics import KNOBS


def prescribed(
    causes: tuple[Cause, ...], found: Explanation, case: Findings, progress: Any = lambda words: None
) -> tuple[Cause, ...]:
    """The causes with their remedies; as they are, where the trainer states none at all.

    causes: as a result holds them. found: the explanation that they come from.
    """
    stated = (case.candidate.ending.outcome or {}).get("remedies")
    if not stated:
        return causes
    return tuple(_prescribed(cause, found, case, stated, progress) for cause in causes)


def _prescribed(cause: Cause, found: Explanation, case: Findings, stated: Mapping[str, Any], progress: Any) -> Cause:
    value = phrases.value(cause.reference)
    arguments = stated.get(f"{cause.knob} = {value}", stated.get(cause.knob))
    if arguments is None:
        return replace(cause, remedy="none known")
    filled = {name: _filled(value, cause, case) for name, value in arguments.items()}
    words = written(filled, case.runs.spec["trainer"])
    progress(f"verifying a remedy: {words}")
    origin = next(one for one in found.causes if (one.knob, one.candidate) == (cause.knob, cause.candidate))
    doubt = _doubt(filled, origin, found, case)
    if doubt:
        return replace(cause, remedy=f"none known; {words} was tried: {doubt}")
    return replace(cause, remedy=f"{words}, verified by a rerun")


def written(arguments: Mapping[str, Any], trainer: str) -> str:
    """Arguments as a user writes them: `TrainingArguments(optim='adamw_torch')`.

    trainer: whose class is meant where an argument names none.
    """
    calls: dict[str, list[str]] = {}
    for name, value in arguments.items():
        owner, _, argument = name.rpartition(".")
        expression = isinstance(value, str) and value.startswith("<") and value.endswith(">")
        shown = value[1:-1] if expression else repr(value)
        calls.setdefault(owner or trainer.rpartition(":")[2], []).append(f"{argument}={shown}")
    return ", ".join(f"{owner}({', '.join(words)})" for owner, words in calls.items())


def _filled(value: Any, cause: Cause, case: Findings) -> Any:
    """A stated value with the placeholders replaced, at any depth."""
    if isinstance(value, Mapping):
        return {key: _filled(item, cause, case) for key, item in value.items()}
    if value == "{reference}":
        return cause.reference
    return case.reference.trace.last_update + 1 if value == "{updates}" else value


def _doubt(arguments: dict[str, Any], cause: Found, found: Explanation, case: Findings) -> str:
    """Why a rerun does not prove the remedy; "" if it does.

    It does if the candidate is then the reference with every other cause, and nothing else: bit for bit to the end,
    or to the first difference that was unexplained before, where that comes later.
    """
    gap = min((gap.at.address for gap in found.gaps), key=_order, default=None)
    if gap is not None and _order(gap) <= _order(cause.at.address):
        return "an unexplained difference comes first, so nothing can be proven"
    given = case.runs.spec["arguments"]
    try:
        folder, ending = case.runs.otherwise(f"remedy-{cause.knob}", {"arguments": given | arguments})
    except CandidateUsage as refused:
        return str(refused)
    trace = opened_trace(folder)
    if ending.status != "completed" or trace is None:
        return f"the trainer ends with {ending.detail}"
    closest: Standing | None = None
    for reading in _without(cause, found, case.reading):
        replay = case.reference if reading is case.reading else case.replays.run(reading)[0]
        if not isinstance(replay, Replay):
            continue
        standing = _stand(replay.trace, trace, case)
        if standing.decisive is None or (gap is not None and standing.decisive.address == gap):
            return ""
        closest = standing if closest is None or standing.key > closest.key else closest
    if closest is None or closest.decisive is None:
        return "the reference cannot be replayed without it"
    return f"the rerun still differs, first at {phrases.place(closest.decisive.address)}"


def _stand(reference: Trace, candidate: Trace, case: Findings) -> Standing:
    return stand(reference, candidate, silent=case.candidate.unsteady)


def _without(cause: Found, found: Explanation, original: Reading) -> Iterator[Reading]:
    """How the candidate may be read once the cause is gone: alone, all together, or with one more.

    One argument may remedy several causes: an optimizer of one's own has neither the trainer's kernel nor its decay.
    """
    others = [other for other in found.causes if other is not cause]
    alone = restored(replace(found.reading, pins=()), cause, original)
    if others:
        yield alone
    yield original
    if len(others) > 1:
        yield from (restored(alone, other, original) for other in others)


def restored(reading: Reading, cause: Found, original: Reading) -> Reading:
    """The reading with the reference's value of one cause."""
    if cause.knob in KNOBS:
        return reading.with_knob(cause.knob, cause.reference)
    name, recipe, ours = cause.knob.removeprefix("hyperparameter."), reading.recipe, original.recipe
    if name in ("max_norm", "max_value"):
        return replace(reading, recipe=replace(recipe, clip=ours.clip))
    if name in ("schedule", "warmup"):
        return replace(reading, recipe=replace(recipe, schedule=ours.schedule))
    if name in vars(ScalerOptions()):
        value = getattr(ours.scaler or ScalerOptions(), name)
        scaler = replace(recipe.scaler or ScalerOptions(), **{name: value})
        return replace(reading, recipe=replace(recipe, scaler=scaler))
    if hasattr(ours.optimizer, name):
        optimizer = replace(recipe.optimizer, **{name: getattr(ours.optimizer, name)})
        reading = replace(reading, recipe=replace(recipe, optimizer=optimizer))
    overrides = {key: value for key, value in reading.overrides.items() if key.rpartition(".")[2] != name}
    return replace(reading, overrides=overrides)


def _order(address: Any) -> tuple[int, ...]:
    return causal_key(Address(*address))
