"""Plain numbers that the candidate uses: read from its records, never searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diffs.first import Difference
from oracle.replays import Reading
from reference_loop import operations as ops
from reference_loop import schedules
from reference_loop.plan import plan
from reference_loop.recipe import Clip, ScalerOptions, Schedule


@dataclass(frozen=True)
class Number:
    """One number on which the two sides differ.

    name: the optimizer's argument, or `max_norm`, `max_value`.
    values: for each parameter (or "" for the whole run) the reference's and the candidate's.
    """

    name: str
    values: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def reference(self) -> Any:
        """The reference's value; the commonest where parameters differ."""
        return _commonest(reference for reference, _ in self.values.values())

    @property
    def candidate(self) -> Any:
        """The candidate's value; the commonest where parameters differ."""
        return _commonest(candidate for _, candidate in self.values.values())


def numbers(found: Iterable[Difference]) -> list[Number]:
    """The differing hyperparameters among differences, by name, in the order in which they come."""
    grouped: dict[str, dict[str, tuple[Any, Any]]] = {}
    for difference in found:
        parameter, _, name = difference.address.name.rpartition(".")
        sides = tuple(row.content if row else None for row in (difference.reference, difference.candidate))
        grouped.setdefault(name, {}).setdefault(parameter, sides)  # type: ignore[arg-type]
    return [Number(name, values) for name, values in grouped.items()]


def taken(reading: Reading, number: Number) -> Reading:
    """The reading with the candidate's number in place of the reference's."""
    if number.name in ("max_norm", "max_value"):
        clip = None if number.candidate is None else Clip(**{number.name: float(number.candidate)})
        return replace(reading, recipe=replace(reading.recipe, clip=clip))
    overrides = {f"{name}.{number.name}": candidate for name, (_, candidate) in number.values.items()}
    return replace(reading, overrides={**reading.overrides, **overrides})


def decay_as_a_whole(reading: Reading, number: Number) -> Reading | None:
    """The reading with the candidate's weight decay for all parameters that decay; None if it has that already."""
    positive = [candidate for _, candidate in number.values.values() if candidate]
    if not positive or _commonest(positive) == reading.recipe.optimizer.weight_decay:
        return None
    optimizer = replace(reading.recipe.optimizer, weight_decay=float(_commonest(positive)))
    return replace(reading, recipe=replace(reading.recipe, optimizer=optimizer))


def other_rates(reading: Reading, rates: list[tuple[float, float]]) -> list[tuple[str, Any, Any, Reading]]:
    """Readings in which the candidate's learning rates come from another base rate or another schedule.

    rates: the reference's and the candidate's rate, update by update.
    Returns (name, reference's value, candidate's value, reading). They are guesses: what fits has to fit all rates.
    """
    recipe = reading.recipe
    found: list[tuple[str, Any, Any, Reading]] = []
    ratios = [candidate / reference for reference, candidate in rates if reference]
    if ratios and max(ratios) - min(ratios) <= 1e-9 * abs(ratios[0]):
        lr = _nearest(recipe.optimizer.lr * ratios[0])
        changed = replace(recipe, optimizer=replace(recipe.optimizer, lr=lr))
        found.append(("lr", recipe.optimizer.lr, lr, replace(reading, recipe=changed)))
    now = recipe.schedule or Schedule(name="constant")
    peak = max(range(len(rates)), key=lambda t: rates[t][1], default=0)
    for name in ("constant", "linear", "cosine"):
        for warmup in dict.fromkeys((now.warmup, peak, 0)):
            if (name, warmup) != (now.name, now.warmup):
                changed = replace(recipe, schedule=Schedule(name=name, warmup=warmup))
                label = "schedule" if name != now.name else "warmup"
                values = (now.name, name) if label == "schedule" else (now.warmup, warmup)
                found.append((label, *values, replace(reading, recipe=changed)))
    return found


def foreseen_rates(reading: Reading, samples: int) -> list[float]:
    """The learning rate of each update as the plan has it, were no update skipped; by calculation alone."""
    position, rates = 0, []
    course = schedules.Course(0)
    for operation in plan(reading.recipe, reading.semantics, samples):
        if isinstance(operation, ops.Start):
            course = schedules.Course(operation.total, operation.formula, operation.parts, operation.epoch)
        elif isinstance(operation, ops.Schedule):
            position += 1
        elif isinstance(operation, ops.Update):
            rates.append(schedules.rate(reading.recipe, position, course, reading.recipe.optimizer.lr))
    return rates


def scaler_numbers(reading: Reading, found: Iterable[Difference]) -> Iterator[tuple[str, Any, Any, Reading]]:
    """The gradient scaler's arguments that differ: (name, reference's value, candidate's value, reading with it)."""
    for difference in found:
        sides = [row.content if row else None for row in (difference.reference, difference.candidate)]
        name = {"scale": "init_scale"}.get(difference.address.name, difference.address.name)
        if None in sides or name not in vars(ScalerOptions()):
            continue
        changed: dict[str, Any] = {name: sides[1]}
        options = replace(reading.recipe.scaler or ScalerOptions(), **changed)
        yield name, sides[0], sides[1], replace(reading, recipe=replace(reading.recipe, scaler=options))


def rates_apart(
    reading: Reading, ours: Mapping[int, Mapping[str, float]], theirs: Mapping[int, Mapping[str, float]]
) -> Number | None:
    """The base rates of the parameters whose rates the candidate multiplies by a number of their own, in every update.

    ours, theirs: update -> parameter -> learning rate. None if the rates of all parameters differ alike, or one's by no
    constant ratio.
    """
    ratios: dict[str, set[float]] = {}
    for update in ours.keys() & theirs.keys():
        for name in ours[update].keys() & theirs[update].keys():
            if ours[update][name]:
                ratios.setdefault(name, set()).add(theirs[update][name] / ours[update][name])
    alike = {round(ratio, 12) for found in ratios.values() for ratio in found}
    if len(alike) < 2 or any(max(found) - min(found) > 1e-9 * max(found) for found in ratios.values()):
        return None
    base = reading.recipe.optimizer.lr
    values = {name: (base, _nearest(base * max(found))) for name, found in ratios.items()}
    return Number("lr", {name: (old, new) for name, (old, new) in values.items() if new != old})


def _nearest(value: float) -> float:
    """The number that a person would have written: the shortest decimal within rounding of `value`."""
    return next(
        short for digits in range(1, 18) if abs((short := float(f"{value:.{digits}g}")) - value) <= 4e-16 * abs(value)
    )


def _commonest(values: Iterable[Any]) -> Any:
    counted = Counter(_frozen(value) for value in values)
    value = counted.most_common(1)[0][0]
    return list(value) if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
