"""torchtune: its recipe `full_finetune_single_device`, run from its file as `tune run` does, on a job's components."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch.utils.data import default_collate

from oracle.adapters.arguments import one_process, told
from oracle.errors import TrainerError

RECIPE = "full_finetune_single_device"
CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
SAVED = "model-00001-of-00001.bin"
"""What torchtune calls the file of a model, which a resumed run looks for."""
COMPONENTS = f"{__name__}.Components"


class Components:
    """What the configuration names by a dotted path, as it names everything; made from the job at hand."""

    job: ClassVar[Any] = None
    trained: ClassVar[Any] = None

    @staticmethod
    def model() -> torch.nn.Module:
        """The task's model, with its loss."""
        return Components.trained

    @staticmethod
    def dataset(tokenizer: Any) -> Any:
        """The task's samples."""
        return Components.job.train_data()

    @staticmethod
    def collate(samples: list[Any], padding_idx: int, ignore_idx: int) -> dict[str, Any]:
        """One batch, and the labels that the recipe counts: the task's, or one a sample where it has none."""
        batch = default_collate(samples)
        labels = batch.get("labels")
        if labels is None:
            labels = torch.zeros(len(samples), 1, dtype=torch.long)
        return {"batch": batch, "labels": labels.reshape(len(samples), -1).long()}

    @staticmethod
    def schedule(optimizer: Any, num_training_steps: int, last_epoch: int, **arguments: Any) -> Any:
        """The recipe's schedule: torchtune's own cosine, or torch's LambdaLR, over as many updates as are stated."""
        from torchtune.training.lr_schedulers import get_cosine_schedule_with_warmup

        recipe, total = Components.job.recipe, Components.job.recipe.updates or num_training_steps
        if recipe.schedule.name == "cosine":
            return get_cosine_schedule_with_warmup(
                optimizer, num_training_steps=total, last_epoch=last_epoch, **arguments
            )
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor(recipe.schedule, total), last_epoch)

    class Tokenizer:
        """The samples are tokenised already; the recipe asks for the number that pads."""

        pad_id = 0

    class Loss:
        """Passes on the loss that the model returned, in the list in which the recipe takes outputs as they are."""

        ignore_index = -100

        def __call__(self, outputs: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
            return outputs[0]

    class Logger:
        """Where the recipe reports to; ends the run behind the recipe's last update, which torchtune cannot be told."""

        def log_config(self, config: Any) -> None:
            """Nothing is written."""

        def log_dict(self, payload: dict[str, Any], step: int) -> None:
            """One update is over."""
            job = Components.job
            recipe = job.recipe
            if recipe.log and step % recipe.log.every == 0:
                job.log("loss", payload["loss"])
            if recipe.evaluate and step % recipe.evaluate.every == 0:
                job.evaluate(Components.trained.model)
            if step == recipe.updates:
                raise Ended

        def close(self) -> None:
            """Nothing is open."""


class Ended(Exception):
    """The recipe's last update is over."""


class Adapter:
    """Trains a job with `FullFinetuneRecipeSingleDevice`; what the configuration names are the job's components."""

    name = "torchtune"
    package = "torchtune"

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        return {f"config.{name}": value for name, value in configuration(recipe).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with torchtune; None where it can."""
        if recipe.ema is not None:
            return "torchtune keeps no running mean of the parameters: remove [ema]"
        if recipe.clip is not None and recipe.clip.max_value is not None:
            return "torchtune clips by norm alone: state clip.max_norm instead of clip.max_value"
        if recipe.precision.dtype != "float32":
            return (
                f"precision.dtype = {recipe.precision.dtype!r}: torchtune holds the weights themselves in the type, "
                "and has no autocast: set it to 'float32'"
            )
        if recipe.scaler is not None:
            return "torchtune scales no loss: remove [scaler]"
        return one_process(recipe)

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that torchtune does not have.
        """
        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'torchtune': {reason}")
        os.environ.update(told("environ", self.arguments))
        from omegaconf import OmegaConf

        Components.job, Components.trained = job, with_loss(job, job.model())
        steps = len(job.train_data()) // recipe.batch_size // recipe.accumulation
        if not steps:
            raise TrainerError("trainer 'torchtune': an epoch has no whole window, and torchtune steps in no other")
        if recipe.checkpoint is not None and recipe.checkpoint.every != steps:
            raise TrainerError(
                f"trainer 'torchtune': checkpoint.every = {recipe.checkpoint.every}, and torchtune saves behind each "
                f"epoch: set it to {steps}"
            )
        epochs = recipe.epochs or math.ceil(recipe.updates / steps)
        config = OmegaConf.create({**configuration(recipe), **surroundings(job), "epochs": epochs})
        tuned = recipe_file().FullFinetuneRecipeSingleDevice(cfg=config)
        tuned.setup(cfg=config)
        with suppress(Ended):
            tuned.train()
        tuned.cleanup()


def configuration(recipe: Any) -> dict[str, Any]:
    """The entries of torchtune's configuration that a recipe states."""
    found: dict[str, Any] = {
        "seed": recipe.seed,
        "batch_size": recipe.batch_size,
        "shuffle": recipe.shuffle,
        "gradient_accumulation_steps": recipe.accumulation,
        "optimizer": {
            "_component_": f"torch.optim.{CLASSES[recipe.optimizer.name]}",
            **{name: list(v) if isinstance(v, tuple) else v for name, v in recipe.optimizer.arguments().items()},
        },
    }
    if recipe.clip is not None:
        found["clip_grad_norm"] = recipe.clip.max_norm
    if recipe.schedule is not None:
        warmup = {"num_warmup_steps": recipe.schedule.warmup} if recipe.schedule.name == "cosine" else {}
        found["lr_scheduler"] = {"_component_": f"{COMPONENTS}.schedule", **warmup}
    return found


def surroundings(job: Any) -> dict[str, Any]:
    """What names the job's components, and keeps the run in its folder and on its device."""
    file = SAVED if job.resume_from is None else take_over(job.resume_from, job.workdir)
    folder = job.workdir / "model"
    folder.mkdir()
    torch.save(Components.trained.state_dict(), folder / SAVED)
    return {
        "device": job.device.type,
        "dtype": "fp32",
        "output_dir": str(job.workdir),
        "resume_from_checkpoint": job.resume_from is not None,
        "max_steps_per_epoch": None,
        "optimizer_in_bwd": False,
        "compile": False,
        "model": {"_component_": f"{COMPONENTS}.model"},
        "tokenizer": {"_component_": f"{COMPONENTS}.Tokenizer"},
        "dataset": {"_component_": f"{COMPONENTS}.dataset"},
        "collate_fn": f"{COMPONENTS}.collate",
        "loss": {"_component_": f"{COMPONENTS}.Loss"},
        "metric_logger": {"_component_": f"{COMPONENTS}.Logger"},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelTorchTuneCheckpointer",
            "checkpoint_dir": str(folder),
            "checkpoint_files": [file],
            "model_type": "LLAMA3",
            "output_dir": str(job.workdir),
        },
    }


def take_over(saved: Path, workdir: Path) -> str:
    """Copy what an interrupted run saved into the new run's folder: torchtune resumes in the folder that it saves to.

    Returns the file of the newest epoch's model in it.

    Raises:
        TrainerError: it saved nothing.
    """
    if not (saved / "recipe_state").is_dir():
        raise TrainerError(f"trainer 'torchtune': no checkpoint in {saved} to resume from: state [checkpoint] every")
    epochs = sorted(saved.glob("epoch_*"), key=lambda folder: int(folder.name.removeprefix("epoch_")))
    for folder in [saved / "recipe_state", *epochs]:
        shutil.copytree(folder, workdir / folder.name)
    return f"{epochs[-1].name}/{SAVED}"


def recipe_file() -> ModuleType:
    """torchtune's recipe: a script beside the package, in a folder that refuses imports; `tune run` runs it by path."""
    import torchtune

    path = Path(torchtune.__file__).parent.parent / "recipes" / f"{RECIPE}.py"
    spec = importlib.util.spec_from_file_location(RECIPE, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def factor(schedule: Any, total: int) -> Any:
    """What a constant or linear schedule multiplies the rate by, as LambdaLR takes it."""

    def of(step: int) -> float:
        if step < schedule.warmup:
            return step / max(1, schedule.warmup)
        left = 1 - (step - schedule.warmup) / max(1, total - schedule.warmup)
        return max(0.0, left) if schedule.name == "linear" else 1.0

    return of


def with_loss(job: Any, model: torch.nn.Module) -> torch.nn.Module:
    """A module that returns the task's loss on a batch, in a list."""

    class WithLoss(torch.nn.Module):
        """The task's model with its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Any) -> list[torch.Tensor]:
            """The loss of one batch."""
            return [job.loss(self.model, batch)]

    return WithLoss()
