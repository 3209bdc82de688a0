"""The operations that a plan is made of. Each is data, and a few lines of torch that do it.

`do(state)` yields (address, live value) at every point that another run could be compared at, in causal order. The
interpreter may put another value in its place before the generator goes on; that is how a value is pinned.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from reference_loop import checkpoint, clip, optimizers, randomness
from reference_loop.moments import Address
from reference_loop.recipe import Clip as ClipTable
from reference_loop.schedules import Course
from reference_loop.task import TaskError, count_samples, count_units

if TYPE_CHECKING:
    from reference_loop.state import State
    from reference_loop.world import World

Observation = tuple[Address, Any]


@dataclass(frozen=True)
class Operation(ABC):
    """One step of a plan."""

    @abstractmethod
    def do(self, state: State) -> Iterator[Observation]:
        """Carry the step out on `state`, yielding what can be observed on the way."""


@dataclass(frozen=True)
class Divisor:
    """What a window's gradient is divided by; counts that depend on data stay symbolic.

    micros: the number of micro-batches to divide by.
    batches: (epoch, index) of the window's micro-batches, whose units are counted.
    ranks: over how many ranks units are counted; the ranks' mean is undone by their number, unless `averaged`.
    weighed: whether the loss is the micro-batch's mean, multiplied by its units.
    """

    normalise: str
    micros: int
    units: str
    batches: tuple[tuple[int, int], ...]
    divide: str
    ranks: int = 1
    averaged: bool = False
    weighed: bool = False

    @property
    def by_units(self) -> bool:
        """Whether the divisor counts units."""
        return self.normalise.startswith("unit")

    @property
    def reduction(self) -> str:
        """The reduction that the task's loss is asked for."""
        return "sum" if self.by_units and not self.weighed else "mean"

    @property
    def after_backward(self) -> bool:
        """Whether the accumulated gradient is divided in place of the loss."""
        return self.divide.startswith("gradient")

    def numbers(self, units: int) -> list[int]:
        """What to divide by, one number after another.

        units: of the whole window; only a summed loss is divided by them.
        """
        return {
            "sum": [],
            "micro_mean": [self.micros],
            "twice": [self.micros, self.micros],
            "unit_mean": [units],
            "unit_mean_twice": [units, self.micros],
        }[self.normalise]

    def apply(self, value: torch.Tensor, state: State) -> torch.Tensor:
        """`value` divided, as a new tensor."""
        counts = state.units if self.ranks == 1 else state.all_units
        units = sum(_units(self.units, state, counts[batch]) for batch in self.batches) if self.by_units else 1
        for number in self.numbers(units):
            value = value * (1.0 / number) if self.divide.endswith("reciprocal") else value / number
        return value if self.ranks == 1 or self.averaged else value * self.ranks


def _units(which: str, state: State, counts: dict[str, int]) -> int:
    if which not in counts:
        raise TaskError(f"task {state.task.name!r} has no `labels` in its batches, so they cannot be counted")
    return counts[which]


def unit_counts(state: State, batch: dict[str, Any]) -> dict[str, int]:
    """Every way to count a batch's units, by the values of `accumulation.units`."""
    counts = {"task": count_units(state.task, batch), "samples": count_samples(batch)}
    if isinstance(batch.get("labels"), torch.Tensor):
        counts["labels"] = int((batch["labels"] != -100).sum())
    return counts


@dataclass(frozen=True)
class Start(Operation):
    """Everything is built: parameters, optimizer settings, first learning rate.

    total, formula, parts, epoch: of the schedule's course.
    """

    decay_set: str
    clip: ClipTable | None
    clip_kind: str
    total: float
    formula: str
    dtype: str
    parts: int = 1
    epoch: int = 0

    def do(self, state: State) -> Iterator[Observation]:
        state.begin(self.decay_set, Course(self.total, self.formula, self.parts, self.epoch), self.dtype)
        for name, parameter in state.parameters.items():
            yield Address(-1, -1, "start", "parameter", name), parameter.detach()
        for name, buffer in state.buffers.items():
            yield Address(-1, -1, "start", "buffer", name), buffer
        for name, parameter in state.parameters.items():
            if parameter.requires_grad:
                for key, value in state.hyper[name].items():
                    yield Address(-1, -1, "start", "hyperparameter", f"{name}.{key}"), value
                yield Address(-1, -1, "start", "hyperparameter", f"{name}.optimized"), name in state.optimized
        limit = self.clip.threshold if self.clip is not None and self.clip.threshold != inf else None
        for kind in ("norm", "value"):
            shown = limit if kind == self.clip_kind else None
            yield Address(-1, -1, "start", "hyperparameter", f"max_{kind}"), shown


@dataclass(frozen=True)
class Cursor:
    """A place between two micro-batches: updates done, the next batch as (epoch, index), and how many batches of the
    window are trained already: 0 between two updates."""

    updates: int
    epoch: int
    index: int
    micro: int = 0


@dataclass(frozen=True)
class Reseed(Operation):
    """Each rank seeds its generators with its number added to the seed."""

    seed: int

    def do(self, state: State) -> Iterator[Observation]:
        randomness.seed(self.seed + state.loader.rank)
        yield from ()


@dataclass(frozen=True)
class Restore(Operation):
    """Take up a checkpoint: all its parts but the missing ones, and the data from `at` on."""

    at: Cursor
    missing: frozenset[str]
    order: str
    draws: str

    def do(self, state: State) -> Iterator[Observation]:
        saved = checkpoint.load(state.resume_from)
        checkpoint.restore(state, saved, self.missing)
        if self.at.index > 0:
            known = None if "order" in self.missing else saved["order"]["epoch"]
            state.loader.start(self.at.epoch, self.order, self.draws, skip=self.at.index, known=known)
        if "rng" not in self.missing:
            randomness.restore(saved["rng"])
        yield from ()


@dataclass(frozen=True)
class TrainMode(Operation):
    """An epoch begins in train mode."""

    epoch: int

    def do(self, state: State) -> Iterator[Observation]:
        state.model.train()
        yield from ()


@dataclass(frozen=True)
class Fetch(Operation):
    """Take one batch from the loader; the epoch's first one starts the loader.

    shard: how samples are dealt to ranks; "" for one rank.
    """

    epoch: int
    index: int
    order: str
    draws: str
    shard: str = ""

    def do(self, state: State) -> Iterator[Observation]:
        batch = state.loader.fetch(self.epoch, self.index, self.order, self.draws, self.shard)
        state.batches[self.epoch, self.index] = batch
        state.units[self.epoch, self.index] = unit_counts(state, batch)
        yield from ()


@dataclass(frozen=True)
class Forward(Operation):
    """Compute the task's loss on a batch.

    weighed: the units by which a mean is multiplied on its way; "" where it is not.
    """

    update: int
    micro: int
    epoch: int
    index: int
    reduction: str
    loss_cast: str
    weighed: str = ""

    def do(self, state: State) -> Iterator[Observation]:
        at = (self.update, self.micro)
        batch = state.batches.pop((self.epoch, self.index))
        if state.micros == 0:
            for name, value in randomness.states().items():
                yield Address(-1, -1, "start", "rng", name), value
            if state.scaler:
                for name, number in {**state.scaler.state, **state.scaler.arguments}.items():
                    yield Address(-1, -1, "start", "scaler", name), number
        state.micros += 1
        state.cursor = (self.epoch, self.index + 1)
        if "id" in batch:
            ids = batch["id"]
            yield Address(*at, "batch", "batch_ids", "id"), ids.tolist() if isinstance(ids, torch.Tensor) else list(ids)
        for name, value in randomness.states().items():
            yield Address(*at, "forward", "rng", name), value
        yield Address(*at, "forward", "mode", ""), state.mode()
        loss, inputs = state.compute_loss(batch, self.reduction, self.loss_cast)
        for name, value in inputs.items():
            yield Address(*at, "batch", "input", name), value
        units = state.units[self.epoch, self.index]
        if self.weighed:
            weight = _units(self.weighed, state, units)
            state.loss = loss * weight
            state.losses.append((state.loss.detach(), weight, "sum"))
        else:
            state.loss = loss
            state.losses.append((loss.detach(), units["task"], self.reduction))
        if state.recipe.log:
            share = units["task"] if self.reduction == "sum" else 1
            state.course.append((self.epoch, float(loss.detach()) / share, units["samples"]))
        yield Address(*at, "forward", "loss", ""), loss.detach()


@dataclass(frozen=True)
class Backward(Operation):
    """Divide and scale the loss, and add its gradient to what is accumulated."""

    update: int
    micro: int
    divisor: Divisor

    def do(self, state: State) -> Iterator[Observation]:
        at = (self.update, self.micro)
        assert state.loss is not None  # a Forward came before
        objective = state.loss if self.divisor.after_backward else self.divisor.apply(state.loss, state)
        if state.scaler:
            objective = state.scaler.scale(objective)
        yield Address(*at, "backward", "objective", ""), objective.detach()
        objective.backward()  # type: ignore[no-untyped-call]
        state.loss = None


@dataclass(frozen=True)
class Accumulated(Operation):
    """Look at the gradient that is accumulated so far."""

    update: int
    micro: int

    def do(self, state: State) -> Iterator[Observation]:
        at = (self.update, self.micro)
        for name, gradient in state.gradients().items():
            if gradient.layout is not torch.strided:
                raise TaskError(
                    f"task {state.task.name!r}: the gradient of {name} is sparse, and the reference trains with dense "
                    "ones: build the module with sparse=False"
                )
            yield Address(*at, "backward", "gradient", name), gradient


@dataclass(frozen=True)
class Clear(Operation):
    """Forget the accumulated gradient."""

    def do(self, state: State) -> Iterator[Observation]:
        state.clear_gradients()
        yield from ()


@dataclass(frozen=True)
class Divide(Operation):
    """Divide the accumulated gradient."""

    divisor: Divisor

    def do(self, state: State) -> Iterator[Observation]:
        for gradient in state.gradients().values():
            gradient.copy_(self.divisor.apply(gradient, state))
        yield from ()


@dataclass(frozen=True)
class Unscale(Operation):
    """Undo the loss scale on the gradient, and see whether it overflowed."""

    def do(self, state: State) -> Iterator[Observation]:
        assert state.scaler is not None  # plans unscale only where a scaler is
        state.found_inf = state.scaler.unscale(list(state.gradients().values()))
        yield from ()


@dataclass(frozen=True)
class Clip(Operation):
    """Limit the gradient, by its norm or element by element."""

    table: ClipTable
    kind: str
    formula: str = "guarded"
    kernel: str = "norms"

    def do(self, state: State) -> Iterator[Observation]:
        gradients = list(state.gradients().values())
        if self.kind == "norm" and self.formula == "guarded":
            clip.clip_norm(gradients, self.table.threshold, self.kernel)
        elif self.kind == "norm":
            clip.clip_norm_exactly(gradients, self.table.threshold)
        else:
            clip.clip_value(gradients, self.table.threshold)
        yield from ()


@dataclass(frozen=True)
class Update(Operation):
    """The optimizer takes the gradient and moves the parameters, unless the scaler saw an overflow."""

    update: int
    decay: str
    kernel: str
    epsilon: str = "after_correction"
    velocity: str = "gradient"

    def do(self, state: State) -> Iterator[Observation]:
        u = self.update
        for name in state.optimized:
            gradient = state.parameters[name].grad
            shown = torch.zeros_like(state.parameters[name]) if gradient is None else gradient
            yield Address(u, -1, "consume", "gradient", name), shown
        for name in state.optimized:
            yield Address(u, -1, "consume", "learning_rate", name), state.lr[name]
        if state.scaler:
            for name, value in state.scaler.state.items():
                yield Address(u, -1, "consume", "scaler", name), value
        state.skipped = state.found_inf
        state.found_inf = False
        if not state.skipped:
            self._step(state)
        for name, parameter in state.parameters.items():
            yield Address(u, -1, "update", "parameter", name), parameter.detach()
        for name, buffer in state.buffers.items():
            yield Address(u, -1, "update", "buffer", name), buffer
        for name in state.optimized:
            for key, value in state.optimizer_state[name].items():
                if key == optimizers.HIDDEN:
                    continue
                yield Address(u, -1, "update", "optimizer_state", f"{name}.{key}"), value
        for name, value in state.ema.items():
            yield Address(u, -1, "update", "ema", name), value
        for name, value in randomness.states().items():
            yield Address(u, -1, "update", "rng", name), value

    def _step(self, state: State) -> None:
        with torch.no_grad():
            for name in state.optimized:
                parameter = state.parameters[name]
                if parameter.grad is not None:
                    optimizers.step(
                        state.recipe.optimizer.name,
                        parameter,
                        parameter.grad,
                        state.optimizer_state[name],
                        lr=state.lr[name],
                        decoupled=self.decay == "decoupled",
                        kernel=self.kernel,
                        epsilon=self.epsilon,
                        velocity=self.velocity,
                        **state.hyper[name],
                    )
        state.average()


@dataclass(frozen=True)
class Grow(Operation):
    """The scaler counts a micro-batch, whatever its gradient is, and grows when it counted enough."""

    def do(self, state: State) -> Iterator[Observation]:
        assert state.scaler is not None  # plans grow only where a scaler is
        state.scaler.update(False)
        yield from ()


@dataclass(frozen=True)
class Rescale(Operation):
    """The scaler grows or backs off.

    counts: whether this update counts towards growth; otherwise its micro-batches did already.
    """

    update: int
    counts: bool = True

    def do(self, state: State) -> Iterator[Observation]:
        assert state.scaler is not None  # plans rescale only where a scaler is
        if self.counts or state.skipped:
            state.scaler.update(state.skipped)
        for name, value in state.scaler.state.items():
            yield Address(self.update, -1, "update", "scaler", name), value


@dataclass(frozen=True)
class Schedule(Operation):
    """The learning rate moves on by one; it stays where the scaler skipped the update and the schedule holds."""

    on_skip: str = "advance"

    def do(self, state: State) -> Iterator[Observation]:
        if not (state.skipped and self.on_skip == "hold"):
            state.advance_schedule()
        yield from ()


@dataclass(frozen=True)
class NextRate(Operation):
    """Note the rate that the next window opens with."""

    update: int

    def do(self, state: State) -> Iterator[Observation]:
        state.losses.clear()
        state.shared_losses = []
        for name in state.optimized:
            yield Address(self.update, -1, "schedule", "learning_rate", name), state.lr[name]


@dataclass(frozen=True)
class Evaluate(Operation):
    """Compute the task's metrics on its evaluation data.

    first: on the first rank alone.
    """

    update: int
    mode: str
    rng: str
    gradients: str
    aggregate: str
    first: bool = False

    def do(self, state: State) -> Iterator[Observation]:
        if self.first and state.loader.rank > 0:
            return
        if self.gradients == "cleared":
            state.clear_gradients()
        before = randomness.snapshot()
        metrics = state.evaluate(eval_mode=self.mode != "stays_in_train", restore=self.mode == "restored",
                                 by_batch=self.aggregate == "batch_mean")  # fmt: skip
        if self.rng == "preserved":
            randomness.restore(before)
        for name, metric in metrics.items():
            yield Address(self.update, -1, "evaluate", "metric", name), metric
        for name, value in randomness.states().items():
            yield Address(self.update, -1, "evaluate", "rng", name), value
        yield Address(self.update, -1, "evaluate", "mode", ""), state.mode()
        for name, gradient in state.gradients().items():
            yield Address(self.update, -1, "evaluate", "gradient", name), gradient


@dataclass(frozen=True)
class Log(Operation):
    """Report the loss of the window just finished."""

    update: int
    loss: str
    accumulation: int
    decimals: int | None = None

    def do(self, state: State) -> Iterator[Observation]:
        value = self._value(state)
        shown = value if self.decimals is None else round(value, self.decimals)
        yield Address(self.update, -1, "log", "metric", "loss"), shown

    def _value(self, state: State) -> float:
        if self.loss in COURSES:
            return COURSES[self.loss](state.course)
        ranks = state.shared_losses or [state.losses]
        if self.loss in ("window_mean", "divided") and state.losses[-1][2] == "sum":
            ranks = [[loss for rank in ranks for loss in rank]]
        return sum(map(self._reported, ranks)) / len(ranks)

    def _reported(self, losses: list[tuple[torch.Tensor, int, str]]) -> float:
        values = [float(loss) for loss, _, _ in losses]
        if self.loss in ("last_micro", "last_micro_divided"):
            _, units, reduction = losses[-1]
            last = values[-1] / units if reduction == "sum" else values[-1]
            return last / self.accumulation if self.loss == "last_micro_divided" else last
        if self.loss == "window_sum":
            return sum(values)
        summed = losses[-1][2] == "sum"
        held = self.accumulation if self.loss == "configured_mean" else len(values)
        mean = sum(values) / (sum(units for _, units, _ in losses) if summed else held)
        return mean / self.accumulation if self.loss == "divided" else mean


def _smoothed(course: list[tuple[int, float, int]]) -> float:
    kept = 0.0
    for _, loss, _ in course:
        kept = loss + 0.98 * (kept - loss)
    return kept / (1 - 0.98 ** len(course))


def _epoch_mean(course: list[tuple[int, float, int]]) -> float:
    here = [(loss, samples) for epoch, loss, samples in course if epoch == course[-1][0]]
    return sum(loss * samples for loss, samples in here) / sum(samples for _, samples in here)


def _run_mean(course: list[tuple[int, float, int]]) -> float:
    return sum(loss for _, loss, _ in course) / len(course)


COURSES = {"smoothed": _smoothed, "epoch_mean": _epoch_mean, "run_mean": _run_mean}
"""What is reported of all micro-batches so far, by the values of `log.loss`."""


class Collective(Operation):
    """One step that all ranks make together: it is in the plan of each, and carried out once, on a `World`."""

    def do(self, state: World) -> Iterator[Observation]:  # type: ignore[override]
        self.together(state.states)
        yield from ()

    @abstractmethod
    def together(self, states: list[State]) -> None:
        """Carry the step out on the states of all ranks."""


@dataclass(frozen=True)
class Gather(Collective):
    """Count the units of some micro-batches over all ranks."""

    batches: tuple[tuple[int, int], ...]

    def together(self, states: list[State]) -> None:
        for batch in self.batches:
            counts = [state.units[batch] for state in states]
            total = {name: sum(count[name] for count in counts) for name in counts[0]}
            for state in states:
                state.all_units[batch] = total


@dataclass(frozen=True)
class Broadcast(Collective):
    """Every rank takes the first one's buffers."""

    def together(self, states: list[State]) -> None:
        first = states[0].buffers
        with torch.no_grad():
            for state in states[1:]:
                for name, buffer in state.buffers.items():
                    buffer.copy_(first[name])


@dataclass(frozen=True)
class Reduce(Collective):
    """Every rank gets the mean, or the sum, of the accumulated gradients.

    Each is multiplied by 1 / ranks and then added to those before it, as DistributedDataParallel does with two ranks;
    more are added in an order of their own there, which rounds otherwise.
    """

    scale: str

    def together(self, states: list[State]) -> None:
        factor = 1.0 / len(states) if self.scale == "mean" else 1.0
        for name, parameter in states[0].parameters.items():
            if not parameter.requires_grad:
                continue
            found = [state.parameters[name].grad for state in states]
            if all(gradient is None for gradient in found):
                continue
            shares = (torch.zeros_like(parameter) if one is None else one * factor for one in found)
            total = functools.reduce(torch.add, shares)
            for state in states:
                state.parameters[name].grad = total.clone()


@dataclass(frozen=True)
class ClipShards(Collective):
    """Each rank limits its shard of the gradient, as if that were all: rows are dealt to ranks in stretches."""

    table: ClipTable
    kind: str

    def together(self, states: list[State]) -> None:
        for rank, _ in enumerate(states):
            shards = []
            for name, gradient in states[rank].gradients().items():
                parts = gradient.chunk(len(states)) if gradient.dim() else (gradient,)
                if rank < len(parts):
                    shards.append((name, parts[rank]))
            limit = clip.clip_norm if self.kind == "norm" else clip.clip_value
            limit([shard for _, shard in shards], self.table.threshold)
            for name, shard in shards:
                for other in states:
                    theirs = other.gradients()[name]
                    (theirs.chunk(len(states))[rank] if theirs.dim() else theirs).copy_(shard)


@dataclass(frozen=True)
class ShareLoss(Collective):
    """Every rank learns the losses of all."""

    def together(self, states: list[State]) -> None:
        losses = [list(state.losses) for state in states]
        for state in states:
            state.shared_losses = losses


@dataclass(frozen=True)
class Checkpoint(Operation):
    """Write everything that a resume needs."""

    update: int

    def do(self, state: State) -> Iterator[Observation]:
        if state.workdir is not None:
            checkpoint.save(state, state.workdir / f"checkpoint-{self.update + 1}", self.update)
        yield from ()


@dataclass(frozen=True)
class End(Operation):
    """The run is over."""

    updates: int

    def do(self, state: State) -> Iterator[Observation]:
        last = self.updates - 1
        yield Address(last, -1, "end", "count", "updates"), self.updates
        yield Address(last, -1, "end", "count", "batches"), state.micros
        for name, parameter in state.parameters.items():
            yield Address(last, -1, "end", "parameter", name), parameter.detach()
