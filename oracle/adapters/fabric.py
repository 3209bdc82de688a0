"""Lightning Fabric: a loop by hand as its documentation writes it, with what `Fabric` sets up."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from oracle.adapters.arguments import told
from oracle.adapters.lightning import PLUGINS, PRECISIONS, given, mixed_precision
from oracle.errors import TrainerError


class Adapter:
    """Trains a job with `Fabric`; model, optimizer, loader, scheduler and loop are the user's there, so the job's."""

    name = "fabric"
    package = "lightning"
    remedies: ClassVar = {"precision.compute = as_asked": {"Fabric.plugins": PLUGINS}}

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        job = SimpleNamespace(recipe=recipe, device=torch.device("cpu"), ranks=1, scaler=lambda: None)
        return {f"Fabric.{name}": value for name, value in fabric_arguments(job, {}).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with Fabric; None where it can."""
        if recipe.ema is not None:
            return "Fabric keeps no running mean of the parameters: remove [ema]"
        return None

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that Fabric does not have.
        """
        from lightning.fabric import Fabric

        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'fabric': {reason}")
        fabric = Fabric(**fabric_arguments(job, self.arguments))
        fabric.launch()
        model = job.model()
        optimizer = job.optimizer(model)
        scheduler = job.scheduler(optimizer)
        model, optimizer = fabric.setup(model, optimizer)
        loader = fabric.setup_dataloaders(job.loader(shard=False))
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 0, "batch": 0, "updates": 0}
        if job.resume_from is not None:
            fabric.load(last_checkpoint(job.resume_from), state)
        losses: list[torch.Tensor] = []
        while state["updates"] != recipe.updates and state["epoch"] != recipe.epochs:
            model.train()
            done, state["batch"] = state["batch"], 0
            for i, batch in enumerate(loader):
                state["batch"] += 1
                if i < done:  # before the run was interrupted
                    continue
                accumulating = (i + 1) % recipe.accumulation != 0
                with fabric.no_backward_sync(model, enabled=accumulating):
                    loss = job.loss(model, batch)
                    fabric.backward(loss / recipe.accumulation)
                losses.append(loss.detach())
                if accumulating:
                    continue
                clip(fabric, model, optimizer, recipe.clip, self.arguments)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                state["updates"] += 1
                report(fabric, job, state, torch.stack(losses).mean())
                losses = []
                if state["updates"] == recipe.updates:
                    break
            else:
                state["epoch"], state["batch"] = state["epoch"] + 1, 0


def fabric_arguments(job: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Fabric` that the job's recipe states, the job's device and ranks, and those that were given."""
    recipe = job.recipe
    stated: dict[str, Any] = {
        "accelerator": "cpu" if job.device.type == "cpu" else "gpu",
        "devices": job.ranks,
        **({"strategy": "ddp"} if job.ranks > 1 else {}),
    }
    if (plugin := mixed_precision(job, arguments, "lightning.fabric.plugins")) is not None:
        stated["plugins"] = [plugin]
    elif recipe.precision.dtype != "float32":
        stated["precision"] = PRECISIONS[recipe.precision.dtype]
    return stated | given("Fabric", arguments)


def clip(fabric: Any, model: Any, optimizer: Any, limit: Any, arguments: dict[str, Any]) -> None:
    """Limit the gradients as the recipe's [clip] asks."""
    if limit is None:
        return
    if limit.max_norm is not None:
        fabric.clip_gradients(model, optimizer, max_norm=limit.max_norm, **told("clip_gradients", arguments))
    else:
        fabric.clip_gradients(model, optimizer, clip_val=limit.max_value)


def report(fabric: Any, job: Any, state: dict[str, Any], loss: torch.Tensor) -> None:
    """Log, evaluate and save where the recipe asks for it at this update."""
    recipe, updates = job.recipe, state["updates"]
    if recipe.log and updates % recipe.log.every == 0:
        job.log("loss", loss)
    if recipe.evaluate and updates % recipe.evaluate.every == 0:
        job.evaluate(state["model"])
    if recipe.checkpoint and updates % recipe.checkpoint.every == 0:
        fabric.save(job.workdir / f"step_{updates}.ckpt", state)


def last_checkpoint(folder: Path) -> Path:
    """The newest of the checkpoints that `report` saved in a run's folder.

    Raises:
        TrainerError: there is none.
    """
    found = {path: int(re.sub(r"\D", "", path.stem)) for path in folder.glob("step_*.ckpt")}
    if not found:
        raise TrainerError(f"trainer 'fabric': no checkpoint in {folder} to resume from: state [checkpoint] every")
    return max(found, key=lambda path: found[path])
