"""A task's data set, built so that every run has the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from torch.utils.data import IterableDataset

from reference_loop import randomness
from reference_loop.task import Task, TaskError


class Stream(IterableDataset):
    """An iterable data set whose source is made anew for every epoch, so that a generator can be one."""

    def __init__(self, source: Callable[[], Iterable[Any]]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source())


def build(task: Task, field: Literal["train_data", "eval_data"], seed: int) -> Any:
    """One of a task's data sets, built under `seed`; the generators that training draws from do not move.

    What can only be iterated and is no IterableDataset yet is made one.

    Raises:
        TaskError: the task's function raised, or returned no data set.
    """
    source = getattr(task, field)
    saved = randomness.snapshot()
    randomness.seed(seed)
    try:
        data = source()
    except Exception as error:
        raise TaskError(f"task {task.name!r}: {field}() raised {type(error).__name__}: {error}") from error
    finally:
        randomness.restore(saved)
    if hasattr(data, "__getitem__") or isinstance(data, IterableDataset):
        return data
    if not isinstance(data, Iterable):
        found = type(data).__name__
        raise TaskError(f"task {task.name!r}: {field}() returned {found}: return a data set, or a list of dicts")
    return Stream(source)
