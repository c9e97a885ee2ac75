"""Contrasts: that seeds and test inputs both count as random, and that verdicts are what the tests allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from caveat.analysis.statistics import Difference, SeedDifferences, estimate, reported_intervals, verdicts


def crossed(random: np.random.Generator, seeds: int, of_seed: float, of_input: float, noise: float, inputs: int = 400):
    """Differences of one silo, on inputs that all seeds share: normal effects of seeds, inputs and both."""
    shared = random.normal(0, of_input, inputs)
    return [
        SeedDifferences(
            np.arange(inputs), np.zeros(inputs, np.int64),
            shared + random.normal(0, of_seed) + random.normal(0, noise, inputs),
        )
        for _ in range(seeds)
    ]  # fmt: skip


@pytest.mark.parametrize(("of_seed", "of_input", "noise"), [(0.0, 1.0, 1.0), (0.1, 0.0, 1.0), (0.05, 1.0, 0.5)])
def test_the_variance_is_that_of_a_crossed_design(of_seed: float, of_input: float, noise: float) -> None:
    random, seeds, inputs = np.random.default_rng(7), 10, 400
    found = [estimate(crossed(random, seeds, of_seed, of_input, noise)).error ** 2 for _ in range(300)]
    expected = of_seed**2 / seeds + of_input**2 / inputs + noise**2 / seeds / inputs
    assert np.mean(found) == pytest.approx(expected, rel=0.08)


def test_seeds_that_share_inputs_tell_less_than_they_seem_to() -> None:
    random = np.random.default_rng(3)
    shared = crossed(random, 10, 0.0, 1.0, 0.1)
    alone = float(np.std([each.values.mean() for each in shared], ddof=1)) / math.sqrt(10)
    assert estimate(shared).error > 5 * alone
    apart = [SeedDifferences(each.inputs + 1000 * i, each.silos, each.values) for i, each in enumerate(shared)]
    assert estimate(apart).error < estimate(shared).error


def test_every_silo_counts_once_unless_inputs_are_pooled() -> None:
    silos, values = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 1.0, -1.0])
    by_silo = [SeedDifferences(np.arange(4), silos, values)] * 2
    pooled = [SeedDifferences(np.arange(4), silos, values, pooled=True)] * 2
    assert estimate(by_silo).mean == pytest.approx(0.0)
    assert estimate(pooled).mean == pytest.approx(0.5)


def test_silos_are_those_at_hand_and_add_no_variance() -> None:
    random, silos = np.random.default_rng(5), np.repeat(np.arange(4), 100)
    noise = [random.normal(0, 0.5, 400) for _ in range(6)]
    alike = [SeedDifferences(np.arange(400), silos, each) for each in noise]
    apart = [SeedDifferences(np.arange(400), silos, each + np.array([-2, -1, 1, 2])[silos]) for each in noise]
    assert estimate(apart).error == pytest.approx(estimate(alike).error, rel=1e-6)


def test_seeds_that_tie_have_the_variance_of_counting() -> None:
    tied = [SeedDifferences(np.arange(100), np.zeros(100, np.int64), np.zeros(100), steps=1.0)] * 3
    found = estimate(tied)
    assert found.mean == 0.0
    assert found.error == pytest.approx(math.sqrt(2 * (1 / 100) ** 2 / 12 / 3))
    assert math.isnan(estimate(tied[:1]).error)


def test_tests_are_students_and_the_two_one_sided_ones() -> None:
    found = Difference(0.02, 0.01, 9)
    assert found.p_different() == pytest.approx(2 * stats.t.sf(2.0, 9))
    assert found.p_equal(0.03) == pytest.approx(stats.t.sf(1.0, 9))
    low, high = found.interval()
    assert (low, high) == pytest.approx((0.02 - 0.01 * stats.t.ppf(0.975, 9), 0.02 + 0.01 * stats.t.ppf(0.975, 9)))


def test_verdicts_are_corrected_for_both_questions_of_all_contrasts() -> None:
    sure, small, open_, behind = (
        Difference(0.05, 0.005, 9), Difference(0.001, 0.001, 9), Difference(0.01, 0.01, 9),
        Difference(-0.05, 0.005, 9),
    )  # fmt: skip
    said = verdicts([sure, small, open_, behind], [0.01] * 4)
    assert [verdict for *_, verdict in said] == ["better", "equal", "not decided", "worse"]
    alone = verdicts([Difference(0.03, 0.011, 9)], [0.01])
    assert alone[0][2] == "better"
    among = verdicts([Difference(0.03, 0.011, 9), *[open_] * 3], [0.01] * 4)
    assert among[0][2] == "not decided"
    assert among[0][0] > alone[0][0]


@pytest.mark.parametrize("count", [1, 3, 8])
def test_intervals_beside_undecided_contrasts_contain_0_and_others_are_at_95_percent(count: int) -> None:
    random = np.random.default_rng(count)
    alone_excludes = 0
    for _ in range(200):
        found = [Difference(float(mean), 0.01, 9) for mean in random.normal(0, 0.025, count)]
        decided = [verdict for *_, verdict in verdicts(found, [0.03] * count)]
        for each, verdict, (low, high) in zip(found, decided, reported_intervals(found, decided), strict=True):
            if verdict == "not decided":
                assert low <= 0 <= high
                alone_excludes += each.interval()[0] > 0 or each.interval()[1] < 0
                reach = 0.01 * stats.t.isf(0.05 / (2 * count) / 2, 9)
                assert (low, high) == pytest.approx((each.mean - reach, each.mean + reach))
            else:
                assert (low, high) == each.interval()
    assert alone_excludes
