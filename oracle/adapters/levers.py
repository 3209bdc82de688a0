"""Which argument of a trainer carries which decision, and what else moves one: data for `oracle semantics`.

An argument is written "Class.argument", a variable "environ.NAME". Whether an argument exists in the version at hand,
what its default is, and what the adapter passes, is read in the trainer's own environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Lever:
    """A setting that moves a decision.

    probe: the name of the probe that shows it; "" for a batch that no memory is found for.
    arguments: what the adapter is constructed with.
    proves: knobs of which the run says what the trainer does without the setting, too.
    """

    probe: str
    arguments: Mapping[str, Any]
    proves: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """What is known of one trainer's arguments.

    classes: where each class is imported from.
    carries: knob, "knob = value" or "hyperparameter.name" -> the arguments that carry it, the newest version's first.
    variables: argument -> the environment variable that stands for it where it is not passed.
    chosen: "knob = value" -> what the adapter does where the version at hand has no argument for it: name and value.
    surroundings: environment variables without which the classes cannot be imported.
    loop: knobs that the loop around the trainer decides, as its documentation writes it.
    """

    classes: Mapping[str, str]
    carries: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, str] = field(default_factory=dict)
    chosen: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    surroundings: Mapping[str, str] = field(default_factory=dict)
    loop: frozenset[str] = frozenset()
    levers: tuple[Lever, ...] = field(default=())


FLOAT16 = Lever(
    "float16 that overflows", {"float16.on_cpu": True}, ("clip.moment", "schedule.on_skip", "scaler.unit")
)
"""float16 made to work where the trainer leaves it off, to reach the code that handles the loss scale."""

TABLES: dict[str, Table] = {
    "accelerate": Table(
        classes={
            "Accelerator": "accelerate",
            "DataLoaderConfiguration": "accelerate.utils",
            "DeepSpeedPlugin": "accelerate.utils",
            "FullyShardedDataParallelPlugin": "accelerate.utils",
            "GradientAccumulationPlugin": "accelerate.utils",
        },
        carries={
            "accumulation.tail": ("GradientAccumulationPlugin.sync_with_dataloader",),
            "data.order": ("DataLoaderConfiguration.use_seedable_sampler",),
            "precision.compute": ("Accelerator.mixed_precision",),
            "schedule.cadence": ("Accelerator.step_scheduler_with_optimizer",),
        },
        variables={"Accelerator.mixed_precision": "ACCELERATE_MIXED_PRECISION"},
        loop=frozenset(
            (
                "clip.kind", "clip.moment", "data.tail", "evaluate.gradients", "evaluate.mode", "evaluate.rng",
                "gradient.clear", "log.digits", "log.loss", "metric.aggregate", "model.mode", "optimizer.decay",
                "optimizer.decay_set", "optimizer.kernel", "schedule.formula", "schedule.horizon", "schedule.order",
                "schedule.stop",
            )
        ),
        levers=(
            Lever("ragged tail", {"GradientAccumulationPlugin.sync_with_dataloader": False}),
            Lever("ragged tail", {"Accelerator.step_scheduler_with_optimizer": False}),
            Lever("ragged tail", {"environ.ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}),
            Lever("shuffled, with dropout", {"DataLoaderConfiguration.use_seedable_sampler": True}),
            FLOAT16,
            Lever("", {}),
        ),
    ),
    "deepspeed": Table(
        classes={"DeepSpeedZeroConfig": "deepspeed.runtime.zero.config"},
        carries={},
        loop=frozenset(
            (
                "clip.kind", "data.order", "data.tail", "evaluate.gradients", "evaluate.mode", "evaluate.rng",
                "log.digits", "log.loss", "metric.aggregate", "model.mode", "optimizer.decay", "optimizer.decay_set",
                "optimizer.kernel", "schedule.formula", "schedule.horizon", "schedule.stop",
            )
        ),
        levers=(Lever("", {}),),
    ),
    "fabric": Table(
        classes={"Fabric": "lightning.fabric"},
        carries={"precision.compute": ("Fabric.precision",)},
        loop=frozenset(
            (
                "accumulation.tail", "clip.kind", "clip.moment", "data.tail", "evaluate.gradients", "evaluate.mode",
                "evaluate.rng", "gradient.clear", "log.digits", "log.loss", "metric.aggregate", "model.mode",
                "optimizer.decay", "optimizer.decay_set", "optimizer.kernel", "schedule.cadence", "schedule.formula",
                "schedule.horizon", "schedule.on_skip", "schedule.order", "schedule.stop",
            )
        ),
        levers=(
            Lever(
                "float16 that overflows",
                {"float16.on_cpu": True, "clip_gradients.error_if_nonfinite": False},
                FLOAT16.proves,
            ),
            Lever("", {}),
        ),
    ),
    "fastai": Table(
        classes={"Adam": "fastai.optimizer", "Learner": "fastai.learner", "SGD": "fastai.optimizer"},
        carries={
            "hyperparameter.betas": ("Adam.mom", "Adam.sqr_mom"),
            "hyperparameter.eps": ("Adam.eps",),
            "hyperparameter.weight_decay": ("Learner.wd",),
            "optimizer.decay": ("Adam.decouple_wd",),
            "optimizer.decay_set": ("Learner.wd_bn_bias",),
        },
        loop=frozenset(("evaluate.gradients", "evaluate.mode", "evaluate.rng", "metric.aggregate")),
        levers=(FLOAT16, Lever("", {})),
    ),
    "ignite": Table(
        classes={"create_supervised_trainer": "ignite.engine"},
        carries={},
        loop=frozenset(
            (
                "clip.kind", "clip.moment", "data.order", "data.tail", "evaluate.gradients", "evaluate.mode",
                "evaluate.rng", "log.digits", "log.loss", "metric.aggregate", "optimizer.decay",
                "optimizer.decay_set", "optimizer.kernel", "precision.compute", "precision.loss", "schedule.cadence",
                "schedule.formula", "schedule.horizon", "schedule.on_skip", "schedule.order",
            )
        ),
        levers=(FLOAT16,),
    ),
    "keras": Table(
        classes=dict.fromkeys(("Adam", "AdamW", "SGD"), "keras.optimizers"),
        carries={
            "clip.kind": ("AdamW.global_clipnorm",),
            "clip.moment": ("AdamW.global_clipnorm",),
            "hyperparameter.eps": ("AdamW.epsilon",),
            "hyperparameter.weight_decay": ("AdamW.weight_decay",),
        },
        surroundings={"KERAS_BACKEND": "torch"},
        loop=frozenset(("evaluate.gradients", "evaluate.mode", "evaluate.rng", "metric.aggregate")),
        levers=(Lever("", {}),),
    ),
    "lightning": Table(
        classes={"LRSchedulerConfig": "lightning.pytorch.utilities.types", "Trainer": "lightning.pytorch"},
        carries={
            "clip.kind": ("Trainer.gradient_clip_algorithm",),
            "clip.moment": ("Trainer.gradient_clip_val",),
            "hyperparameter.max_norm": ("Trainer.gradient_clip_val",),
            "precision.compute": ("Trainer.precision",),
            "schedule.cadence": ("LRSchedulerConfig.interval",),
        },
        loop=frozenset(
            (
                "data.tail", "optimizer.decay", "optimizer.decay_set", "optimizer.kernel", "precision.loss",
                "schedule.formula", "schedule.horizon",
            )
        ),
        levers=(
            Lever("ragged tail", {"LRSchedulerConfig.interval": "step"}),
            Lever("decay and a clip that bites", {"Trainer.gradient_clip_algorithm": "value"}),
            Lever(
                "float16 that overflows",
                {"float16.on_cpu": True, "LRSchedulerConfig.interval": "step"},
                FLOAT16.proves,
            ),
            Lever("", {}),
        ),
    ),
    "mmengine": Table(
        classes={
            "AmpOptimWrapper": "mmengine.optim",
            "OptimWrapper": "mmengine.optim",
            "Runner": "mmengine.runner",
        },
        carries={
            "clip.kind": ("OptimWrapper.clip_grad",),
            "data.order": ("Runner.train_dataloader",),
            "data.tail": ("Runner.train_dataloader",),
            "hyperparameter.max_norm": ("OptimWrapper.clip_grad",),
            "precision.compute": ("AmpOptimWrapper.dtype",),
        },
        loop=frozenset(
            (
                "evaluate.gradients", "evaluate.mode", "evaluate.rng", "log.digits", "log.loss", "metric.aggregate",
                "optimizer.decay", "optimizer.decay_set", "optimizer.kernel", "schedule.formula", "schedule.horizon",
            )
        ),
        levers=(
            Lever("bfloat16", {"float16.on_cpu": True}, ("precision.compute",)),
            Lever("a loss in bfloat16", {"float16.on_cpu": True}, ("precision.loss",)),
            FLOAT16,
        ),
    ),
    "skorch": Table(
        classes={"Accelerator": "accelerate", "NeuralNet": "skorch"},
        carries={
            "optimizer.decay": ("NeuralNet.optimizer",),
            "precision.compute": ("Accelerator.mixed_precision",),
        },
        loop=frozenset(
            (
                "accumulation.tail", "evaluate.gradients", "evaluate.mode", "evaluate.rng", "log.digits",
                "metric.aggregate", "schedule.cadence", "schedule.formula", "schedule.horizon",
            )
        ),
        levers=(FLOAT16,),
    ),
    "swift": Table(
        classes={"Seq2SeqTrainingArguments": "swift.trainers"},
        carries={
            "hyperparameter.betas": ("Seq2SeqTrainingArguments.adam_beta2",),
            "hyperparameter.max_norm": ("Seq2SeqTrainingArguments.max_grad_norm",),
            "hyperparameter.weight_decay": ("Seq2SeqTrainingArguments.weight_decay",),
            "optimizer.decay": ("Seq2SeqTrainingArguments.optim",),
            "optimizer.kernel": ("Seq2SeqTrainingArguments.optim",),
            "precision.compute": ("Seq2SeqTrainingArguments.bf16", "Seq2SeqTrainingArguments.fp16"),
            "schedule.formula": ("Seq2SeqTrainingArguments.lr_scheduler_type",),
        },
        levers=(FLOAT16, Lever("", {})),
    ),
    "torchtune": Table(
        classes={},
        carries={},
        loop=frozenset(
            (
                "evaluate.gradients", "evaluate.mode", "evaluate.rng", "metric.aggregate", "optimizer.decay",
                "optimizer.decay_set", "optimizer.kernel", "schedule.formula",
            )
        ),
        levers=(Lever("", {}),),
    ),
    "transformers": Table(
        classes={
            "AcceleratorConfig": "transformers.trainer_pt_utils",
            "Trainer": "transformers",
            "TrainingArguments": "transformers",
        },
        carries={
            "clip.kind": ("TrainingArguments.max_grad_norm",),
            "clip.moment": ("TrainingArguments.max_grad_norm",),
            "data.order = sequential": ("TrainingArguments.train_sampling_strategy",),
            "data.order = seeded_epoch": ("AcceleratorConfig.use_seedable_sampler",),
            "data.tail": ("TrainingArguments.dataloader_drop_last",),
            "hyperparameter.betas": ("TrainingArguments.adam_beta1",),
            "hyperparameter.eps": ("TrainingArguments.adam_epsilon",),
            "hyperparameter.max_norm": ("TrainingArguments.max_grad_norm",),
            "hyperparameter.weight_decay": ("TrainingArguments.weight_decay",),
            "optimizer.decay": ("TrainingArguments.optim",),
            "optimizer.decay_set": ("Trainer.optimizers",),
            "optimizer.kernel": ("TrainingArguments.optim",),
            "precision.compute": ("TrainingArguments.bf16", "TrainingArguments.fp16"),
            "schedule.formula": ("TrainingArguments.lr_scheduler_type",),
            "schedule.horizon": ("TrainingArguments.max_steps",),
            "schedule.stop": ("TrainingArguments.max_steps",),
        },
        chosen={"data.order = sequential": ("Trainer._get_train_sampler", "SequentialSampler")},
        levers=(
            Lever("decay and a clip that bites", {"TrainingArguments.optim": "adamw_torch"}),
            Lever("decay and a clip that bites", {"TrainingArguments.max_grad_norm": 0.0}),
            Lever(
                "shuffled, with dropout",
                {"TrainingArguments.accelerator_config": {"use_seedable_sampler": False}},
            ),
            FLOAT16,
            Lever("", {}),
            Lever("", {"TrainingArguments.auto_find_batch_size": True}),
        ),
    ),
    "trl": Table(
        classes={"SFTConfig": "trl"},
        carries={
            "hyperparameter.max_norm": ("SFTConfig.max_grad_norm",),
            "hyperparameter.weight_decay": ("SFTConfig.weight_decay",),
            "optimizer.decay": ("SFTConfig.optim",),
            "optimizer.kernel": ("SFTConfig.optim",),
            "precision.compute": ("SFTConfig.bf16", "SFTConfig.fp16"),
            "schedule.formula": ("SFTConfig.lr_scheduler_type",),
        },
        levers=(FLOAT16, Lever("", {})),
    ),
}  # fmt: skip
