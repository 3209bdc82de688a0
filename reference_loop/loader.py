"""The order of samples, and batches in that order, drawn from the generators as torch's DataLoader draws."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from reference_loop.recipe import Recipe
from reference_loop.shards import DealtStream, dealt
from reference_loop.task import TaskError


def count_samples(data: Any) -> int:
    """The number of samples in a training data set; an iterable one without a length is read once.

    Raises:
        TaskError: there are none.
    """
    try:
        count = len(data)
    except TypeError:
        count = sum(1 for _ in data)
    if not count:
        raise TaskError("train_data holds no samples, so nothing can be trained: return at least one batch of them")
    return count


def refuse_shared_stream(workers: int) -> None:
    """Refuse several workers for data that can only be iterated: torch has each of them iterate over all of it.

    Raises:
        TaskError: more than one worker.
    """
    if workers > 1:
        raise TaskError(
            f"train_data can only be iterated, and each of the {workers} workers would go through all of it: set "
            "workers to 1, or return a data set with __getitem__ and __len__"
        )


class Loader:
    """The training batches of one rank of a run, one epoch after another.

    order: the current epoch's sample indices, known once its first batch was fetched.
    first_order: the first epoch's.
    """

    def __init__(self, data: Any, recipe: Recipe, drop_last: bool, rank: int = 0) -> None:
        self.data, self.recipe, self.drop_last, self.rank = data, recipe, drop_last, rank
        self.order: list[int] = []
        self.first_order: list[int] = []
        self._batches: Iterator[Any] = iter(())

    def fetch(self, epoch: int, index: int, order: str, draws: str, shard: str = "") -> dict[str, Any]:
        """Batch `index` of an epoch, collated. Batches are asked for in turn; index 0 starts the epoch.

        order, draws, shard: values of the knobs `data.order`, `rng.loader_draws` and, with ranks, `data.shard`.
        """
        if index == 0:
            self.start(epoch, order, draws, shard=shard)
        batch = next(self._batches)
        if not isinstance(batch, dict):
            raise TaskError(
                f"the items of train_data must be dicts of tensors, found {type(batch).__name__}: "
                'return a dict for each sample, such as {"x": ..., "y": ...}'
            )
        return batch

    def start(
        self, epoch: int, order: str, draws: str, skip: int = 0, known: list[int] | None = None, shard: str = ""
    ) -> None:
        """Begin an epoch.

        skip: batches to leave out at its beginning.
        known: its order of samples, where it was drawn before.
        shard: how it is dealt to ranks; "" for one rank.
        """
        generator = torch.Generator() if draws == "none" else None
        if draws == "twice" and epoch > 0:
            torch.empty((), dtype=torch.int64).random_()
        workers = self.recipe.workers
        if isinstance(self.data, IterableDataset) or not hasattr(self.data, "__getitem__"):
            refuse_shared_stream(workers)
            data = self.data
            if shard not in ("", "replicate"):
                data = DealtStream(data, self.recipe, shard, self.drop_last, self.rank)
            stream = DataLoader(
                data, self.recipe.batch_size, drop_last=self.drop_last, num_workers=workers, generator=generator
            )
            self._batches = itertools.islice(stream, skip, None)
            return
        indices = _Indices(self, lambda: known or self.draw(epoch, order), shard, skip)
        self._batches = iter(DataLoader(self.data, batch_sampler=indices, num_workers=workers, generator=generator))

    def draw(self, epoch: int, order: str) -> list[int]:
        """The sample indices of an epoch, drawn now."""
        count = len(self.data)
        if order == "same_every_epoch" and self.first_order:
            return self.first_order
        if order == "same_every_epoch" and self.recipe.parallel.ranks > 1:  # by a sampler that is not told the epoch
            order, epoch = "seeded_epoch", 0
        if order in ("seeded_epoch", "unseeded_epoch"):
            seed = self.recipe.seed if order == "seeded_epoch" else 0
            generator = torch.Generator().manual_seed(seed + epoch)
            return torch.randperm(count, generator=generator).tolist()
        if order == "python":
            dice = _next(random.Random(self.recipe.seed))  # the loader's, and then one for each of its epochs
            drawn: list[int] = []
            for _ in range(epoch + 1):
                dice = _next(dice)
                drawn = dice.sample(range(count), count)
            return drawn
        drawn = list(range(count)) if order == "sequential" else list(RandomSampler(self.data))
        self.first_order = self.first_order or drawn
        return drawn


def _next(dice: random.Random) -> random.Random:
    return random.Random(dice.randint(0, 2**32 - 1))


class _Indices:
    """A batch sampler that draws its epoch's order when the first batch is asked for, as torch's samplers do."""

    def __init__(self, loader: Loader, draw: Callable[[], list[int]], shard: str, skip: int) -> None:
        self.loader, self.draw, self.shard, self.skip = loader, draw, shard, skip

    def __iter__(self) -> Iterator[list[int]]:
        loader = self.loader
        order = loader.order = self.draw()
        if self.shard:
            order = dealt(order, loader.recipe, self.shard, loader.drop_last, loader.rank)
        size = loader.recipe.batch_size
        batches = [order[at : at + size] for at in range(0, len(order), size)]
        if loader.drop_last and batches and len(batches[-1]) < size:
            batches.pop()
        yield from batches[self.skip :]
