"""What an update takes against the baseline is within what the team allows."""

from __future__ import annotations

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.experiments.timing import overhead
from oracle.evaluate.numbers import median

ABOUT = About(dimension="performance", step=5, needs=("time {size}",))


def judge(evidence: Evidence) -> Found:
    """The overhead by wall clock and by processor, each an interval over pairs of turns: all inside, or one outside."""
    settings = evidence.scenario.settings
    content = evidence.get(f"time {settings.size}")
    if content["refused"]:
        return Found(status="cannot_tell", says=f"it could not be timed: {content['refused']}")
    pairs, block = content["pairs"], content["block"]
    clocks = {name: overhead(pairs, clock) for clock, name in enumerate(("wall clock", "processor"))}
    update = {side: median([pair[side][0] / block for pair in pairs]) for side in ("baseline", "candidate")}
    samples = content["recipe"]["batch_size"] * content["recipe"].get("accumulation", 1)
    quantities = (
        *(evidence.quantity(f"overhead, {name}", one.value, "relative", content, low=one.low, high=one.high, n=one.n)
          for name, one in clocks.items()),
        *(evidence.quantity(f"time per update, {side}", one.value, "s", content, low=one.low, high=one.high, n=one.n)
          for side, one in update.items()),
        *(evidence.quantity(f"throughput, {side}", samples / one.value, "samples/s", content, n=one.n)
          for side, one in update.items()),
    )  # fmt: skip
    allowed = settings.overhead
    verdicts = [one.against(allowed) for one in clocks.values()]
    limit = f"the allowed {allowed:.0%} on the {settings.size} model"
    if False in verdicts:
        return Found(status="fail", says=f"an update takes longer than the baseline's by more than {limit}",
                     quantities=quantities)  # fmt: skip
    if None in verdicts:
        says = f"the spread is too wide to tell whether the overhead is within {limit}"
        return Found(status="cannot_tell", says=says, quantities=quantities)
    return Found(status="pass", says=f"an update's overhead is within {limit}", quantities=quantities)
