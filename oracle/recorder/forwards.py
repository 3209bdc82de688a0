"""Forward passes, kept until a backward reaches them: the others trained nothing.

A forward pass shows what goes into a micro-batch, but only its backward makes it one: models are also called to
evaluate, to look at shapes, to make targets. What a pass showed hangs on its graph and is gone with it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from oracle.recorder.values import readable


class Forward:
    """One pass with what it showed, as (moment, kind, name, value).

    apart: whether it is a micro-batch of its own even where one backward reaches several passes.
    """

    def __init__(self, number: int, apart: bool) -> None:
        self.number, self.apart = number, apart
        self.rows: list[tuple[str, str, str, Any]] = []

    def keep(self, moment: str, kind: str, rows: Iterable[tuple[str, Any]]) -> None:
        """Keep rows of (name, value); tensors are copied, for the trainer may go on to write into them."""
        for name, value in rows:
            kept = readable(value).clone() if isinstance(value, Tensor) else value
            self.rows.append((moment, kind, name, kept))


class Forwards:
    """The passes of a run; `reached` tells which of them a backward went through."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: weakref.WeakSet[Forward] = weakref.WeakSet()
        self._reached: list[Forward] = []

    def begin(self, *, apart: bool) -> Forward:
        """A pass begins; `apart` as in `Forward`."""
        return Forward(next(self._numbers), apart)

    def end(self, forward: Forward, output: Any) -> None:
        """A pass ended with this output. One whose graph cannot be found is taken for reached."""
        nodes = [tensor.grad_fn for tensor in _tensors(output) if tensor.grad_fn is not None]
        self._waiting.add(forward)
        for node in nodes:
            node.register_prehook(lambda gradients: self._reach(forward))
        if not nodes and _is_opaque(output):
            self._reach(forward)

    def reached(self) -> list[Forward]:
        """The passes that a backward reached since the last call, in the order in which they began."""
        found, self._reached = sorted(self._reached, key=lambda forward: forward.number), []
        return found

    def _reach(self, forward: Forward) -> None:
        if forward in self._waiting:
            self._waiting.discard(forward)
            self._reached.append(forward)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in what a model returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dict__"):
        yield from (item for item in vars(value).values() if isinstance(item, Tensor))


def _is_opaque(output: Any) -> bool:
    """Whether an output may hold tensors where nobody looked."""
    return output is not None and next(_tensors(output), None) is None
