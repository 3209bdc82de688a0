"""`assert_bit_identical`: silent on equal states, and a message that says which tensor, which elements, how far."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oracle.testing import SHOWN, assert_bit_identical


def state() -> dict:
    return {
        "model": {"weight": torch.full((2, 3), 0.1), "bias": torch.tensor([math.nan, 0.0])},
        "steps": [1, 2, (3, "four")],
        "array": np.arange(3),
        "none": None,
    }


def failure(reference: object, candidate: object) -> str:
    with pytest.raises(AssertionError) as raised:
        assert_bit_identical(reference, candidate)
    return str(raised.value)


def test_equal_states_pass_whatever_is_in_them() -> None:
    assert_bit_identical(state(), state())


def test_a_tensor_that_differs_is_named_with_its_worst_element() -> None:
    other = state()
    other["model"]["weight"][1, 2] = torch.nextafter(torch.tensor(0.1), torch.tensor(1.0))
    assert failure(state(), other) == (
        "1 place not bit-identical\n"
        "model.weight: float32 (2, 3)\n"
        "  differs    1 of 6 elements, worst 1 ULP at (1, 2)\n"
        "  reference  0.1\n"
        "  candidate  0.10000001"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["model"].pop("bias"), "model.bias: the candidate lacks it"),
        (lambda s: s.update(more=1), "more: the reference lacks it"),
        (lambda s: s.update(none=1), "none: NoneType against int"),
        (lambda s: s.update(steps=[1, 2, (3, "five")]), "steps.2.1: 'four' against 'five'"),
        (lambda s: s["model"].update(bias=torch.tensor([math.nan, -0.0])), "model.bias: float32 (2,)"),
        (lambda s: s["model"].update(bias=torch.zeros(3)), "model.bias: float32 (2,)"),
        (lambda s: s["model"].update(bias=s["model"]["bias"].double()), "model.bias: float32 (2,)"),
    ],
)
def test_whatever_differs_fails(change, said: str) -> None:
    other = state()
    change(other)
    assert said in failure(state(), other).splitlines()


def test_models_and_optimizers_stand_for_their_states() -> None:
    def trained(rate: float) -> dict:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    assert_bit_identical(trained(0.1), trained(0.1))
    said = failure(trained(0.1), trained(0.2))
    assert "model.weight: float32 (1, 2)" in said and "optimizer.param_groups.0.lr: 0.1 against 0.2" in said


@pytest.mark.parametrize("empty", [{}, [], {"a": {}, "b": ()}])
def test_comparing_nothing_proves_nothing(empty: object) -> None:
    assert "nothing was compared" in failure(empty, empty)


def test_a_tensor_without_plain_memory_is_refused_by_name() -> None:
    sparse = {"a": torch.ones(2).to_sparse()}
    assert failure(sparse, sparse).startswith("the states cannot be compared: a: ")


def test_a_long_list_is_cut() -> None:
    said = failure(dict.fromkeys(range(20), 0), dict.fromkeys(range(20), 1))
    assert said.startswith("20 places not bit-identical\n0: 0 against 1\n")
    assert said.endswith(f"... {20 - SHOWN} more lines: diffs.tree.differences shows all")
