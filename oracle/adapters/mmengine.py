"""mmengine: `Runner` with what the recipe states, its own loops, sampler, optimizer wrapper and hooks for the rest."""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest import mock

import torch

from oracle.adapters.arguments import one_process, told
from oracle.errors import TrainerError
from reference_loop.schedules import factor

ON_CPU = "float16.on_cpu"


class Adapter:
    """Trains a job with `Runner`; the model is wrapped in a `BaseModel` that returns the task's loss."""

    name = "mmengine"
    package = "mmengine"
    remedies: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        kind = "OptimWrapper" if recipe.precision.dtype == "float32" else "AmpOptimWrapper"
        wrapper = {f"{kind}.{name}": value for name, value in wrapper_arguments(recipe).items()}
        return wrapper | {f"Runner.{name}": value for name, value in runner_arguments(recipe, None).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with `Runner`; None where it can."""
        if recipe.ema is not None:
            return "EMAHook averages at every micro-batch, not at every update: remove [ema]"
        if recipe.scaler is not None and recipe.precision.dtype != "float16":
            return "AmpOptimWrapper alone has a loss scale: remove [scaler], or set precision.dtype to float16"
        return one_process(recipe)

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that `Runner` does not have.
        """
        from mmengine.runner import Runner

        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'mmengine': {reason}")
        model = job.model()
        with amp_on_the_cpu() if self.arguments.get(ON_CPU) else ExitStack():
            wrapper = optim_wrapper(job, model, self.arguments)
            arguments = runner_arguments(recipe, job.train_data())
            if recipe.schedule is not None:
                arguments["param_scheduler"] = scheduler(job, wrapper)
            if job.resume_from is not None:
                arguments |= {"resume": True, "load_from": last_checkpoint(job.resume_from)}
            runner = Runner(
                model=wrapped(job, model),
                work_dir=str(job.workdir),
                optim_wrapper=wrapper,
                custom_hooks=[reporter(job, model)],
                **arguments | told("Runner", self.arguments),
            )
            runner.train()


def runner_arguments(recipe: Any, data: Any) -> dict[str, Any]:
    """The arguments of `Runner` that a recipe states.

    data: the training data set. Its samples are dicts of tensors, so batches are stacked ones: mmengine's own default
        leaves a batch a list, for a model that stacks by itself.
    """
    steps = recipe.accumulation
    length = {"by_epoch": True, "max_epochs": recipe.epochs}
    if recipe.updates is not None:
        length = {"by_epoch": False, "max_iters": recipe.updates * steps}
    arguments: dict[str, Any] = {
        "randomness": {"seed": recipe.seed},
        "train_cfg": length,
        "train_dataloader": {
            "dataset": data,
            "batch_size": recipe.batch_size,
            "sampler": {"type": "DefaultSampler", "shuffle": recipe.shuffle},
            "num_workers": recipe.workers,
            "drop_last": recipe.drop_last,
            "collate_fn": {"type": "default_collate"},
        },
    }
    if recipe.checkpoint is not None:
        every = recipe.checkpoint.every * steps
        hook = {"type": "CheckpointHook", "by_epoch": False, "interval": every}
        arguments["default_hooks"] = {"checkpoint": hook}
    return arguments


def wrapper_arguments(recipe: Any) -> dict[str, Any]:
    """The arguments of `OptimWrapper` or `AmpOptimWrapper` that a recipe states."""
    arguments: dict[str, Any] = {"accumulative_counts": recipe.accumulation}
    if recipe.clip is not None and recipe.clip.max_norm is not None:
        arguments["clip_grad"] = {"max_norm": recipe.clip.max_norm}
    elif recipe.clip is not None:
        arguments["clip_grad"] = {"type": "value", "clip_value": recipe.clip.max_value}
    if recipe.precision.dtype != "float32":
        arguments["dtype"] = recipe.precision.dtype
    if recipe.scaler is not None:
        arguments["loss_scale"] = dict(vars(recipe.scaler))
    return arguments


def optim_wrapper(job: Any, model: torch.nn.Module, arguments: dict[str, Any]) -> Any:
    """The optimizer in mmengine's wrapper, which accumulates, clips and scales."""
    from mmengine.optim import AmpOptimWrapper, OptimWrapper

    kind = OptimWrapper if job.recipe.precision.dtype == "float32" else AmpOptimWrapper
    return kind(optimizer=job.optimizer(model), **wrapper_arguments(job.recipe) | told(kind.__name__, arguments))


@contextmanager
def amp_on_the_cpu() -> Any:
    """Let `AmpOptimWrapper` work on the CPU, which it refuses: how the code is reached that runs on a GPU alone."""
    module = "mmengine.optim.optimizer.amp_optimizer_wrapper"
    with (
        mock.patch(f"{module}.is_cuda_available", lambda: True),
        mock.patch(f"{module}.GradScaler", functools.partial(torch.amp.GradScaler, "cpu")),
        mock.patch("mmengine.runner.amp.autocast", functools.partial(torch.autocast, "cpu")),
    ):
        yield


def scheduler(job: Any, wrapper: Any) -> Any:
    """The recipe's schedule as a parameter scheduler of the user's own, which `Runner` steps at every iteration.

    mmengine's own cannot say it: they move at every micro-batch, and `LinearLR` cannot rise from 0.
    """
    from mmengine.optim.scheduler.param_scheduler import _ParamScheduler

    class Rate(_ParamScheduler):
        """Moves where an iteration made an update."""

        def __init__(self, asked: Any, total: int) -> None:
            self.asked, self.total, self.updates = (asked.name, asked.warmup), total, 0
            super().__init__(wrapper, param_name="lr", by_epoch=False)

        def _get_value(self) -> list[float]:
            self.updates += self.last_step > 0 and self.optimizer.should_update()
            by = factor(*self.asked, self.updates, self.total)
            return [base * by for base in self.base_values]

    return Rate(job.recipe.schedule, job.total_updates)


def wrapped(job: Any, model: torch.nn.Module) -> torch.nn.Module:
    """A `BaseModel` whose forward returns the task's loss."""
    from mmengine.model import BaseModel

    class Wrapped(BaseModel):
        """The task's model with its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, mode: str = "tensor", **batch: Any) -> dict[str, torch.Tensor]:
            """The losses of one batch, which mmengine adds up."""
            return {"loss": job.loss(self.model, batch)}

    return Wrapped()


def reporter(job: Any, model: torch.nn.Module) -> Any:
    """A hook that logs and evaluates where the recipe asks for it; it runs before checkpoints are saved."""
    from mmengine.hooks import Hook

    recipe = job.recipe

    class Reporter(Hook):
        """Counts updates as iterations."""

        priority = "LOW"

        def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
            """Told that a micro-batch is trained."""
            if recipe.log and self.every_n_train_iters(runner, recipe.log.every * recipe.accumulation):
                job.log("loss", outputs["loss"].detach())
            if recipe.evaluate and self.every_n_train_iters(runner, recipe.evaluate.every * recipe.accumulation):
                job.evaluate(model)

    return Reporter()


def last_checkpoint(folder: Any) -> str:
    """The newest checkpoint in the folder of an interrupted run, found as `Runner` finds it.

    Raises:
        TrainerError: there is none.
    """
    from mmengine.runner import find_latest_checkpoint

    found = find_latest_checkpoint(str(folder))
    if found is None:
        raise TrainerError(f"trainer 'mmengine': no checkpoint in {folder} to resume from: state [checkpoint] every")
    return found
