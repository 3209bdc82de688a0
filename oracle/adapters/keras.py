"""Keras on torch: `Model.fit` over a torch DataLoader, with Keras's optimizer, on the torch model in its wrapper."""

from __future__ import annotations

import math
import os
import shutil
from typing import Any, ClassVar

import torch

from oracle.adapters.arguments import one_process, told
from oracle.errors import TrainerError

KINDS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
SAID = {
    "sgd": {"lr": "learning_rate", "weight_decay": "weight_decay", "momentum": "momentum", "nesterov": "nesterov"},
    "adam": {"lr": "learning_rate", "weight_decay": "weight_decay", "eps": "epsilon", "amsgrad": "amsgrad"},
}
SAID["adamw"] = SAID["adam"]
"""What Keras calls an optimizer's arguments; betas are passed apart."""


class Adapter:
    """Trains a job with `Model.fit`, on a model that returns the task's loss."""

    name = "keras"
    package = "keras"
    remedies: ClassVar = {
        "hyperparameter.eps": {"Adam.epsilon": "{reference}", "AdamW.epsilon": "{reference}"},
        "hyperparameter.weight_decay": {"AdamW.weight_decay": "{reference}"},
    }

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        return {f"{KINDS[recipe.optimizer.name]}.{name}": v for name, v in optimizer_arguments(recipe).items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with Keras; None where it can."""
        optimizer = recipe.optimizer
        known = {*SAID[optimizer.name], *(() if optimizer.name == "sgd" else ("betas",))}
        if unknown := sorted(key for key in optimizer.arguments() if key not in known):
            return f"Keras's {KINDS[optimizer.name]} has no optimizer.{unknown[0]}: remove it"
        if recipe.precision.dtype != "float32":
            return (
                f"precision.dtype = {recipe.precision.dtype!r}: Keras casts the inputs of its own layers, and a torch "
                "module in its wrapper stays in float32: set it to 'float32'"
            )
        if recipe.scaler is not None:
            return "Keras's LossScaleOptimizer belongs to its mixed precision: remove [scaler]"
        if recipe.ema is not None:
            return "Keras puts its running mean in the parameters' place when training ends: remove [ema]"
        return one_process(recipe)

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that Keras does not have.
        """
        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'keras': {reason}")
        os.environ.update({"KERAS_BACKEND": "torch", "KERAS_HOME": str(job.workdir)}, **told("environ", self.arguments))
        import keras

        with keras.device(job.device.type):
            kind = KINDS[recipe.optimizer.name]
            arguments = optimizer_arguments(recipe) | told(kind, self.arguments)
            if recipe.schedule is not None:
                arguments["learning_rate"] = schedule(job)
            optimizer = getattr(keras.optimizers, kind)(**arguments)
            model = with_loss(job, job.model())
            optimizer.build(model.trainable_variables)
            job.observe(optimizer=optimizer)
            model.compile(optimizer=optimizer)
            epochs = recipe.epochs or math.ceil(recipe.updates * recipe.accumulation / len(job.loader()))
            model.fit(job.loader(), epochs=epochs, verbose=0, callbacks=callbacks(job, model))


def optimizer_arguments(recipe: Any) -> dict[str, Any]:
    """The arguments of Keras's optimizer that a recipe states; it accumulates and clips, too."""
    stated = recipe.optimizer.arguments()
    arguments = {own: stated[name] for name, own in SAID[recipe.optimizer.name].items() if name in stated}
    if "betas" in stated:
        arguments["beta_1"], arguments["beta_2"] = stated["betas"]
    if recipe.accumulation > 1:
        arguments["gradient_accumulation_steps"] = recipe.accumulation
    if recipe.clip is not None and recipe.clip.threshold != math.inf:
        arguments["global_clipnorm" if recipe.clip.max_norm is not None else "clipvalue"] = recipe.clip.threshold
    return {name: float(value) if type(value) is int and name in FLOATS else value for name, value in arguments.items()}


FLOATS = ("learning_rate", "momentum", "weight_decay", "epsilon")
"""Arguments that Keras takes as floats alone."""


def schedule(job: Any) -> Any:
    """The recipe's schedule over the planned updates, by Keras's own where it has one with that warm-up."""
    import keras

    own, asked, top = keras.optimizers.schedules, job.recipe.schedule, job.recipe.optimizer.lr
    rest = max(1, job.total_updates - asked.warmup)
    if asked.name == "cosine":
        if not asked.warmup:
            return own.CosineDecay(top, rest)
        return own.CosineDecay(0.0, rest, warmup_target=top, warmup_steps=asked.warmup)
    then = own.PolynomialDecay(top, rest, end_learning_rate=0.0) if asked.name == "linear" else None

    class WarmUp(own.LearningRateSchedule):  # type: ignore[name-defined]
        """A rise from 0, then the rest, as a user of Keras writes it."""

        def __call__(self, step: Any) -> Any:
            step = keras.ops.cast(step, "float32")
            behind = then(step - asked.warmup) if then else keras.ops.convert_to_tensor(top)
            return keras.ops.where(step < asked.warmup, top * (step / max(1, asked.warmup)), behind)

        def get_config(self) -> dict[str, Any]:
            return {}

    return WarmUp() if asked.warmup or then is None else then


def with_loss(job: Any, model: torch.nn.Module) -> Any:
    """A Keras model that holds the torch model in Keras's wrapper, and returns the task's loss on a batch."""
    import keras

    class WithLoss(torch.nn.Module):
        """The task's model with its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Any) -> torch.Tensor:
            """The loss of one batch."""
            return job.loss(self.model, batch)

    class Model(keras.Model):
        """Overrides the method in which Keras's documentation computes a loss of one's own."""

        def __init__(self) -> None:
            super().__init__()
            self.wrapped = keras.layers.TorchModuleWrapper(WithLoss())
            self.built = True

        def call(self, batch: Any, training: bool | None = None) -> Any:
            return self.wrapped(batch, training=training)

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *rest: Any, **more: Any) -> Any:
            return y_pred

    return Model()


def callbacks(job: Any, model: Any) -> list[Any]:
    """A callback that logs, evaluates and ends where the recipe says so, and Keras's own that saves and restores."""
    import keras

    recipe, found = job.recipe, []
    if recipe.checkpoint is not None:
        folder = job.workdir / "backup"
        if job.resume_from is not None:
            if not (job.resume_from / "backup").is_dir():
                raise TrainerError(f"trainer 'keras': no backup in {job.resume_from} to resume from")
            shutil.copytree(job.resume_from / "backup", folder)
        every = recipe.checkpoint.every * recipe.accumulation
        found.append(keras.callbacks.BackupAndRestore(str(folder), save_freq=every, delete_checkpoint=False))
    elif job.resume_from is not None:
        raise TrainerError(f"trainer 'keras': no backup in {job.resume_from} to resume from: state [checkpoint] every")

    class Reporter(keras.callbacks.Callback):
        """Sees each batch; an update is behind every K of them."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen = int(model.optimizer._iterations)
            updates, left = divmod(seen, recipe.accumulation)
            if left:
                return
            if recipe.log and updates % recipe.log.every == 0:
                job.log("loss", float(logs["loss"]))
            if recipe.evaluate and updates % recipe.evaluate.every == 0:
                job.evaluate(job_model)
            if updates == recipe.updates:
                model.stop_training = True

    job_model = model.wrapped.module.model
    return [*found, Reporter()]
