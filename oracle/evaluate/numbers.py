"""What measurements prove: medians and means with intervals of 95 %."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t, two-sided 95 %, for 1, 2, 3... degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A value with its interval; n: of how many measurements."""

    value: float
    low: float
    high: float
    n: int

    def against(self, limit: float) -> bool | None:
        """True if it is at most the limit, False if it is more, None where the interval holds the limit."""
        if self.high <= limit:
            return True
        return False if self.low > limit else None


def median(values: Sequence[float]) -> Interval:
    """The median with a distribution-free interval: the order statistics that hold it with 95 %."""
    ordered = sorted(values)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return Interval(statistics.median(ordered), ordered[low], ordered[high], n)


def mean(values: Sequence[float]) -> Interval:
    """The mean with Student's interval. values: two or more."""
    n = len(values)
    middle = statistics.fmean(values)
    reach = (T95[n - 2] if n - 2 < len(T95) else 1.96) * statistics.stdev(values) / math.sqrt(n)
    return Interval(middle, middle - reach, middle + reach, n)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points (x, y): one jump does not move it."""
    return statistics.median(
        (after[1] - before[1]) / (after[0] - before[0])
        for index, before in enumerate(points)
        for after in points[index + 1 :]
        if after[0] != before[0]
    )
