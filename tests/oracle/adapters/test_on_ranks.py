"""Released trainers on two ranks: what each does otherwise than a plain loop under DistributedDataParallel."""

from __future__ import annotations

import pytest

from oracle.check import Request, check
from oracle.recipes import load_recipe

pytestmark = pytest.mark.trainers

DEALS = ("data.shard", "batches")
SHUFFLES = ("data.order", "seeded_epoch")
CONFIGURED = ("accumulation.tail_divisor", "configured")


@pytest.mark.parametrize(
    ("trainer", "requirement", "task", "causes"),
    [
        ("accelerate", None, "regression", {DEALS, CONFIGURED}),
        ("accelerate", None, "decoder", {DEALS, CONFIGURED, ("schedule.cadence", "rank")}),
        ("deepspeed", "deepspeed==0.19.8", "ragged_tail", {("accumulation.tail", "carry_drop")}),
        ("fabric", "lightning==2.6.6", "decoder", {("accumulation.tail", "leak")}),
        ("lightning", "lightning==2.6.6", "ragged_tail", {SHUFFLES, CONFIGURED}),
        ("lightning", "lightning==2.6.6", "decoder", {SHUFFLES, CONFIGURED, ("schedule.cadence", "epoch")}),
        ("transformers", "transformers==5.24.0", "ragged_tail", {DEALS}),
        (
            "transformers",
            "transformers==5.24.0",
            "decoder",
            {DEALS, ("optimizer.decay_set", "names"), ("optimizer.kernel", "fused")},
        ),
    ],
)
def test_every_decision_on_two_ranks_is_named_and_proven(trainer, requirement, task, causes):
    recipe = load_recipe(task, None, ["parallel.ranks=2"])
    requirements = () if requirement is None else (requirement,)
    asked = Request(task=task, trainer=trainer, recipe=recipe, requirements=requirements, timeout=300.0, remedies=False)
    result = check(asked)
    assert {(cause.knob, cause.candidate) for cause in result.causes} == causes
    assert {cause.status for cause in result.causes} == {"confirmed"}
    assert not result.unexplained and not result.between_ranks
