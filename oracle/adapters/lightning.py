"""Lightning: `Trainer` fitting a LightningModule that holds the task's model, as its documentation organises a loop."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from oracle.adapters.arguments import told
from oracle.errors import TrainerError

PRECISIONS = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
PLUGINS = "<[MixedPrecision('16-mixed', 'cpu', scaler=torch.amp.GradScaler('cpu'))]>"
"""What is passed, as a user writes it, so that float16 on a CPU is float16; without it, it is replaced by bfloat16."""


class Adapter:
    """Trains a job with `Trainer`; model, optimizer, scheduler and loaders are the user's there, so the job's."""

    name = "lightning"
    package = "lightning"
    remedies: ClassVar = {
        "precision.compute = as_asked": {"Trainer.plugins": PLUGINS},
        "schedule.cadence = update": {"LRSchedulerConfig.interval": "step"},
    }

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        job = SimpleNamespace(
            recipe=recipe, device=torch.device("cpu"), workdir=Path(), ranks=1, scaler=lambda: None, log=None
        )
        return {f"Trainer.{name}": value for name, value in trainer_arguments(job, {}).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with `Trainer`; None where it can."""
        if recipe.ema is not None:
            return "its running mean of the parameters is a callback that older versions lack: remove [ema]"
        return None

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that `Trainer` does not have.
        """
        from lightning.pytorch import Trainer

        if reason := self.refuse(job.recipe):
            raise TrainerError(f"trainer 'lightning': {reason}")
        module = wrapped(job, told("LRSchedulerConfig", self.arguments))
        trainer = Trainer(**trainer_arguments(job, self.arguments))
        trainer.fit(
            module,
            train_dataloaders=job.loader(shard=False),
            val_dataloaders=job.eval_loader() if job.recipe.evaluate else None,
            ckpt_path=None if job.resume_from is None else str(last_checkpoint(job.resume_from)),
        )


def wrapped(job: Any, config: dict[str, Any]) -> Any:
    """A LightningModule of the task's model, loss, optimizer and scheduler.

    config: what the scheduler's configuration says beside the scheduler; empty leaves it to Lightning.
    """
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        """What the documentation asks of a user, and no more."""

        def __init__(self) -> None:
            super().__init__()
            self.model = job.model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            """The loss of one batch, reported where the recipe asks for reports."""
            loss: torch.Tensor = job.loss(self.model, batch)
            if job.recipe.log is not None:
                self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            """Have the loss averaged over the evaluation data."""
            self.log("val_loss", job.loss(self.model, batch))

        def on_validation_end(self) -> None:
            """Pass on what `Trainer` found, unless it only tried out whether it can evaluate."""
            if not self.trainer.sanity_checking:
                job.evaluated({"loss": float(self.trainer.callback_metrics["val_loss"])})

        def configure_optimizers(self) -> Any:
            """The optimizer, with a scheduler where the recipe has a schedule."""
            optimizer = job.optimizer(self.model)
            if job.recipe.schedule is None:
                return optimizer
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": job.scheduler(optimizer), **config}}

    return Module()


def trainer_arguments(job: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Trainer` that the job's recipe states, the run's surroundings, and those that were given."""
    recipe = job.recipe
    stated: dict[str, Any] = {
        "accumulate_grad_batches": recipe.accumulation,
        **({"max_steps": recipe.updates} if recipe.updates is not None else {"max_epochs": recipe.epochs}),
        **surroundings(job),
    }
    if recipe.clip is not None:
        by_norm = recipe.clip.max_norm is not None
        stated["gradient_clip_val"] = recipe.clip.max_norm if by_norm else recipe.clip.max_value
        stated["gradient_clip_algorithm"] = "norm" if by_norm else "value"
    if (plugin := mixed_precision(job, arguments, "lightning.pytorch.plugins")) is not None:
        stated["plugins"] = [plugin]
    elif recipe.precision.dtype != "float32":
        stated["precision"] = PRECISIONS[recipe.precision.dtype]
    if recipe.log is not None:
        stated |= {"log_every_n_steps": recipe.log.every, "logger": logger(job)}
    if recipe.evaluate is not None:
        batches = recipe.evaluate.every * recipe.accumulation
        stated |= {"val_check_interval": batches, "check_val_every_n_epoch": None}
    if recipe.checkpoint is not None:
        from lightning.pytorch.callbacks import ModelCheckpoint

        stated["callbacks"] = [ModelCheckpoint(dirpath=job.workdir, every_n_train_steps=recipe.checkpoint.every)]
    return stated | given("Trainer", arguments)


def surroundings(job: Any) -> dict[str, Any]:
    """What keeps a run in the job's folder, on its device and ranks, and quiet."""
    return {
        "accelerator": "cpu" if job.device.type == "cpu" else "gpu",
        "devices": job.ranks,
        **({"strategy": "ddp"} if job.ranks > 1 else {}),
        "default_root_dir": str(job.workdir),
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }


def given(owner: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of one class, without the plugin that `mixed_precision` makes."""
    return {name: value for name, value in told(owner, arguments).items() if value != PLUGINS}


def mixed_precision(job: Any, arguments: dict[str, Any], module: str) -> Any:
    """The plugin that takes a loss scaler, where the recipe states the scaler's numbers or float16 is asked to work.

    module: where the plugin is imported from.
    Returns None where it is not needed.
    """
    recipe = job.recipe
    working = arguments.get("float16.on_cpu") or PLUGINS in arguments.values()
    if recipe.precision.dtype != "float16" or not (recipe.scaler or working):
        return None
    kind = importlib.import_module(module).MixedPrecision
    return kind(PRECISIONS["float16"], job.device.type, scaler=job.scaler())


def logger(job: Any) -> Any:
    """A logger that passes on what `Trainer` reports."""
    from lightning.pytorch.loggers.logger import Logger

    class Reporter(Logger):
        """Writes nothing."""

        name = "job"
        version = 0

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            """The training loss."""
            if "loss" in metrics:
                job.log("loss", metrics["loss"])

        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
            """None are reported."""

    return Reporter()


def last_checkpoint(folder: Path) -> Path:
    """The newest of the checkpoints in a run's folder, by the steps that Lightning writes in their names.

    Raises:
        TrainerError: there is none.
    """
    found = {path: re.search(r"step=(\d+)", path.name) for path in folder.rglob("*.ckpt")}
    steps = {path: int(number[1]) for path, number in found.items() if number}
    if not steps:
        raise TrainerError(f"trainer 'lightning': no checkpoint in {folder} to resume from: state [checkpoint] every")
    return max(steps, key=lambda path: steps[path])
