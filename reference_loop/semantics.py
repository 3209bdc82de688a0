"""How a recipe is interpreted: every decision of a training loop as a knob with a finite set of values.

The first value of a knob is what the textbook loop does, unless the recipe asks for another one (`Semantics.of`).
A `style` knob changes the arithmetic, not its meaning: it never raises a verdict above `rounding`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

if TYPE_CHECKING:
    from reference_loop.recipe import Recipe

Effect = Literal["semantic", "style"]


class SemanticsError(ValueError):
    """An unknown knob or value, with the valid ones."""


@dataclass(frozen=True)
class Knob:
    """One decision.

    name: "group.field".
    values: the first is the textbook's.
    effect: whether a change of value changes the meaning of the training, or its rounding alone.
    motives, citations: one sentence and one public source a value.
    """

    name: str
    values: tuple[str, ...]
    effect: Effect
    motives: dict[str, str]
    citations: dict[str, str]


def _knob(why: dict[str, tuple[str, str]], effect: Effect = "semantic") -> Any:
    """A field whose default is the first value of `why`: value -> (motive, citation)."""
    return field(default=next(iter(why)), metadata={"why": why, "effect": effect})


_TORCH_AMP = "https://docs.pytorch.org/docs/stable/notes/amp_examples.html"
_TORCH_OPTIM = "https://docs.pytorch.org/docs/stable/optim.html"
_TORCH_DATA = "https://docs.pytorch.org/docs/stable/data.html"
_TORCH_MODULE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html"
_TORCH_DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
_HF = "https://github.com/huggingface/transformers"
_ACCELERATE = "https://github.com/huggingface/accelerate"
_LIGHTNING = "https://github.com/Lightning-AI/pytorch-lightning"
_KERAS = "https://github.com/keras-team/keras/blob/v3.15.1/keras/src"
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime"
_FASTAI = "https://github.com/fastai/fastai/blob/main/fastai"
_TORCHTUNE = "https://github.com/meta-pytorch/torchtune/blob/v0.6.1"


@dataclass(frozen=True, kw_only=True)
class Accumulation:
    """Which micro-batches form an update, and what their gradient is divided by."""

    normalise: Literal["micro_mean", "unit_mean", "sum", "twice", "unit_mean_twice"] = _knob(
        {
            "micro_mean": ("Each micro-batch's mean loss is divided by the number of micro-batches.", _TORCH_AMP),
            "unit_mean": (
                "The window's summed loss is divided by its units, so that every unit weighs the same.",
                f"{_HF}/pull/34191",
            ),
            "sum": ("Nobody divides: the gradient is the sum of the micro-batches' means.", f"{_HF}/issues/37766"),
            "twice": ("Two layers both divide by the number of micro-batches.", f"{_HF}/pull/35207"),
            "unit_mean_twice": (
                "A loss divided by the window's units is divided by the number of micro-batches too.",
                f"{_HF}/pull/35210",
            ),
        }
    )
    units: Literal["task", "labels", "samples"] = _knob(
        {
            "task": ("The units are the ones the task's loss sums over.", f"{_HF}/pull/46204"),
            "labels": (
                "Every label that is not ignored is counted, also the one that a shifted loss never uses.",
                f"{_HF}/pull/46204",
            ),
            "samples": (
                "Samples are counted where the loss is over tokens.",
                "https://github.com/mosaicml/composer/pull/3273",
            ),
        }
    )
    sum: Literal["task", "weighed_means"] = _knob(
        {
            "task": ("A loss that is divided by units is the task's own sum.", f"{_HF}/pull/34191"),
            "weighed_means": (
                "A loss that is divided by units is a mean times the micro-batch's units, which rounds otherwise.",
                f"{_TORCHTUNE}/recipes/full_finetune_single_device.py",
            ),
        },
        effect="style",
    )
    divide: Literal["loss", "gradient", "loss_reciprocal", "gradient_reciprocal"] = _knob(
        {
            "loss": ("The loss is divided, before backward.", _TORCH_AMP),
            "gradient": (
                "The accumulated gradient is divided, after the last backward.",
                "https://github.com/ml-explore/mlx-lm/pull/1544",
            ),
            "loss_reciprocal": (
                "The loss is multiplied by 1/n, before backward.",
                "https://github.com/mosaicml/composer/blob/main/composer/trainer/trainer.py",
            ),
            "gradient_reciprocal": (
                "The accumulated gradient is multiplied by 1/n, after the last backward.",
                "https://github.com/meta-pytorch/torchtune/pull/1917",
            ),
        },
        effect="style",
    )
    tail_divisor: Literal["actual", "configured"] = _knob(
        {
            "actual": ("A last window with fewer micro-batches is divided by what it holds.", f"{_HF}/pull/38872"),
            "configured": (
                "A last window with fewer micro-batches is divided by the configured count.",
                f"{_LIGHTNING}/issues/19987",
            ),
        }
    )
    tail: Literal["flush", "carry", "carry_drop", "drop", "leak"] = _knob(
        {
            "flush": ("An incomplete window is stepped at the end of the epoch.", f"{_ACCELERATE}/pull/1624"),
            "carry": (
                "A window crosses into the next epoch; the last one is stepped at the end of the run.",
                "https://github.com/open-mmlab/mmengine/blob/main/mmengine/optim/optimizer/optimizer_wrapper.py",
            ),
            "carry_drop": ("A window crosses into the next epoch; the last one is never stepped.", f"{_HF}/pull/29561"),
            "drop": (
                "An incomplete window is thrown away at the end of the epoch.",
                "https://github.com/tracel-ai/burn/issues/5695",
            ),
            "leak": (
                "An incomplete window is not stepped, and its gradient is added to the next window's.",
                f"{_HF}/pull/22098",
            ),
        }
    )
    tail_count: Literal["batches", "samples"] = _knob(
        {
            "batches": ("An epoch's last window holds the micro-batches that are left.", f"{_HF}/pull/37923"),
            "samples": (
                "An epoch's last window holds as many micro-batches as samples are left over; the rest is not trained.",
                f"{_HF}/issues/37777",
            ),
        }
    )
    counted: Literal["window", "chunk", "since_update"] = _knob(
        {
            "window": ("Units are counted over the micro-batches that form the update.", f"{_HF}/pull/34191"),
            "chunk": (
                "Units are counted over chunks of each epoch, although the windows cross from one into the next.",
                f"{_HF}/blob/v4.46.3/src/transformers/trainer.py",
            ),
            "since_update": (
                "Units are counted since the last update, those of a window that leaked into this one included.",
                f"{_TORCHTUNE}/recipes/full_finetune_single_device.py",
            ),
        }
    )
    cadence: Literal["window", "micro"] = _knob(
        {
            "window": ("One update a window.", _TORCH_AMP),
            "micro": ("An update at each micro-batch, whatever was asked for.", f"{_ACCELERATE}/issues/1847"),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """When gradients are cleared."""

    clear: Literal["after_update", "before_backward", "never"] = _knob(
        {
            "after_update": ("Gradients are cleared once a window, after its update.", _TORCH_OPTIM),
            "before_backward": (
                "Gradients are cleared before each backward, so that only the last micro-batch counts.",
                f"{_LIGHTNING}/pull/18619",
            ),
            "never": ("Gradients are never cleared.", "https://github.com/deepspeedai/DeepSpeed/pull/7839"),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Clip:
    """How the recipe's clip is applied."""

    moment: Literal["unscaled", "scaled", "micro", "off", "local"] = _knob(
        {
            "unscaled": ("Once a window, on unscaled gradients.", _TORCH_AMP),
            "scaled": ("On gradients still multiplied by the loss scale.", f"{_LIGHTNING}/issues/9330"),
            "micro": ("After each micro-batch, on a partly accumulated gradient.", f"{_HF}/issues/1563"),
            "off": (
                "The recipe clips, the trainer does not.",
                "https://github.com/simchowitzlabpublic/nano-world-model/pull/22",
            ),
            "local": (
                "Each rank clips what it accumulated itself, before the ranks are reduced.",
                "https://github.com/deepspeedai/DeepSpeed/pull/1801",
            ),
        }
    )
    kind: Literal["norm", "value"] = _knob(
        {
            "norm": (
                "The threshold bounds the norm over all gradients.",
                "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
            ),
            "value": (
                "The threshold bounds each element.",
                "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_value_.html",
            ),
        }
    )
    formula: Literal["guarded", "exact"] = _knob(
        {
            "guarded": (
                "Gradients are multiplied by the threshold divided by the norm and 1e-6.",
                "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
            ),
            "exact": (
                "Gradients are multiplied by the threshold divided by the norm alone.",
                f"{_KERAS}/optimizers/base_optimizer.py",
            ),
        }
    )
    kernel: Literal["norms", "squares", "reciprocal", "float64"] = _knob(
        {
            "norms": (
                "The norm is that of the parameters' norms.",
                "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
            ),
            "squares": (
                "The norm is the root of the sum of the parameters' squared norms, which rounds otherwise.",
                f"{_DEEPSPEED}/utils.py",
            ),
            "reciprocal": (
                "Squares are added up in float64; gradients are multiplied by a reciprocal, which rounds otherwise.",
                f"{_DEEPSPEED}/zero/stage_1_and_2.py",
            ),
            "float64": (
                "Norm and reciprocal are taken in float64, which rounds otherwise.",
                f"{_DEEPSPEED}/zero/stage3.py",
            ),
        },
        effect="style",
    )


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When the learning rate moves, and over how many updates."""

    cadence: Literal["update", "micro", "epoch", "rank", "fraction"] = _knob(
        {
            "update": ("One step of the schedule an update.", _TORCH_OPTIM),
            "micro": ("One step of the schedule a micro-batch.", f"{_ACCELERATE}/issues/963"),
            "epoch": (
                "One step of the schedule an epoch.",
                "https://lightning.ai/docs/pytorch/stable/common/lightning_module.html#configure-optimizers",
            ),
            "rank": (
                "As many steps of the schedule an update as there are ranks.",
                f"{_ACCELERATE}/issues/1382",
            ),
            "fraction": (
                "A fraction of a step a micro-batch, a whole one a window: an update has its last micro-batch's rate.",
                f"{_FASTAI}/callback/schedule.py",
            ),
        }
    )
    order: Literal["after_update", "before_update"] = _knob(
        {
            "after_update": ("The schedule steps after the optimizer.", _TORCH_OPTIM),
            "before_update": ("The schedule steps before the optimizer: the first rate is never used.", _TORCH_OPTIM),
        }
    )
    on_skip: Literal["hold", "advance"] = _knob(
        {
            "hold": ("An update that the loss scaler skipped does not move the schedule.", f"{_HF}/pull/11144"),
            "advance": ("The schedule moves although the update was skipped.", f"{_LIGHTNING}/issues/18828"),
        }
    )
    horizon: Literal["ceil", "floor", "micro", "unsharded"] = _knob(
        {
            "ceil": ("The total counts an epoch's incomplete window as an update.", f"{_HF}/pull/37923"),
            "floor": ("The total does not count an epoch's incomplete window.", f"{_HF}/pull/37923"),
            "micro": ("The total is counted in micro-batches.", "https://github.com/allenai/allennlp/issues/4089"),
            "unsharded": (
                "The total is counted as if one rank trained all samples.",
                "https://github.com/huggingface/diffusers/pull/8312",
            ),
        }
    )
    formula: Literal["progress", "remaining", "float32", "fraction"] = _knob(
        {
            "progress": ("Decay is computed as 1 - t/T.", _TORCH_OPTIM),
            "remaining": (
                "Decay is computed as (T - t)/T, which rounds otherwise.",
                f"{_HF}/blob/main/src/transformers/optimization.py",
            ),
            "float32": (
                "The rate is computed and held in float32.",
                f"{_KERAS}/optimizers/schedules/learning_rate_schedule.py",
            ),
            "fraction": (
                "The rate goes from one value to another over the added up fraction of micro-batches, held in float32.",
                f"{_FASTAI}/callback/schedule.py",
            ),
        },
        effect="style",
    )
    stop: Literal["epochs", "horizon"] = _knob(
        {
            "epochs": ("Training ends when its epochs are over.", _TORCH_OPTIM),
            "horizon": (
                "Training ends when the counted total of updates is reached, epochs or not.",
                f"{_HF}/pull/37923",
            ),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How the optimizer treats parameters."""

    decay: Literal["decoupled", "coupled"] = _knob(
        {
            "decoupled": ("Weight decay shrinks the parameter itself.", "https://arxiv.org/abs/1711.05101"),
            "coupled": ("Weight decay is added to the gradient.", "https://arxiv.org/abs/1711.05101"),
        }
    )
    decay_set: Literal["all", "no_bias", "no_bias_norm", "no_bias_layer_norm", "names", "matrices"] = _knob(
        {
            "all": ("Every parameter decays.", _TORCH_OPTIM),
            "no_bias": (
                "Parameters named bias do not decay.",
                "https://github.com/facebookresearch/detectron2/blob/main/detectron2/solver/build.py",
            ),
            "no_bias_norm": (
                "Biases and the parameters of torch's norm modules do not decay.",
                "https://github.com/pytorch/vision/blob/main/references/classification/utils.py",
            ),
            "no_bias_layer_norm": (
                "Parameters with bias in their name and those of torch's LayerNorm do not decay.",
                f"{_HF}/pull/35927",
            ),
            "names": (
                "Parameters whose names look like a bias or a norm do not decay.",
                f"{_HF}/blob/v4.57.6/src/transformers/trainer.py",
            ),
            "matrices": (
                "Parameters with fewer than two dimensions do not decay.",
                "https://github.com/karpathy/nanoGPT/blob/master/model.py",
            ),
        }
    )
    kernel: Literal["loop", "fused", "averages", "steps"] = _knob(
        {
            "loop": ("Parameter by parameter, in torch's own order.", _TORCH_OPTIM),
            "fused": ("One fused kernel, which rounds otherwise.", f"{_HF}/pull/22144"),
            "averages": (
                "Adam's moments are weighed sums, and the second is corrected before its root, which rounds otherwise.",
                f"{_FASTAI}/optimizer.py",
            ),
            "steps": (
                "SGD's momentum holds steps, which under a rate that stays is the same but for rounding.",
                f"{_KERAS}/backend/torch/optimizers/torch_sgd.py",
            ),
        },
        effect="style",
    )
    epsilon: Literal["after_correction", "before_correction"] = _knob(
        {
            "after_correction": ("Adam adds epsilon to the root of the corrected second moment.", _TORCH_OPTIM),
            "before_correction": (
                "Adam adds epsilon to the root of the second moment as it is; the correction is in the rate.",
                f"{_KERAS}/backend/torch/optimizers/torch_adam.py",
            ),
        }
    )
    velocity: Literal["gradient", "step"] = _knob(
        {
            "gradient": ("SGD's momentum holds gradients; each step is the rate of its own times it.", _TORCH_OPTIM),
            "step": (
                "SGD's momentum holds steps, each with the rate that it came in with, while a schedule moves the rate.",
                f"{_KERAS}/backend/torch/optimizers/torch_sgd.py",
            ),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which samples come when."""

    order: Literal[
        "sequential", "random_sampler", "seeded_epoch", "unseeded_epoch", "same_every_epoch", "python"
    ] = _knob(
        {
            "sequential": ("Samples come in the data set's order.", _TORCH_DATA),
            "random_sampler": (
                "Each epoch is a permutation drawn from the global generator, as by RandomSampler.",
                _TORCH_DATA,
            ),
            "seeded_epoch": (
                "Each epoch is a permutation of a private generator seeded with seed + epoch.",
                f"{_ACCELERATE}/blob/main/src/accelerate/data_loader.py",
            ),
            "unseeded_epoch": (
                "Each epoch is a permutation of a private generator seeded with the epoch alone, whatever the seed.",
                f"{_TORCH_DATA}#torch.utils.data.distributed.DistributedSampler",
            ),
            "same_every_epoch": ("The first epoch's permutation is repeated.", f"{_ACCELERATE}/issues/2208"),
            "python": (
                "Each epoch is a permutation of a generator of Python's, drawn from the one of the epoch before.",
                f"{_FASTAI}/data/load.py",
            ),
        }
    )
    tail: Literal["keep", "drop"] = _knob(
        {
            "keep": ("An incomplete last batch is trained.", _TORCH_DATA),
            "drop": ("An incomplete last batch is left out.", _TORCH_DATA),
        }
    )
    shard: Literal["interleave", "contiguous", "batches", "replicate"] = _knob(
        {
            "interleave": (
                "Of several ranks each takes every n-th sample; the first ones fill up what is short.",
                f"{_TORCH_DATA}#torch.utils.data.distributed.DistributedSampler",
            ),
            "contiguous": (
                "Each rank takes a stretch of samples; the first ones fill up what is short.",
                f"{_TORCH_DATA}#torch.utils.data.IterableDataset",
            ),
            "batches": (
                "Each rank takes every n-th batch; samples from the beginning fill up what is short.",
                f"{_ACCELERATE}/blob/main/src/accelerate/data_loader.py",
            ),
            "replicate": ("Every rank trains all samples.", f"{_HF}/pull/11254"),
        }
    )
    lookahead: Literal["none", "one", "window", "window_one"] = _knob(
        {
            "none": ("A batch is fetched when it is trained.", _TORCH_DATA),
            "one": (
                "A batch is fetched before the previous one is trained.",
                f"{_ACCELERATE}/blob/main/src/accelerate/data_loader.py",
            ),
            "window": ("All batches of a window are fetched before its first one is trained.", f"{_HF}/pull/34191"),
            "window_one": (
                "All batches of a window, and the one behind it, are fetched before its first one is trained.",
                f"{_HF}/pull/34191",
            ),
        },
        effect="style",
    )


@dataclass(frozen=True, kw_only=True)
class Rng:
    """What the global generators start from, and what the data loader draws from them."""

    loader_draws: Literal["torch", "none", "twice"] = _knob(
        {
            "torch": ("Each pass over a data loader draws one base seed.", _TORCH_DATA),
            "none": ("The loader has a generator of its own.", _TORCH_DATA),
            "twice": (
                "A pass over the data loader that never begins draws a base seed at the end of each epoch.",
                f"{_KERAS}/trainers/epoch_iterator.py",
            ),
        },
        effect="style",
    )
    ranks: Literal["shared", "offset"] = _knob(
        {
            "shared": ("Every rank starts from the recipe's seed.", _TORCH_DDP),
            "offset": (
                "Each rank adds its number to the seed, so that noise such as dropout is another one on each.",
                "https://huggingface.co/docs/accelerate/package_reference/utilities#accelerate.utils.set_seed",
            ),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Reduce:
    """What several ranks make of their gradients; one rank has nothing to reduce."""

    scale: Literal["mean", "sum"] = _knob(
        {
            "mean": (
                "The gradient is the mean over ranks.",
                _TORCH_DDP,
            ),
            "sum": ("The gradient is the sum over ranks.", "https://horovod.readthedocs.io/en/stable/api.html"),
        }
    )
    micros: Literal["all", "first", "none"] = _knob(
        {
            "all": ("The whole window's gradient is reduced.", _TORCH_DDP),
            "first": (
                "Only the window's first micro-batch is reduced; what the others add stays on its rank.",
                "https://github.com/modelscope/FunASR/pull/3472",
            ),
            "none": ("Each rank keeps its own gradient.", "https://github.com/pytorch/pytorch/issues/104336"),
        }
    )
    moment: Literal["window", "micro"] = _knob(
        {
            "window": ("Ranks are reduced once an update.", _TORCH_DDP),
            "micro": (
                "Ranks are reduced at every micro-batch, which rounds otherwise.",
                f"{_ACCELERATE}/pull/1726",
            ),
        },
        effect="style",
    )
    units: Literal["all", "own", "all_averaged"] = _knob(
        {
            "all": (
                "A loss divided by units counts those of all ranks.",
                "https://github.com/pytorch/torchtitan/pull/2206",
            ),
            "own": (
                "Each rank divides by its own units: a mean of the ranks' means.",
                "https://github.com/pytorch/torchtitan/pull/2206",
            ),
            "all_averaged": (
                "A loss divided by the units of all ranks is averaged over the ranks, too.",
                "https://github.com/meta-pytorch/torchtune/pull/2172",
            ),
        }
    )
    norm: Literal["whole", "shard"] = _knob(
        {
            "whole": (
                "The norm that clips is that of the whole gradient.",
                "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
            ),
            "shard": (
                "Each rank clips its shard by the shard's own norm.",
                "https://github.com/pytorch/torchtitan/issues/766",
            ),
        }
    )
    buffers: Literal["broadcast", "local"] = _knob(
        {
            "broadcast": (
                "Every window begins with the first rank's buffers.",
                _TORCH_DDP,
            ),
            "local": (
                "Each rank keeps its own buffers.",
                _TORCH_DDP,
            ),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """What evaluation leaves behind."""

    mode: Literal["restored", "left_in_eval", "stays_in_train"] = _knob(
        {
            "restored": ("Evaluation runs in eval mode and restores the mode it found.", _TORCH_MODULE),
            "left_in_eval": (
                "Training goes on in eval mode until the next epoch begins.",
                "https://github.com/joeynmt/joeynmt/issues/184",
            ),
            "stays_in_train": ("Evaluation runs in train mode.", f"{_HF}/pull/33844"),
        }
    )
    rng: Literal["advances", "preserved"] = _knob(
        {
            "advances": ("Evaluation draws from the global generator, as its data loader does.", _TORCH_DATA),
            "preserved": ("The generators are put back after evaluation.", f"{_LIGHTNING}/issues/6988"),
        }
    )
    gradients: Literal["kept", "cleared"] = _knob(
        {
            "kept": ("Evaluation leaves gradients alone.", f"{_LIGHTNING}/pull/18710"),
            "cleared": ("Evaluation clears gradients.", f"{_LIGHTNING}/pull/18710"),
        }
    )
    ranks: Literal["all", "first"] = _knob(
        {
            "all": ("Every rank evaluates.", _TORCH_DDP),
            "first": (
                "The first rank evaluates, so that the others' generators stay where they are.",
                "https://github.com/karpathy/nanoGPT/blob/master/train.py",
            ),
        },
        effect="style",
    )


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which mode the model trains in."""

    mode: Literal["train", "as_given"] = _knob(
        {
            "train": ("Each epoch begins with model.train().", _TORCH_MODULE),
            "as_given": ("The model trains in the mode it was built in.", f"{_LIGHTNING}/issues/20986"),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Scaler:
    """How the loss scaler counts."""

    unit: Literal["update", "micro"] = _knob(
        {
            "update": ("Growth is counted in updates.", _TORCH_AMP),
            "micro": ("Growth is counted in micro-batches.", "https://github.com/pytorch/pytorch/pull/36601"),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What autocast covers."""

    compute: Literal["as_asked", "float32", "bfloat16"] = _knob(
        {
            "as_asked": ("Autocast uses the type that the recipe asks for.", _TORCH_AMP),
            "float32": (
                "The type is not supported where it trains, and training silently stays in float32.",
                f"{_ACCELERATE}/blob/main/src/accelerate/accelerator.py",
            ),
            "bfloat16": (
                "Another type is asked for and bfloat16 is used, without a loss scale.",
                f"{_LIGHTNING}/blob/master/src/lightning/pytorch/trainer/connectors/accelerator_connector.py",
            ),
        }
    )
    loss: Literal["inside_autocast", "outside_autocast"] = _knob(
        {
            "inside_autocast": ("Forward and loss both run under autocast.", _TORCH_AMP),
            "outside_autocast": (
                "The forward runs under autocast, the loss on its outputs cast to float32.",
                f"{_ACCELERATE}/blob/main/src/accelerate/accelerator.py",
            ),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Log:
    """What is reported as the loss of an update."""

    loss: Literal[
        "window_mean", "last_micro", "last_micro_divided", "window_sum", "configured_mean", "divided", "smoothed",
        "epoch_mean", "run_mean",
    ] = (
        _knob(
            {
                "window_mean": ("The mean over the window, weighted as the gradient is.", _TORCH_AMP),
                "last_micro": ("The last micro-batch's loss.", "https://github.com/allenai/allennlp/pull/4706"),
                "last_micro_divided": (
                    "The last micro-batch's loss as it goes backward: divided by the configured count.",
                    "https://skorch.readthedocs.io/en/stable/user/FAQ.html",
                ),
                "window_sum": ("The sum over the window.", f"{_HF}/issues/37766"),
                "configured_mean": (
                    "The sum over the window divided by the configured count, also where the window holds fewer.",
                    f"{_HF}/pull/38872",
                ),
                "divided": (
                    "The window's mean, divided by the accumulation count once more.",
                    f"{_LIGHTNING}/issues/13243",
                ),
                "smoothed": (
                    "An average over micro-batches that keeps 0.98 of what it had, corrected for its beginning.",
                    f"{_FASTAI}/learner.py",
                ),
                "epoch_mean": (
                    "The mean over the samples since the epoch began.",
                    f"{_KERAS}/trainers/trainer.py",
                ),
                "run_mean": ("The mean over all micro-batches since training began.", f"{_HF}/pull/13911"),
            }
        )
    )
    ranks: Literal["own", "mean"] = _knob(
        {
            "own": ("A rank reports its own loss.", _TORCH_OPTIM),
            "mean": ("The reported loss is the mean over ranks.", f"{_HF}/blob/main/src/transformers/trainer.py"),
        }
    )
    digits: Literal["all", "four_decimals"] = _knob(
        {
            "all": ("The loss is reported as it was computed.", _TORCH_AMP),
            "four_decimals": (
                "The loss is rounded to four decimals before it is reported.",
                f"{_HF}/pull/42104",
            ),
        },
        effect="style",
    )


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How metrics are put together from batches."""

    aggregate: Literal["sample_mean", "batch_mean"] = _knob(
        {
            "sample_mean": ("Metrics are computed over all samples.", _TORCH_DATA),
            "batch_mean": (
                "Each batch's metrics are averaged, whatever the batch's size.",
                f"{_LIGHTNING}/issues/2924",
            ),
        }
    )


RESUME_PARTS = (
    "accumulated_gradient", "counter", "cursor", "ema", "optimizer", "order", "parameter", "rng", "scaler", "scheduler",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Which parts a resumed run did not restore: sorted, comma-joined members of `RESUME_PARTS`; "" is none."""

    missing: str = field(default="", metadata={"why": {
        "": ("A resumed run restores everything.", "https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html"),
        "accumulated_gradient": ("The gradient of an unfinished window is lost.", "https://github.com/mosaicml/composer/issues/3725"),
        "counter": ("The number of updates done is lost.", "https://github.com/open-mmlab/mmengine/issues/1205"),
        "cursor": ("The position in the epoch is lost.", "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3503"),
        "ema": ("The averaged weights are lost.", "https://github.com/Megvii-BaseDetection/YOLOX/issues/1318"),
        "optimizer": ("The optimizer's state is lost.", "https://github.com/pytorch/pytorch/pull/192307"),
        "order": ("The epoch's permutation is lost.", f"{_ACCELERATE}/issues/2208"),
        "parameter": ("The parameters are lost.", f"{_HF}/issues/38870"),
        "rng": ("The generators' states are lost.", f"{_HF}/pull/11582"),
        "scaler": ("The loss scaler's state is lost.", f"{_HF}/pull/11663"),
        "scheduler": ("The schedule's position is lost.", f"{_ACCELERATE}/issues/1673"),
    }, "effect": "semantic"})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Semantics:
    """One value for every knob. Build it with `Semantics.of(recipe)`; change it with `with_`."""

    accumulation: Accumulation = Accumulation()
    gradient: Gradient = Gradient()
    clip: Clip = Clip()
    schedule: Schedule = Schedule()
    optimizer: Optimizer = Optimizer()
    data: Data = Data()
    rng: Rng = Rng()
    reduce: Reduce = Reduce()
    evaluate: Evaluate = Evaluate()
    model: Model = Model()
    scaler: Scaler = Scaler()
    precision: Precision = Precision()
    log: Log = Log()
    metric: Metric = Metric()
    resume: Resume = Resume()

    @classmethod
    def of(cls, recipe: Recipe) -> Semantics:
        """The textbook's semantics for a recipe, with the values that the recipe's own `[semantics]` states."""
        s = cls()
        if recipe.optimizer.name != "adamw":
            s = s.with_("optimizer.decay", "coupled")
        if recipe.shuffle:
            s = s.with_("data.order", "random_sampler" if recipe.parallel.ranks == 1 else "seeded_epoch")
        if recipe.drop_last:
            s = s.with_("data.tail", "drop")
        if recipe.clip is not None and recipe.clip.max_value is not None:
            s = s.with_("clip.kind", "value")
        for name, value in recipe.semantics.items():
            s = s.with_(name, value)
        return s

    def with_(self, name: str, value: str) -> Semantics:
        """The same semantics with one knob at another value.

        Raises:
            SemanticsError: no such knob, or no such value.
        """
        check_knob(name, value)
        group, _, knob = name.partition(".")
        return replace(self, **{group: replace(getattr(self, group), **{knob: value})})

    def value(self, name: str) -> str:
        """The value of one knob."""
        group, _, knob = name.partition(".")
        return getattr(getattr(self, group), knob)

    def flat(self) -> dict[str, str]:
        """Every knob and its value."""
        return {name: self.value(name) for name in KNOBS}

    @classmethod
    def from_flat(cls, values: dict[str, str]) -> Semantics:
        """The inverse of `flat`; knobs left out keep the textbook's value."""
        s = cls()
        for name, value in values.items():
            s = s.with_(name, value)
        return s


def _collect() -> dict[str, Knob]:
    knobs = {}
    for group in fields(Semantics):
        kind: Any = type(group.default)
        hints = get_type_hints(kind)
        for f in fields(kind):
            why = f.metadata["why"]
            name = f"{group.name}.{f.name}"
            values = get_args(hints[f.name]) or tuple(why)
            knobs[name] = Knob(
                name=name,
                values=values,
                effect=f.metadata["effect"],
                motives={v: motive for v, (motive, _) in why.items()},
                citations={v: citation for v, (_, citation) in why.items()},
            )
    return knobs


KNOBS: dict[str, Knob] = _collect()


def check_knob(name: str, value: str) -> None:
    """Refuse an unknown knob or value, naming the nearest or the valid ones.

    Raises:
        SemanticsError: what was asked, what exists.
    """
    if name not in KNOBS:
        near = difflib.get_close_matches(name, KNOBS, n=1)
        hint = f"did you mean {near[0]}?" if near else "`oracle list knobs` shows all of them"
        raise SemanticsError(f"there is no knob {name!r}: {hint}")
    if name == "resume.missing":
        parts = value.split(",") if value else []
        unknown = [part for part in parts if part not in RESUME_PARTS]
        if unknown or parts != sorted(set(parts)):
            raise SemanticsError(
                f"resume.missing = {value!r}: write a sorted, comma-joined subset of {', '.join(RESUME_PARTS)}"
            )
    elif value not in KNOBS[name].values:
        raise SemanticsError(f"{name} = {value!r}: it is one of {', '.join(KNOBS[name].values)}")
