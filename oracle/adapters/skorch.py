"""skorch: `NeuralNet` and its callbacks, as its documentation accumulates, clips, schedules, saves and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, IterableDataset

from oracle.adapters.accelerate import use_float16
from oracle.adapters.arguments import one_process, told
from oracle.adapters.checkpoints import newest
from oracle.errors import TrainerError
from oracle.job import OPTIMIZERS
from reference_loop.schedules import factor


class Adapter:
    """Trains a job with a `NeuralNet` whose `infer` returns the task's loss."""

    name = "skorch"
    package = "skorch"
    remedies: ClassVar = {"precision.compute = as_asked": {"float16.on_cpu": True}}

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        found = {f"NeuralNet.{name}": value for name, value in net_arguments(recipe).items()}
        if recipe.precision.dtype != "float32":
            found |= {f"Accelerator.{name}": value for name, value in accelerator_arguments(recipe).items()}
        return found

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with skorch; None where it can."""
        if recipe.ema is not None:
            return "skorch keeps no running mean of the parameters: remove [ema]"
        if recipe.clip is not None and recipe.clip.max_value is not None:
            return "GradientNormClipping clips by norm alone: state clip.max_norm instead of clip.max_value"
        return one_process(recipe)

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that skorch does not have.
        """
        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'skorch': {reason}")
        arguments = net_arguments(recipe)
        if recipe.precision.dtype == "float32":
            kind = net_class(job)
            arguments["device"] = job.device.type
        else:
            kind = accelerated_class(job)
            arguments |= {"device": None, "accelerator": accelerator(job, self.arguments)}
        net = kind(
            job.model(),
            criterion=torch.nn.Identity,  # the task's loss stands in for it
            callbacks=callbacks(job),
            **arguments | told("NeuralNet", self.arguments),
        )
        if job.resume_from is None:
            net.fit(Pairs(job.train_data()))
        else:
            net.initialize()
            go_on(net, job)
            net.partial_fit(Pairs(job.train_data()))


class Pairs(Dataset):
    """The samples as skorch wants them, data and target; the task's targets are in the data."""

    def __init__(self, samples: Any) -> None:
        if isinstance(samples, IterableDataset):
            raise TrainerError("trainer 'skorch': needs data with __getitem__ and __len__, found an IterableDataset")
        self.samples = samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.samples[index], 0

    def __len__(self) -> int:
        return len(self.samples)


def net_arguments(recipe: Any) -> dict[str, Any]:
    """The arguments of `NeuralNet` that a recipe states."""
    stated = recipe.optimizer.arguments()
    return {
        "max_epochs": recipe.epochs or recipe.updates * recipe.accumulation,  # a callback ends a run after its updates
        "train_split": None,  # all of the training data is trained
        "batch_size": recipe.batch_size,
        "iterator_train__shuffle": recipe.shuffle,
        "iterator_train__drop_last": recipe.drop_last,
        "iterator_train__num_workers": recipe.workers,
        "optimizer": OPTIMIZERS[recipe.optimizer.name],
        "lr": stated.pop("lr"),
        **{f"optimizer__{name}": value for name, value in stated.items()},
    }


def net_class(job: Any) -> type:
    """`NeuralNet` as it is, or with the two methods overridden that its documentation accumulates by."""
    from skorch import NeuralNet

    steps = job.recipe.accumulation

    class Net(NeuralNet):
        """Its loss is the task's."""

        def infer(self, x: Any, **_: Any) -> torch.Tensor:
            """The loss of a batch."""
            return job.loss(self.module_, x)

        def get_loss(self, y_pred: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            """What `infer` returned."""
            return y_pred

        def stepped(self) -> bool:
            """Whether the batch just trained made an update."""
            return len(self.history[-1, "batches"]) % steps == 0

    class Accumulating(Net):
        """From skorch's FAQ."""

        def get_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            """The loss, divided."""
            return super().get_loss(*args, **kwargs) / steps

        def train_step(self, batch: Any, **fit_params: Any) -> Any:
            """Step at every n-th batch of an epoch."""
            step = self.train_step_single(batch, **fit_params)
            if self.stepped():
                self.optimizer_.step()
                self.optimizer_.zero_grad()
            return step

    return Net if steps == 1 else Accumulating


def accelerated_class(job: Any) -> type:
    """`NeuralNet` with accelerate, which brings reduced precision to skorch, and accumulates by itself."""
    from skorch import NeuralNet
    from skorch.hf import AccelerateMixin

    class Net(AccelerateMixin, NeuralNet):
        """Its loss is the task's."""

        def infer(self, x: Any, **_: Any) -> torch.Tensor:
            """The loss of a batch."""
            return job.loss(self.module_, x)

        def get_loss(self, y_pred: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            """What `infer` returned."""
            return y_pred

        def stepped(self) -> bool:
            """Whether the batch just trained made an update."""
            return self.accelerator.sync_gradients

    return Net


def accelerator_arguments(recipe: Any) -> dict[str, Any]:
    """The arguments of `Accelerator` that a recipe states."""
    named = {"bfloat16": "bf16", "float16": "fp16"}
    arguments = {
        "mixed_precision": named[recipe.precision.dtype],
        "gradient_accumulation_steps": recipe.accumulation,
    }
    if recipe.scaler is not None:
        from accelerate.utils import GradScalerKwargs

        arguments["kwargs_handlers"] = [GradScalerKwargs(**vars(recipe.scaler))]
    return arguments


def accelerator(job: Any, arguments: dict[str, Any]) -> Any:
    """The accelerator that the net is constructed with."""
    from accelerate import Accelerator

    made = Accelerator(
        cpu=job.device.type == "cpu", **accelerator_arguments(job.recipe) | told("Accelerator", arguments)
    )
    if arguments.get("float16.on_cpu") and job.recipe.precision.dtype == "float16":
        use_float16(made)
    return made


def callbacks(job: Any) -> list[Any]:
    """What the recipe asks for, as callbacks: clip, schedule, then log, evaluation and saves."""
    from skorch.callbacks import Callback, GradientNormClipping, LRScheduler

    recipe = job.recipe

    class Schedule(LRScheduler):
        """Steps once an update, where skorch's own steps at every batch."""

        def on_batch_end(self, net: Any, training: bool = False, **kwargs: Any) -> None:
            """Told that a batch is trained."""
            if net.stepped():
                super().on_batch_end(net, training=training, **kwargs)

    class Reporter(Callback):
        """Counts updates, and ends the run as skorch's own callbacks do."""

        updates = 0

        def on_batch_end(self, net: Any, **kwargs: Any) -> None:
            """Told that a batch is trained."""
            if not net.stepped():
                return
            self.updates += 1
            if recipe.log and self.updates % recipe.log.every == 0:
                job.log("loss", net.history[-1, "batches", -1, "train_loss"])
            if recipe.evaluate and self.updates % recipe.evaluate.every == 0:
                job.evaluate(net.module_)
            if recipe.checkpoint and self.updates % recipe.checkpoint.every == 0:
                save(net, job.workdir / f"step_{self.updates}")
            if self.updates == recipe.updates:
                raise KeyboardInterrupt

    found: list[Any] = []
    if recipe.clip is not None:
        found.append(("clip", GradientNormClipping(gradient_clip_value=recipe.clip.max_norm)))
    if recipe.schedule is not None:
        asked, total = recipe.schedule, job.total_updates
        rate = Schedule(LambdaLR, lr_lambda=lambda t: factor(asked.name, asked.warmup, t, total), step_every="batch")
        found.append(("schedule", rate))
    return [*found, ("reporter", Reporter())]


FILES = {"f_params": "params.pt", "f_optimizer": "optimizer.pt", "f_history": "history.json"}
"""What skorch saves: arguments of `save_params` and `load_params`."""


def save(net: Any, folder: Path) -> None:
    """Save a net into a new folder."""
    folder.mkdir()
    net.save_params(**{argument: str(folder / name) for argument, name in FILES.items()})


def go_on(net: Any, job: Any) -> None:
    """Load the newest save of an interrupted run into a net, and leave it the epochs that are left.

    Raises:
        TrainerError: there is none.
    """
    updates, folder = newest(job.resume_from, "skorch")
    net.load_params(**{argument: str(folder / name) for argument, name in FILES.items()})
    dict(net.callbacks_)["reporter"].updates = updates
    over = len(net.history[-1, "batches"]) == len(job.loader())
    if job.recipe.epochs is not None:
        net.max_epochs = job.recipe.epochs - len(net.history) + (not over)
