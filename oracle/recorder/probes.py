"""Probes that see every quantity of a training run from outside the trainer, and change none.

Global hooks and a few replaced functions tell a `Recorder` of forwards, backwards, clips, optimizer steps and scaler
updates, whoever calls them; a trainer needs no code for it. What they see goes to `put` under its address. Nothing is
drawn from a generator, no gradient, flag or mode is touched, and no graph is made.

Every probe returns at once while torch.compile traces.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from diffs.digest import available, digest_tensor
from oracle.errors import TrainerError
from oracle.recorder import fidelity
from oracle.recorder.foreign import CLIPPING, stand_in
from oracle.recorder.forwards import Forward, Forwards
from oracle.recorder.names import Models, bare, unwrap
from oracle.recorder.optimizers import Optimizer, parameters_of
from oracle.recorder.patches import Patches, unless_compiling
from oracle.recorder.steps import Step, Steps
from oracle.recorder.updates import Update
from oracle.recorder.values import (
    flat_shards,
    identifiers,
    plain,
    readable,
    scalar_loss,
    scaler_arguments,
    scaler_state,
    shard,
)
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

    updates: optimizer steps attempted so far; those that the scaler skipped count. Optimizers that step one after
        another, without a micro-batch between them, make one update.
    batches: micro-batches so far, which are forward passes that a backward reached.
    on_update: called at the end of each update with `updates`; what it raises ends the trainer, as it does of the
        other two. on_micro: called before a forward pass that may become a micro-batch, and when the run is over.
        on_backward: after each backward.
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
        self._arguments: dict[str, dict[str, Any]] = {}  # of all of them, as written
        self._trainable: list[str] | None = None  # names at the start of the run; None before it
        self._started: set[str] = set()  # tensors that were recorded at the start
        self._micro = -1  # the last one since the last update
        self._forwards = Forwards()
        self._forward: Forward | None = None  # the pass going on
        self._sees_forwards = False
        self._root: nn.Module | None = None  # the outermost module call going on
        self._loss_model: nn.Module | None = None  # while a job computes its loss
        self._in_backward = self._evaluating = False
        self._steps = Steps(self._step_begins, self._step_ends, lambda: self._taken)
        self._unclosed: Update | None = None  # the update just made, until its next learning rate is known
        self._taken = 0  # steps of all optimizers
        self._digest = available()[0]
        self._aside: dict[str, bytes] = {}  # parameters, when an optimizer was seen with tensors that no model holds
        self._clips: dict[str, float] = {}  # thresholds asked for since the last update
        self._written_clips: dict[str, Any] = {}
        self._scaler: Any = None  # the one that is stepping an optimizer, or was attached
        self._rescaling: Any = None  # the one that stepped an optimizer and is yet to be updated
        self._knows_scaler = False
        self._shown: list[Any] = []  # optimizers that are not torch's
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
        return sum("parameter[" in name for name in self._arguments)

    @property
    def shards(self) -> dict[str, tuple[int, int, int]]:
        """Of each parameter that is dealt to ranks, this rank's shard: (dimension, start, length).

        A dimension of -1 stands for all of its elements in one row.
        """
        flat = dict(chain.from_iterable(map(flat_shards, self._models.flat)))
        found = {name: flat.get(id(one)) or shard(one) for name, one in self._models.parameters()}
        return {name: place for name, place in found.items() if place is not None}

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (bare name, parameter) of all models that train."""
        yield from self._models.parameters()

    # Installing

    def install(self) -> None:
        """Put the probes in place."""
        patches = self._patches
        ends = register_module_forward_hook(unless_compiling(self._forward_ends), with_kwargs=True, always_call=True)
        # Removing the handle leaves an entry there.
        patches.also(functools.partial(nn.modules.module._global_forward_hooks_with_kwargs.pop, ends.id))
        for handle in (
            ends,
            register_module_forward_pre_hook(unless_compiling(self._forward_begins)),
        ):
            patches.also(handle.remove)
        self._steps.install(patches)
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
        optimizer: one of fastai's or Keras's, or with `param_groups`, `state` and `step`, as torch's optimizers have
            them, or a stand-in as `oracle.recorder.foreign` describes it.
        scaler: needs `get_scale`.
        scheduler: needs `state_dict`.
        ema: averaged parameters, a module or a dict by name; read when the next window opens.

        Raises:
            TrainerError: an optimizer that lacks one of these.
        """
        if model is not None:
            self._models.attach(model)
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            self._watch(stand_in(optimizer))
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
        if not inside or self._forward is None:
            self._forward = self._begin_forward(apart=True)
        self._loss_model = model
        self._keep("batch", "batch_ids", _ids(batch))

    def close_loss(self, loss: Tensor | None) -> None:
        """The loss that was opened is computed. None: computing it raised."""
        if self._loss_model is not None and loss is not None:
            self._keep("forward", "loss", [("", loss)])
            self._end_forward(loss)
        self._loss_model = self._forward = None

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
        self.on_update = None  # the trainer ended by itself
        self._close_update()
        if self._optimizers:
            optimized = {name.removeprefix(known.prefix) for known in self._optimizers for name in self._arguments}
            now = self._digests() if self._aside else {}
            moved = {name for name, digest in now.items() if digest != self._aside[name]}  # a copy of it is optimized
            left_out = [name for name in self._trainable or [] if name not in optimized | moved]
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
            self._forward = self._begin_forward(apart=False)
        else:
            self._models.glimpse(module)

    def _forward_ends(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if module is not self._root:
            return
        self._root = None
        if len(rest) == 1:  # the call raised: torch leaves the keyword arguments out
            if self._loss_model is None:
                self._forward = None
            return
        kwargs, output = rest
        self._keep("batch", "input", named_inputs(unwrap(module), args, kwargs))
        if self._loss_model is None:
            self._keep("batch", "batch_ids", _ids(kwargs))
            if (loss := scalar_loss(output)) is not None:
                self._keep("forward", "loss", [("", loss)])
            self._end_forward(output)
            self._forward = None

    def _begin_forward(self, *, apart: bool) -> Forward:
        """A pass begins that is a micro-batch if a backward reaches it. apart: with no other pass in it."""
        self._enter()
        self._sees_forwards = True
        self._forward = self._forwards.begin(apart=apart)
        self._keep("forward", "rng", _generators())
        self._keep("forward", "mode", self._mode())
        return self._forward

    def _end_forward(self, output: Any) -> None:
        assert self._forward is not None
        self._forwards.end(self._forward, output)

    def _keep(self, moment: str, kind: str, rows: Iterable[tuple[str, Any]]) -> None:
        if (moment, kind) in self._wanted and self._forward is not None:
            with torch.no_grad():
                self._forward.keep(moment, kind, rows)

    def _enter(self) -> None:
        """A window opens, or goes on."""
        if self.on_micro is not None:
            self.on_micro()
        self._close_update()
        self._begin()

    def _begin(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Record the start of the run, once.

        parameters: what an optimizer steps before any forward; None: a forward or backward comes first.
        """
        if self._trainable is not None:
            return
        for module in (sys.modules[name] for name in CLIPPING if name in sys.modules):
            self._patches.function(module, "clip_grad_norm_", functools.partial(self._clip, *CLIPS["clip_grad_norm_"]))
        self._models.adopt(parameters)
        self._trainable = [name for name, parameter in self._models.parameters() if parameter.requires_grad]
        self._record_start()
        self._record(*START, "rng", _generators())

    def _record_start(self) -> None:
        """Record the tensors of the models as they are before training, each once."""
        for kind, rows in (("parameter", self._models.parameters()), ("buffer", self._models.buffers())):
            fresh = [(name, tensor) for name, tensor in rows if name not in self._started]
            self._started.update(name for name, _ in fresh)
            self._record(*START, kind, fresh)

    # Backward

    def _backward(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if self._in_backward or self._evaluating:
            return original(*args, **kwargs)
        if not self._sees_forwards:
            self._enter()
        update, micro, self._in_backward = self.updates, self._micro, True
        try:
            original(*args, **kwargs)
        finally:
            self._in_backward = False
        opened = self._open_micros(update, micro)
        if opened == micro and (micro < 0 or not self._sees_forwards):  # its forward ran where no hook sees it
            opened += 1
            self.batches += 1
        micro = opened
        if update == self.updates:  # otherwise optimizers stepped meanwhile, and closed the window
            self._micro = micro
        self._record(update, micro, "backward", "objective", _objectives(args[0] if args else kwargs["tensors"]))
        self._record(update, micro, "backward", "gradient", self._gradients())
        if self.on_backward is not None:
            self.on_backward()
        return None

    def _open_micros(self, update: int, micro: int) -> int:
        """Record the passes that were reached as micro-batches behind a micro-batch; returns the last one's number."""
        for number, forward in enumerate(self._forwards.reached()):
            if number == 0 or forward.apart:
                micro += 1
                self.batches += 1
            for moment, kind, name, value in forward.rows:
                self.put(Address(update, micro, moment, kind, name, self.rank), value)
            forward.rows.clear()  # a loss that is kept keeps the pass
        return micro

    def _clip(self, argument: str, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self._limited(name, float(args[1] if len(args) > 1 else kwargs[argument]))
        return result

    def _limited(self, name: str, asked: float) -> None:
        """A threshold was asked for."""
        self._clips[name] = min(asked, self._clips.get(name, asked))  # one that measures behind one that clips

    # Update

    def _step_begins(self, step: Step) -> None:
        if step.rates is None:  # a closure opens the first micro-batch
            return
        parameters = parameters_of(step.optimizer)
        self._begin(parameters)
        if self._models.recall(parameters) and self.updates == 0:
            self._record_start()

    def _step_ends(self, step: Step) -> None:
        if step.taken == self._taken and not self._steps.serves(self._shown):  # no other stepped inside this step
            self._take(step.optimizer, step)
        self._complete()

    def _take(self, stepped: Any, step: Step | None = None) -> None:
        """Record what an optimizer's attempted step took.

        step: what was seen at its beginning; None for a step that the scaler skipped, whose gradients are still there.
        """
        joins = self._joins(stepped)
        if not joins:
            self._close_update()
            self._begin(parameters_of(stepped))
            if not self._in_backward:
                self._open_micros(self.updates, self._micro)  # of gradients that no backward made, but autograd.grad
            self._unclosed = Update(self.updates)
            self._micro = -1
            self.updates += 1
        assert self._unclosed is not None
        optimizer, update = self._find(stepped, apart=not joins), self._unclosed.number
        at = (update, -1, "consume")
        first = optimizer.steps == 0
        optimizer.steps += 1
        self._record(*(START if first else at), "hyperparameter", optimizer.arguments())
        if not joins:
            self._record(*(START if update == 0 else at), "hyperparameter", self._changed_clips(skipped=step is None))
        self._record(*at, "gradient", optimizer.gradients(step.gradients if step else None))
        self._record(*at, "learning_rate", optimizer.rates(step.rates if step else None))
        if not joins:
            self._record(*at, "scaler", scaler_state(self._scaler))
            self._rescaling = self._scaler
        self._taken += 1
        self._unclosed.fresh.append(optimizer)
        self._unclosed.stepped.append(optimizer)
        if not joins:
            self._unclosed.others = self._others(stepped)
        if optimizer.nameless and not self._aside:
            self._aside = self._digests()

    def _joins(self, stepped: Any) -> bool:
        """Whether a step belongs to the update just made: another optimizer's, for other parameters."""
        return self._unclosed is not None and self._unclosed.takes(stepped)

    def _complete(self) -> None:
        """Record what the steps of an update made of the model, once no step goes on."""
        update = self._unclosed
        if update is None or not update.fresh or self._steps.inside:
            return
        at = (update.number, -1, "update")
        waiting = update.waiting
        self._record(*at, "parameter", update.unwritten(self._models, waiting))
        for optimizer in update.fresh:
            self._record(*at, "optimizer_state", optimizer.state())
        if len(update.fresh) == len(update.stepped):
            self._record(*at, "buffer", self._models.buffers())
            self._record(*at, "rng", _generators())
        update.fresh = []
        if not waiting:
            self._tell(update)

    def _others(self, stepped: Any) -> list[Any]:
        """The optimizers for parameters that this one does not hold, which may step in the same update."""
        made = list(self._steps.made())
        if len(self._optimizers) == 1 and all(one is stepped for one in made):  # as nearly always
            return []
        held = {id(parameter) for parameter in parameters_of(stepped)}
        trained = {id(parameter) for _, parameter in self._models.parameters()}
        of_models = [one for one in made if not trained.isdisjoint(map(id, parameters_of(one)))]
        found = {id(one): one for one in (*of_models, *(known.of for known in self._optimizers))}
        return [one for one in found.values() if held.isdisjoint(map(id, parameters_of(one)))]

    def _tell(self, update: Update) -> None:
        if not update.told and self.on_update is not None:
            update.told = True
            self.on_update(self.updates)

    def _close_update(self) -> None:
        """Record what only shows when the next window opens, and commit."""
        if self._unclosed is None:
            return
        self._complete()
        update, self._unclosed = self._unclosed, None
        number = update.number
        self._record(number, -1, "update", "parameter", update.unwritten(self._models, None))
        self._record_rescaled(number)
        self._record(number, -1, "update", "ema", self._averaged())
        for optimizer in self._optimizers:
            self._record(number, -1, "schedule", "learning_rate", optimizer.rates())
        if self._scheduler is not None:
            self._record(number, -1, "schedule", "scheduler", self._schedule())
        self.commit()
        self._tell(update)

    def _find(self, optimizer: Any, apart: bool) -> Optimizer:
        """What is known of an optimizer. One over parameters that an earlier one has takes the earlier one's place.

        apart: whether a new one makes updates of its own, and has names of its own for it.
        """
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for known in self._optimizers:
            if known.takes(optimizer, held):
                return known
        prefix = f"optimizer[{len(self._optimizers)}]." if self._optimizers and apart else ""
        self._optimizers.append(Optimizer(optimizer, prefix, self._models, self._arguments))
        return self._optimizers[-1]

    def _watch(self, optimizer: Any) -> None:
        """See the steps of an optimizer that is not torch's."""
        step = "stepped_by" if hasattr(optimizer, "stepped_by") else "step"
        if missing := [name for name in ("param_groups", "state", step) if not hasattr(optimizer, name)]:
            raise TrainerError(
                f"asked to observe {type(optimizer).__name__} as an optimizer, found no {', '.join(missing)}: "
                "give it these as torch.optim.Optimizer has them"
            )
        owner, method = getattr(optimizer, "stepped_by", (optimizer, "step"))
        self._shown.append(optimizer)
        self._patches.instance(owner, method, functools.partial(self._foreign_step, optimizer))

    def _foreign_step(self, optimizer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        took = optimizer.took(*args, **kwargs) if hasattr(optimizer, "took") else None
        for name, limit in getattr(optimizer, "limits", {}).items():
            self._limited(name, limit)
        closure = not hasattr(optimizer, "stepped_by") and (bool(args) or kwargs.get("closure") is not None)
        self._steps.begin(optimizer, sys._getframe(), closure, took)
        result = original(*args, **kwargs)
        self._steps.end(optimizer)
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
        before, outer, self._scaler = self._taken, self._scaler, scaler
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            if (shown := self._shown_of(optimizer)) is not None:
                if not _found_inf(scaler, optimizer):  # its own step comes next
                    outer = scaler
                    return result
                optimizer = shown
            if self._taken == before:  # skipped, so that no hook fired
                for skipped in self._steps.inner(optimizer) or [optimizer]:
                    self._take(skipped)
                self._complete()
        finally:
            self._scaler = outer
        return result

    def _shown_of(self, optimizer: Any) -> Any:
        """The shown optimizer in whose place another object is given to a scaler, with its parameters; None if none.

        fastai's callback gives itself, to be told whether the step is to be skipped.
        """
        if isinstance(optimizer, torch.optim.Optimizer):
            return None
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        return next((one for one in self._shown if not held.isdisjoint(map(id, parameters_of(one)))), None)

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

    def _record_rescaled(self, update: int) -> None:
        """Record what the scaler became after an update, once."""
        self._record(update, -1, "update", "scaler", scaler_state(self._rescaling))
        self._rescaling = None

    def _digests(self) -> dict[str, bytes]:
        return {name: digest_tensor(readable(parameter), self._digest) for name, parameter in self._models.parameters()}

    def _mode(self) -> Iterator[tuple[str, str]]:
        if (mode := self._models.mode()) is not None:
            yield "", mode

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._models.parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def _changed_clips(self, *, skipped: bool) -> Iterator[tuple[str, float | None]]:
        """Yield the thresholds asked for since the last update where they changed. None: no limit.

        skipped: whether the scaler skipped the update: what is not asked for then says nothing, some clip others alone.
        A trainer that never calls torch's functions may still limit gradients by itself: nothing is said of it then.
        """
        asked, self._clips = self._clips, {}
        for name in ("max_norm", "max_value"):
            if skipped and name not in asked:
                continue
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


def _found_inf(scaler: Any, optimizer: Any) -> bool:
    """Whether a scaler saw gradients that overflowed, in the step of an optimizer just attempted."""
    return any(bool(found) for found in scaler._found_inf_per_device(optimizer).values())


def _ids(batch: Any) -> Iterator[tuple[str, list[Any]]]:
    if (ids := identifiers(batch)) is not None:
        yield "id", ids


def _generators() -> Iterator[tuple[str, Tensor]]:
    yield from randomness.states().items()


def _objectives(tensors: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield what `backward` was called on: "" if it is one tensor, else "0", "1"..."""
    if isinstance(tensors, Tensor):
        yield "", tensors
    else:
        yield from ((str(index), tensor) for index, tensor in enumerate(tensors) if isinstance(tensor, Tensor))
