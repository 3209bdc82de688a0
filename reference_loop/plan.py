"""The whole training loop on one page: what a recipe means under given semantics, as a list of operations.

A plan is made before anything is trained, from numbers alone. This is the only place that reads the knobs that decide
*when* something happens; the operations, each a few lines of torch, are in `operations.py`, and `interpreter.py` runs
them one after another. `plain.py` is the same loop, written by hand, for the default semantics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from reference_loop.operations import (
    Accumulated,
    Backward,
    Broadcast,
    Checkpoint,
    Clear,
    Clip,
    ClipShards,
    Cursor,
    Divide,
    Divisor,
    End,
    Evaluate,
    Fetch,
    Forward,
    Gather,
    Grow,
    Log,
    NextRate,
    Operation,
    Reduce,
    Rescale,
    Reseed,
    Restore,
    Schedule,
    ShareLoss,
    Start,
    TrainMode,
    Unscale,
    Update,
)
from reference_loop.recipe import Clip as ClipTable
from reference_loop.recipe import Recipe
from reference_loop.semantics import Semantics
from reference_loop.shards import share

DECIMALS: dict[str, int | None] = {"all": None, "four_decimals": 4}
"""How many decimals a reported loss keeps, by the values of `log.digits`."""


@dataclass(frozen=True)
class Window:
    """The micro-batches between two updates; `cut` marks one that its epoch or the run cut short."""

    batches: tuple[tuple[int, int], ...]  # (epoch, index in the epoch)
    steps: bool = True
    clears: bool = False
    cut: bool = False


def plan(recipe: Recipe, s: Semantics, samples: int, resume: Cursor | None = None) -> Iterator[Operation]:
    """The operations that train `recipe` on `samples` samples under semantics `s`, in order: of each rank, if several.

    resume: where a checkpoint was written; the plan then goes on from there, with what `resume.missing` leaves.
    """
    count = batches_trained(recipe, s, samples)
    total, last = planned_updates(recipe, s, samples), _last_update(recipe, s, samples)
    missing = frozenset(s.resume.missing.split(","))
    at = _resumed(resume, count, missing) if resume else Cursor(0, 0, 0)
    update, micro, trained, fetched = at.updates, at.micro, at.micro, (at.epoch, at.index - 1)
    several, order = recipe.parallel.ranks > 1, _order(recipe, s)
    shard = s.data.shard if several else ""
    course = _course(recipe, s, samples, total)
    yield Start(s.optimizer.decay_set, recipe.clip, s.clip.kind, *course[:2], _dtype(recipe, s), *course[2:])
    if several and s.rng.ranks == "offset":
        yield Reseed(recipe.seed)
    if resume:
        yield Restore(at, missing, order=order, draws=s.rng.loader_draws)
    for window in windows(recipe, s, samples, at):
        if update >= last:
            break
        for position, (epoch, index) in enumerate(window.batches):
            if update >= last:  # a window of many updates
                break
            divisor = _divisor(recipe, s, window, position, count)
            if trained:  # before the run was interrupted
                trained -= 1
                continue
            if index == 0 and s.model.mode == "train":
                yield TrainMode(epoch)
            for batch in _needed(recipe, s, window, position, count, divisor):
                if batch > fetched:
                    yield Fetch(*batch, order=order, draws=s.rng.loader_draws, shard=shard)
                    fetched = batch
            if divisor.ranks > 1:
                yield Gather(divisor.batches)
            if several and s.reduce.buffers == "broadcast" and (position == 0 or s.reduce.moment == "micro"):
                yield Broadcast()
            loss_cast, weighed = _loss_cast(recipe, s), divisor.units if divisor.weighed else ""
            yield Forward(update, micro, epoch, index, divisor.reduction, loss_cast, weighed)
            if s.gradient.clear == "before_backward":
                yield Clear()
            yield Backward(update, micro, divisor)
            ends_window, ends_epoch = position == len(window.batches) - 1, index == count - 1
            steps = window.steps if ends_window else s.accumulation.cadence == "micro"
            if several and _reduces(s, position, steps):
                if s.clip.moment == "local" and recipe.clip:
                    yield _clip(recipe.clip, s)
                yield Reduce(s.reduce.scale)
            yield Accumulated(update, micro)
            if recipe.clip and s.clip.moment == "micro":
                yield _clip(recipe.clip, s)
            if _scales(recipe, s) and s.scaler.unit == "micro":
                yield Grow()

            if steps:
                yield from _update(recipe, s, update, divisor)
            elif s.schedule.cadence == "micro" or course[2] > 1:
                yield Schedule()
            if ends_epoch and s.schedule.cadence == "epoch":
                yield Schedule()
            micro += 1
            if steps:
                yield from _aftermath(recipe, s, update)
                update, micro = update + 1, 0
            elif ends_window and window.clears:
                yield Clear()
    yield End(update)


def _update(recipe: Recipe, s: Semantics, update: int, divisor: Divisor) -> Iterator[Operation]:
    """One update, from the accumulated gradient to the next learning rate."""
    if divisor.after_backward:
        yield Divide(divisor)
    whole: Operation | None = _clip(recipe.clip, s) if recipe.clip else None
    if recipe.clip and recipe.parallel.ranks > 1 and s.reduce.norm == "shard":
        whole = ClipShards(recipe.clip, s.clip.kind)
    if whole and s.clip.moment == "scaled":
        yield whole
    if _scales(recipe, s):
        yield Unscale()
    if whole and s.clip.moment == "unscaled":
        yield whole
    moves = {"epoch": 0, "rank": recipe.parallel.ranks}.get(s.schedule.cadence, 1)
    if s.schedule.order == "before_update":
        yield from [Schedule()] * moves
    yield _optimize(recipe, s, update)
    if _scales(recipe, s):
        yield Rescale(update, counts=s.scaler.unit == "update")
    if s.schedule.order == "after_update":
        yield from [Schedule(on_skip=s.schedule.on_skip)] * moves
    if s.gradient.clear == "after_update":
        yield Clear()


def _clip(table: ClipTable, s: Semantics) -> Clip:
    """The clip; what one kind or formula does not have says nothing of it."""
    if s.clip.kind == "value":
        return Clip(table, "value")
    return Clip(table, "norm", s.clip.formula, s.clip.kernel if s.clip.formula == "guarded" else "norms")


def _optimize(recipe: Recipe, s: Semantics, update: int) -> Update:
    """The optimizer's step; what one of the optimizers does not have says nothing of it."""
    o, sgd, moves = s.optimizer, recipe.optimizer.name == "sgd", recipe.schedule is not None
    known = {"averages": not sgd, "steps": sgd and not moves}.get(o.kernel, True)
    return Update(
        update,
        o.decay,
        o.kernel if known else "loop",
        o.epsilon if not sgd else "after_correction",
        o.velocity if sgd and moves else "gradient",
    )


def _course(recipe: Recipe, s: Semantics, samples: int, total: int) -> tuple[float, str, int, int]:
    """The schedule's total, formula, parts of a step, and micro-batches of an epoch where they matter."""
    k, count = recipe.accumulation, batches_trained(recipe, s, samples)
    parts = k if s.schedule.cadence == "fraction" else 1
    whole: float = total
    if parts > 1:
        whole = recipe.updates if recipe.updates is not None else (recipe.epochs or 0) * count / k
    return whole, s.schedule.formula, parts, count if s.schedule.formula == "fraction" else 0


def _aftermath(recipe: Recipe, s: Semantics, update: int) -> Iterator[Operation]:
    """What happens between an update and the next window."""
    if recipe.evaluate and (update + 1) % recipe.evaluate.every == 0:
        first = recipe.parallel.ranks > 1 and s.evaluate.ranks == "first"
        yield Evaluate(update, s.evaluate.mode, s.evaluate.rng, s.evaluate.gradients, s.metric.aggregate, first)
    if recipe.log and (update + 1) % recipe.log.every == 0:
        if recipe.parallel.ranks > 1 and s.log.ranks == "mean":
            yield ShareLoss()
        yield Log(update, s.log.loss, recipe.accumulation, DECIMALS[s.log.digits])
    yield NextRate(update)
    if recipe.checkpoint and (update + 1) % recipe.checkpoint.every == 0:
        yield Checkpoint(update)


def windows(recipe: Recipe, s: Semantics, samples: int, at: Cursor | None = None) -> Iterator[Window]:
    """The accumulation windows of a run: endless if the recipe counts updates, else as many as its epochs hold."""
    count, tail = batches_trained(recipe, s, samples), s.accumulation.tail
    at = at or Cursor(0, 0, 0)
    held = tuple(_before(at, count, back) for back in range(at.micro, 0, -1))
    for epoch in itertools.count(at.epoch) if recipe.epochs is None else range(at.epoch, recipe.epochs):
        for index in range(at.index if epoch == at.epoch else 0, count):
            held += ((epoch, index),)
            if len(held) == recipe.accumulation:
                yield Window(held)
                held = ()
        if held and not tail.startswith("carry"):
            yield Window(held, steps=tail == "flush", clears=tail == "drop", cut=True)
            held = ()
        if recipe.updates is not None and not can_step(recipe, s, samples):
            return
    if held:
        yield Window(held, steps=tail == "carry", cut=True)


def _before(at: Cursor, count: int, back: int) -> tuple[int, int]:
    """The batch that was trained `back` batches before a place, as (epoch, index)."""
    epochs, index = divmod(at.epoch * count + at.index - back, count)
    return epochs, index


def batches_per_epoch(recipe: Recipe, s: Semantics, samples: int) -> int:
    """Micro-batches in one epoch, of each rank."""
    return _batches(recipe, s, _share(recipe, s, samples))


def _batches(recipe: Recipe, s: Semantics, samples: int) -> int:
    whole, rest = divmod(samples, recipe.batch_size)
    return whole + (rest > 0 and s.data.tail == "keep")


def _share(recipe: Recipe, s: Semantics, samples: int) -> int:
    return share(samples, recipe, s.data.shard, s.data.tail == "drop")


def batches_trained(recipe: Recipe, s: Semantics, samples: int) -> int:
    """Micro-batches of one epoch that are trained, as `accumulation.tail_count` counts the last window's."""
    count, k = batches_per_epoch(recipe, s, samples), recipe.accumulation
    if s.accumulation.tail_count == "batches":
        return count
    return count - count % k + min(count % k, _share(recipe, s, samples) % k or k)


def planned_updates(recipe: Recipe, s: Semantics, samples: int) -> int:
    """The total number of updates that the schedule is told, as `schedule.horizon` counts it."""
    count, k = batches_per_epoch(recipe, s, samples), recipe.accumulation
    if recipe.updates is not None:
        return recipe.updates * (k if s.schedule.horizon == "micro" else 1)
    per_epoch = {
        "ceil": -(-count // k),
        "floor": max(1, count // k),
        "micro": count,
        "unsharded": -(-_batches(recipe, s, samples) // k),
    }[s.schedule.horizon]
    return (recipe.epochs or 0) * per_epoch


def updates_per_epoch(recipe: Recipe, s: Semantics, samples: int) -> int:
    """Updates of one epoch, its incomplete window included."""
    return -(-batches_per_epoch(recipe, s, samples) // recipe.accumulation)


def _resumed(saved: Cursor, count: int, missing: frozenset[str]) -> Cursor:
    """Where a resumed run goes on: at the next epoch if the saved one was over; without a cursor, at its beginning."""
    epoch, index = (saved.epoch + 1, 0) if saved.index >= count else (saved.epoch, saved.index)
    return Cursor(
        updates=0 if "counter" in missing else saved.updates,
        epoch=epoch,
        index=0 if "cursor" in missing else index,
        micro=0 if "cursor" in missing else saved.micro,
    )


def can_step(recipe: Recipe, s: Semantics, samples: int) -> bool:
    """Whether the run has any update: an epoch shorter than a window has none if its tail is dropped or leaks."""
    count = batches_trained(recipe, s, samples)
    short = count < recipe.accumulation and s.accumulation.tail in ("drop", "leak")
    return count > 0 and not (short and s.accumulation.cadence == "window")


def _last_update(recipe: Recipe, s: Semantics, samples: int) -> float:
    """How many updates end the run; infinite if its epochs do."""
    if recipe.updates is not None:
        return recipe.updates
    return planned_updates(recipe, s, samples) if s.schedule.stop == "horizon" else math.inf


def _divisor(recipe: Recipe, s: Semantics, window: Window, position: int, count: int) -> Divisor:
    """What the window's micro-batch at `position` is divided by, as far as numbers alone can tell.

    count: micro-batches of an epoch.
    """
    actual = s.accumulation.tail_divisor == "actual" and window.steps
    micros = len(window.batches) if actual else recipe.accumulation
    divide: str = s.accumulation.divide
    by_units = s.accumulation.normalise.startswith("unit")
    ranks = recipe.parallel.ranks if by_units and s.reduce.units != "own" else 1
    if not by_units and micros & (micros - 1) == 0:  # a power of two has an exact reciprocal
        divide = divide.removesuffix("_reciprocal")
    return Divisor(
        normalise=s.accumulation.normalise,
        micros=micros,
        units=s.accumulation.units if by_units else "task",
        batches=_counted(recipe, s, window, position, count) if by_units else window.batches,
        divide=divide,
        ranks=ranks,
        averaged=ranks > 1 and s.reduce.units == "all_averaged",
        weighed=by_units and s.accumulation.sum == "weighed_means",
    )


def _counted(recipe: Recipe, s: Semantics, window: Window, position: int, count: int) -> tuple[tuple[int, int], ...]:
    """The micro-batches whose units divide the one at `position`: its window's, or those of its chunk of the epoch."""
    if s.accumulation.counted == "window":
        return window.batches
    if s.accumulation.counted == "since_update":
        return (*_leaked(recipe, s, window, count), *window.batches)
    return _chunk(recipe, *window.batches[position], count)


def _leaked(recipe: Recipe, s: Semantics, window: Window, count: int) -> tuple[tuple[int, int], ...]:
    """The micro-batches that no update took before a window, and that are in its gradient."""
    (epoch, index), left = window.batches[0], count % recipe.accumulation
    if s.accumulation.tail != "leak" or index or not epoch:
        return ()
    return tuple((epoch - 1, at) for at in range(count - left, count))


def _needed(
    recipe: Recipe, s: Semantics, window: Window, position: int, count: int, divisor: Divisor
) -> list[tuple[int, int]]:
    """The batches that must have been fetched before the window's micro-batch at `position` is trained, in order.

    count: micro-batches of an epoch.
    """
    (epoch, index), ahead = window.batches[position], s.data.lookahead
    needed = {(epoch, index)}
    if divisor.by_units:
        needed.update(divisor.batches)
    if ahead in ("window", "window_one"):
        needed.update(_chunk(recipe, epoch, index, count))
    if ahead in ("one", "window_one"):
        last_epoch, last = max(needed)
        needed.update([(last_epoch, last + 1)] if last + 1 < count else [])
    return sorted(needed)


def _reduces(s: Semantics, position: int, steps: bool) -> bool:
    """Whether ranks are reduced behind the backward of a window's micro-batch."""
    if s.reduce.micros == "none":
        return False
    if s.reduce.micros == "first":
        return position == 0
    return steps or s.reduce.moment == "micro"


def _order(recipe: Recipe, s: Semantics) -> str:
    """The order of samples; under seed 0 it is all the same whether a generator's seed has the recipe's in it."""
    unseeded = s.data.order == "unseeded_epoch" and recipe.seed == 0
    return "seeded_epoch" if unseeded else s.data.order


def _chunk(recipe: Recipe, epoch: int, index: int, count: int) -> tuple[tuple[int, int], ...]:
    """The batches that stand with one when an epoch is cut into as many as a window has, from its first on."""
    first = index - index % recipe.accumulation
    return tuple((epoch, at) for at in range(first, min(first + recipe.accumulation, count)))


def _dtype(recipe: Recipe, s: Semantics) -> str:
    """The type that autocast computes in."""
    return recipe.precision.dtype if s.precision.compute == "as_asked" else s.precision.compute


def _loss_cast(recipe: Recipe, s: Semantics) -> str:
    """Where the loss is computed; without autocast it is all the same."""
    return "inside_autocast" if _dtype(recipe, s) == "float32" else s.precision.loss


def _scales(recipe: Recipe, s: Semantics) -> bool:
    return _dtype(recipe, s) == "float16"
