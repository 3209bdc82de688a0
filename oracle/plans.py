"""A plan as lines for people: one operation each, under its update and micro-batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from reference_loop.operations import Divisor, Operation


def lines(operations: Iterable[Operation]) -> Iterator[str]:
    """Each operation in a line: update, micro-batch, what is done and with what."""
    yield "update  micro  operation"
    for operation in operations:
        fields = {f.name: getattr(operation, f.name) for f in dataclasses.fields(operation)}
        update, micro = fields.pop("update", ""), fields.pop("micro", "")
        rest = ", ".join(f"{name} {_shown(value)}" for name, value in fields.items())
        yield f"{update!s:>6}  {micro!s:>5}  {type(operation).__name__:<10} {rest}".rstrip()


def plain(operation: Operation) -> dict[str, Any]:
    """An operation as JSON-able data."""
    fields = dataclasses.asdict(operation)
    return {
        "operation": type(operation).__name__,
        **{k: sorted(v) if isinstance(v, frozenset) else v for k, v in fields.items()},
    }


def _shown(value: Any) -> str:
    if isinstance(value, Divisor):
        numbers = {
            "sum": "nothing",
            "micro_mean": f"{value.micros} micro-batches",
            "twice": f"{value.micros} micro-batches, twice",
            "unit_mean": f"the window's units ({value.units})",
            "unit_mean_twice": f"the window's units ({value.units}), then {value.micros} micro-batches",
        }[value.normalise]
        return f"{numbers}, by {value.divide}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        stated = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return ", ".join(f"{name} {found}" for name, found in stated.items() if found is not None)
    return "none" if value is None else str(value)
