"""Intervals that pages compute from what a run's files hold."""

from __future__ import annotations

import math
from functools import cache

from scipy.optimize import brentq
from scipy.stats import binomtest

_TINY = 1e-9


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


def auroc_interval(value: float, positives: int, negatives: int) -> tuple[float, float]:
    """The 95 % interval of an AUROC of so many inputs of either class, both more than 0, also where it is 0 or 1.

    Newcombe, Confidence intervals for an effect size measure based on the Mann-Whitney statistic, part 2, Statistics in
    Medicine 25 (2006), method 5: the AUROCs t from which `value` is no more than z standard errors away, with the
    variance t (1 - t) (1 + N ((1 - t) / (2 - t) + t / (1 + t))) / (P Q), N = (P + Q) / 2 - 1.
    """
    z, n = 1.959963984540054, (positives + negatives) / 2 - 1

    def beyond(t: float) -> float:
        variance = t * (1 - t) * (1 + n * ((1 - t) / (2 - t) + t / (1 + t))) / (positives * negatives)
        return (t - value) ** 2 - z * z * variance

    # At 0 and at 1 itself the variance is 0, too: the bound that is meant lies beyond.
    low = 0.0 if value <= _TINY else float(brentq(beyond, 0, value - _TINY))
    high = 1.0 if value >= 1 - _TINY else float(brentq(beyond, value + _TINY, 1))
    return low, high
