"""Assertions for a test suite of your own; `oracle.pytest_plugin` has fixtures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SHOWN = 8  # places that a failure lists


class Differs(AssertionError):
    """What failed, as the report has it. result: of the command that was run, an `oracle.result.Result`."""

    def __init__(self, report: str, result: Any) -> None:
        super().__init__(report)
        self.result = result


def assert_bit_identical(reference: Any, candidate: Any) -> None:
    """Assert that two nested states are the same: keys, types, plain data, and every bit of every tensor.

    reference, candidate: dicts, lists and tuples of tensors, arrays and plain data, however nested, such as two state
        dicts. What has a `state_dict`, such as a model or an optimizer, stands for it.

    0.0 and -0.0 differ, and so do 1 and 1.0; two NaN of the same bits are the same. Two states in which there is
    nothing at all prove nothing, and fail.

    Raises:
        AssertionError: lists the first places that differ, with elements and distances in ULP.
    """
    __tracebackhide__ = True
    from diffs.render import count, shortened
    from diffs.tree import differences
    from diffs.verdict import NotComparable

    left, right = _plain(reference), _plain(candidate)
    if _empty(left) and _empty(right):
        raise AssertionError("nothing was compared: both states are empty")
    try:
        found = differences(left, right)
    except NotComparable as error:
        raise AssertionError(f"the states cannot be compared: {error}") from None
    if found:
        shown = [line for difference in found[:SHOWN] for line in _lines(difference)]
        more = list(shortened((str(one.path) for one in found), SHOWN, "diffs.tree.differences"))[SHOWN:]
        raise AssertionError("\n".join([f"{count(len(found), 'place')} not bit-identical", *shown, *more]))


def _plain(state: Any) -> Any:
    """A state with what has a `state_dict` replaced by it."""
    if isinstance(state, Mapping):
        return {key: _plain(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_plain, state))
    return _plain(state.state_dict()) if callable(getattr(state, "state_dict", None)) else state


def _empty(state: Any) -> bool:
    """Whether there is nothing but containers."""
    if isinstance(state, Mapping):
        return all(map(_empty, state.values()))
    return isinstance(state, (list, tuple)) and all(map(_empty, state))


def _lines(difference: Any) -> Iterator[str]:
    """A place that differs: its path, then what stands there on either side."""
    from diffs.render import tensor_lines

    path = ".".join(map(str, difference.path)) or "the state"
    if difference.kind == "missing":
        yield f"{path}: the candidate lacks it"
    elif difference.kind == "added":
        yield f"{path}: the reference lacks it"
    elif difference.tensor is not None:
        yield f"{path}: {difference.tensor.dtype} {difference.tensor.shape}"
        yield from (f"  {line}" for line in tensor_lines(difference.tensor))
    elif difference.kind == "type":
        yield f"{path}: {type(difference.reference).__name__} against {type(difference.candidate).__name__}"
    else:
        yield f"{path}: {difference.reference!r} against {difference.candidate!r}"
