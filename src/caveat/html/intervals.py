"""Confidence intervals that pages compute from the counts in a run's files."""

import math
from collections.abc import Callable

_TINY = 1e-9


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % score interval of a proportion in `count` > 0 trials (Wilson, 1927)."""
    low, high = score_interval(hits / count, count)
    return low if hits else 0.0, high if hits < count else 1.0


def score_interval(share: float, count: float) -> tuple[float, float]:
    """Return the same for a proportion in about `count` > 0 trials, which is not an integer if trials are weighted."""
    z = 1.959963984540054
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def auroc_interval(value: float, positives: int, negatives: int) -> tuple[float, float]:
    """Return the 95 % interval of an AUROC, also for 0 and 1; both numbers of inputs are > 0.

    Newcombe, Confidence intervals for an effect size measure based on the Mann-Whitney statistic, part 2, Statistics in
    Medicine 25 (2006), method 5: the AUROCs t from which `value` is at most z standard errors away, with the variance t
    (1 - t) (1 + N ((1 - t) / (2 - t) + t / (1 + t))) / (P Q), N = (P + Q) / 2 - 1.
    """
    z, n = 1.959963984540054, (positives + negatives) / 2 - 1

    def beyond(t: float) -> float:
        variance = t * (1 - t) * (1 + n * ((1 - t) / (2 - t) + t / (1 + t))) / (positives * negatives)
        return (t - value) ** 2 - z * z * variance

    # The variance is 0 at 0 and 1; the bounds lie between these and `value`.
    low = 0.0 if value <= _TINY else _root(beyond, 0.0, value - _TINY)
    high = 1.0 if value >= 1 - _TINY else _root(beyond, value + _TINY, 1.0)
    return low, high


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    """Return a root between two numbers at which a function's signs differ, by bisection to full precision."""
    rises = f(high) > 0
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if (f(middle) > 0) == rises else (middle, high)
    return middle
