"""Which samples of an epoch each of several ranks trains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

from reference_loop.recipe import Recipe


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
