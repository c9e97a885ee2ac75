"""Intervals that pages compute from what a run's files hold."""

from __future__ import annotations

import math
from functools import cache

from scipy.stats import binomtest


@cache
def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % score interval of a share of `count` > 0 trials (Wilson, 1927)."""
    low, high = binomtest(hits, count).proportion_ci(method="wilson")
    return float(low), float(high)


def score_interval(share: float, count: float) -> tuple[float, float]:
    """The same of a share of about `count` > 0 trials, no whole number where trials are weighted."""
    z = 1.959963984540054
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(middle - half, 0.0), min(middle + half, 1.0)
