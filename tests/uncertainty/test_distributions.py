"""Tails and quantiles are those of scipy.stats, which takes long to import."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from caveat.uncertainty.distributions import (
    beta_binomial_moments,
    beta_binomial_tail,
    beta_quantile,
    binomial_tail,
    chi_squared_tail,
    negative_binomial_quantile,
    poisson_tail,
    ranks,
    student_quantile,
    student_tail,
)

DRAW = np.random.default_rng(0)
CASES = [(DRAW.random(), DRAW.normal(0, 5), DRAW.random() * 60 + 0.5, int(DRAW.integers(1, 300))) for _ in range(60)]


@pytest.mark.parametrize(("p", "x", "freedom", "n"), CASES)
def test_they_are_those_of_scipy_stats(p: float, x: float, freedom: float, n: int) -> None:
    close = {"rel": 1e-12, "abs": 1e-300}
    k, a, b = int(p * n), n // 3 + 1, n // 7 + 2
    assert student_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), **close)
    assert student_tail(x, freedom) == pytest.approx(stats.t.sf(x, freedom), **close)
    assert chi_squared_tail(x * x, freedom) == pytest.approx(stats.chi2.sf(x * x, freedom), **close)
    assert poisson_tail(k, 100 * p) == pytest.approx(stats.poisson.sf(k - 1, 100 * p), **close)
    assert binomial_tail(k, n, p) == pytest.approx(stats.binom.sf(k - 1, n, p), **close)
    assert negative_binomial_quantile(p, k + 1, 0.3) == stats.nbinom.ppf(p, k + 1, 0.3)
    assert beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), **close)
    assert beta_binomial_tail(k, n, a, b) == pytest.approx(stats.betabinom.sf(k - 1, n, a, b), abs=1e-11)
    assert beta_binomial_moments(n, a, b) == pytest.approx(stats.betabinom.stats(n, a, b), rel=1e-12)


def test_no_event_is_certain_and_more_than_all_never_happens() -> None:
    assert poisson_tail(0, 3.0) == binomial_tail(0, 4, 0.2) == 1
    assert beta_binomial_tail(0, 4, 2, 3) == pytest.approx(1, abs=1e-14)
    assert binomial_tail(5, 4, 0.2) == beta_binomial_tail(5, 4, 2, 3) == 0


@pytest.mark.parametrize("most", [2, 10, 10**6])
def test_ties_share_the_mean_of_their_ranks(most: int) -> None:
    values = DRAW.integers(0, most, 50).astype(float)
    values[7] = np.inf
    assert np.array_equal(ranks(values), stats.rankdata(values))
