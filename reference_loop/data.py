"""A task's data set, built so that every run has the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from reference_loop import randomness


class Stream(IterableDataset):
    """An iterable data set whose source is made anew for every epoch, so that a generator can be one."""

    def __init__(self, source: Callable[[], Iterable[Any]]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source())


def build(source: Callable[[], Any], seed: int) -> Any:
    """The data set that `source` returns, built under `seed`; the generators that training draws from do not move.

    What can only be iterated and is no IterableDataset yet is made one.
    """
    saved = randomness.snapshot()
    randomness.seed(seed)
    try:
        data = source()
    finally:
        randomness.restore(saved)
    if hasattr(data, "__getitem__") or isinstance(data, IterableDataset):
        return data
    return Stream(source)
