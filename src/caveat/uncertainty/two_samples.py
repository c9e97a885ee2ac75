"""Exact two-sample tests of new values against known ones, for any numbers of values and any ties.

Each returns a p-value under the hypothesis that all values are exchangeable. They are closed forms of hypergeometric
tails, so very small p-values are accurate enough for a correction over many columns.
"""

import math

import numpy as np
from numpy.typing import NDArray

from .distributions import Array, hypergeometric_tail

LEVELS = (0.1, 0.5, 0.9)
"""Quantiles of the known values that new values are compared with."""


def rank_test(new: Array, known: Array) -> float:
    """Return the p-value of numbers (n,) against known ones (m,), both without NaN.

    A precedence test (Nelson, Technometrics 1963): the number of new values above the j-th smallest known one has a
    beta-binomial distribution, here for the 10 %, 50 % and 90 % quantiles and in both directions, with Bonferroni's
    correction. New values equal to a known one do not count as beyond it, which makes p larger. Without values, p is 1.
    """
    n, m = len(new), len(known)
    if not n or not m:
        return 1.0
    ordered, ps = np.sort(known), []
    for level in LEVELS:
        j = max(1, math.ceil(level * m))
        for beyond in (int((new > ordered[j - 1]).sum()), int((new < ordered[m - j]).sum())):
            # `beyond` new values are beyond if they are among the first (m - j + beyond) of all.
            ps.append(hypergeometric_tail(beyond, m - j + beyond, n, n + m))
    return min(1.0, len(ps) * min(ps))


def count_test(new: NDArray[np.int64], known: NDArray[np.int64], *, unnamed: tuple[int, int] = (0, 0)) -> float:
    """Return the p-value of counts (C,) per category against known counts (C,); `unnamed` counts new and known values
    of other categories.

    Fisher's exact test of each category against the others, in both directions, with Bonferroni's correction. Without
    values, p is 1. Unnamed values may belong to as many categories. These are not tested, but the correction counts
    them, so the test is exact even if a category has a name only because known values have it.
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
