"""Tail probabilities and quantiles of common distributions, with `scipy.special`.

Same as in `scipy.stats`, which takes longer to import than everything else except torch.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincinv, betaln, chdtrc, gammaln, nbdtr, nbdtrik, pdtrc, stdtr, stdtrit

Array = NDArray[np.float64]


def student_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution with `freedom` degrees of freedom."""
    return float(stdtrit(freedom, probability))


def student_tail(value: float, freedom: float) -> float:
    """Return the probability of exceeding a value under Student's t distribution."""
    return float(stdtr(freedom, -value))


def chi_squared_tail(value: float, freedom: float) -> float:
    """Return the probability of exceeding a value under the chi-squared distribution."""
    return float(chdtrc(freedom, value))


def poisson_tail(count: int, mean: float) -> float:
    """Return the probability of at least `count`."""
    return 1.0 if count <= 0 else float(pdtrc(count - 1, mean))


def binomial_tail(count: int, trials: int, probability: float) -> float:
    """Return the probability of at least `count` successes."""
    if count <= 0:
        return 1.0
    return float(betainc(count, trials - count + 1, probability)) if count <= trials else 0.0


@lru_cache(maxsize=4096)
def hypergeometric_tail(count: int, drawn: int, marked: int, total: int) -> float:
    """Return the probability of drawing at least `count` marked items in `drawn` draws from `total` items, `marked` of
    them marked."""
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
    """Return mean and variance of that count."""
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
