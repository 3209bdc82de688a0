"""Probes that see every quantity of a training run from outside the trainer, and change none.

Global hooks and a few replaced functions tell a `Recorder` of forwards, backwards, clips, optimizer steps and scaler
updates, whoever calls them; a trainer needs no code for it. What they see goes to `put` under its address. Nothing is
drawn from a generator, no gradient, flag or mode is touched, and no graph is made.

Every probe returns at once while torch.compile traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from oracle.errors import TrainerError
from oracle.recorder import fidelity
from oracle.recorder.names import Models, bare, unwrap
from oracle.recorder.optimizers import Optimizer, parameters_of
from oracle.recorder.patches import Patches
from oracle.recorder.values import identifiers, plain, readable, scalar_loss, scaler_arguments, scaler_state
from reference_loop import randomness
from reference_loop.inputs import named_inputs
from reference_loop.moments import MOMENTS, Address

# What limits gradients, in torch.nn.utils.clip_grad: the argument that is the threshold, and what a trace calls it.
CLIPS = {
    "clip_grad_norm_": ("max_norm", "max_norm"),
    "clip_grads_with_norm_": ("max_norm", "max_norm"),
    "clip_grad_value_": ("clip_value", "max_value"),
}
START = (-1, -1, "start")


class Recorder:
    """Records a run while it is installed, as a context manager or by `install` and `uninstall`.

    put: takes an address and a live value, a tensor or plain data; it copies what it keeps.
    commit: called once an update, when all of it is written.
    kinds: what to record, as kinds or (moment, kind) pairs; None records everything.
    rank: this process's place, for the addresses.

    updates: optimizer steps attempted so far; those that the scaler skipped count.
    batches: loss computations so far.
    on_update: called at the end of each optimizer step with `updates`; what it raises ends the trainer, as it does of
        the other two. on_micro: called before a micro-batch begins, and when the run is over. on_backward: after each
        backward.
    """

    def __init__(
        self,
        put: Callable[[Address, Any], None],
        commit: Callable[[], None],
        *,
        kinds: Collection[str | tuple[str, str]] | None = None,
        rank: int = 0,
    ) -> None:
        self.put, self.commit, self.rank = put, commit, rank
        places = {(moment, kind) for moment, kinds in MOMENTS.items() for kind in kinds}
        self._wanted = {place for place in places if kinds is None or place in kinds or place[1] in kinds}
        self.updates = self.batches = 0
        self.on_update: Callable[[int], None] | None = None
        self.on_micro: Callable[[], None] | None = None
        self.on_backward: Callable[[], None] | None = None
        self._patches = Patches()
        self._models = Models()
        self._optimizers: list[Optimizer] = []
        self._trainable: list[str] | None = None  # names at the start of the run; None before it
        self._micro = -1  # the last one since the last update
        self._awaits_backward = False
        self._sees_forwards = False
        self._unclosed: int | None = None  # the update just finished, until its next learning rate is known
        self._root: nn.Module | None = None  # the outermost module call going on
        self._loss_model: nn.Module | None = None  # while a job computes its loss
        self._in_backward = self._evaluating = False
        self._begun: dict[int, int] = {}  # `updates` at the beginning of each optimizer's step
        self._clips: dict[str, float] = {}  # thresholds asked for since the last update
        self._written_clips: dict[str, Any] = {}
        self._scaler: Any = None  # the one that is stepping an optimizer, or was attached
        self._rescaling: Any = None  # the one that stepped an optimizer and is yet to be updated
        self._knows_scaler = False
        self._scheduler: Any = None
        self._ema: nn.Module | Mapping[str, Tensor] | None = None

    @property
    def micros(self) -> int:
        """Micro-batches begun since the last update."""
        return self._micro + 1

    @property
    def devices(self) -> list[str]:
        """Where the parameters are that were seen, sorted."""
        return sorted({str(parameter.device) for _, parameter in self._models.parameters()})

    @property
    def nameless(self) -> int:
        """Tensors of optimizers that no model holds."""
        return sum(name.partition("parameter[")[2] != "" for optimizer in self._optimizers for name in optimizer.seen)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (bare name, parameter) of all models that train."""
        yield from self._models.parameters()

    # Installing

    def install(self) -> None:
        """Put the probes in place."""
        patches = self._patches
        ends = register_module_forward_hook(_unless_compiling(self._forward_ends), with_kwargs=True, always_call=True)
        # Removing the handle leaves an entry there.
        patches.also(functools.partial(nn.modules.module._global_forward_hooks_with_kwargs.pop, ends.id))
        for handle in (
            ends,
            register_module_forward_pre_hook(_unless_compiling(self._forward_begins)),
            register_optimizer_step_pre_hook(_unless_compiling(self._step_begins)),
            register_optimizer_step_post_hook(_unless_compiling(self._step_ends)),
        ):
            patches.also(handle.remove)
        patches.function(torch.autograd, "backward", self._backward)  # Tensor.backward calls it
        for function, names in CLIPS.items():
            if hasattr(nn.utils.clip_grad, function):
                patches.function(nn.utils.clip_grad, function, functools.partial(self._clip, *names))
        patches.method(torch.amp.GradScaler, "scale", self._scale)
        patches.method(torch.amp.GradScaler, "step", self._scaler_step)
        patches.method(torch.amp.GradScaler, "update", self._scaler_update)
        for scheduler in (LRScheduler, ReduceLROnPlateau):
            patches.method(scheduler, "step", self._scheduler_step)

    def uninstall(self) -> None:
        """Take the probes away; everything is as it was before `install`."""
        self._patches.undo()

    def __enter__(self) -> Recorder:
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        self.uninstall()

    # What a job tells

    def attach(
        self,
        model: nn.Module | None = None,
        optimizer: Any = None,
        scaler: Any = None,
        scheduler: Any = None,
        ema: nn.Module | Mapping[str, Tensor] | None = None,
    ) -> None:
        """Show what the probes cannot find: torch's own optimizers, scalers and schedulers need no showing.

        model: gives its parameters their names, wherever they turn up.
        optimizer: needs `param_groups`, `state` and `step`, as torch's optimizers have them.
        scaler: needs `get_scale`.
        scheduler: needs `state_dict`.
        ema: averaged parameters, a module or a dict by name; read when the next window opens.

        Raises:
            TrainerError: an optimizer that lacks one of these.
        """
        if model is not None:
            self._models.attach(model)
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            self._watch(optimizer)
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            self._scaler = scaler
        if scheduler is not None:
            self._scheduler = scheduler
        if ema is not None:
            self._ema = ema

    def open_loss(self, model: nn.Module, batch: Any) -> None:
        """A micro-batch's loss is computed next. Under no_grad or in an evaluation it is none, and has no address."""
        if self._evaluating or self._in_backward or not torch.is_grad_enabled():
            return
        inside, self._root = self._root is not None, None  # some trainers compute the loss in a module's forward
        self._models.see(model)
        if not (inside and self._awaits_backward):
            self._open_micro()
        self._loss_model = model
        self._record_ids(batch)

    def close_loss(self, loss: Tensor | None) -> None:
        """The loss that was opened is computed. None: computing it raised."""
        if self._loss_model is not None and loss is not None:
            self._record(self.updates, self._micro, "forward", "loss", [("", loss)])
        self._loss_model = None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """What runs in the block is an evaluation, not training; afterwards what it may have disturbed is recorded."""
        self._evaluating = True
        try:
            yield
        finally:
            self._evaluating = False
        at = (self.updates - 1, -1, "evaluate")
        self._record(*at, "rng", _generators())
        self._record(*at, "mode", self._mode())
        self._record(*at, "gradient", self._gradients())

    def metric(self, moment: str, name: str, value: Any) -> None:
        """Record a number that the trainer reports, or an evaluation gives, for the update just finished.

        moment: `evaluate` or `log`.
        """
        self._record(self.updates - 1, -1, moment, "metric", [(name, plain(value))])

    def saved(self, files: list[Path]) -> None:
        """Record how the files of a save stand to what is live. Called before that changes."""
        models = [member.model for member in self._models.members]
        held = fidelity.compare(files, models, [known.of for known in self._optimizers], dict(self._averaged()))
        self._record(self.updates - 1, -1, "checkpoint", "item", held)

    def finish(self) -> None:
        """Close the run: the rate that a next update would have had, and what the run came to."""
        if self.on_micro is not None:
            self.on_micro()
        self._close_update()
        if self._optimizers:
            optimized = {name for optimizer in self._optimizers for name in optimizer.seen}
            left_out = [name for name in self._trainable or [] if name not in optimized]
            self._record(*START, "hyperparameter", ((f"{name}.optimized", False) for name in left_out))
        at = (self.updates - 1, -1, "end")
        seen = [("batches", self.batches)] if self.batches else []  # a loss of torch.func is not seen
        self._record(*at, "count", [("updates", self.updates), *seen])
        self._record(*at, "parameter", self._models.parameters())
        self.commit()

    # Forward

    def _forward_begins(self, module: nn.Module, args: Any) -> None:
        if self._root is not None or self._in_backward or self._evaluating or _transformed():
            return
        if self._loss_model is not None:
            self._root = module if module is self._loss_model else None
        elif torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
            self._root = module
            self._models.see(module)
            if not self._awaits_backward:
                self._open_micro()

    def _forward_ends(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if module is not self._root:
            return
        self._root = None
        if len(rest) == 1:  # the call raised: torch leaves the keyword arguments out
            return
        kwargs, output = rest
        at = (self.updates, self._micro)
        self._record(*at, "batch", "input", named_inputs(unwrap(module), args, kwargs))
        if self._loss_model is None:
            self._record_ids(kwargs)
            if (loss := scalar_loss(output)) is not None:
                self._record(*at, "forward", "loss", [("", loss)])

    def _open_micro(self, seen: bool = True) -> None:
        """Begin a micro-batch. seen: its forward is about to run; otherwise it ran already, where no hook sees it."""
        if self.on_micro is not None:
            self.on_micro()
        self._close_update()
        self._begin()
        self._micro += 1
        self.batches += 1
        self._awaits_backward = True
        if seen:
            self._sees_forwards = True
            self._record(self.updates, self._micro, "forward", "rng", _generators())
            self._record(self.updates, self._micro, "forward", "mode", self._mode())

    def _begin(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Record the start of the run, once.

        parameters: what an optimizer steps before any forward; None: a forward or backward comes first.
        """
        if self._trainable is not None:
            return
        self._models.adopt(parameters)
        self._trainable = [name for name, parameter in self._models.parameters() if parameter.requires_grad]
        self._record(*START, "parameter", self._models.parameters())
        self._record(*START, "buffer", self._models.buffers())
        self._record(*START, "rng", _generators())

    # Backward

    def _backward(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if self._in_backward or self._evaluating:
            return original(*args, **kwargs)
        if self._micro < 0 or not self._sees_forwards:
            self._open_micro(seen=False)
        self._in_backward = True
        try:
            original(*args, **kwargs)
        finally:
            self._in_backward = False
        self._awaits_backward = False
        at = (self.updates, self._micro, "backward")
        self._record(*at, "objective", _objectives(args[0] if args else kwargs["tensors"]))
        self._record(*at, "gradient", self._gradients())
        if self.on_backward is not None:
            self.on_backward()
        return None

    def _clip(self, argument: str, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        asked = float(args[1] if len(args) > 1 else kwargs[argument])
        self._clips[name] = min(asked, self._clips.get(name, asked))  # one that measures behind one that clips
        return result

    # Update

    def _step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begun[id(optimizer)] = self.updates
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:  # otherwise the closure opens the first micro-batch
            self._begin(parameters_of(optimizer))

    def _step_ends(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._begun.pop(id(optimizer), self.updates) == self.updates:  # no optimizer stepped inside this step
            self._update(optimizer)

    def _update(self, stepped: Any) -> None:
        """Record an optimizer step that was just attempted. Gradients are still those that it took."""
        self._close_update()
        self._begin(parameters_of(stepped))
        optimizer, update = self._find(stepped), self.updates
        at = (update, -1, "consume")
        first = optimizer.steps == 0
        optimizer.steps += 1
        self._record(*(START if first else at), "hyperparameter", optimizer.arguments())
        self._record(*(START if update == 0 else at), "hyperparameter", self._changed_clips())
        self._record(*at, "gradient", optimizer.gradients())
        self._record(*at, "learning_rate", optimizer.rates())
        self._record(*at, "scaler", scaler_state(self._scaler))
        at = (update, -1, "update")
        self._record(*at, "parameter", self._models.parameters())
        self._record(*at, "buffer", self._models.buffers())
        self._record(*at, "optimizer_state", optimizer.state())
        self._record(*at, "rng", _generators())
        self._rescaling = self._scaler
        self._unclosed, self._micro, self._awaits_backward = update, -1, False
        self.updates += 1
        if self.on_update is not None:
            self.on_update(self.updates)

    def _close_update(self) -> None:
        """Record what only shows when the next window opens, and commit."""
        if self._unclosed is None:
            return
        update, self._unclosed = self._unclosed, None
        self._record_rescaled(update)
        self._record(update, -1, "update", "ema", self._averaged())
        for optimizer in self._optimizers:
            self._record(update, -1, "schedule", "learning_rate", optimizer.rates())
        if self._scheduler is not None:
            self._record(update, -1, "schedule", "scheduler", self._schedule())
        self.commit()

    def _find(self, optimizer: Any) -> Optimizer:
        """What is known of an optimizer. One over parameters that an earlier one has takes the earlier one's place."""
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for known in self._optimizers:
            if known.takes(optimizer, held):
                return known
        prefix = f"optimizer[{len(self._optimizers)}]." if self._optimizers else ""
        self._optimizers.append(Optimizer(optimizer, prefix, self._models))
        return self._optimizers[-1]

    def _watch(self, optimizer: Any) -> None:
        """See the steps of an optimizer that is not torch's."""
        if missing := [name for name in ("param_groups", "state", "step") if not hasattr(optimizer, name)]:
            raise TrainerError(
                f"asked to observe {type(optimizer).__name__} as an optimizer, found no {', '.join(missing)}: "
                "give it these as torch.optim.Optimizer has them"
            )
        self._patches.instance(optimizer, "step", functools.partial(self._foreign_step, optimizer))

    def _foreign_step(self, optimizer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = self.updates
        result = original(*args, **kwargs)
        if self.updates == before:  # no torch optimizer did it
            self._update(optimizer)
        return result

    # Scaler and scheduler

    def _scale(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scaler, *args, **kwargs)
        if scaler.is_enabled() and not self._knows_scaler:
            self._knows_scaler = True
            self._record(*START, "scaler", (*scaler_state(scaler), *scaler_arguments(scaler)))
        return result

    def _scaler_step(self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        before, outer, self._scaler = self.updates, self._scaler, scaler
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            if self.updates == before:  # skipped, so that no hook fired
                self._update(optimizer)
        finally:
            self._scaler = outer
        return result

    def _scaler_update(self, original: Callable[..., None], scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        if scaler is self._rescaling:
            self._record_rescaled(self.updates - 1)

    def _scheduler_step(self, original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any) -> None:
        original(scheduler, *args, **kwargs)
        self._scheduler = scheduler

    # Rows

    def _record(self, update: int, micro: int, moment: str, kind: str, rows: Iterable[tuple[str, Any]]) -> None:
        """Put rows of (name, value) at a place. What is not wanted is not even computed: rows are lazy."""
        if (moment, kind) in self._wanted:
            put, rank = self.put, self.rank
            with torch.no_grad():
                for name, value in rows:
                    put(Address(update, micro, moment, kind, name, rank), readable(value))

    def _record_ids(self, batch: Any) -> None:
        if (ids := identifiers(batch)) is not None:
            self._record(self.updates, self._micro, "batch", "batch_ids", [("id", ids)])

    def _record_rescaled(self, update: int) -> None:
        """Record what the scaler became after an update, once."""
        self._record(update, -1, "update", "scaler", scaler_state(self._rescaling))
        self._rescaling = None

    def _mode(self) -> Iterator[tuple[str, str]]:
        if (mode := self._models.mode()) is not None:
            yield "", mode

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._models.parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def _changed_clips(self) -> Iterator[tuple[str, float | None]]:
        """Yield the thresholds asked for since the last update where they changed. None: no limit.

        A trainer that never calls torch's functions may still limit gradients by itself: nothing is said of it then.
        """
        asked, self._clips = self._clips, {}
        for name in ("max_norm", "max_value"):
            now = None if asked.get(name) == float("inf") else asked.get(name)
            if (name in asked or name in self._written_clips) and self._written_clips.get(name, "unsaid") != now:
                self._written_clips[name] = now
                yield name, now

    def _schedule(self) -> Iterator[tuple[str, Any]]:
        yield "", plain(self._scheduler.state_dict())

    def _averaged(self) -> Iterator[tuple[str, Tensor]]:
        if isinstance(self._ema, nn.Module):
            yield from ((bare(name), parameter) for name, parameter in self._ema.named_parameters())
        elif self._ema is not None:
            yield from self._ema.items()


def _transformed() -> bool:
    """Whether a transform of torch.func runs: its tensors hold nothing that could be read."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _unless_compiling(probe: Callable[..., None]) -> Callable[..., None]:
    """A hook that is nothing to torch.compile and cannot change what it is shown."""

    def hook(*args: Any) -> None:
        if not torch.compiler.is_compiling():
            probe(*args)

    return hook


def _generators() -> Iterator[tuple[str, Tensor]]:
    yield from randomness.states().items()


def _objectives(tensors: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield what `backward` was called on: "" if it is one tensor, else "0", "1"..."""
    if isinstance(tensors, Tensor):
        yield "", tensors
    else:
        yield from ((str(index), tensor) for index, tensor in enumerate(tensors) if isinstance(tensor, Tensor))
