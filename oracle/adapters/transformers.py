"""Hugging Face transformers: `Trainer` with what the recipe states, its own defaults for the rest."""

from __future__ import annotations

import inspect
import os
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch.utils.data import IterableDataset, SequentialSampler

from oracle.adapters import deepspeed
from oracle.adapters.accelerate import use_float16
from oracle.adapters.arguments import told
from oracle.errors import TrainerError

# What `Trainer` can be told of an optimizer by arguments; a recipe that states more gets the optimizer object itself.
ADAMW = {"lr": "learning_rate", "weight_decay": "weight_decay", "eps": "adam_epsilon"}
SGD = {"lr": "learning_rate", "weight_decay": "weight_decay"}

CARRIED = {"gradient_accumulation_kwargs": {"sync_with_dataloader": False}}


class Adapter:
    """Trains a job with `Trainer`.

    A model of transformers is trained on its own loss, and so is a module that is written for `Trainer`: its forward
    takes `labels`, and `num_items_in_batch` or `**loss_kwargs`. Any other is wrapped in a module that returns the
    task's loss, as `Trainer` asks of plain modules.
    """

    name = "transformers"
    package = "transformers"
    remedies: ClassVar = {
        "accumulation.tail = carry": {"TrainingArguments.accelerator_config": CARRIED},
        "accumulation.tail = carry_drop": {"TrainingArguments.accelerator_config": CARRIED},
        "data.order = random_sampler": {"TrainingArguments.accelerator_config": {"use_seedable_sampler": False}},
        "data.order = seeded_epoch": {"TrainingArguments.accelerator_config": {"use_seedable_sampler": True}},
        "hyperparameter.eps": {"TrainingArguments.adam_epsilon": "{reference}"},
        "hyperparameter.max_norm = none": {"TrainingArguments.max_grad_norm": 0.0},
        "hyperparameter.weight_decay": {"TrainingArguments.weight_decay": "{reference}"},
        "optimizer.decay_set = all": {"Trainer.optimizers": "<(optimizer, None)>"},
        "optimizer.kernel = loop": {"TrainingArguments.optim": "adamw_torch"},
        "schedule.horizon = ceil": {"TrainingArguments.max_steps": "{updates}"},
        "schedule.stop = epochs": {"TrainingArguments.max_steps": "{updates}"},
    }

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        job = SimpleNamespace(recipe=recipe, device=torch.device("cpu"), workdir=".")
        found = {f"TrainingArguments.{name}": value for name, value in training_arguments(job).items()}
        return found if by_arguments(recipe.optimizer) else {**found, "Trainer.optimizers": "(optimizer, None)"}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with `Trainer`; None where it can."""
        if recipe.ema is not None:
            return "Trainer keeps no running mean of the parameters: remove [ema]"
        if recipe.scaler is not None:
            return "Trainer has no argument for the loss scaler's numbers: remove [scaler]"
        if recipe.clip is not None and recipe.clip.max_value is not None:
            return "Trainer clips by norm alone: state clip.max_norm instead of clip.max_value"
        return None

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that `Trainer` does not have.
        """
        import transformers

        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'transformers': {reason}")
        model = job.model()
        own = isinstance(model, transformers.PreTrainedModel) or has_own_loss(model)
        names = sample_names(job.train_data())
        trained = model if own else wrapped(job, model, names)
        arguments = training_arguments(job) | told("TrainingArguments", self.arguments)
        extra: dict[str, Any] = {}
        if recipe.evaluate is not None:
            extra["eval_dataset"] = job.eval_data()
            if not own:
                arguments["label_names"] = [name for name in names if name != "id"]
        if not by_arguments(recipe.optimizer) or told("Trainer", self.arguments):
            extra["optimizers"] = (job.optimizer(trained), None)
        os.environ.update(told("environ", self.arguments))
        if arguments.get("deepspeed"):
            del arguments["use_cpu"]  # it would leave DeepSpeed aside
            deepspeed.imported(job, {})
        kind = trainer_class(recipe)
        trainer = (in_float16(kind) if self.arguments.get("float16.on_cpu") else kind)(
            model=trained,
            args=transformers.TrainingArguments(**arguments),
            train_dataset=job.train_data(),
            callbacks=[reporter(job)],
            **extra,
        )
        if job.resume_from is None:
            trainer.train()
        else:
            trainer.train(resume_from_checkpoint=last_checkpoint(job.resume_from))


def has_own_loss(model: torch.nn.Module) -> bool:
    """Whether a module is written for `Trainer`: it computes its loss, and divides it by what `Trainer` counts."""
    names = inspect.signature(model.forward).parameters
    return "labels" in names and not {"num_items_in_batch", "loss_kwargs"}.isdisjoint(names)


def in_float16(kind: type) -> type:
    """The trainer with float16 on the CPU, where its accelerator leaves it off; see `use_float16`."""

    class Float16Trainer(kind):  # type: ignore[misc, valid-type]
        """Overrides the method that makes the accelerator."""

        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            use_float16(self.accelerator)

    return Float16Trainer


def training_arguments(job: Any) -> dict[str, Any]:
    """The arguments of `TrainingArguments` that the job's recipe states, and the run's surroundings."""
    from transformers import TrainingArguments

    recipe = job.recipe
    arguments = {
        "seed": recipe.seed,
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.accumulation,
        "dataloader_drop_last": recipe.drop_last,
        "dataloader_num_workers": recipe.workers,
        **optimizer_arguments(recipe.optimizer),
        **schedule_arguments(recipe.schedule),
    }
    if recipe.updates is not None:
        arguments["max_steps"] = recipe.updates
    else:
        arguments["num_train_epochs"] = recipe.epochs
    if not recipe.shuffle and "train_sampling_strategy" in TrainingArguments.__dataclass_fields__:
        arguments["train_sampling_strategy"] = "sequential"
    if recipe.clip is not None:
        arguments["max_grad_norm"] = recipe.clip.max_norm
    if recipe.precision.dtype != "float32":
        arguments[{"bfloat16": "bf16", "float16": "fp16"}[recipe.precision.dtype]] = True
    if recipe.log is not None:
        arguments |= {"logging_strategy": "steps", "logging_steps": recipe.log.every}
    if recipe.evaluate is not None:
        arguments |= {
            "eval_strategy": "steps",
            "eval_steps": recipe.evaluate.every,
            "per_device_eval_batch_size": recipe.batch_size,
        }
    if recipe.checkpoint is not None:
        arguments |= {"save_strategy": "steps", "save_steps": recipe.checkpoint.every}
    return arguments | surroundings(job)


def optimizer_arguments(optimizer: Any) -> dict[str, Any]:
    """The arguments that state an optimizer; none where the optimizer itself is passed."""
    if not by_arguments(optimizer):
        return {}
    stated = optimizer.arguments()
    names = SGD if optimizer.name == "sgd" else ADAMW
    arguments = {names[key]: value for key, value in stated.items() if key in names}
    if "betas" in stated:
        arguments["adam_beta1"], arguments["adam_beta2"] = stated["betas"]
    if optimizer.name == "sgd":
        arguments["optim"] = "sgd"
    return arguments


def by_arguments(optimizer: Any) -> bool:
    """Whether `TrainingArguments` can state this optimizer: AdamW is its default, SGD without momentum has a name."""
    known = {"adamw": {*ADAMW, "betas"}, "sgd": set(SGD)}.get(optimizer.name, set())
    return set(optimizer.arguments()) <= known


def schedule_arguments(schedule: Any) -> dict[str, Any]:
    """The arguments that state a schedule. A recipe without one has a learning rate that stays."""
    if schedule is None:
        return {"lr_scheduler_type": "constant"}
    name = "constant_with_warmup" if schedule.name == "constant" and schedule.warmup else schedule.name
    return {"lr_scheduler_type": name, "warmup_steps": schedule.warmup}


def surroundings(job: Any) -> dict[str, Any]:
    """What keeps a run in the job's folder, on its device, and off the network where the default is not."""
    from transformers import TrainingArguments
    from transformers.integrations import integration_utils

    arguments: dict[str, Any] = {"output_dir": str(job.workdir), "use_cpu": job.device.type == "cpu"}
    reports = TrainingArguments.__dataclass_fields__["report_to"].default != "none"
    if reports and integration_utils.get_available_reporting_integrations():
        arguments["report_to"] = "none"
    return arguments


def trainer_class(recipe: Any) -> type:
    """`Trainer`, or a subclass that keeps the data's order where an older one has no argument for it."""
    from transformers import Trainer, TrainingArguments

    if recipe.shuffle or "train_sampling_strategy" in TrainingArguments.__dataclass_fields__:
        return Trainer

    class SequentialTrainer(Trainer):
        """Overrides the method that the documentation names for this."""

        def _get_train_sampler(self, *data: Any) -> Any:
            dataset = data[0] if data else self.train_dataset
            return None if isinstance(dataset, IterableDataset) else SequentialSampler(dataset)

    return SequentialTrainer


def wrapped(job: Any, model: torch.nn.Module, names: list[str]) -> torch.nn.Module:
    """A module whose forward takes a sample's entries and returns the task's loss.

    names: the entries. They are its whole signature, without `**kwargs`: `Trainer` reads from it which columns to keep,
        and whether the model divides its loss itself.
    """

    class Wrapped(torch.nn.Module):
        """The task's model with its loss."""

        _keys_to_ignore_on_save = None  # `Trainer` asks for it when a checkpoint lacks a tied name

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **batch: Any) -> dict[str, torch.Tensor]:
            """The loss of one batch."""
            return {"loss": job.loss(self.model, batch)}

        def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
            """Tied parameters once: `Trainer` saves at the end, in a format that refuses to hold a tensor twice."""
            names = {name for name, _ in self.named_parameters(remove_duplicate=False)}
            again = names - {name for name, _ in self.named_parameters()}
            content = super().state_dict(*args, **kwargs)
            return {name: value for name, value in content.items() if name not in again}

    entries = (inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names))
    Wrapped.forward.__signature__ = inspect.Signature(list(entries))  # type: ignore[attr-defined]
    return Wrapped()


def sample_names(data: Any) -> list[str]:
    """The names of a sample's entries.

    Raises:
        TrainerError: one of them is renamed by `Trainer` on the way to the model.
    """
    sample = next(iter(data)) if isinstance(data, IterableDataset) else data[0]
    for name in ("label", "label_ids"):
        if name in sample:
            raise TrainerError(
                f"trainer 'transformers': the task's samples have an entry {name!r}, which Trainer renames to "
                "'labels': call it 'labels' in the task"
            )
    return list(sample)


def reporter(job: Any) -> Any:
    """A callback that passes on what `Trainer` reports: the training loss, and the loss over the evaluation data."""
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        """Changes nothing."""

        def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            if args.deepspeed and args.hf_deepspeed_config.get_value("zero_optimization.stage", 0):
                job.observe(optimizer=optimizer.optimizer)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                job.log("loss", logs["loss"])

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            if metrics and "eval_loss" in metrics:
                job.evaluated({"loss": metrics["eval_loss"]})

    return Reporter()


def last_checkpoint(folder: Any) -> str:
    """The newest checkpoint in the folder of an interrupted run, found as `Trainer` finds it.

    Raises:
        TrainerError: there is none.
    """
    from transformers.trainer_utils import get_last_checkpoint

    found = get_last_checkpoint(str(folder))
    if found is None:
        raise TrainerError(
            f"trainer 'transformers': no checkpoint in {folder} to resume from: state [checkpoint] every"
        )
    return found
