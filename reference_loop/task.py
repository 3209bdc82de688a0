"""What is trained: the five functions a user writes, and the checks on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reference_loop.recipe import Recipe


class TaskError(ValueError):
    """A task that cannot be trained, with what was found and what to do."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training task.

    name: shown in reports.
    model: () -> nn.Module; called under the recipe's seed.
    train_data: () -> map-style dataset of dicts of tensors, or an iterable of such dicts. An `id` entry names the
        sample and is never given to the model by the loop itself.
    loss: (model, batch, reduction) -> scalar tensor; reduction is "mean" or "sum".
    units: (batch) -> int, the number of samples or valid tokens that the sum is over; None counts samples.
    eval_data: like train_data, for `metrics`.
    metrics: (model, batches) -> {name: float}; batches is an iterable of collated dicts.
    """

    name: str
    model: Callable[[], Any]
    train_data: Callable[[], Any]
    loss: Callable[[Any, Mapping[str, Any], str], Any]
    units: Callable[[Mapping[str, Any]], int] | None = None
    eval_data: Callable[[], Any] | None = None
    metrics: Callable[[Any, Iterable[Mapping[str, Any]]], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise TaskError(f'a task needs a name, found {self.name!r}: write Task(name="...", ...)')
        for field in ("model", "train_data", "loss", "units", "eval_data", "metrics"):
            value = getattr(self, field)
            if value is None and field in ("units", "eval_data", "metrics"):
                continue
            if not callable(value):
                raise TaskError(
                    f"task {self.name!r}: {field} must be a function, found {type(value).__name__}: pass the function, "
                    "not its result"
                )
        if self.metrics is not None and self.eval_data is None:
            raise TaskError(f"task {self.name!r}: metrics needs eval_data: add eval_data=..., or remove metrics")


def check_wishes(task: Task, recipe: Recipe) -> None:
    """Refuse a recipe that asks for what the task does not have.

    Raises:
        TaskError: an evaluation without metrics.
    """
    if recipe.evaluate is not None and task.metrics is None:
        raise TaskError(
            f"task {task.name!r} has no metrics, and the recipe evaluates: add eval_data=... and metrics=..., or "
            "remove [evaluate]"
        )


def count_units(task: Task, batch: Mapping[str, Any]) -> int:
    """The number of units a batch's summed loss is over: the task's own count, or its samples.

    Raises:
        TaskError: the task's count is no number.
    """
    if task.units is None:
        return count_samples(batch)
    found = task.units(batch)
    try:
        return int(found)
    except (TypeError, ValueError):
        raise TaskError(f"task {task.name!r}: units must return an int, found {found!r}") from None


def count_samples(batch: Mapping[str, Any]) -> int:
    """The number of samples in a collated batch: the length of its first entry."""
    for value in batch.values():
        return len(value)
    raise TaskError("an empty batch: the dataset's items must be dicts with at least one tensor")
