"""Hugging Face accelerate: the loop of its documentation, with `accumulate()`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from oracle.adapters import deepspeed
from oracle.adapters.arguments import told
from oracle.errors import TrainerError


class Adapter:
    """Trains a job with `Accelerator`; model, optimizer, loader and scheduler are the user's there, so the job's."""

    name = "accelerate"
    package = "accelerate"
    remedies: ClassVar = {
        "accumulation.tail = carry": {"GradientAccumulationPlugin.sync_with_dataloader": False},
        "accumulation.tail = carry_drop": {"GradientAccumulationPlugin.sync_with_dataloader": False},
        "data.order = random_sampler": {"DataLoaderConfiguration.use_seedable_sampler": False},
        "data.order = seeded_epoch": {"DataLoaderConfiguration.use_seedable_sampler": True},
        "schedule.cadence = micro": {"Accelerator.step_scheduler_with_optimizer": False},
    }

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        job = SimpleNamespace(recipe=recipe, device=torch.device("cpu"))
        return {f"Accelerator.{name}": value for name, value in accelerator_arguments(job, {}).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with accelerate; None where it can."""
        if recipe.ema is not None:
            return "accelerate keeps no running mean of the parameters: remove [ema]"
        return None

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that accelerate does not have.
        """
        from accelerate import Accelerator

        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'accelerate': {reason}")
        os.environ.update(told("environ", self.arguments))
        if told("DeepSpeedPlugin", self.arguments):
            deepspeed.imported(job, {})
        accelerator = Accelerator(**accelerator_arguments(job, self.arguments))
        if self.arguments.get("float16.on_cpu"):
            use_float16(accelerator)
        model = job.model()
        optimizer = job.optimizer(model)
        model, optimizer, loader, scheduler = accelerator.prepare(
            model, optimizer, job.loader(shard=False), job.scheduler(optimizer)
        )
        if told("DeepSpeedPlugin", self.arguments) and model.zero_optimization():
            job.observe(optimizer=model.optimizer)
        place = Place()
        accelerator.register_for_checkpointing(place)
        if job.resume_from is not None:
            accelerator.load_state(str(last_checkpoint(job.resume_from)))
        losses: list[torch.Tensor] = []
        while place.updates != recipe.updates and place.epoch != recipe.epochs:
            model.train()
            for batch in accelerator.skip_first_batches(loader, place.batch) if place.batch else loader:
                with accelerator.accumulate(model):
                    loss = job.loss(model, batch)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        clip(accelerator, model, recipe.clip)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                place.batch += 1
                if accelerator.gradient_state.end_of_dataloader:
                    place.epoch, place.batch = place.epoch + 1, 0
                losses.append(loss.detach())
                if accelerator.sync_gradients:
                    place.updates += 1
                    report(accelerator, job, model, place, torch.stack(losses).mean())
                    losses = []
                    if place.updates == recipe.updates:
                        break


def use_float16(accelerator: Any) -> None:
    """Let an accelerator that was asked for fp16 on the CPU compute in it, with a scaler: by itself it leaves both off.

    To be called before `prepare`. It is how the code is reached that elsewhere runs on a GPU alone.
    """
    accelerator.native_amp = True
    numbers = accelerator.scaler_handler
    accelerator.scaler = torch.amp.GradScaler("cpu", **(numbers.to_kwargs() if numbers is not None else {}))


def accelerator_arguments(job: Any, remedy: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Accelerator` that the job's recipe states, the job's device, and what a remedy adds."""
    recipe = job.recipe
    arguments: dict[str, Any] = {
        "gradient_accumulation_steps": recipe.accumulation,
        "cpu": job.device.type == "cpu",
    }
    if recipe.precision.dtype != "float32":
        arguments["mixed_precision"] = {"bfloat16": "bf16", "float16": "fp16"}[recipe.precision.dtype]
    if recipe.scaler is not None:
        from accelerate.utils import GradScalerKwargs

        arguments["kwargs_handlers"] = [GradScalerKwargs(**vars(recipe.scaler))]
    plugins = {
        "dataloader_config": ("DataLoaderConfiguration", {}),
        "gradient_accumulation_plugin": ("GradientAccumulationPlugin", {"num_steps": recipe.accumulation}),
        "deepspeed_plugin": ("DeepSpeedPlugin", {"gradient_accumulation_steps": recipe.accumulation}),
        "fsdp_plugin": ("FullyShardedDataParallelPlugin", {}),
    }
    for argument, (owner, stated) in plugins.items():
        if own := told(owner, remedy):
            from accelerate import utils

            arguments[argument] = getattr(utils, owner)(**stated, **own)
    if "gradient_accumulation_plugin" in arguments:
        del arguments["gradient_accumulation_steps"]
    if "deepspeed_plugin" in arguments:
        del arguments["cpu"]  # it would leave DeepSpeed aside
    arguments |= told("Accelerator", remedy)
    return arguments


def clip(accelerator: Any, model: torch.nn.Module, limit: Any) -> None:
    """Limit the gradients as the recipe's [clip] asks."""
    if limit is None:
        return
    if limit.max_norm is not None:
        accelerator.clip_grad_norm_(model.parameters(), limit.max_norm)
    else:
        accelerator.clip_grad_value_(model.parameters(), limit.max_value)


def report(accelerator: Any, job: Any, model: torch.nn.Module, place: Place, loss: torch.Tensor) -> None:
    """Log, evaluate and save where the recipe asks for it at this update."""
    recipe = job.recipe
    if recipe.log and place.updates % recipe.log.every == 0:
        job.log("loss", loss)
    if recipe.evaluate and place.updates % recipe.evaluate.every == 0:
        job.evaluate(model)
    if recipe.checkpoint and place.updates % recipe.checkpoint.every == 0:
        accelerator.save_state(str(job.workdir / f"step_{place.updates}"))


@dataclass
class Place:
    """Where a run stands: epochs finished, batches read of the current one, updates made. Saved with the rest."""

    epoch: int = 0
    batch: int = 0
    updates: int = 0

    def state_dict(self) -> dict[str, int]:
        """What `save_state` writes."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, int]) -> None:
        """What `load_state` reads."""
        vars(self).update(state)


def last_checkpoint(folder: Path) -> Path:
    """The newest of the checkpoints that `report` saved in a run's folder.

    Raises:
        TrainerError: there is none.
    """
    found = sorted(folder.glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    if not found:
        raise TrainerError(f"trainer 'accelerate': no checkpoint in {folder} to resume from: state [checkpoint] every")
    return found[-1]
