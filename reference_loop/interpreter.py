"""Run a plan: one operation after another, everything observed, some of it pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from reference_loop.moments import Address
from reference_loop.operations import Operation
from reference_loop.state import State

Observe = Callable[[Address, Any], None]


def run(
    operations: Iterable[Operation],
    state: State,
    observe: Observe,
    *,
    pins: Mapping[Address, Any] | None = None,
    through: int | None = None,
) -> None:
    """Carry out a plan on a state.

    observe: called with each address and its live value, in causal order; copy what you keep.
    pins: values that take the place of the run's own at their addresses.
    through: the last update to train; None trains to the end.

    Raises:
        ValueError: a pin has another dtype or shape than the value whose place it takes, so it would not be itself.
    """
    pins = pins or {}
    for operation in operations:
        if through is not None and getattr(operation, "update", -1) > through:
            return
        carry_out(operation, state, observe, pins)


def carry_out(operation: Operation, state: State, observe: Observe, pins: Mapping[Address, Any]) -> None:
    """Carry out one operation on a state, as `run` does.

    Raises:
        ValueError: as `run` does.
    """
    for address, value in operation.do(state):
        if address in pins:
            value = _fitting(pins[address], value, address)
            state.put(address, value)
        observe(address, value)


def _fitting(pin: Any, value: Any, address: Address) -> Any:
    """The pin, if the run can hold it without changing it."""
    forms = [(one.dtype, tuple(one.shape)) for one in (pin, value) if isinstance(one, torch.Tensor)]
    if len(set(forms)) > 1:
        (asked, _), (found, _) = forms
        raise ValueError(f"{address.kind} {address.name}: {asked} {forms[0][1]} cannot replace {found} {forms[1][1]}")
    return pin
