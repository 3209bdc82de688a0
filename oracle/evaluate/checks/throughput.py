"""Throughput rises from one rank to several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence, NotRun, Run
from oracle.evaluate.experiments import RANKS
from oracle.evaluate.experiments.timing import Pair, overhead
from oracle.evaluate.numbers import Interval, median

ABOUT = About(dimension="functional", step=5, needs=("ranks", "speed on one rank", "speed on ranks"))


def judge(evidence: Evidence) -> Found:
    """Samples a second of all ranks against those of one, the candidate's and the baseline's."""
    alone, spread = evidence.get("speed on one rank"), evidence.get("speed on ranks")
    for content in (alone, spread):
        if content["refused"]:
            raise NotRun(content["refused"])
    baseline, candidate = (rise(alone, spread, side) for side in ("baseline", "candidate"))
    one, several = (overhead(content["pairs"], 0) for content in (alone, spread))
    against = (1 + one.value) / (1 + several.value)
    low, high = (1 + one.low) / (1 + several.high), (1 + one.high) / (1 + several.low)
    quantities = (
        *(evidence.quantity(f"throughput from 1 rank to {RANKS}, {side}", found.value, "relative", spread,
                            low=found.low, high=found.high, n=found.n)
          for side, found in (("baseline", baseline), ("candidate", candidate))),
        evidence.quantity("efficiency against the baseline's", against, "relative", spread,
                          low=low, high=high, n=several.n),
    )  # fmt: skip
    if baseline.low <= 1:
        says = f"the baseline's own throughput does not clearly rise with {RANKS} ranks on this machine"
        return Found(status="cannot_tell", says=says, quantities=quantities)
    if candidate.high <= 1:
        says = f"{RANKS} ranks train no more samples a second than one does"
        return Found(status="fail", says=says, quantities=quantities)
    if candidate.low <= 1:
        says = f"the spread is too wide to tell whether throughput rises with {RANKS} ranks"
        return Found(status="cannot_tell", says=says, quantities=quantities)
    if apart := of_no_use(evidence.run("ranks")):
        says = f"{RANKS} ranks train more samples a second, but {apart}"
        return Found(status="fail", says=says, quantities=quantities)
    return Found(status="pass", says=f"throughput rises with {RANKS} ranks", quantities=quantities)


def of_no_use(run: Run) -> str | None:
    """Why more samples a second train no model faster; None where they do, or where chance may set ranks apart."""
    if run.result is None or run.result.verdict != "diverged":
        return None
    for place in run.result.between_ranks:
        if place.kind == "parameter" and not place.agree:
            return "each its own model: their parameters differ"
        if place.moment == "batch" and place.agree:
            return "the same ones on each"
    return None


def rise(alone: Mapping[str, Any], spread: Mapping[str, Any], side: str) -> Interval:
    """How many times the samples a second of one rank all ranks train.

    alone, spread: the timings of one and of all ranks; each rank has the same batch size.
    """

    def update(content: Mapping[str, Any]) -> Interval:
        pairs: list[Pair] = content["pairs"]
        return median([pair[side][0] / content["block"] for pair in pairs])

    one, all_of_them = update(alone), update(spread)
    return Interval(
        RANKS * one.value / all_of_them.value,
        RANKS * one.low / all_of_them.high,
        RANKS * one.high / all_of_them.low,
        min(one.n, all_of_them.n),
    )
