"""Intervals that pages compute from what a run's files hold."""

from __future__ import annotations

from functools import cache

from scipy.stats import binomtest


@cache
def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % score interval of a share of `count` > 0 trials (Wilson, 1927)."""
    low, high = binomtest(hits, count).proportion_ci(method="wilson")
    return float(low), float(high)
