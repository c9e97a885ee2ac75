"""Two-sample tests against SciPy's distributions, and their level by simulation, ties included."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from caveat.uncertainty.distributions import hypergeometric_tail
from caveat.uncertainty.two_samples import count_test, rank_test


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
