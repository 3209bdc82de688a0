"""pytorch-ignite: `create_supervised_trainer`, and an `Engine` with an update of one's own where that cannot say it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch

from oracle.adapters.arguments import one_process, told
from oracle.errors import TrainerError

ON_CPU = "float16.on_cpu"


class Adapter:
    """Trains a job with an `Engine`; model, optimizer, loader and schedule are the user's there, so the job's."""

    name = "ignite"
    package = "pytorch-ignite"
    remedies: ClassVar = {"precision.compute = as_asked": {ON_CPU: True}}

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "function.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "function.argument"."""
        if by_hand(recipe):
            return {}
        return {f"create_supervised_trainer.{name}": value for name, value in stated(recipe).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with ignite; None where it can."""
        if recipe.ema is not None:
            return "ignite's EMAHandler averages at iterations, whatever the accumulation: remove [ema]"
        return one_process(recipe)

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that ignite does not have.
        """
        from ignite.engine import Events

        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'ignite': {reason}")
        model = job.model()
        optimizer = job.optimizer(model)
        scheduler = job.scheduler(optimizer)
        scaler = gradient_scaler(job, self.arguments)
        trainer = self.engine(job, model, optimizer, scaler)

        def each(updates: int) -> Any:
            return Events.ITERATION_COMPLETED(every=updates * recipe.accumulation)

        trainer.add_event_handler(each(1), lambda: scheduler.step())  # which takes no engine
        if recipe.log is not None:
            trainer.add_event_handler(each(recipe.log.every), lambda engine: job.log("loss", engine.state.output))
        if recipe.evaluate is not None:
            trainer.add_event_handler(each(recipe.evaluate.every), lambda: job.evaluate(model))
        kept = {"trainer": trainer, "model": model, "optimizer": optimizer, "scheduler": scheduler}
        save_and_load(job, kept if scaler is None else {**kept, "scaler": scaler}, each)
        length = {"max_epochs": recipe.epochs} if recipe.epochs else {"max_iters": recipe.updates * recipe.accumulation}
        trainer.run(job.loader(), **({} if job.resume_from else length))

    def engine(self, job: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> Any:
        """The trainer: ignite's own, or one around an update of the user's."""
        from ignite.engine import Engine, create_supervised_trainer

        on_cpu = bool(self.arguments.get(ON_CPU))
        if by_hand(job.recipe):
            return Engine(update(job, model, optimizer, scaler, on_cpu))
        arguments = {**stated(job.recipe), **({} if scaler is None else {"scaler": scaler})}
        with mock.patch("torch.amp.autocast", on_the_cpu) if on_cpu else nullcontext():
            return create_supervised_trainer(
                model,
                optimizer,
                loss_fn=lambda loss, _: loss,
                device=job.device,
                prepare_batch=lambda batch, device, non_blocking: (batch, None),
                model_fn=job.loss,
                **arguments | told("create_supervised_trainer", self.arguments),
            )


def stated(recipe: Any) -> dict[str, Any]:
    """The arguments of `create_supervised_trainer` that a recipe states."""
    arguments: dict[str, Any] = {"gradient_accumulation_steps": recipe.accumulation}
    if recipe.precision.dtype == "float16":
        arguments |= {"amp_mode": "amp", "scaler": True}
    return arguments


def by_hand(recipe: Any) -> bool:
    """Whether `create_supervised_trainer` cannot say a recipe: it does not clip, and its autocast has no type."""
    limits = recipe.clip is not None and recipe.clip.max_norm != float("inf")
    return limits or recipe.precision.dtype == "bfloat16"


def gradient_scaler(job: Any, arguments: dict[str, Any]) -> Any:
    """The scaler that float16 comes with; ignite's documentation makes it for cuda. None in other precisions."""
    if job.recipe.precision.dtype != "float16":
        return None
    numbers = vars(job.recipe.scaler) if job.recipe.scaler else {}
    return torch.amp.GradScaler("cpu" if arguments.get(ON_CPU) else "cuda", **numbers)


def on_the_cpu(device: str, enabled: bool) -> Any:
    """The autocast that ignite enters, on the CPU instead of cuda: how the code is reached that runs on a GPU alone."""
    return torch.autocast("cpu", dtype=torch.float16, enabled=enabled)


def update(job: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, on_cpu: bool) -> Callable:
    """What an `Engine` does with each batch, as ignite's documentation writes it, and a clip before the step."""
    recipe, steps = job.recipe, job.recipe.accumulation
    dtype = getattr(torch, recipe.precision.dtype)
    cuda = dtype is torch.float16 and not on_cpu  # where the documentation's autocast is, whatever the device

    def step(engine: Any, batch: Any) -> float:
        if (engine.state.iteration - 1) % steps == 0:
            optimizer.zero_grad()
        model.train()
        with torch.autocast("cuda" if cuda else job.device.type, dtype=dtype, enabled=dtype is not torch.float32):
            loss = job.loss(model, batch) / steps
        (loss if scaler is None else scaler.scale(loss)).backward()
        if engine.state.iteration % steps == 0:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip(model, recipe.clip)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        return loss.item() * steps

    return step


def clip(model: torch.nn.Module, limit: Any) -> None:
    """Limit the gradients as the recipe's [clip] asks."""
    if limit is not None and limit.max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit.max_norm)
    elif limit is not None:
        torch.nn.utils.clip_grad_value_(model.parameters(), limit.max_value)


def save_and_load(job: Any, kept: dict[str, Any], each: Callable[[int], Any]) -> None:
    """Save what is kept where the recipe asks for it, and load what an interrupted run saved.

    each: the event of every so many updates.

    Raises:
        TrainerError: there is nothing to resume from.
    """
    from ignite.handlers import Checkpoint, DiskSaver

    if job.resume_from is not None:
        Checkpoint.load_objects(kept, checkpoint=str(last_checkpoint(job.resume_from)))
    if job.recipe.checkpoint is not None:
        saver = Checkpoint(kept, DiskSaver(str(job.workdir), require_empty=False))
        kept["trainer"].add_event_handler(each(job.recipe.checkpoint.every), saver)


def last_checkpoint(folder: Path) -> Path:
    """The newest file that `Checkpoint` wrote in a run's folder.

    Raises:
        TrainerError: there is none.
    """
    found = sorted(folder.glob("checkpoint_*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    if not found:
        raise TrainerError(f"trainer 'ignite': no checkpoint in {folder} to resume from: state [checkpoint] every")
    return found[-1]
