"""Finds where something changes along a row of versions without looking at all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def changes(count: int, look: Callable[[int], Any]) -> list[int]:
    """The positions at which what `look` sees differs from the position before, in order.

    count: positions, from 0. look: what is there; anything that compares by ==.

    Halves every stretch whose ends differ. Between equal ends it looks as well, until the stretch is a quarter of the
    whole: a change that is undone inside a shorter stretch is missed.
    """
    seen: dict[int, Any] = {}

    def at(position: int) -> Any:
        if position not in seen:
            seen[position] = look(position)
        return seen[position]

    found = []
    stretches = [(0, count - 1)]
    while stretches:
        low, high = stretches.pop()
        if high - low == 1 and at(low) != at(high):
            found.append(high)
        if high - low < 2 or (at(low) == at(high) and high - low <= (count - 1) // 4):
            continue
        middle = (low + high) // 2
        at(middle)
        stretches += [(low, middle), (middle, high)]
    return sorted(found)
