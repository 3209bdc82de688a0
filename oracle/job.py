"""What a trainer is given: one training job, as plain torch objects."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from reference_loop import randomness
from reference_loop.data import build
from reference_loop.decay import decays
from reference_loop.loader import count_samples, refuse_shared_stream
from reference_loop.plan import planned_updates, updates_per_epoch
from reference_loop.recipe import Recipe, ScalerOptions
from reference_loop.schedules import factor
from reference_loop.semantics import Semantics
from reference_loop.shards import DealtStream
from reference_loop.state import check_loss, check_model
from reference_loop.task import Task, TaskError, count_units

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class Interrupted(BaseException):
    """Ends a job at the cut. A BaseException, so that a trainer that catches errors does not swallow it."""


class EpochSampler(DistributedSampler):
    """A DistributedSampler that is told its epoch: each iteration over it is the next one."""

    def __iter__(self) -> Iterator[int]:
        indices = super().__iter__()  # drawn now
        self.set_epoch(self.epoch + 1)
        return indices


class Silence:
    """What a job tells when nobody records it."""

    def attach(self, **parts: Any) -> None:
        """Told of objects that hooks cannot see."""

    def open_loss(self, model: torch.nn.Module, batch: Mapping[str, Any]) -> None:
        """Told that the loss of a batch is computed next."""

    def close_loss(self, loss: torch.Tensor | None) -> None:
        """Told the loss; None if computing it raised."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Entered while the model is evaluated."""
        return nullcontext()

    def metric(self, moment: str, name: str, value: float) -> None:
        """Told a number that was logged or evaluated."""


class Job:
    """One training job.

    task, recipe: as given.
    semantics: what the user expects; it decides the optimizer's groups and the planned number of updates.
    workdir: a folder of this run's own.
    device: where the model and its batches live.
    resume_from: the workdir of the interrupted run, None for a run from the start.
    rank, ranks: this process's place.
    recorder: what the job tells of itself; None records nothing.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        *,
        workdir: Path,
        semantics: Semantics | None = None,
        device: str | torch.device = "cpu",
        resume_from: Path | None = None,
        rank: int = 0,
        ranks: int = 1,
        recorder: Any = None,
    ) -> None:
        self.task = task
        self.recipe = recipe
        self.semantics = semantics or Semantics.of(recipe)
        self.workdir = Path(workdir)
        self.device = torch.device(device)
        self.resume_from = Path(resume_from) if resume_from is not None else None
        self.rank = rank
        self.ranks = ranks
        self._recorder = recorder or Silence()
        self._configured: tuple[Any, dict[str, Any]] | None = None

    # What is trained

    def model(self) -> torch.nn.Module:
        """The task's model under the recipe's seed, on the job's device. Call it once.

        The generators are seeded again afterwards, so a trainer that seeds them itself starts from the same state.
        """
        randomness.seed(self.recipe.seed)
        model = check_model(self.task, self.task.model()).to(self.device)
        randomness.seed(self.recipe.seed)
        self._recorder.attach(model=model)
        self._configured = (model, _configuration(model))
        return model

    @property
    def reconfigured(self) -> dict[str, list[Any]]:
        """What the trainer changed in the model's `config`, where it has one: name to [before, after]."""
        if self._configured is None:
            return {}
        model, before = self._configured
        after = _configuration(model)
        return {name: [before[name], after[name]] for name in before if before[name] != after.get(name, before[name])}

    def train_data(self) -> Any:
        """The training data set, the same object at every call; what is only iterable is an IterableDataset."""
        return self._train_data

    def eval_data(self) -> Any:
        """The evaluation data set, the same object at every call.

        Raises:
            TaskError: the task has none.
        """
        return self._eval_data

    @cached_property
    def _train_data(self) -> Any:
        return build(self.task, "train_data", self.recipe.seed)

    @cached_property
    def _eval_data(self) -> Any:
        if self.task.eval_data is None:
            raise TaskError(f"task {self.task.name!r} has no eval_data: add eval_data=..., or do not evaluate")
        return build(self.task, "eval_data", self.recipe.seed)

    # How the recipe asks to train it

    def loader(self, *, shard: bool = True) -> DataLoader:
        """A plain DataLoader over the training data, the same at every call; each iteration over it is one epoch.

        shard: of several ranks, this one's samples, by a DistributedSampler that is told each epoch, or every n-th of a
            stream; False for all of them, as one rank has them, for a trainer that deals them itself.
        """
        return self._sharded if shard and self.ranks > 1 else self._loader

    def eval_loader(self) -> DataLoader:
        """A plain DataLoader over the evaluation data, in its order, nothing dropped."""
        return DataLoader(self.eval_data(), batch_size=self.recipe.batch_size, num_workers=self.recipe.workers)

    @cached_property
    def _loader(self) -> DataLoader:
        data, recipe = self.train_data(), self.recipe
        if isinstance(data, IterableDataset):
            return self._streaming(data)
        return DataLoader(
            data,
            batch_size=recipe.batch_size,
            shuffle=recipe.shuffle,
            drop_last=recipe.drop_last,
            num_workers=recipe.workers,
        )

    @cached_property
    def _sharded(self) -> DataLoader:
        data, recipe = self.train_data(), self.recipe
        if isinstance(data, IterableDataset):
            return self._streaming(DealtStream(data, recipe, "interleave", recipe.drop_last, self.rank))
        sampler = EpochSampler(
            data, self.ranks, self.rank, shuffle=recipe.shuffle, seed=recipe.seed, drop_last=recipe.drop_last
        )
        return DataLoader(
            data,
            batch_size=recipe.batch_size,
            sampler=sampler,
            drop_last=recipe.drop_last,
            num_workers=recipe.workers,
        )

    def _streaming(self, data: IterableDataset) -> DataLoader:
        recipe = self.recipe
        if recipe.shuffle:
            raise TaskError(
                f"task {self.task.name!r}: its training data can only be iterated, and the recipe asks to shuffle: "
                "return a data set with __getitem__ and __len__, or set shuffle = false"
            )
        refuse_shared_stream(recipe.workers)
        return DataLoader(
            data, batch_size=recipe.batch_size, drop_last=recipe.drop_last, num_workers=recipe.workers
        )

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The recipe's torch.optim optimizer over all parameters of a model, frozen ones too.

        One group in the order of `model.parameters()` where all of them decay; otherwise the ones that decay, then,
        with a weight decay of 0, the others.
        """
        decaying = decays(self.semantics.optimizer.decay_set, model)
        groups: list[dict[str, Any]] = [{"params": [p for name, p in model.named_parameters() if decaying[name]]}]
        others = [p for name, p in model.named_parameters() if not decaying[name]]
        if others:
            groups.append({"params": others, "weight_decay": 0.0})
        arguments = self.recipe.optimizer.arguments()
        return OPTIMIZERS[self.recipe.optimizer.name]([group for group in groups if group["params"]], **arguments)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        """A torch scheduler over `total_updates`, to be stepped once an update; constant without a `[schedule]`."""
        asked = self.recipe.schedule
        if asked is None:
            return LambdaLR(optimizer, lambda update: 1.0)
        return LambdaLR(optimizer, lambda update: factor(asked.name, asked.warmup, update, self.total_updates))

    def scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler with the recipe's numbers; it does nothing unless the precision is float16."""
        options = self.recipe.scaler or ScalerOptions()
        return torch.amp.GradScaler(
            self.device.type,
            init_scale=options.init_scale,
            growth_factor=options.growth_factor,
            backoff_factor=options.backoff_factor,
            growth_interval=options.growth_interval,
            enabled=self.recipe.precision.dtype == "float16",
        )

    @cached_property
    def total_updates(self) -> int:
        """How many updates the run has, as the semantics plan them."""
        return planned_updates(self.recipe, self.semantics, self._samples)

    @cached_property
    def updates_per_epoch(self) -> int:
        """How many updates an epoch has, as the semantics plan them."""
        return updates_per_epoch(self.recipe, self.semantics, self._samples)

    @cached_property
    def _samples(self) -> int:
        return count_samples(self.train_data())

    # While it trains

    def loss(
        self, model: torch.nn.Module, batch: Mapping[str, Any], reduction: Literal["mean", "sum"] = "mean"
    ) -> torch.Tensor:
        """The task's loss of one batch, a scalar with its graph. Does not enter autocast: the trainer does.

        Raises:
            TaskError: the task returned something else than a tensor of one element.
        """
        batch = self._placed(batch)
        self._recorder.open_loss(model, batch)
        loss: torch.Tensor | None = None
        try:
            loss = check_loss(self.task, self.task.loss(model, batch, reduction))
            return loss
        finally:
            self._recorder.close_loss(loss)

    def units(self, batch: Mapping[str, Any]) -> int:
        """How many samples or tokens the sum of a batch's loss is over."""
        return count_units(self.task, batch)

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        """The task's metrics over its evaluation data, by name.

        The model is in evaluation mode meanwhile, without gradients; every module gets back the mode it had.

        Raises:
            TaskError: the task has no metrics, or they are not numbers.
        """
        if self.task.metrics is None:
            raise TaskError(
                f"task {self.task.name!r} has no metrics: add eval_data=... and metrics=..., or remove [evaluate]"
            )
        with self._recorder.evaluating(), _in_eval_mode(model), torch.no_grad():
            found = _numbers(self.task, self.task.metrics(model, map(self._placed, self.eval_loader())))
        self.evaluated(found)
        return found

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Tell what a trainer that evaluates by itself found."""
        for name, value in metrics.items():
            self._recorder.metric("evaluate", name, float(value))

    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Tell what the trainer reports for the update just finished."""
        self._recorder.metric("log", name, value.item() if isinstance(value, torch.Tensor) else float(value))

    def observe(self, **parts: Any) -> None:
        """Show the oracle what its hooks cannot see: model, optimizer, scaler, scheduler, ema."""
        self._recorder.attach(**parts)

    def _placed(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """The batch with its tensors on the job's device; where that is the CPU, the batch itself."""
        if self.device.type == "cpu":
            return batch
        return {name: value.to(self.device) if torch.is_tensor(value) else value for name, value in batch.items()}


def _configuration(model: torch.nn.Module) -> dict[str, Any]:
    """The plain values of a model's `config`; empty where it has none."""
    values = getattr(getattr(model, "config", None), "__dict__", {})
    plain = (bool, int, float, str)
    return {name: v for name, v in values.items() if isinstance(v, plain) and not name.startswith("_")}


@contextmanager
def _in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode in the block; afterwards every module has the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _numbers(task: Task, metrics: Any) -> dict[str, float]:
    """The metrics as plain floats, if they are a dict of numbers or of tensors of one element."""
    if not isinstance(metrics, Mapping):
        raise TaskError(
            f"task {task.name!r}: metrics must return a dict of numbers, found {type(metrics).__name__}: "
            'return {"name": value}'
        )
    for name, value in metrics.items():
        if not isinstance(value, numbers.Real) and not (isinstance(value, torch.Tensor) and value.numel() == 1):
            raise TaskError(f"task {task.name!r}: metric {name!r} must be a number, found {type(value).__name__}")
    return {str(name): float(value) for name, value in metrics.items()}
