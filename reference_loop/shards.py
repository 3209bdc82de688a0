"""Which samples of an epoch each of several ranks trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any

from torch.utils.data import IterableDataset

from reference_loop.recipe import Recipe
from reference_loop.task import TaskError


def share(samples: int, recipe: Recipe, shard: str, drop_last: bool) -> int:
    """How many samples each rank trains in an epoch of `samples`, the ones that fill up included.

    shard: a value of `data.shard`. drop_last: what is short is left out in place of being filled up.
    """
    ranks = recipe.parallel.ranks
    if ranks == 1 or shard == "replicate":
        return samples
    unit = recipe.batch_size if shard == "batches" else 1
    whole, rest = divmod(samples, unit * ranks)
    return (whole + (rest > 0 and not drop_last)) * unit


def dealt(order: Sequence[int], recipe: Recipe, shard: str, drop_last: bool, rank: int) -> list[int]:
    """The samples of one rank, in the order in which it trains them.

    order: the epoch's, of all ranks. shard, drop_last: as `share` takes them.
    What is short is filled up from the order's beginning.
    """
    ranks = recipe.parallel.ranks
    if ranks == 1 or shard == "replicate":
        return list(order)
    held = share(len(order), recipe, shard, drop_last)
    filled = list(islice(cycle(order), held * ranks))
    if shard == "contiguous":
        return filled[rank * held : (rank + 1) * held]
    unit = recipe.batch_size if shard == "batches" else 1
    return [sample for at in range(rank * unit, len(filled), unit * ranks) for sample in filled[at : at + unit]]


class DealtStream(IterableDataset):
    """One rank's samples of data that can only be iterated: of each group for all ranks it takes its own.

    shard, drop_last, rank: as `dealt` takes them; what it deals of a list, this does of a stream.

    Raises:
        TaskError: stretches are asked for, and where they end is not known before the data is read.
    """

    def __init__(self, data: Any, recipe: Recipe, shard: str, drop_last: bool, rank: int) -> None:
        if shard == "contiguous":
            raise TaskError(
                "train_data can only be iterated, and so cannot be dealt to ranks in stretches: return a data set with "
                "__getitem__ and __len__"
            )
        self.data, self.drop_last = data, drop_last
        unit = recipe.batch_size if shard == "batches" else 1
        self.group, self.own = unit * recipe.parallel.ranks, slice(rank * unit, (rank + 1) * unit)

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.data)
        first: list[Any] = []
        while group := list(islice(samples, self.group)):
            first = first or group
            if len(group) < self.group:
                if self.drop_last:
                    return
                group += islice(cycle(first), self.group - len(group))
            yield from group[self.own]
