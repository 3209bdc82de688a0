"""Everything that a training run holds between two operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from reference_loop import optimizers, randomness, schedules
from reference_loop.data import build
from reference_loop.decay import decays
from reference_loop.inputs import named_inputs
from reference_loop.loader import Loader
from reference_loop.moments import Address
from reference_loop.recipe import Recipe, ScalerOptions
from reference_loop.scaler import Scaler
from reference_loop.task import Task, TaskError, check_wishes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class State:
    """A run in memory: model, optimizer state, schedule position, scaler, data, and counters.

    parameters: by name, tied ones once.
    optimized: names of the parameters that the optimizer moves: it holds all of them, frozen ones too.
    hyper: for each parameter, the optimizer's arguments but the learning rate. `overrides` replaces some, or the
        rate, by "<parameter>.<argument>"; "<parameter>.optimized" = False leaves one out.
    lr: the learning rate of each parameter, now.
    position: how often the schedule moved.
    micros: micro-batches trained so far.
    cursor: (epoch, index) of the batch after the last one trained.
    resume_from: the folder of the checkpoint that a `Restore` takes up.
    course: of a run that logs, each micro-batch's epoch, mean loss and samples.
    all_units: like `units`, counted over all ranks. shared_losses: the window's losses, rank by rank, once shared.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        *,
        drop_last: bool,
        rank: int = 0,
        workdir: Path | None = None,
        resume_from: Path | None = None,
        device: str = "cpu",
        overrides: dict[str, Any] | None = None,
    ) -> None:
        self.task, self.recipe, self.workdir, self.device = task, recipe, workdir, torch.device(device)
        self.resume_from = resume_from or Path()
        check_wishes(task, recipe)
        randomness.seed(recipe.seed)
        self.model = check_model(task, task.model()).to(self.device)
        self.loader = Loader(build(task, "train_data", recipe.seed), recipe, drop_last, rank)
        randomness.seed(recipe.seed)
        self.parameters = dict(self.model.named_parameters())
        self.overrides = overrides or {}
        self.optimized: list[str] = []
        self.hyper: dict[str, dict[str, Any]] = {}
        self.optimizer_state: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.parameters}
        self.lr: dict[str, float] = {}
        self.position = 0
        self.schedule = schedules.Course(0)
        self.course: list[tuple[int, float, int]] = []
        self.dtype = torch.float32
        self.scaler: Scaler | None = None
        self.found_inf = self.skipped = False
        self.ema: dict[str, torch.Tensor] = {}
        self.batches: dict[tuple[int, int], dict[str, Any]] = {}
        self.units: dict[tuple[int, int], dict[str, int]] = {}
        self.all_units: dict[tuple[int, int], dict[str, int]] = {}
        self.shared_losses: list[list[tuple[torch.Tensor, int, str]]] = []
        self.losses: list[tuple[torch.Tensor, int, str]] = []
        self.loss: torch.Tensor | None = None
        self.micros = 0
        self.cursor = (0, 0)

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """The model's buffers now, by name: a module may put another tensor in the place of one."""
        return dict(self.model.named_buffers())

    def begin(self, decay_set: str, schedule: schedules.Course, dtype: str) -> None:
        """Set up the optimizer's arguments, the first learning rate, and the precision: float16 brings a scaler."""
        self.schedule, self.dtype = schedule, DTYPES[dtype]
        if self.dtype == torch.float16:
            self.scaler = Scaler(**vars(self.recipe.scaler or ScalerOptions()))
        given = {**optimizers.DEFAULTS[self.recipe.optimizer.name], **self.recipe.optimizer.arguments()}
        given.pop("lr")
        for name, decaying in decays(decay_set, self.model).items():
            hyper = dict(given) if decaying else {**given, "weight_decay": 0.0}
            for key in hyper:
                hyper[key] = self.overrides.get(f"{name}.{key}", hyper[key])
            self.hyper[name] = hyper
        self.optimized = [
            name
            for name, parameter in self.parameters.items()
            if parameter.requires_grad and self.overrides.get(f"{name}.optimized", True)
        ]
        self.set_rate()

    def set_rate(self) -> None:
        """Compute every parameter's learning rate from the schedule's position."""
        base = self.recipe.optimizer.lr
        rates = {name: self.overrides.get(f"{name}.lr", base) for name in self.optimized}
        known = {rate: schedules.rate(self.recipe, self.position, self.schedule, rate) for rate in set(rates.values())}
        self.lr = {name: known[rate] for name, rate in rates.items()}

    def advance_schedule(self) -> None:
        """Move the schedule on by one."""
        self.position += 1
        self.set_rate()

    def gradients(self) -> dict[str, torch.Tensor]:
        """The accumulated gradients, by parameter; those that have none are left out."""
        return {name: p.grad for name, p in self.parameters.items() if p.grad is not None}

    def clear_gradients(self) -> None:
        """Forget the accumulated gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def mode(self) -> str:
        """ "train" or "eval" if all modules agree, else "mixed"."""
        flags = {module.training for module in self.model.modules()}
        return "mixed" if len(flags) > 1 else "train" if flags.pop() else "eval"

    def compute_loss(
        self, batch: dict[str, Any], reduction: str, loss_cast: str
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The task's loss on a batch under the recipe's precision, and the tensors that the model was given.

        Raises:
            TaskError: the loss is not a scalar tensor, or no parameter moves it.
        """
        batch = {key: v.to(self.device) if isinstance(v, torch.Tensor) else v for key, v in batch.items()}
        inputs: dict[str, torch.Tensor] = {}

        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            for name, value in named_inputs(module, args, kwargs):
                repeats = sum(known == name or known.startswith(f"{name}#") for known in inputs)
                inputs[f"{name}#{repeats + 1}" if repeats else name] = value

        hook = self.model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            with self.autocast(loss_cast):
                loss = self.task.loss(self.model, batch, reduction)
        finally:
            hook.remove()
        if not check_loss(self.task, loss).requires_grad:
            raise TaskError(
                f"task {self.task.name!r}: the loss depends on no trainable parameter: use the model's output"
            )
        return loss, inputs

    @contextmanager
    def autocast(self, loss_cast: str) -> Iterator[None]:
        """The recipe's precision around forward and loss, or around the forward alone."""
        context = torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)
        if loss_cast == "inside_autocast":
            with context:
                yield
            return
        plain = self.model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with context:
                output = plain(*args, **kwargs)
            return _to_float32(output)

        self.model.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.model.forward

    def average(self) -> None:
        """Move the averaged weights, as torch.optim.swa_utils.AveragedModel does: the first time they are copied."""
        if self.recipe.ema is None:
            return
        if not self.ema:
            self.ema = {name: p.detach().clone() for name, p in self.parameters.items()}
            return
        for name, shadow in self.ema.items():
            shadow.lerp_(self.parameters[name].detach(), 1 - self.recipe.ema.decay)

    def evaluate(self, *, eval_mode: bool, restore: bool, by_batch: bool) -> dict[str, float]:
        """The task's metrics on its evaluation data.

        by_batch: average the metrics of each batch in place of computing them over all.
        """
        if self.task.metrics is None or self.task.eval_data is None:
            return {}
        found = {module: module.training for module in self.model.modules()}
        if eval_mode:
            self.model.eval()
        data = build(self.task, "eval_data", self.recipe.seed)
        loader = DataLoader(data, batch_size=self.recipe.batch_size, num_workers=self.recipe.workers)
        with torch.no_grad():
            if by_batch:
                each = [self.task.metrics(self.model, [batch]) for batch in loader]
                metrics = {name: sum(m[name] for m in each) / len(each) for name in each[0]}
            else:
                metrics = dict(self.task.metrics(self.model, loader))
        if restore:
            for module, training in found.items():
                module.training = training
        return {name: float(value) for name, value in metrics.items()}

    def put(self, address: Address, value: Any) -> None:
        """Make the live value at an address equal to `value`; kinds that are only results stay as they are.

        A tensor may come as one row of its elements.
        """
        kind, name = address.kind, address.name
        with torch.no_grad():
            if kind == "parameter":
                self.parameters[name].copy_(value.reshape(self.parameters[name].shape))
            elif kind == "buffer":
                self.buffers[name].copy_(value)
            elif kind == "gradient":
                gradient, value = self.parameters[name].grad, value.reshape(self.parameters[name].shape)
                self.parameters[name].grad = value.clone() if gradient is None else gradient.copy_(value)
            elif kind == "optimizer_state":
                parameter, _, key = name.rpartition(".")
                kept = self.optimizer_state[parameter]
                value = value.reshape(kept[key].shape)
                kept[key].copy_(value)
                if key == "momentum_buffer" and optimizers.HIDDEN in kept:
                    kept[optimizers.HIDDEN].copy_(value * -(self.lr[parameter] or -1.0))
            elif kind == "scaler" and self.scaler is not None:
                self.scaler.state[name].copy_(torch.as_tensor(value))
            elif kind == "learning_rate":
                self.lr[name] = float(value)


def check_model(task: Task, model: Any) -> nn.Module:
    """`model`, if it is one that can be trained.

    Raises:
        TaskError: what was found instead, and what to do.
    """
    if not isinstance(model, nn.Module):
        raise TaskError(f"task {task.name!r}: model must return an nn.Module, found {type(model).__name__}")
    shapeless = [name for name, p in model.named_parameters() if isinstance(p, nn.UninitializedParameter)]
    if shapeless:
        raise TaskError(
            f"task {task.name!r}: parameter {shapeless[0]} has no shape yet: give the model one batch before it is "
            "returned, or build it without lazy modules"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        found = "only frozen parameters" if any(True for _ in model.parameters()) else "no parameters"
        raise TaskError(f"task {task.name!r}: the model has {found}, so nothing can be trained: let one require grad")
    return model


def check_loss(task: Task, loss: Any) -> torch.Tensor:
    """`loss`, if it is one number that backward can start from.

    Raises:
        TaskError: what was found instead, and what to do.
    """
    if not isinstance(loss, torch.Tensor):
        raise TaskError(f"task {task.name!r}: loss must return a scalar tensor, found {type(loss).__name__}")
    if loss.numel() != 1:
        raise TaskError(
            f"task {task.name!r}: loss must return a scalar tensor, found shape {tuple(loss.shape)}: "
            "reduce it as `reduction` asks"
        )
    return loss


def _to_float32(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.float() if output.is_floating_point() else output
    if isinstance(output, list | tuple):
        items = [_to_float32(item) for item in output]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    if isinstance(output, dict):
        return type(output)({key: _to_float32(value) for key, value in output.items()})
    return output
