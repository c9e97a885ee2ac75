"""Tails and quantiles are those of scipy.stats, which takes long to import."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from caveat.uncertainty.statistical_tests import (
    beta_binomial_moments,
    beta_binomial_tail,
    beta_quantile,
    binomial_tail,
    change_test,
    chi_squared_tail,
    count_test,
    holm,
    hypergeometric_tail,
    negative_binomial_quantile,
    poisson_tail,
    rank_test,
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


@pytest.mark.parametrize(("total", "marked", "drawn"), [(20, 7, 5), (150, 50, 100), (600, 500, 80), (3, 0, 2)])
def test_hypergeometric_tails_are_those_of_scipy(total: int, marked: int, drawn: int) -> None:
    for count in range(-1, drawn + 2):
        expected = stats.hypergeom.sf(count - 1, total, marked, drawn)
        assert hypergeometric_tail(count, drawn, marked, total) == pytest.approx(expected, rel=1e-8)


def test_counts_of_two_categories_are_fishers_exact_test() -> None:
    new, known = np.array([12, 3]), np.array([20, 40])
    one_sided = min(stats.fisher_exact([new, known], alternative=each).pvalue for each in ("less", "greater"))
    assert count_test(new, known) == pytest.approx(2 * one_sided)
    assert count_test(np.array([5, 0]), np.array([9, 0])) == 1.0
    assert count_test(np.array([0, 0]), np.array([9, 4])) == 1.0


def test_numbers_beyond_a_known_one_are_beta_binomial() -> None:
    """All 8 new values above all 30 known ones: least likely above the 90 % quantile, the 27th, or below the 4th."""
    found = rank_test(np.arange(100.0, 108.0), np.arange(30.0))
    levels = [stats.betabinom.sf(7, 8, 30 - j + 1, j) for j in (3, 15, 27)]
    assert found == pytest.approx(6 * min(levels))
    assert found == pytest.approx(rank_test(-np.arange(100.0, 108.0), -np.arange(30.0)))
    assert rank_test(np.ones(50), np.ones(20)) == rank_test(np.zeros(0), np.ones(20)) == 1.0


Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
DRAWS: dict[str, Draw] = {
    "normal": lambda random, n: random.normal(size=n),
    "mostly zero": lambda random, n: np.maximum(random.normal(size=n) - 1, 0),
    "rounded": lambda random, n: np.round(random.exponential(size=n), 1),
    "few values": lambda random, n: random.integers(0, 3, n).astype(float),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize(("n", "m"), [(5, 20), (50, 20), (50, 100), (400, 60)])
def test_values_of_one_distribution_have_uniform_p_values_at_most(name: str, n: int, m: int) -> None:
    random, repeats = np.random.default_rng([n, m]), 400
    draw = DRAWS[name]
    ps = np.array([rank_test(draw(random, n), draw(random, m)) for _ in range(repeats)])
    counts = [(np.bincount(random.integers(0, 4, n), minlength=4), np.bincount(random.integers(0, 4, m), minlength=4))
              for _ in range(repeats)]  # fmt: skip
    by_count = np.array([count_test(*each) for each in counts])
    for level in (0.01, 0.05, 0.2):
        most = level + 3 * math.sqrt(level * (1 - level) / repeats)
        assert (ps <= level).mean() <= most
        assert (by_count <= level).mean() <= most


def test_a_shift_by_one_deviation_is_found_in_fifty_rows() -> None:
    random = np.random.default_rng(0)
    ps = [rank_test(random.normal(1, 1, 50), random.normal(0, 1, 60)) for _ in range(200)]
    assert np.mean(np.array(ps) <= 0.05 / 20) > 0.8
    spread = [rank_test(random.normal(0, 5, 50), random.normal(0, 1, 60)) for _ in range(200)]
    assert np.mean(np.array(spread) <= 0.05 / 20) > 0.8


NAN = math.nan


@pytest.mark.parametrize(
    ("ps", "expected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # 0.04 alone would stay 0.04: monotone
        ([0.01, NAN, 0.03], [0.02, NAN, 0.03]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.2, 0.2, 0.2], [0.6, 0.6, 0.6]),
        ([0.3], [0.3]),
        ([NAN], [NAN]),
        ([], []),
    ],
)
def test_holm(ps: list[float], expected: list[float]) -> None:
    assert holm(ps) == pytest.approx(expected, nan_ok=True)


def test_a_change_of_values_is_found_where_it_is_and_seldom_without_one() -> None:
    random = np.random.default_rng(0)
    at, p = change_test(np.concatenate([random.normal(size=20), random.normal(2.0, size=80)]))
    assert abs(at - 20) <= 2
    assert p < 1e-4
    found = [change_test(random.normal(size=60).round(1))[1] for _ in range(400)]
    assert sum(each <= 0.05 for each in found) <= 28  # 5 %, and two standard deviations
    assert change_test(np.ones(30))[1] == change_test(np.ones(1))[1] == 1.0
