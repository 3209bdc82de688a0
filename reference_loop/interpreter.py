"""Run a plan: one operation after another, everything observed, some of it pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
    """
    pins = pins or {}
    for operation in operations:
        if through is not None and getattr(operation, "update", -1) > through:
            return
        for address, value in operation.do(state):
            if address in pins:
                value = pins[address]
                state.put(address, value)
            observe(address, value)
