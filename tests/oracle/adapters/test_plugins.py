"""DeepSpeed and FSDP behind accelerate and transformers, on a CPU."""

from __future__ import annotations

import pytest

from oracle.check import Request, check
from oracle.recipes import load_recipe

pytestmark = pytest.mark.trainers

DEEPSPEED, TRANSFORMERS = "deepspeed==0.19.8", "transformers==5.24.0"
NAMES = ("optimizer.decay_set", "names")
DEALS, CONFIGURED = ("data.shard", "batches"), ("accumulation.tail_divisor", "configured")


def checked(task, trainer, requirements, arguments, *settings):
    recipe = load_recipe(task, None, list(settings))
    return check(
        Request(
            task=task, trainer=trainer, recipe=recipe, requirements=requirements, arguments=arguments,
            timeout=300.0, remedies=False,
        )
    )  # fmt: skip


def causes(result):
    assert not result.unexplained
    return {(cause.knob, cause.candidate) for cause in result.causes if cause.status == "confirmed"}


@pytest.mark.parametrize(("stage", "verdict"), [(0, "match"), (1, "match"), (2, "match"), (3, "rounding")])
def test_accelerate_s_plug_in_trains_what_the_reference_does(stage, verdict):
    arguments = {"DeepSpeedPlugin.zero_stage": stage}
    result = checked("decoder", "accelerate", (DEEPSPEED, TRANSFORMERS), arguments)
    assert result.verdict == verdict and not result.causes
    assert result.compared.addresses > 1000


@pytest.mark.parametrize("stage", [0, 1])
def test_transformers_with_deepspeed_decides_as_without(stage):
    table = {
        "zero_optimization": {"stage": stage},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }
    arguments = {"TrainingArguments.deepspeed": table, "TrainingArguments.optim": "adamw_torch"}
    result = checked("decoder", "transformers", (TRANSFORMERS, DEEPSPEED), arguments, "clip={max_norm = 0.05}")
    # At stage 1 a norm is taken for each group of parameters, and theirs together: within the floor, by no knob.
    assert causes(result) == ({NAMES, ("clip.kernel", "squares")} if stage == 0 else {NAMES})


def test_a_table_without_gradient_clipping_leaves_the_threshold_to_deepspeed():
    table = {
        "zero_optimization": {"stage": 0},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    arguments = {"TrainingArguments.deepspeed": table}
    result = checked("decoder", "transformers", (TRANSFORMERS, DEEPSPEED), arguments, "clip={max_norm = 0.05}")
    assert ("hyperparameter.max_norm", 1.0) in causes(result)


@pytest.mark.parametrize(
    ("trainer", "requirements", "arguments", "expected"),
    [
        ("accelerate", (), {"FullyShardedDataParallelPlugin.fsdp_version": 2}, {DEALS, CONFIGURED}),
        ("transformers", (TRANSFORMERS,), {"TrainingArguments.fsdp": "full_shard"}, {DEALS}),
    ],
)
def test_fsdp_is_left_aside_on_a_cpu(trainer, requirements, arguments, expected):
    result = checked("ragged_tail", trainer, requirements, arguments, "parallel.ranks=2")
    assert causes(result) == expected
