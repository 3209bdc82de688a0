"""What a candidate does, said for every value of every knob."""

from __future__ import annotations

import re
import string

import pytest

from oracle.report.sentences import KNOBS, PARTS, sentence
from oracle.result import At, Cause
from reference_loop import semantics

VALUES = [(knob, value) for knob, values in KNOBS.items() for value in values]
FACTS = {
    "configured": 4,
    "actual": 1,
    "candidate_units": 30,
    "reference_units": 28,
    "candidate_updates": 9,
    "reference_updates": 12,
    "ranks": 2,
}


def cause(knob: str, candidate: object, reference: object = "other", **facts: object) -> Cause:
    return Cause(
        knob=knob,
        reference=reference,
        candidate=candidate,
        status="confirmed",
        effect="semantic",
        at=At(update=0, moment="consume"),
        facts=facts,
    )


def test_every_value_of_every_knob_has_a_sentence() -> None:
    lacking = [
        f"{name} = {value}"
        for name, knob in semantics.KNOBS.items()
        if name != "resume.missing"
        for value in knob.values
        if value not in KNOBS.get(name, {})
    ]
    assert lacking == []
    assert set(PARTS) == set(semantics.RESUME_PARTS)


def test_a_value_without_a_sentence_is_still_named() -> None:
    assert sentence(cause("x.y", "new")) == "the candidate has x.y = new; the reference has other"


@pytest.mark.parametrize(("knob", "value"), VALUES, ids=lambda part: part)
def test_sentences_are_clauses_with_and_without_facts(knob: str, value: str) -> None:
    for facts in (FACTS, {}):
        said = sentence(cause(knob, value, **facts))
        assert re.fullmatch(r"the candidate [a-z][^{}]*[^.{}]", said)
        assert "= " + value not in said


@pytest.mark.parametrize(("knob", "value"), VALUES, ids=lambda part: part)
def test_the_last_template_needs_no_facts(knob: str, value: str) -> None:
    *_, last = KNOBS[knob][value]
    assert [field for _, field, _, _ in string.Formatter().parse(last) if field] == []


def test_two_values_are_never_said_alike() -> None:
    for knob, values in KNOBS.items():
        said = {sentence(cause(knob, value)) for value in values}
        assert len(said) == len(values), knob


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            cause("accumulation.tail_divisor", "configured", configured=4, actual=1),
            "divides the last window by 4, the configured count; it holds 1 micro-batch",
        ),
        (
            cause("accumulation.normalise", "sum", configured=4),
            "adds up the means of 4 micro-batches and does not divide the sum",
        ),
        (
            cause("hyperparameter.max_norm", 1.0, None),
            "clips gradients to a norm of 1.0; the recipe does not ask for clipping",
        ),
        (
            cause("hyperparameter.max_norm", None, 1.0),
            "does not clip the norm of gradients; the recipe asks for 1.0",
        ),
        (
            cause("hyperparameter.betas", [0.9, 0.99], [0.9, 0.999]),
            "uses betas = [0.9, 0.99]; the reference uses [0.9, 0.999]",
        ),
        (
            cause("hyperparameter.weight_decay", 0.0, 0.1, parameters=["0.bias"]),
            "uses weight_decay = 0.0; the reference uses 0.1 (0.bias)",
        ),
        (
            cause("hyperparameter.optimized", False, True, parameters=["head.weight"]),
            "does not optimize head.weight; the reference does",
        ),
        (cause("resume.missing", "optimizer,rng", ""), "does not restore the optimizer's state and the random state"),
        (cause("resume.missing", "", "rng"), "restores everything"),
    ],
)
def test_sentences(given: Cause, expected: str) -> None:
    assert sentence(given) == f"the candidate {expected}"
