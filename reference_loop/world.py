"""Several ranks in one process: their plans interleaved, and a state with generators of its own for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from reference_loop import randomness
from reference_loop.moments import Address
from reference_loop.operations import Collective, Observation, Operation
from reference_loop.state import State


@dataclass(frozen=True)
class OnRank(Operation):
    """One rank's step."""

    rank: int
    operation: Operation

    @property
    def update(self) -> int:
        """The operation's; as with the operation itself, an AttributeError where it has none."""
        return self.operation.update  # type: ignore[attr-defined]

    def do(self, state: World) -> Iterator[Observation]:  # type: ignore[override]
        with state.turn(self.rank) as own:
            for address, value in self.operation.do(own):
                yield address._replace(rank=self.rank), value


def interleaved(plan: Sequence[Operation], ranks: int) -> Iterator[Operation]:
    """The plan that every rank has, as one: the ranks take turns up to each collective, and up to each new update."""
    stretch: list[Operation] = []
    update = -1
    for operation in plan:
        begins = getattr(operation, "update", update)
        if begins > update or isinstance(operation, Collective):
            yield from (OnRank(rank, own) for rank in range(ranks) for own in stretch)
            stretch, update = [], begins
        if isinstance(operation, Collective):
            yield operation
        else:
            stretch.append(operation)
    yield from (OnRank(rank, own) for rank in range(ranks) for own in stretch)


class World:
    """The states of all ranks.

    generators: of each rank, as they stand between its turns.
    """

    def __init__(self, states: Sequence[State]) -> None:
        self.states = list(states)
        self.generators = [randomness.snapshot()] * len(self.states)

    @contextmanager
    def turn(self, rank: int) -> Iterator[State]:
        """The state of a rank, and its generators as the global ones."""
        randomness.restore(self.generators[rank])
        try:
            yield self.states[rank]
        finally:
            self.generators[rank] = randomness.snapshot()

    def put(self, address: Address, value: Any) -> None:
        """As `State.put`, on the rank of the address."""
        self.states[address.rank].put(address, value)
