"""How the overhead changes with the model's size, accumulation and loader workers can be told."""

from __future__ import annotations

from functools import partial

from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.experiments import TIMINGS
from oracle.evaluate.experiments.timing import Pair, overhead, spread

ABOUT = About(dimension="performance", step=5, needs=("time *",))

CLEAR, CLEAR_MS = 0.25, 2.0
"""Half the width of an interval, relative or in milliseconds an update, beyond which a cost cannot be told."""


def judge(evidence: Evidence) -> Found:
    """What an update takes more than the baseline's, each case measured by itself; nothing here decides by size."""
    quantities, unclear, refused = [], [], []
    for name in TIMINGS:
        content = evidence.get(f"time {name}")
        if content["refused"]:
            refused.append(f"{name} ({content['refused']})")
            continue
        relative = overhead(content["pairs"], 0)
        absolute = spread(content["pairs"], partial(longer, content["block"]))
        for unit, one in (("relative", relative), ("ms/update", absolute)):
            quantities.append(evidence.quantity(f"overhead, {name}", one.value, unit, content,
                                                low=one.low, high=one.high, n=one.n))  # fmt: skip
        if relative.high - relative.low > 2 * CLEAR and absolute.high - absolute.low > 2 * CLEAR_MS:
            unclear.append(name)
    if refused:
        return Found(status="cannot_tell", says=f"not timed: {'; '.join(refused)}", quantities=tuple(quantities))
    if unclear:
        says = f"the spread is too wide to tell the wrapper's cost with {', '.join(unclear)}"
        return Found(status="cannot_tell", says=says, quantities=tuple(quantities))
    says = f"the overhead is told with {', '.join(TIMINGS)}"
    return Found(status="pass", says=says, quantities=tuple(quantities))


def longer(block: int, pair: Pair) -> float:
    """Milliseconds that an update of the candidate takes more."""
    return (pair["candidate"][0] - pair["baseline"][0]) / block * 1000
