"""Tail probabilities and quantiles of common distributions, with `scipy.special`; tests and intervals based on them.

Tails and quantiles are the same as in `scipy.stats`, which takes longer to import than everything else except torch.
Two-sample tests hold for any numbers of values and any ties: each returns a p-value under the hypothesis that all
values are exchangeable, from closed forms of hypergeometric tails, so very small p-values are accurate enough for a
correction over many columns.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.special import betainc, betaincinv, betaln, chdtrc, gammaln, nbdtr, nbdtrik, pdtrc, stdtr, stdtrit

Array = NDArray[np.float64]


def student_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution with `freedom` degrees of freedom."""
    return float(stdtrit(freedom, probability))


def half_width(half: float, seeds: int, more: int, level: float = 0.05) -> float:
    """Return the half-width with `more` seeds of an interval that has the half-width `half` with `seeds` seeds, at
    confidence 1 - level, if further seeds vary as much as these."""
    ratio = student_quantile(1 - level / 2, more - 1) / student_quantile(1 - level / 2, seeds - 1)
    return half * ratio * math.sqrt(seeds / more)


MOST_SEEDS = 50
"""Number of seeds above which more seeds are not advised."""


def seeds_needed(gap: float, half: float, seeds: int, level: float = 0.05) -> int | None:
    """Return the number of seeds whose interval excludes 0 with a probability of 80 %, if the true difference is `gap`
    and seeds vary as in an interval of half-width `half` with `seeds` seeds; None if it is above `MOST_SEEDS`."""

    def room(n: int) -> float:
        return 1 + student_quantile(0.8, n - 1) / student_quantile(1 - level / 2, n - 1)

    more = range(seeds + 1, MOST_SEEDS + 1)
    return next((n for n in more if half_width(half, seeds, n, level) * room(n) < abs(gap)), None)


def student_tail(value: float, freedom: float) -> float:
    """Return the probability of exceeding a value under Student's t distribution."""
    return float(stdtr(freedom, -value))


def normal_tail(value: float) -> float:
    """Return the probability of exceeding a value under the standard normal distribution."""
    return math.erfc(value / math.sqrt(2)) / 2


def chi_squared_tail(value: float, freedom: float) -> float:
    """Return the probability of exceeding a value under the chi-squared distribution."""
    return float(chdtrc(freedom, value))


def poisson_tail(count: int, mean: float) -> float:
    """Return the probability of at least `count` events, whose mean number is `mean`."""
    return 1.0 if count <= 0 else float(pdtrc(count - 1, mean))


def binomial_tail(count: int, trials: int, probability: float) -> float:
    """Return the probability of at least `count` successes."""
    if count <= 0:
        return 1.0
    return float(betainc(count, trials - count + 1, probability)) if count <= trials else 0.0


@lru_cache(maxsize=4096)
def hypergeometric_tail(count: int, drawn: int, marked: int, total: int) -> float:
    """Return the probability of at least `count` marked items in `drawn` draws from `total` items (`marked` marked)."""
    most = min(drawn, marked)
    if count <= max(0, drawn + marked - total):
        return 1.0
    if count > most:
        return 0.0
    k = np.arange(count, most + 1)
    logs = (
        gammaln(marked + 1) - gammaln(k + 1) - gammaln(marked - k + 1)
        + gammaln(total - marked + 1) - gammaln(drawn - k + 1) - gammaln(total - marked - drawn + k + 1)
        - gammaln(total + 1) + gammaln(drawn + 1) + gammaln(total - drawn + 1)
    )  # fmt: skip
    return min(1.0, float(np.exp(logs).sum()))


def negative_binomial_quantile(probability: float, successes: int, chance: float) -> int:
    """Return a quantile of the number of failures before a number of successes, each of probability `chance`."""
    found: int = math.ceil(float(nbdtrik(probability, successes, chance)))
    below = max(found - 1, 0)
    return below if nbdtr(below, successes, chance) >= probability else found


def beta_quantile(probability: float, a: ArrayLike, b: ArrayLike) -> Array:
    """Return quantiles of beta distributions; same shape as a and b."""
    return np.asarray(betaincinv(a, b, probability), dtype=np.float64)


def beta_binomial_tail(count: int, trials: int, a: float, b: float) -> float:
    """Return the probability of at least `count` successes if their probability has a beta distribution."""
    k = np.arange(max(count, 0), trials + 1)
    logs = -math.log(trials + 1) - betaln(trials - k + 1, k + 1) + betaln(k + a, trials - k + b) - betaln(a, b)
    return float(np.exp(logs).sum())


def beta_binomial_moments(trials: int, a: float, b: float) -> tuple[float, float]:
    """Return the mean and the variance of the number of successes of `beta_binomial_tail`."""
    both = a + b
    return trials * a / both, trials * a * b * (both + trials) / (both**2 * (both + 1))


def ranks(values: Array) -> Array:
    """Return (N,) ranks, from 1, of finite or infinite values (N,); ties share their mean rank."""
    order = values.argsort(kind="stable")
    is_new = np.r_[True, values[order][1:] != values[order][:-1]]
    ends = np.r_[np.flatnonzero(is_new), len(values)]
    found = np.empty(len(values))
    group = is_new.cumsum()
    found[order] = (ends[group] + ends[group - 1] + 1) / 2
    return found


LEVELS = (0.1, 0.5, 0.9)
"""Quantiles of the known values that new values are compared with."""


def rank_test(new: Array, known: Array) -> float:
    """Return the p-value of numbers (n,) against known ones (m,), both without NaN.

    This is a precedence test (Nelson, Technometrics 1963): the number of new values above the j-th smallest known one
    has a beta-binomial distribution, here for the 10 %, 50 % and 90 % quantiles and in both directions, with
    Bonferroni's correction. New values equal to a known one do not count as beyond it, which makes p larger. Without
    values, p is 1.
    """
    n, m = len(new), len(known)
    if not n or not m:
        return 1.0
    ordered, ps = np.sort(known), []
    for level in LEVELS:
        j = max(1, math.ceil(level * m))
        for beyond in (int((new > ordered[j - 1]).sum()), int((new < ordered[m - j]).sum())):
            # At least `beyond` new values are beyond if as many are among the first (m - j + beyond) of all.
            ps.append(hypergeometric_tail(beyond, m - j + beyond, n, n + m))
    return min(1.0, len(ps) * min(ps))


def count_test(new: NDArray[np.int64], known: NDArray[np.int64], *, unnamed: tuple[int, int] = (0, 0)) -> float:
    """Return the p-value of counts (C,) per category against known counts (C,); `unnamed` counts new and known values
    of other categories.

    This is Fisher's exact test of each category against the others, in both directions, with Bonferroni's correction.
    Without values, p is 1. Unnamed values may belong to as many categories. These are not tested, but the correction
    counts them, so the test is exact even if a category has a name only because known values have it.
    """
    n, m = int(new.sum()) + unnamed[0], int(known.sum()) + unnamed[1]
    occur = np.flatnonzero(new + known)
    categories = len(occur) + sum(unnamed)
    if not n or not m or not len(occur) or categories < 2:
        return 1.0
    tests = 2 * (1 if categories == 2 else categories)  # two categories have the same test
    return min(1.0, tests * min(_one_sided(int(new[i]), int(known[i]), n, m) for i in occur))


def _one_sided(new: int, known: int, n: int, m: int) -> float:
    """Return the smaller p-value of both directions of Fisher's test: `new` of n against `known` of m."""
    more = hypergeometric_tail(new, new + known, n, n + m)
    return min(more, hypergeometric_tail(known, new + known, m, n + m))


def change_test(values: Array) -> tuple[int, float]:
    """Return the number of values (n,) before the place at which they change most, and the p-value of no change.

    This is Pettitt's test (Applied Statistics 28, 1979): the largest deviation of cumulative ranks from those of
    exchangeable values, with its approximate tail. Ties make p larger. Without two values, p is 1.
    """
    n = len(values)
    if n < 2:
        return 0, 1.0
    deviations = np.abs(2 * ranks(values).cumsum()[:-1] - np.arange(1, n) * (n + 1))
    at = int(deviations.argmax())
    return at + 1, min(1.0, 2 * math.exp(-6 * float(deviations[at]) ** 2 / (n**3 + n**2)))


_TINY = 1e-9


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % score interval of a proportion in `count` > 0 trials (Wilson, 1927)."""
    low, high = score_interval(hits / count, count)
    return low if hits else 0.0, high if hits < count else 1.0


def score_interval(share: float, count: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the score interval of a proportion in about `count` > 0 trials, which need not be an integer if trials are
    weighted. `z` is the normal quantile of each end."""
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


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method (1979), in the given order: the family-wise error rate is at most the
    threshold, under any dependence. NaN stays NaN and is not counted."""
    order = sorted((i for i, p in enumerate(ps) if not math.isnan(p)), key=lambda i: ps[i])
    corrected, largest = [math.nan] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * ps[i]))
        corrected[i] = largest
    return corrected


def detected(events: float, freedom: float = 9) -> float:
    """Return the root mean square of relative deviations of shares (by default ten, as in D-calibration) that a
    chi-squared test at 5 % detects with a probability of 80 % from this number of events."""
    return math.sqrt(special.chndtrinc(special.chdtri(freedom, 0.05), freedom, 0.2) / events) if events else math.inf
