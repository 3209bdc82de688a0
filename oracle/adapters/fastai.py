"""fastai: a `Learner` with fastai's own optimizer, its callbacks for accumulation, clipping, precision and schedule."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any, ClassVar

import torch

from oracle.adapters.arguments import one_process, told
from oracle.adapters.checkpoints import newest
from oracle.errors import TrainerError

SAID = {"sgd": {"momentum": "mom"}, "adam": {"eps": "eps"}, "adamw": {"eps": "eps"}}
"""What fastai's `SGD` and `Adam` call an optimizer's arguments; betas and weight decay are passed apart."""


class Adapter:
    """Trains a job with `Learner.fit`, on a model that returns the task's loss."""

    name = "fastai"
    package = "fastai"
    remedies: ClassVar = {
        "hyperparameter.eps": {"Adam.eps": "{reference}"},
        "hyperparameter.weight_decay": {"Learner.wd": "{reference}"},
        "optimizer.decay = coupled": {"SGD.decouple_wd": False, "Adam.decouple_wd": False},
        "optimizer.decay_set = all": {"Learner.wd_bn_bias": True},
    }

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        kind = "SGD" if recipe.optimizer.name == "sgd" else "Adam"
        found = {f"{kind}.{name}": value for name, value in optimizer_arguments(recipe.optimizer).items()}
        return found | {f"Learner.{name}": value for name, value in learner_arguments(recipe).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with fastai; None where it can."""
        optimizer = recipe.optimizer
        known = {"lr", "weight_decay", *SAID[optimizer.name], *(() if optimizer.name == "sgd" else ("betas",))}
        if unknown := sorted(key for key in optimizer.arguments() if key not in known):
            return f"fastai's own optimizer has no optimizer.{unknown[0]}: remove it"
        if recipe.ema is not None:
            return "fastai keeps no running mean of the parameters: remove [ema]"
        if recipe.clip is not None and recipe.clip.max_value is not None:
            return "GradientClip limits the norm alone: state clip.max_norm instead of clip.max_value"
        return one_process(recipe)

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that fastai does not have.
        """
        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'fastai': {reason}")
        os.environ.update(told("environ", self.arguments))
        from fastai.basics import DataLoaders, Learner, set_seed

        set_seed(recipe.seed)  # before the loader, which draws the seed of its orders
        data = loader(job)
        epochs = recipe.epochs or math.ceil(recipe.updates * recipe.accumulation / len(data))
        learner = Learner(
            DataLoaders(data, [], path=job.workdir),  # nothing to validate on
            with_loss(job, job.model()),
            loss_func=lambda loss, *targets: loss,
            opt_func=self._optimizer(recipe.optimizer),
            cbs=callbacks(job, epochs * len(data), self.arguments),
            path=job.workdir,
            **learner_arguments(recipe) | told("Learner", self.arguments),
        )
        learner.create_opt()
        job.observe(optimizer=learner.opt)
        begun = 0
        if job.resume_from is not None:
            begun, saved = newest(job.resume_from, "fastai")
            learner.load(saved.with_suffix(""), with_opt=True)
        with learner.no_bar(), learner.no_logging():
            learner.fit(epochs, start_epoch=begun // job.updates_per_epoch)

    def _optimizer(self, optimizer: Any) -> Any:
        """fastai's optimizer with what the recipe and the arguments state."""
        from fastai import optimizer as optimizers

        kind = "SGD" if optimizer.name == "sgd" else "Adam"
        return partial(getattr(optimizers, kind), **optimizer_arguments(optimizer) | told(kind, self.arguments))


def optimizer_arguments(optimizer: Any) -> dict[str, Any]:
    """The arguments of fastai's `SGD` or `Adam` that a recipe states; decay is coupled as in torch's class."""
    stated = optimizer.arguments()
    arguments = {own: stated[name] for name, own in SAID[optimizer.name].items() if name in stated}
    if "betas" in stated:
        arguments["mom"], arguments["sqr_mom"] = stated["betas"]
    if "weight_decay" in stated and optimizer.name != "adamw":
        arguments["decouple_wd"] = False
    return arguments


def learner_arguments(recipe: Any) -> dict[str, Any]:
    """The arguments of `Learner` that a recipe states."""
    stated = recipe.optimizer.arguments()
    return {"lr": stated["lr"], **({"wd": stated["weight_decay"]} if "weight_decay" in stated else {})}


def loader(job: Any) -> Any:
    """fastai's DataLoader over pairs: a sample for the model, and its index, which the accumulation counts."""
    from fastai.data.load import DataLoader

    class Pairs(torch.utils.data.Dataset):
        """The task's samples, as fastai takes them."""

        def __len__(self) -> int:
            return len(job.train_data())

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return job.train_data()[index], index

    recipe = job.recipe
    return DataLoader(
        Pairs(),
        bs=recipe.batch_size,
        shuffle=recipe.shuffle,
        drop_last=recipe.drop_last,
        num_workers=recipe.workers,
        device=job.device,
    )


def with_loss(job: Any, model: torch.nn.Module) -> torch.nn.Module:
    """A module that returns the task's loss on a batch."""

    class WithLoss(torch.nn.Module):
        """The task's model with its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Any) -> torch.Tensor:
            """The loss of one batch."""
            return job.loss(self.model, batch)

    return WithLoss()


def callbacks(job: Any, micros: int, arguments: dict[str, Any]) -> list[Any]:
    """The callbacks that the recipe states.

    micros: of the epochs that `fit` is asked for, by which a schedule's position is counted.
    """
    from fastai.callback.fp16 import MixedPrecision
    from fastai.callback.schedule import ParamScheduler
    from fastai.callback.training import GradientAccumulation, GradientClip

    recipe = job.recipe
    found = [reporter(job)]
    if recipe.accumulation > 1:
        found.append(GradientAccumulation(n_acc=recipe.accumulation * recipe.batch_size))
    if recipe.clip is not None:
        found.append(GradientClip(recipe.clip.max_norm))
    if recipe.schedule is not None:
        found.append(ParamScheduler({"lr": schedule(job, micros)}))
    if recipe.precision.dtype != "float32":
        kind = in_float16(MixedPrecision) if arguments.get("float16.on_cpu") else MixedPrecision
        mode = {"bfloat16": "bf16", "float16": "fp16"}[recipe.precision.dtype]
        found.append(kind(amp_mode=mode, **(vars(recipe.scaler) if recipe.scaler else {})))
    return found


def schedule(job: Any, micros: int) -> Any:
    """The recipe's schedule by fastai's own functions, over the part of the fit that is trained."""
    from fastai.callback.schedule import SchedCos, SchedLin, SchedNo, combine_scheds

    recipe, asked = job.recipe, job.recipe.schedule
    top = recipe.optimizer.lr
    main = {"constant": SchedNo(top, top), "linear": SchedLin(top, 0.0), "cosine": SchedCos(top, 0.0)}[asked.name]
    trained = micros if recipe.updates is None else recipe.updates * recipe.accumulation
    warm = asked.warmup * recipe.accumulation / trained
    whole = combine_scheds([warm, 1 - warm], [SchedLin(0.0, top), main]) if warm else main
    return lambda position: whole(min(1.0, position * (micros / trained)))


def in_float16(kind: type) -> type:
    """MixedPrecision that computes on the CPU: by itself it names CUDA, and does nothing elsewhere."""

    class OnCpu(kind):  # type: ignore[misc, valid-type]
        """Puts autocast and scaler of the CPU in the place of CUDA's."""

        def before_fit(self) -> None:
            super().before_fit()
            dtype = torch.float16 if self.kwargs["enabled"] else torch.bfloat16
            self.autocast = torch.autocast("cpu", dtype=dtype)
            self.learn.scaler = torch.amp.GradScaler("cpu", **self.kwargs)

    return OnCpu


def reporter(job: Any) -> Any:
    """A callback that logs, evaluates, saves and ends where the recipe says so."""
    from fastai.callback.core import Callback, CancelFitException

    class Reporter(Callback):
        """Behind all others."""

        order, run_valid = 1000, False

        def before_fit(self) -> None:
            self.updates, self.stepped = 0, False

        def before_epoch(self) -> None:
            self.updates = max(self.updates, self.epoch * job.updates_per_epoch if job.resume_from else 0)

        def after_step(self) -> None:
            self.updates, self.stepped = self.updates + 1, True

        def after_batch(self) -> None:
            if not self.stepped:
                return
            self.stepped, recipe = False, job.recipe
            if recipe.log and self.updates % recipe.log.every == 0:
                job.log("loss", self.learn.smooth_loss)
            if recipe.evaluate and self.updates % recipe.evaluate.every == 0:
                job.evaluate(self.learn.model.model)
            if recipe.checkpoint and self.updates % recipe.checkpoint.every == 0:
                self.learn.save(job.workdir / f"step_{self.updates}", with_opt=True)
            if self.updates == recipe.updates:
                raise CancelFitException

    return Reporter()
