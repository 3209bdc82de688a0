"""Where a recorded value lives."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """One place in a run, as the trace spells it. Equal tuples are one address, whichever type they are.

    update, micro: counted from 0; -1 where there is none.
    moment, kind: a place of the trace's place table, which knows its causal rank.
    name: what lives there; "" where there is only one.
    rank: the process.
    """

    update: int
    micro: int
    moment: str
    kind: str
    name: str
    rank: int = 0
