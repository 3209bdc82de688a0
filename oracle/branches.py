"""Several plans carried out together: what they share is done once, and where they part the process forks.

Runs in the candidate's own environment: only the standard library and torch.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from reference_loop.operations import Operation


def explore(
    plans: Mapping[int, Sequence[Operation]],
    do: Callable[[Operation], None],
    fork: Callable[[list[int]], bool],
) -> list[int]:
    """Carry out plans side by side; returns the numbers of those that this process carried to their end.

    plans: by number; they may not be empty together.
    do: carries out one operation.
    fork: called with the numbers of the plans that part from the rest; True in the child, which goes on with them,
        False in the parent, which goes on without.
    """
    at = 0
    while True:
        parted: dict[Operation | None, list[int]] = {}
        for number, operations in plans.items():
            parted.setdefault(operations[at] if at < len(operations) else None, []).append(number)
        (operation, kept), *others = parted.items()
        for other, numbers in others:
            if fork(numbers):
                operation, kept = other, numbers
                break
        if operation is None:
            return kept
        do(operation)
        plans = {number: plans[number] for number in kept}
        at += 1


def through(operations: Sequence[Operation], update: int | None) -> list[Operation]:
    """The operations of a plan up to an update; all of them if it is None."""
    if update is None:
        return list(operations)
    beyond = (at for at, operation in enumerate(operations) if getattr(operation, "update", -1) > update)
    return list(operations[: next(beyond, len(operations))])


def divisible(before: frozenset[str] | None, ours: Sequence[Path]) -> bool:
    """Whether this process can fork in the middle of a run so that both halves go on as if alone.

    before: `open_files` when the run began: a file that was opened since has one position for both halves. A thread or
        a child, such as a loader's worker, would serve one of them only.
    ours: folders whose files are opened anew after a fork.
    """
    held = open_files()
    if held is None or before is None:
        return False
    if torch.get_num_threads() > 1 or threading.active_count() > 1 or multiprocessing.active_children():
        return False
    return all(any(Path(file).is_relative_to(folder) for folder in ours) for file in held - before)


def open_files() -> frozenset[str] | None:
    """The regular files that this process holds open; None where the system does not say."""
    listing = Path("/proc/self/fd")
    if not listing.is_dir():
        return None
    held = set()
    for entry in os.listdir(listing):
        with suppress(OSError):  # the listing's own is closed by now
            held.add(os.readlink(listing / entry))
    return frozenset(file for file in held if os.path.isfile(file))


class Slots:
    """How many more processes may run beside this one and its relatives: `take` one before a fork, `give` it after."""

    def __init__(self, count: int) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.write(self._writer, b"." * count)

    def take(self) -> bool:
        """Take one, if one is left."""
        try:
            return bool(os.read(self._reader, 1))
        except BlockingIOError:
            return False

    def give(self) -> None:
        """Give one back."""
        os.write(self._writer, b".")
