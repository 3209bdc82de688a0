"""What the oracle says of Lightning's trainers, end to end in a layer: verdict, causes, remedies, resumes."""

from __future__ import annotations

import pytest

from diffs.verdict import Policy
from oracle.check import Request, check
from oracle.resume import cuts
from oracle.resume.command import resume
from reference_loop.recipe import load

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]

LIGHTNING = ("lightning==2.6.6",)
FLOAT16 = {"float16.on_cpu": True}
STEP = {"LRSchedulerConfig.interval": "step"}
SILENT = {"clip_gradients.error_if_nonfinite": False}
WHOLE = ("accumulation=1", "batch_size=4", "epochs=2", "checkpoint.every=1")
SIX = ("precision.dtype=float16", "accumulation=1", "updates=6")


def asked(task, trainer, recipe, sets, arguments):
    return Request(
        task=task,
        trainer=trainer,
        recipe=load(f"fixtures/recipes/{recipe}.toml", sets),
        arguments=arguments,
        requirements=LIGHTNING,
        policy=Policy.parse("exact"),
        timeout=300.0,
    )


@pytest.mark.parametrize(
    ("trainer", "task", "recipe", "sets", "arguments", "causes"),
    [
        ("fabric", "decoder", "decoder", (), {}, []),
        ("fabric", "ragged_tail", "ragged_tail", (), {}, [("accumulation.tail", "leak")]),
        ("fabric", "decoder", "bfloat16", (), {}, []),
        ("fabric", "decoder", "bfloat16", ("precision.dtype=float16",), {}, [("precision.compute", "bfloat16")]),
        ("fabric", "decoder", "float16", (), SILENT, [("schedule.on_skip", "advance")]),
        ("lightning", "decoder", "decoder", (), {}, [("schedule.cadence", "epoch")]),
        ("lightning", "decoder", "decoder", (), STEP, []),
        ("lightning", "ragged_tail", "ragged_tail", (), {}, [("accumulation.tail_divisor", "configured")]),
        ("lightning", "decoder", "bfloat16", (), {}, []),
        ("lightning", "decoder", "bfloat16", ("precision.dtype=float16",), {}, [("precision.compute", "bfloat16")]),
        ("lightning", "decoder", "bfloat16", ("precision.dtype=float16",), FLOAT16, []),
        ("lightning", "decoder", "float16", (), STEP, [("schedule.on_skip", "advance")]),
    ],
)
def test_what_it_does_otherwise_is_named_and_proven(trainer, task, recipe, sets, arguments, causes):
    result = check(asked(task, trainer, recipe, sets, arguments))
    assert result.verdict == ("diverged" if causes else "match")
    assert [(one.knob, one.candidate) for one in result.causes] == causes
    assert {one.status for one in result.causes} <= {"confirmed"} and not result.unexplained
    remedied = {one.knob: one.remedy for one in result.causes if one.knob in ("precision.compute", "schedule.cadence")}
    assert all(remedy.endswith("verified by a rerun") for remedy in remedied.values())


@pytest.mark.parametrize(
    ("trainer", "task", "sets", "arguments", "cut", "missing"),
    [
        ("lightning", "regression", WHOLE, {}, "3", [("order", "confirmed")]),
        ("lightning", "regression", WHOLE, {}, "4:saved", []),
        ("lightning", "decoder", ("shuffle=true", "checkpoint.every=1"), {}, "3:saved", [("rng", "confirmed")]),
        ("fabric", "ragged_tail", ("epochs=3", "accumulation=2", "checkpoint.every=1"), {}, "3:saved", []),
        ("fabric", "decoder", ("shuffle=true", "checkpoint.every=1"), {}, "2:saved", [("rng", "confirmed")]),
        ("fabric", "regression", SIX, FLOAT16, "3:saved", [("scaler", "confirmed")]),
    ],
)
def test_what_a_resumed_run_lacks_is_named_and_proven(trainer, task, sets, arguments, cut, missing):
    result = resume(asked(task, trainer, task, sets, arguments), [cuts.parse(cut)])
    assert result.verdict == ("diverged" if missing else "match")
    assert [(one.candidate, one.status) for one in result.causes] == missing
