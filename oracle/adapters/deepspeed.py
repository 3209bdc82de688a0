"""DeepSpeed: the loop of its documentation around `deepspeed.initialize`, ZeRO 0 to 3; several ranks at 0."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch

from oracle.adapters.arguments import told
from oracle.adapters.checkpoints import newest
from oracle.errors import TrainerError


class Adapter:
    """Trains a job with a DeepSpeed engine; the model, optimizer, loader and schedule are the job's."""

    name = "deepspeed"
    package = "deepspeed"

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        return {f"config.{name}": value for name, value in configuration(recipe, {}).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with DeepSpeed; None where it can."""
        stage = told("DeepSpeedZeroConfig", self.arguments).get("stage", 0)
        if recipe.ema is not None:
            return "DeepSpeed keeps no running mean of the parameters: remove [ema]"
        if recipe.clip is not None and recipe.clip.max_value is not None:
            return "DeepSpeed clips by norm alone: state clip.max_norm instead of clip.max_value"
        if recipe.precision.dtype != "float32" and stage:
            return f"precision.dtype = {recipe.precision.dtype!r} is recorded at stage 0 alone: set it to 'float32'"
        if recipe.scaler is not None:
            return "DeepSpeed has no argument for the numbers of autocast's loss scaler: remove [scaler]"
        if recipe.parallel.ranks > 1 and stage:
            return (
                f"parallel.ranks = {recipe.parallel.ranks}: at stage {stage} a rank holds pieces of flat tensors that "
                "cross parameters, so none can be compared: choose stage 0, or set it to 1"
            )
        return None

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that DeepSpeed does not have.
        """
        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'deepspeed': {reason}")
        deepspeed = imported(job, told("environ", self.arguments))
        model = job.model()
        optimizer = job.optimizer(model)
        engine, _, _, _ = deepspeed.initialize(
            model=with_loss(job, model),
            optimizer=optimizer,
            lr_scheduler=job.scheduler(optimizer),
            config=configuration(recipe, self.arguments),
        )
        if engine.zero_optimization():
            job.observe(optimizer=engine.optimizer)
        updates = 0
        if job.resume_from is not None:
            updates, folder = newest(job.resume_from, "deepspeed")
            engine.load_checkpoint(str(folder.parent), folder.name)
        epoch = updates // job.updates_per_epoch
        while updates != recipe.updates and epoch != recipe.epochs:
            engine.train()
            for batch in job.loader():
                loss = engine(batch)
                ends = engine.is_gradient_accumulation_boundary()
                engine.backward(loss)
                engine.step()
                if ends:
                    updates += 1
                    report(job, engine, updates, loss)
                    if updates == recipe.updates:
                        break
            epoch += 1
        deepspeed.comm.destroy_process_group()


def configuration(recipe: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The configuration that the recipe and the arguments state."""
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": recipe.batch_size,
        "gradient_accumulation_steps": recipe.accumulation,
    }
    if recipe.clip is not None:
        found["gradient_clipping"] = recipe.clip.max_norm if recipe.clip.max_norm != float("inf") else 0.0
    if recipe.precision.dtype != "float32":
        found["torch_autocast"] = {"enabled": True, "dtype": recipe.precision.dtype}
    if zero := told("DeepSpeedZeroConfig", arguments):
        found["zero_optimization"] = zero
        if zero.get("stage") and recipe.optimizer.name == "sgd":
            found["zero_allow_untested_optimizer"] = True  # it refuses torch's SGD otherwise
    return found


def imported(job: Any, variables: dict[str, str]) -> Any:
    """DeepSpeed's module, imported where it finds what a launcher states, and nothing to be compiled."""
    os.environ.update(surroundings(job), **variables)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # C++, for processes on one host
    return deepspeed


def surroundings(job: Any) -> dict[str, str]:
    """The launcher's variables, which a process alone has none of, and the job's device."""
    device = {"DS_ACCELERATOR": "cpu"} if job.device.type == "cpu" else {}
    if job.ranks > 1:
        return device
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return one | device


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


def report(job: Any, engine: Any, updates: int, loss: torch.Tensor) -> None:
    """Log, evaluate and save where the recipe asks for it at this update."""
    recipe = job.recipe
    if recipe.log and updates % recipe.log.every == 0:
        job.log("loss", loss)
    if recipe.evaluate and updates % recipe.evaluate.every == 0:
        job.evaluate(engine.module.model)
    if recipe.checkpoint and updates % recipe.checkpoint.every == 0:
        engine.save_checkpoint(str(job.workdir), f"step_{updates}")
