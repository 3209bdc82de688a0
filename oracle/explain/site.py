"""Where a difference begins: the earliest moment whose inputs all agree and whose outputs do not."""

from __future__ import annotations

from collections.abc import Collection

from diffs.first import Difference, differences
from diffs.trace import Trace
from oracle.explain.standing import rules
from oracle.result import Site
from reference_loop.moments import Address, place_rank

# What enters each moment of a window: (name in a report, moment, kind).
INPUTS = (
    ("batch", "batch", "batch_ids"),
    ("batch", "batch", "input"),
    ("parameter", "update", "parameter"),
    ("buffer", "update", "buffer"),
    ("rng", "forward", "rng"),
    ("mode", "forward", "mode"),
    ("loss", "forward", "loss"),
    ("objective", "backward", "objective"),
    ("gradient", "consume", "gradient"),
    ("learning_rate", "consume", "learning_rate"),
)


def find_site(
    reference: Trace,
    candidate: Trace,
    decisive: Difference,
    *,
    origin: Difference | None = None,
    silent: Collection[tuple[str, str]] = (),
    apart: Collection[tuple[str, str]] = (),
) -> Site:
    """The site of a decisive difference, and what agrees on its way in.

    origin: the earliest difference that has the same cause, where one is known; by default the first difference of any
        kind in the same update.
    silent: places whose differences mean nothing. apart: the same of (kind, name).
    """
    through = decisive.address.update
    found = [
        difference
        for difference in differences(reference, candidate, rules(reference, candidate), through_update=through)
        if difference.address[2:4] not in silent and difference.address[3:5] not in apart
    ]
    first = origin or next((d for d in found if d.address.update == through), decisive)
    at = Address(*first.address)
    here = {d.address[2:4] for d in found if d.address[:2] == at[:2]}
    agreeing = [
        name
        for name, moment, kind in INPUTS
        if ((moment == "update" and at.moment != "start") or place_rank(moment, kind) < place_rank(at.moment, at.kind))
        and (moment, kind) != (at.moment, at.kind)
        and (moment, kind) not in here
        and (moment, kind) not in silent
        and reference.has((moment, kind))
        and candidate.has((moment, kind))
    ]
    return Site(**at._asdict(), agreeing_inputs=tuple(dict.fromkeys(agreeing)))
