"""An update while it is recorded: which optimizers step in it, and which parameters are written already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from oracle.recorder.names import Models
from oracle.recorder.optimizers import Optimizer, parameters_of


class Update:
    """An update of which not all is recorded yet.

    stepped: the optimizers that stepped in it; fresh: those of them whose results are not recorded yet.
    others: the optimizers that may join the first one.
    told: whether `on_update` was called.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.stepped: list[Optimizer] = []
        self.fresh: list[Optimizer] = []
        self.others: list[Any] = []
        self.told = False
        self._written: set[int] | None = set()  # parameters by identity; None for all

    def takes(self, optimizer: Any) -> bool:
        """Whether a step of this optimizer belongs to the update."""
        return any(other is optimizer for other in self.waiting)

    @property
    def waiting(self) -> list[Any]:
        """The optimizers that may join and did not yet."""
        return [other for other in self.others if all(known.of is not other for known in self.stepped)]

    def unwritten(self, models: Models, waiting: list[Any] | None) -> Iterator[tuple[str, Tensor]]:
        """Yield (bare name, parameter) that were not yielded before.

        waiting: optimizers that are yet to step, whose parameters are left for later; None for no such. Beside tensors
            of optimizers that no model holds, the models' own are left for later too: they are copied there behind.
        """
        if self._written is None:
            return
        left = {id(parameter) for other in waiting or () for parameter in parameters_of(other)}
        aside = waiting is not None and any(known.nameless for known in self.stepped)
        if not left and not aside and not self._written:  # as nearly always
            self._written = None
            yield from models.parameters()
            return
        own = {id(parameter) for known in self.stepped for parameter in parameters_of(known.of)} if aside else set()
        for name, parameter in models.parameters():
            key = id(parameter)
            if key not in self._written and key not in left and (not aside or key in own):
                self._written.add(key)
                yield name, parameter
        if not left and not aside:
            self._written = None
