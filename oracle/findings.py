"""What a check found, in the terms of its result: elements, sites, causes with evidence, and what stands aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import diffs.address
from diffs.captured import read_tensors
from diffs.first import Comparison, Difference, differences
from diffs.trace import Trace
from diffs.ulp import worst_ulp
from oracle.candidate import Candidate, Runs, WarmRuns
from oracle.explain.clues import Update, clues
from oracle.explain.evidence import clause, constant_ratio, described
from oracle.explain.explanation import Explanation, Found, Gap
from oracle.explain.options import acts_within
from oracle.explain.site import find_site
from oracle.explain.standing import rules
from oracle.replays import Reading, Replay, Replays
from oracle.result import At, Cause, Compared, FirstDivergence, Latent, OneSided, Site, Unexplained
from reference_loop.moments import MOMENTS, Address, causal_key
from reference_loop.semantics import KNOBS

# What an update starts from and what it does, as far as clues are read from it.
STATE = ((-1, "start", "parameter"),)
UPDATE = (("consume", "gradient"), ("update", "parameter"), ("update", "optimizer_state"))


# Where a recorded number acts; one that is not named here acts where parameters move.
TRAINED = frozenset({("update", "parameter"), ("update", "optimizer_state")})
RATES = frozenset({("consume", "learning_rate"), ("schedule", "learning_rate")})
GRADIENTS = frozenset({("consume", "gradient")})
NUMBERS = {
    "hyperparameter.lr": RATES,
    "hyperparameter.warmup": RATES,
    "hyperparameter.schedule": RATES,
    "hyperparameter.max_norm": GRADIENTS,
    "hyperparameter.max_value": GRADIENTS,
    "hyperparameter.optimized": TRAINED | GRADIENTS,
    **{
        f"hyperparameter.{name}": frozenset({("update", "scaler"), *GRADIENTS})
        for name in ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    },
}


@dataclass(frozen=True)
class Findings:
    """Turns what was measured into parts of a result.

    reading, reference: what the user expects, and the reference run under it.
    """

    reading: Reading
    reference: Replay
    candidate: Candidate
    replays: Replays
    runs: Runs | WarmRuns

    def elements(self, difference: Difference) -> FirstDivergence:
        """A difference with its elements, both sides replayed up to it where the tensors are not there in full."""
        rows = (difference.reference, difference.candidate)
        address = difference.address
        if None in rows or rows[0].dtype is None or address.moment == "end":  # type: ignore[union-attr]
            return described(difference, None, None)
        return described(difference, *self.tensors(address))

    def tensors(self, address: diffs.address.Address) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Both sides' tensors at an address, as far as they can be had."""
        moments = [[address.update, address.moment, address.kind]]
        full = self.candidate.full
        theirs = read_tensors(full) if full is not None else None
        if (theirs is None or address not in theirs) and self.candidate.ended:
            theirs = read_tensors(self.runs.once_more(moments))
        ours = read_tensors(self.reference.folder)
        if address not in ours:
            run = self.replays.one(self.reading, through=max(address.update, 0), capture={"moments": moments})
            ours = read_tensors(run.folder)
        return ours.get(address), theirs.get(address) if theirs is not None else None

    def worst_ulp(self) -> int | None:
        """The largest distance over all decisive values that differ; None where one cannot be measured."""
        trace, full = self.candidate.trace, self.candidate.full
        if trace is None or full is None or not self.candidate.ended:
            return None
        ours, theirs = read_tensors(self.reference.folder), read_tensors(full)
        worst = 0
        for difference in differences(
            self.reference.trace, trace, rules(self.reference.trace, trace), decisive_only=True
        ):
            address = difference.address
            if address not in ours or address not in theirs or ours[address].shape != theirs[address].shape:
                return None
            if ours[address].dtype != theirs[address].dtype:
                return None
            worst = max(worst, worst_ulp(ours[address], theirs[address]))
        return worst

    def site(self, first: Difference, found: Explanation) -> Site:
        """Where the first divergence begins."""
        assert self.candidate.trace is not None
        origin = next((c.origin for c in found.causes if c.at.address == first.address and c.origin), None)
        apart = {difference.address[3:5] for difference in found.latent}
        unsteady = self.candidate.unsteady
        return find_site(self.reference.trace, self.candidate.trace, first, origin=origin, silent=unsteady, apart=apart)

    def unexplained(self, gap: Gap) -> Unexplained:
        """A gap with its site, what was ruled out, and what the numbers say."""
        assert self.candidate.trace is not None
        site = find_site(gap.trace, self.candidate.trace, gap.at)
        like = [f"like {label}, which however changes what agrees" for label in gap.like[:1]]
        return Unexplained(site=site, ruled_out=gap.tried, evidence=(*like, *self._clues(gap)))

    def _clues(self, gap: Gap) -> Iterator[str]:
        at = gap.at.address
        if self.candidate.full is None or not self.candidate.complete or at.moment not in ("consume", "update"):
            return
        places = [*STATE, *((at.update, *place) for place in UPDATE), *((at.update - 1, *place) for place in UPDATE)]
        run = self.replays.one(gap.reading, through=at.update, capture={"moments": [list(place) for place in places]})
        yield from clues(at, Update(at.update, read_tensors(run.folder), read_tensors(self.candidate.full)))

    def causes(self, found: Explanation) -> Iterator[Cause]:
        """The causes in the order in which they show.

        One is confirmed if the reference with all of them is bit-identical through the update at which it shows, no
        other value that departs there does as well, and the evidence is not thin. What lies behind batches that differ
        unexplained, or in the update of another unexplained difference, is not proven; nor is a decision that acts at
        a later one: it may hold for a while only.
        """
        standing = found.standing.decisive
        last = self.candidate.trace.last_update if self.candidate.trace else -1
        identical = last if standing is None else standing.address.update - 1
        for cause in sorted(found.causes, key=_order):
            at = cause.at.address
            before = [gap.at.address for gap in found.gaps if gap.at.address.update <= at.update]
            after = [gap.at.address for gap in found.gaps if gap.at.address.update > at.update]
            blurred = any(gap.update == at.update or gap.moment == "batch" for gap in before)
            doubted = any(self._acts(cause, found, gap) for gap in after)
            proven = (standing is None or identical >= at.update) and not blurred and not doubted
            yield Cause(
                knob=cause.knob,
                reference=cause.reference,
                candidate=cause.candidate,
                status="confirmed" if proven and not cause.alternatives and not cause.thin else "suggested",
                effect=cause.effect,
                at=At(update=at.update, moment=at.moment),
                identical_through_update=min([identical, *(gap.update - 1 for gap in after)]) if proven else None,
                indistinguishable=cause.alternatives,
                evidence=tuple(self._evidence(cause)),
                facts=self._facts(cause),
            )

    def _acts(self, cause: Found, found: Explanation, gap: diffs.address.Address) -> bool:
        """Whether a cause acts at a difference that it leaves unexplained."""
        if cause.knob not in KNOBS:
            return (gap.moment, gap.kind) in NUMBERS.get(cause.knob, TRAINED)
        without = found.reading.with_knob(cause.knob, cause.reference)
        return acts_within(found.reading, without, self.reference.samples, gap)

    def _evidence(self, cause: Found) -> Iterator[str]:
        address = cause.at.address
        if cause.thin:
            yield cause.thin
        if cause.knob not in KNOBS:
            yield "the candidate's own record says so"
        elif address.kind == "gradient":
            ours, theirs = self.tensors(address)
            ratio = constant_ratio(ours, theirs) if ours is not None and theirs is not None else None
            if ratio is not None:
                yield clause(ratio)

    def _facts(self, cause: Found) -> dict[str, Any]:
        recipe = self.reading.recipe
        facts: dict[str, Any] = {"configured": recipe.accumulation, "ranks": recipe.parallel.ranks}
        if cause.knob == "accumulation.tail_divisor" and self.candidate.trace is not None:
            micros = self.candidate.trace.rows_at(("forward", "mode"))
            window = (cause.at.address.update, cause.at.address.rank)
            facts["actual"] = sum((row.address.update, row.address.rank) == window for row in micros)
        if cause.parameters:
            facts["parameters"] = list(cause.parameters)
        return facts


def _order(cause: Found) -> tuple[Any, ...]:
    """Sorts causes as they show; in one place, what changes the meaning comes before what rounds otherwise."""
    return (*causal_key(Address(*cause.at.address)), cause.effect == "style")


def compared(comparison: Comparison | None) -> Compared:
    """How much was compared."""
    if comparison is None:
        return Compared(updates=0, addresses=0)
    return Compared(updates=comparison.updates, addresses=comparison.addresses, unmatched=comparison.unmatched_rows)


def latent(found: Explanation, candidate: Trace) -> Iterator[Latent]:
    """The witnesses that differ without effect: the first place of each kind, and how many there are."""
    if not found.latent:
        return
    trace = found.replay.trace
    places = Counter(difference.address[2:4] for difference in differences(trace, candidate, rules(trace, candidate)))
    for difference in found.latent:
        sides = [row.content if row else None for row in (difference.reference, difference.candidate)]
        count = max(1, places[difference.address[2:4]])
        yield Latent(**difference.address._asdict(), reference=sides[0], candidate=sides[1], addresses=count)


def one_sided(comparison: Comparison | None) -> Iterator[OneSided]:
    """Decisive values of one side alone, by place. That the reference states no threshold is no value."""
    places: dict[tuple[Any, ...], list[Any]] = {}
    for group in comparison.unmatched if comparison else ():
        _, _, moment, kind, name, _ = group.first
        if MOMENTS[moment][kind] and name not in ("max_norm", "max_value"):
            known = places.setdefault((group.side, moment, kind), [name, 0])
            known[1] += group.rows
    for (side, moment, kind), (name, rows) in places.items():
        yield OneSided(side=side, moment=moment, kind=kind, name=name, addresses=rows)
