"""Where a difference begins: the earliest moment whose inputs all agree and whose outputs do not."""

from __future__ import annotations

from diffs.first import Difference, differences
from diffs.trace import Trace
from oracle.explain.standing import RULES
from oracle.result import Site

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
_ORDER = ("start", "batch", "forward", "backward", "consume", "update", "schedule", "evaluate", "log", "end")


def find_site(reference: Trace, candidate: Trace, decisive: Difference) -> Site:
    """The site of a decisive difference: the first difference of any kind in the same update, and what enters it."""
    update = decisive.address.update
    first = next(
        (d for d in differences(reference, candidate, RULES, through_update=update) if d.address.update == update),
        decisive,
    )
    at = first.address
    differing = {d.address[2:4] for d in differences(reference, candidate, RULES, through_update=update)
                 if d.address.update == update and d.address.micro == at.micro}  # fmt: skip
    agreeing = []
    for name, moment, kind in INPUTS:
        earlier = _ORDER.index(moment) < _ORDER.index(at.moment) or (moment == "update" and at.moment != "start")
        same_place = (moment, kind) == (at.moment, at.kind)
        recorded = reference.has((moment, kind)) and candidate.has((moment, kind))
        if earlier and recorded and not same_place and (moment, kind) not in differing and name not in agreeing:
            agreeing.append(name)
    if at.moment == "backward":  # a loss counts as entering only where it was seen on both sides
        agreeing = [name for name in agreeing if name != "objective" or at.kind != "objective"]
    return Site(
        update=at.update,
        micro=at.micro,
        moment=at.moment,
        kind=at.kind,
        name=at.name,
        rank=at.rank,
        agreeing_inputs=tuple(agreeing),
    )
