"""Whether a difference matters: how far metrics and parameters drift by the end, against the spread over seeds.

The reference is trained with several seeds, the recipe's own first. Its metrics at the end make the spread. The
candidate's model, trained with the recipe's seed, lies inside it or not. That says whether the drift is larger than
what another seed does; a drift inside a spread may be real all the same.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from diffs.captured import read_tensors
from oracle.errors import OracleError
from oracle.findings import Findings
from oracle.measure import Measure
from oracle.replays import Replay
from oracle.result import Impact, MetricDrift, ParameterDrift

FEWEST_SEEDS = 5

State = dict[str, dict[str, torch.Tensor]]


class ImpactUnknown(OracleError):
    """No impact can be measured, with the reason."""


def impact(case: Findings, seeds: int, progress: Callable[[str], None]) -> Impact:
    """The impact of what a candidate does otherwise.

    case: the candidate and the reference, both trained to the end. seeds: how many the spread is over.

    Raises:
        ImpactUnknown: the candidate did not train to its end, or its model cannot be measured.
    """
    trace = case.candidate.trace
    if trace is None or not case.candidate.ended:
        raise ImpactUnknown("the candidate did not train to its end")
    if case.candidate.wavers is not None:
        raise ImpactUnknown("the candidate does not repeat itself")
    first = case.reading.recipe.seed
    chosen = tuple(range(first, first + seeds))
    progress(f"training the reference with {seeds} seeds")
    moments = [[-1, "start", "parameter"], *_last(case.reference.trace.last_update)]
    readings = [replace(case.reading, recipe=replace(case.reading.recipe, seed=seed)) for seed in chosen]
    ends: list[State] = []
    for seed, replay in zip(chosen, case.replays.run(*readings, capture={"moments": moments}), strict=True):
        if not isinstance(replay, Replay):
            raise ImpactUnknown(f"the reference cannot be trained with seed {seed}: {replay}")
        ends.append(_state(replay.folder, replay.trace.last_update))
        if seed == first:
            start = _tensors(replay.folder, -1, "start", "parameter")
    own, candidate = ends[0], _candidate(case, trace.last_update)
    missing = sorted(own["parameters"].keys() ^ candidate["parameters"].keys())
    if missing or not own["parameters"]:
        raise ImpactUnknown(f"the two models have other parameters: {', '.join(missing[:3]) or 'none is recorded'}")
    measured = _measured(case, [*ends, candidate])
    metrics = tuple(_drift(name, [found[name] for found in measured[:-1]], measured[-1][name]) for name in measured[0])
    return Impact(
        seeds=chosen,
        updates=trace.last_update + 1,
        metrics=metrics,
        parameters=ParameterDrift(
            distance=_distance(own["parameters"], candidate["parameters"]),
            moved=_distance(start, own["parameters"]),
            seeds=tuple(_distance(own["parameters"], end["parameters"]) for end in ends[1:]),
        ),
    )


def ends(case: Findings) -> dict[str, dict[str, float]]:
    """The metrics of both models at the end, by side, measured alike: not what a trainer reports.

    Raises:
        ImpactUnknown: the candidate did not train to its end, or its model cannot be measured.
    """
    trace = case.candidate.trace
    if trace is None or not case.candidate.ended:
        raise ImpactUnknown("the candidate did not train to its end")
    own = _state(case.reference.folder, case.reference.trace.last_update)
    theirs = _candidate(case, trace.last_update)
    if own["parameters"].keys() != theirs["parameters"].keys() or not own["parameters"]:
        raise ImpactUnknown("the two models have other parameters")
    return dict(zip(("reference", "candidate"), _measured(case, [own, theirs]), strict=True))


def _drift(name: str, spread: Sequence[float], candidate: float) -> MetricDrift:
    """Where a candidate's metric falls. A NaN is never inside."""
    finite = all(math.isfinite(value) for value in spread)
    return MetricDrift(
        name=name,
        reference=spread[0],
        candidate=candidate,
        values=tuple(spread),
        mean=statistics.fmean(spread) if finite else math.nan,
        sd=statistics.stdev(spread) if finite else math.nan,
        inside=finite and min(spread) <= candidate <= max(spread),
    )


def _last(update: int) -> list[list[Any]]:
    return [[update, "end", "parameter"], [update, "update", "buffer"]]


def _candidate(case: Findings, last: int) -> State:
    """The candidate's model at the end; it is run once more where its tensors were too many to keep."""
    full = case.candidate.full
    if full is not None:
        state = _state(full, last)
        if state["parameters"] and case.candidate.complete:
            return state
    return _state(case.runs.once_more(_last(last)), last)


def _state(folder: Path, last: int) -> State:
    return {
        "parameters": _tensors(folder, last, "end", "parameter"),
        "buffers": _tensors(folder, last, "update", "buffer"),
    }


def _tensors(folder: Path, *place: Any) -> dict[str, torch.Tensor]:
    """What a trace holds in full at (update, moment, kind), by name."""
    tensors = read_tensors(folder)
    return {at.name: tensors[at] for at in tensors if (at.update, at.moment, at.kind) == place}


def _distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The 2-norm of the difference of all parameters together, in float64."""
    return math.sqrt(math.fsum(float((one[name].double() - other[name].double()).square().sum()) for name in one))


def _measured(case: Findings, states: list[State]) -> list[dict[str, float]]:
    """The metrics of each state, computed by the task in the candidate's environment."""
    folder = case.runs.folder / "ends"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for index, state in enumerate(states):
        files.append(str(folder / f"{index}.pt"))
        torch.save(state, files[-1])
    output = folder / "metrics.json"
    trainer = f"{Path(__file__).with_name('measure.py')}:{Measure.__name__}"
    more = {"trainer": trainer, "arguments": {"states": files, "file": str(output)}}
    _, ending = case.runs.otherwise("measure", more)
    if ending.status != "completed":
        raise ImpactUnknown(f"the models cannot be measured: {ending.detail}")
    return json.loads(output.read_text(encoding="utf-8"))
