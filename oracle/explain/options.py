"""Which single decisions could explain a difference, and which of them the numbers leave standing.

`options` lists every knob value whose plan departs no later than the difference. `likely` keeps those that can act at
its site: everything that enters the site agrees, so only operations of the same window that write there can matter,
and what they would write can be calculated beforehand where it is a batch or a divided loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product, zip_longest
from math import inf, isfinite, prod
from typing import Any

from diffs.address import Address
from diffs.first import Difference
from diffs.trace import Trace
from oracle.replays import Reading
from reference_loop import operations as ops
from reference_loop.operations import Divisor, Operation
from reference_loop.plan import plan
from reference_loop.semantics import KNOBS

Option = tuple[str, str]
"""A knob and a value for it."""

Batch = tuple[int, int]
"""(epoch, index in the epoch)."""

# The operations that write what is seen at a place, given what entered the window.
WRITERS: dict[tuple[str, str], tuple[type[Operation], ...]] = {
    ("start", "hyperparameter"): (ops.Start,),
    ("batch", "batch_ids"): (ops.Reseed, ops.Fetch, ops.Forward, ops.Evaluate),
    ("batch", "input"): (ops.Reseed, ops.Fetch, ops.Forward, ops.Evaluate),
    ("forward", "rng"): (ops.Reseed, ops.Fetch, ops.Evaluate),
    ("forward", "mode"): (ops.TrainMode, ops.Evaluate),
    ("forward", "loss"): (ops.Start, ops.Forward, ops.TrainMode, ops.Evaluate, ops.Broadcast),
    ("backward", "objective"): (ops.Start, ops.Forward, ops.Backward, ops.Grow, ops.Rescale),
    ("backward", "gradient"): (
        ops.Start, ops.Forward, ops.Backward, ops.Clear, ops.Clip, ops.Evaluate, ops.Reduce,
    ),
    ("consume", "gradient"): (
        ops.Start, ops.Forward, ops.Backward, ops.Clear, ops.Clip, ops.Divide, ops.Unscale, ops.Reduce, ops.ClipShards,
    ),
    ("consume", "learning_rate"): (ops.Start, ops.Schedule),
    ("update", "parameter"): (ops.Update,),
    ("update", "optimizer_state"): (ops.Update,),
    ("update", "scaler"): (ops.Grow, ops.Rescale),
    ("schedule", "learning_rate"): (ops.Start, ops.Schedule),
    ("evaluate", "metric"): (ops.Evaluate,),
    ("evaluate", "rng"): (ops.Evaluate,),
    ("evaluate", "mode"): (ops.Evaluate,),
    ("evaluate", "gradient"): (ops.Evaluate, ops.Clear),
    ("log", "metric"): (ops.Log, ops.ShareLoss),
}  # fmt: skip
# Where the beginning of the run matters by the type that it has autocast compute in, and by nothing else.
COMPUTED = {("forward", "loss"), ("backward", "objective"), ("backward", "gradient"), ("consume", "gradient")}
# What is written from the beginning of the run on, not in one window alone.
CUMULATIVE = (ops.Start, ops.Reseed, ops.Schedule)
TOLERANCE = 0.02  # of a calculated ratio; half precision rounds a loss by up to 0.4 %


def options(reading: Reading, samples: int, through: int | None) -> list[Option]:
    """Every knob value other than the reading's whose plan departs from its plan by update `through`, or at all.

    Of several values that mean the same plan, the first stands for all. Style knobs come first, so that they win where
    a semantic one does no better.
    """
    known = _operations(reading, samples)
    found: list[Option] = []
    plans = [known]
    for style in (True, False):
        for name, knob in KNOBS.items():
            if name == "resume.missing" or (knob.effect == "style") != style:
                continue
            for value in knob.values:
                if value == reading.semantics.value(name):
                    continue
                other = _operations(reading.with_knob(name, value), samples)
                if _departs(known, other) <= (inf if through is None else through) and other not in plans:
                    plans.append(other)
                    found.append((name, value))
    return found


@dataclass(frozen=True)
class Scene:
    """A difference with what is known around it.

    site: the first difference of any kind. units: for each batch of the reference, its units by every way to count.
    """

    reading: Reading
    samples: int
    site: Difference
    reference: Trace
    candidate: Trace
    units: Mapping[Batch, Mapping[str, int]]

    def likely(self, choices: Sequence[tuple[Option, ...]]) -> list[tuple[Option, ...]]:
        """The choices that can act at the site, and there write what the candidate has."""
        known = _operations(self.reading, self.samples)
        kept = []
        for choice in choices:
            reading = self.reading
            for name, value in choice:
                reading = reading.with_knob(name, value)
            other = _operations(reading, self.samples)
            if self._acts(known, other) and self._fits(known, other, reading):
                kept.append(choice)
        return kept

    def acting(self, choices: Sequence[Option]) -> list[Option]:
        """The options that can act at the site, whatever they write there."""
        known = _operations(self.reading, self.samples)
        return [
            (name, value)
            for name, value in choices
            if self._acts(known, _operations(self.reading.with_knob(name, value), self.samples))
        ]

    def _acts(self, known: list[Operation], other: list[Operation]) -> bool:
        writers = WRITERS.get(self.site.address[2:4])
        if writers is None:
            return True
        ours, theirs = (_written(plan, self.site.address.update, writers) for plan in (known, other))
        return _apart(ours, theirs, self.site.address)

    def _fits(self, known: list[Operation], other: list[Operation], reading: Reading) -> bool:
        moment, kind = self.site.address[2:4]
        ours, theirs = self.reading.semantics.data, reading.semantics.data
        if moment == "batch" and (theirs.order, theirs.shard) == (ours.order, ours.shard):
            return self._same_batches(known, other)
        if (moment, kind) == ("backward", "objective"):
            return self._same_ratio(known, other)
        return True

    def _same_batches(self, known: list[Operation], other: list[Operation]) -> bool:
        """Whether the other plan trains in this update the batches that the candidate does, where they are known."""
        update = self.site.address.update
        names: dict[Any, set[Batch]] = {}
        for op in _forwards(known):
            names.setdefault(self._identity(self.reference, op.update, op.micro), set()).add((op.epoch, op.index))
        planned = {op.micro: (op.epoch, op.index) for op in _forwards(other) if op.update == update}
        seen = self.candidate.rows_at(("forward", "rng"))
        micros = {row.address.micro for row in seen if row.address[::5] == (update, self.site.address.rank)}
        if micros and planned.keys() != micros:
            return False
        trained = {micro: self._identity(self.candidate, update, micro) for micro in planned}
        if any(identity not in names for identity in trained.values()):  # drawn otherwise: names say nothing
            return True
        met = set().union(*names.values())  # of a batch that the reference never trained nothing is known
        return all(batch not in met or batch in names[trained[micro]] for micro, batch in planned.items())

    def _identity(self, trace: Trace, update: int, micro: int) -> bytes | None:
        """What tells a batch from others: its sample ids, where they are recorded."""
        row = trace.row((update, micro, "batch", "batch_ids", "id", self.site.address.rank))
        return row.digest if row else None

    def _same_ratio(self, known: list[Operation], other: list[Operation]) -> bool:
        """Whether the other plan would divide the loss as the candidate did, by calculation."""
        sides = [row.content if row else None for row in (self.site.reference, self.site.candidate)]
        if not all(isinstance(side, (int, float)) and isfinite(side) and side for side in sides):
            return True
        shares = [self._share(plan) for plan in (known, other)]
        if None in shares:
            return True
        expected, seen = shares[1] / shares[0], sides[1] / sides[0]  # type: ignore[operator]
        return abs(expected / seen - 1) <= TOLERANCE

    def _share(self, plan: list[Operation]) -> float | None:
        """The objective at the site as a multiple of the micro-batch's mean loss."""
        update, micro = self.site.address[:2]
        here = [
            op
            for op in plan
            if isinstance(op, (ops.Forward, ops.Backward)) and (op.update, op.micro) == (update, micro)
        ]
        forward = next((op for op in here if isinstance(op, ops.Forward)), None)
        backward = next((op for op in here if isinstance(op, ops.Backward)), None)
        if forward is None or backward is None:
            return None
        counts = self.units.get((forward.epoch, forward.index))
        numbers = self._numbers(backward.divisor)
        if counts is None or numbers is None:
            return None
        share = counts["task"] if forward.reduction == "sum" else counts.get(forward.weighed, 1)
        return share if backward.divisor.after_backward else share / prod(numbers)

    def _numbers(self, divisor: Divisor) -> list[int] | None:
        if not divisor.by_units:
            return divisor.numbers(1)
        try:
            total = sum(self.units[batch][divisor.units] for batch in divisor.batches)
        except KeyError:
            return None
        return divisor.numbers(total) if total else None


# What decides a value together with all that enters its window; any operation decides what is not named here.
DECIDERS: dict[tuple[str, str], tuple[type[Operation], ...]] = {
    ("batch", "batch_ids"): (ops.Reseed, ops.Fetch, ops.Forward, ops.Evaluate, ops.TrainMode),
    ("batch", "input"): (ops.Reseed, ops.Fetch, ops.Forward, ops.Evaluate, ops.TrainMode),
    ("consume", "gradient"): (
        ops.Start, ops.Fetch, ops.Forward, ops.Backward, ops.Clear, ops.Clip, ops.Divide, ops.Unscale, ops.Evaluate,
        ops.TrainMode, ops.Reduce, ops.ClipShards, ops.Broadcast, ops.Reseed,
    ),
    ("consume", "learning_rate"): (ops.Start, ops.Schedule),
    ("schedule", "learning_rate"): (ops.Start, ops.Schedule),
    ("update", "parameter"): (ops.Update,),
    ("update", "optimizer_state"): (ops.Update,),
    ("update", "scaler"): (ops.Start, ops.Grow, ops.Rescale),
    ("evaluate", "metric"): (ops.Evaluate,),
    ("log", "metric"): (ops.Log, ops.ShareLoss),
}  # fmt: skip


def acts_within(one: Reading, other: Reading, samples: int, place: Address) -> bool:
    """Whether two readings do otherwise in the window of an address, where its value is decided."""
    deciders = DECIDERS.get((place.moment, place.kind), (Operation,))
    ours, theirs = (_written(_operations(reading, samples), place.update, deciders) for reading in (one, other))
    return _apart(ours, theirs, place)


def pairs(single: list[Option]) -> Iterator[tuple[Option, ...]]:
    """Two options at once, of different knobs."""
    return ((a, b) for a, b in combinations(single, 2) if a[0] != b[0])


def by_units(reading: Reading) -> Iterator[tuple[Option, ...]]:
    """Three options at once and more, all of which say what a loss that is divided by units is made of.

    They mean something together alone: who multiplies means by units has units to count, and divides by them later.
    """
    asked = reading.semantics
    knobs = tuple(f"accumulation.{name}" for name in ("normalise", "counted", "sum", "units", "divide"))
    leaks = asked.accumulation.tail == "leak"
    counted = ("since_update",) if leaks else (asked.accumulation.counted,)
    values = (("unit_mean",), counted, *(KNOBS[name].values for name in knobs[2:]))
    for combined in product(*values):
        changed = tuple((n, v) for n, v in zip(knobs, combined, strict=True) if v != asked.value(n))
        if len(changed) > 2:
            yield changed


def _operations(reading: Reading, samples: int) -> list[Operation]:
    return list(plan(reading.recipe, reading.semantics, samples))


def _forwards(plan: list[Operation]) -> Iterator[ops.Forward]:
    return (operation for operation in plan if isinstance(operation, ops.Forward))


def _departs(known: list[Operation], other: list[Operation]) -> float:
    """The update in which two plans begin to differ; infinite if they are one."""
    update = -1
    for ours, theirs in zip_longest(known, other):
        if ours != theirs:
            return update
        update = max(update, getattr(ours, "update", -1))
    return inf


def _apart(ours: list[Operation], theirs: list[Operation], place: Address) -> bool:
    """Whether operations that write a place differ in what matters there."""
    if place[2:4] in COMPUTED:
        return list(map(_computes, ours)) != list(map(_computes, theirs))
    return ours != theirs


def _computes(operation: Operation) -> Operation | str:
    return operation.dtype if isinstance(operation, ops.Start) else operation


def _written(plan: list[Operation], update: int, writers: tuple[type[Operation], ...]) -> list[Operation]:
    """The operations of some types between the previous update and the opening of the window after this one."""
    found = []
    window = 0
    for operation in plan:
        if window > update and isinstance(operation, ops.Fetch):
            break
        if isinstance(operation, writers) and (window >= update or isinstance(operation, CUMULATIVE)):
            found.append(operation)
        if isinstance(operation, ops.Update):
            window = operation.update + 1
    return found
