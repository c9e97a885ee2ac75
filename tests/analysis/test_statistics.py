"""Intervals against closed forms, resampling and simulated coverage; tests and ranks against worked examples."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from caveat.analysis.statistics import (
    Difference,
    Interval,
    SeedDifferences,
    Values,
    estimate,
    interval,
    mean_ranks,
    simultaneous,
)
from caveat.uncertainty.statistical_tests import holm

NAN, INF = math.nan, math.inf


def values_of(table: NDArray[np.float64]) -> dict[int, dict[str, float]]:
    """Figures of (seeds, silos)."""
    return {seed: {f"silo-{k}": value for k, value in enumerate(row)} for seed, row in enumerate(table.tolist())}


def drawn(seeds: int, silos: int, seed: int = 0) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(seeds, 1)) + generator.normal(size=(seeds, silos))


def ends(found: Interval) -> tuple[float, float, float]:
    return found.mean, found.low, found.high


def students(values: list[float], confidence: float = 0.95) -> tuple[float, float, float]:
    low, high = stats.t.interval(confidence, len(values) - 1, np.mean(values), stats.sem(values))
    return float(np.mean(values)), float(low), float(high)


def shuffled(values: Values) -> Values:
    return {seed: dict(reversed(silos.items())) for seed, silos in reversed(values.items())}


def over_seeds(table: NDArray[np.float64], step: float = 0.0) -> Difference:
    """The estimate from differences (seeds, silos), with test inputs fixed."""
    return estimate([SeedDifferences(None, np.arange(len(row)), row, steps=step) for row in table])


@pytest.mark.parametrize("figures", [[0.5, 0.9], [0.5, 0.9, 0.7, 0.2]])
def test_one_seed_is_students_interval_over_silos(figures: list[float]) -> None:
    assert ends(interval(values_of(np.array([figures])))) == pytest.approx(students(figures))


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_figures_without_silos_have_students_interval_over_seeds(confidence: float) -> None:
    figures = [3.0, 5.0, 4.5]
    found = interval({seed: {"": value} for seed, value in enumerate([*figures, NAN])}, confidence)
    assert ends(found) == pytest.approx(students(figures, confidence))


def test_standard_error_is_that_of_resampled_seeds_and_silos() -> None:
    """Seeds are drawn with replacement, then silos within each; both levels then have their Bessel factor made up."""
    between, within = np.array([0.0, 4.0, 5.0])[:, None], np.array([-3.0, -1.0, 0.0, 4.0])
    generator = np.random.default_rng(0)
    seeds = generator.integers(0, 3, (40_000, 3))

    def error_of(table: NDArray[np.float64]) -> float:
        chosen = generator.integers(0, 4, (*seeds.shape, 4))
        return float(table[seeds[:, :, None], chosen].mean((1, 2)).var())

    expected = error_of(between + 0 * within) * 3 / 2 + error_of(0 * between + within) * 4 / 3
    found = interval(values_of(between + within))
    # Variances B / S and W / K / S, with 2 and 3 * 3 degrees of freedom.
    b, w = 7 / 3, 26 / 3 / 4 / 3
    freedom = (b + w) ** 2 / (b**2 / 2 + w**2 / 9)
    error = (found.high - found.mean) / stats.t.ppf(0.975, freedom)
    assert error**2 == pytest.approx(b + w)
    assert error**2 == pytest.approx(expected, rel=0.02)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(("silos", "ratio"), [(5, 0.0), (9, 1.0), (20, 30.0)])
def test_coverage(seeds: int, silos: int, ratio: float) -> None:
    """`ratio` is what seeds add to the variance of a seed's mean, over what its silos do."""
    generator, runs, covered = np.random.default_rng(seeds * silos), 800, 0
    for _ in range(runs):
        table = generator.normal(size=(seeds, 1)) * math.sqrt(ratio / silos) + generator.normal(size=(seeds, silos))
        found = interval(values_of(table))
        covered += found.low <= 0 <= found.high
    # Three standard deviations of the binomial count below the nominal level, and 2 % that few seeds may miss it by.
    assert covered / runs >= 0.93 - 3 * math.sqrt(0.95 * 0.05 / runs)
    if ratio > 1:  # where seeds decide, it is no wider than it has to be
        assert covered / runs <= 0.95 + 3 * math.sqrt(0.95 * 0.05 / runs)


def test_every_seed_counts_the_same_however_many_silos_it_has() -> None:
    found = interval({0: {"a": 1.0}, 1: {"a": 3.0, "b": 5.0, "c": 4.0}})
    assert found.mean == pytest.approx((1 + 4) / 2)
    # Between: ((1 - 2.5)^2 + (4 - 2.5)^2) / 2 with one degree; within: 1 / 3 / 4 with two, of the second seed alone.
    b, w = 4.5 / 2, 1 / 12
    half = stats.t.ppf(0.975, (b + w) ** 2 / (b**2 + w**2 / 2)) * math.sqrt(b + w)
    assert found.high - found.mean == pytest.approx(half)


@pytest.mark.parametrize("seeds", [1, 3])
def test_order_of_seeds_and_silos_changes_no_bit(seeds: int) -> None:
    a, b = values_of(drawn(seeds, 7)), values_of(drawn(seeds, 7, 1))
    assert interval(shuffled(a)) == interval(a)
    assert mean_ranks({"a": shuffled(a), "b": b}, True) == mean_ranks({"a": a, "b": b}, True)


def test_scaling_and_shifting_figures_does_the_same_to_intervals() -> None:
    table = drawn(3, 5)
    expected = [1 + 1e-9 * part for part in ends(interval(values_of(table)))]
    assert ends(interval(values_of(1 + 1e-9 * table))) == pytest.approx(expected, rel=1e-12)


def test_nan_is_as_if_the_silo_were_not_there() -> None:
    full = values_of(drawn(3, 5))
    gaps = {seed: silos | {"other": NAN} for seed, silos in full.items()} | {9: {"silo-0": NAN}, 10: {}}
    other = values_of(drawn(3, 5, 1))
    assert interval(gaps) == interval(full)
    assert mean_ranks({"a": gaps, "b": other}, True) == mean_ranks({"a": full, "b": other}, True)


def test_what_too_little_says() -> None:
    assert ends(interval({0: {"a": 0.5}})) == pytest.approx((0.5, NAN, NAN), nan_ok=True)
    for nothing in ({}, {0: {}}, {0: {"a": NAN}}):
        assert all(map(math.isnan, ends(interval(nothing))))
    assert all(map(math.isnan, (estimate([]).mean, estimate([]).p_different(), *estimate([]).interval())))


def test_equal_figures_have_a_point_for_an_interval() -> None:
    assert interval({0: {"a": 0.5, "b": 0.5}, 1: {"a": 0.5}}) == Interval(0.5, 0.5, 0.5)
    assert interval({0: {"": 0.25}, 1: {"": 0.25}}) == Interval(0.25, 0.25, 0.25)


def test_infinite_figures_have_no_interval() -> None:
    found = interval({0: {"a": INF, "b": 1.0}, 1: {"a": 2.0}})
    assert ends(found) == pytest.approx((INF, NAN, NAN), nan_ok=True)
    assert all(map(math.isnan, ends(interval({0: {"a": INF, "b": -INF}, 1: {"a": 2.0}}))))
    assert math.isnan(over_seeds(np.array([[INF], [1.0]])).p_different())


def test_differences_of_fixed_inputs_have_a_paired_t_test_over_seeds() -> None:
    gaps = drawn(3, 5)
    found = over_seeds(gaps)
    assert (found.mean, *found.interval()) == pytest.approx(students(gaps.mean(1).tolist()))
    assert found.p_different() == pytest.approx(stats.ttest_1samp(gaps.mean(1), 0).pvalue)
    turned = over_seeds(-gaps)
    assert (-turned.mean, turned.error, turned.p_different()) == (found.mean, found.error, found.p_different())


def test_silos_of_one_seed_are_no_evidence() -> None:
    found = over_seeds(1 + 0.01 * np.arange(20.0)[None])
    assert found.mean > 1
    assert all(map(math.isnan, (found.p_different(), *found.interval())))


def test_equal_differences() -> None:
    same = over_seeds(np.zeros((3, 4)))
    assert (same.mean, *same.interval(), same.p_different()) == (0.0, 0.0, 0.0, 1.0)
    for table in (np.full((3, 1), 0.1), np.full((2, 4), 0.5)):  # the mean of .1 is not .1 in floating point
        found = over_seeds(table)
        assert found.mean == pytest.approx(table[0, 0])
        assert all(map(math.isnan, (found.p_different(), found.p_equal(0.6), *found.interval())))


def test_seeds_that_tie_are_held_against_what_rounding_makes() -> None:
    """Two accuracies on 31 inputs that differ by 2 in each of 2 seeds: 2 steps of h, with a variance of h^2 / 6."""
    found = over_seeds(np.full((2, 1), 2 / 31), step=1 / 31)
    error = math.sqrt(1 / 31**2 / 6 / 2)
    assert found.p_different() == pytest.approx(2 * stats.t.sf(2 / 31 / error, 1))
    assert 0.05 < found.p_different() < 0.15
    # Over 4 silos of a seed the mean comes in finer steps; a larger variance than that stays what it is.
    assert over_seeds(np.full((2, 4), 0.2), step=0.1).error == pytest.approx(math.sqrt(0.01 / 6 / 4 / 2))
    apart = drawn(3, 4)
    assert over_seeds(apart, step=1e-3) == over_seeds(apart)


def test_a_metric_that_is_no_mean_over_inputs_keeps_its_own_difference() -> None:
    random = np.random.default_rng(0)
    plain = [SeedDifferences(np.arange(50), np.zeros(50, np.int64), each) for each in random.normal(size=(3, 50))]
    told = estimate([dataclasses.replace(each, whole=each.mean + 1) for each in plain])
    assert told.mean == pytest.approx(estimate(plain).mean + 1)
    assert told.error == pytest.approx(estimate(plain).error)


def alike(random: np.random.Generator, methods: int, seeds: int, silos: int, inputs: int, liking: float) -> list[Any]:
    """The differences of all pairs of equally good methods that like different ones of the shared inputs."""
    hard, own = random.normal(1.5, 2.0, silos * inputs), random.normal(0.0, liking, (methods, silos * inputs))
    trained = random.normal(0.0, 0.15, (methods, seeds, 1))
    right = (random.random((methods, seeds, silos * inputs)) < special.expit(hard + own[:, None] + trained)).astype(
        float
    )
    ids, of = np.arange(silos * inputs), np.repeat(np.arange(silos), inputs)
    return [
        [SeedDifferences(ids, of, a - b, steps=1.0) for a, b in zip(one, other, strict=True)]
        for one, other in itertools.combinations(right, 2)
    ]


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(("silos", "inputs", "liking"), [(4, 31, 1.0), (4, 100, 2.0), (4, 31, 0.0)])
def test_methods_that_like_different_shared_inputs_are_hardly_ever_told_apart(
    seeds: int, silos: int, inputs: int, liking: float
) -> None:
    """The family-wise error over all 10 pairs; a t test over seeds with Holm's correction has up to .3 and more."""
    random, repeats, wrong, fixed = np.random.default_rng([seeds, inputs]), 100, 0, 0
    for _ in range(repeats):
        pairs = alike(random, 5, seeds, silos, inputs, liking)
        found = simultaneous([estimate(each) for each in pairs])
        wrong += min(p for *_, p in found) < 0.05
        over = [estimate([dataclasses.replace(seed, inputs=None) for seed in each]).p_different() for each in pairs]
        fixed += min(holm(over)) < 0.05
    assert wrong / repeats <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)
    if (seeds, liking) == (10, 2.0):
        assert fixed / repeats > 0.3  # the simulation would show a test that is too sure


@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3), (1, 1, 9, 20), (2, 30, 30), (12,)])
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_few_test_inputs_decide_hardly_anything(sizes: tuple[int, ...], seeds: int, noise: float) -> None:
    """The family-wise error over the pairs of three methods that like different shared inputs, with 1 to 3 per silo."""
    random, repeats, wrong = np.random.default_rng([seeds, *sizes]), 200, 0
    ids, of = np.arange(sum(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    for _ in range(repeats):
        values = random.normal(size=(3, 1, len(ids))) + 0.03 * random.normal(size=(3, seeds, 1))
        values = values + noise * random.normal(size=(3, seeds, len(ids)))
        pairs = [[SeedDifferences(ids, of, a - b) for a, b in zip(*each, strict=True)]
                 for each in itertools.combinations(values, 2)]  # fmt: skip
        wrong += any(p < 0.05 for *_, p in simultaneous([estimate(each) for each in pairs]))
    assert wrong / repeats <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)


def test_the_variance_over_inputs_is_unbiased() -> None:
    """Silos of 2 and 3 inputs with a variance of 1, seeds without an effect: (1 / 2 + 1 / 3) / 4."""
    random, of = np.random.default_rng(0), np.array([0, 0, 1, 1, 1])
    found = [
        estimate([SeedDifferences(np.arange(5), of, each)] * 2) for each in random.normal(size=(4000, 5)) + 9.0 * of
    ]
    assert np.mean([each.error**2 for each in found]) == pytest.approx(5 / 24, rel=0.04)
    assert estimate([SeedDifferences(np.arange(5), of, np.zeros(5))] * 9).freedom == pytest.approx(25 / 11)
    assert found[0].freedom == 1


def test_a_single_input_needs_others() -> None:
    values = drawn(4, 5)
    lone = estimate([SeedDifferences(np.arange(5), np.array([0, 1, 1, 1, 1]), each) for each in values])
    assert lone.mean == pytest.approx((values[:, 0] + values[:, 1:].mean(1)).mean() / 2)
    assert all(map(math.isnan, (lone.error, lone.p_different(), lone.p_equal(1.0), *lone.interval())))
    single, together = (
        estimate([SeedDifferences(np.arange(5), of, each) for each in values])
        for of in (np.arange(5), np.zeros(5, int))
    )
    assert single == together


@pytest.mark.parametrize(
    ("seeds", "silos", "inputs", "methods"),
    [(2, 9, 40, 5), (2, 4, 31, 6), (2, 1, 31, 6), (3, 9, 40, 5), (3, 4, 31, 6), (3, 1, 31, 6), (5, 1, 31, 6)],
)
def test_methods_that_are_all_alike_are_hardly_ever_told_apart(
    seeds: int, silos: int, inputs: int, methods: int
) -> None:
    """The family-wise error of tests of accuracies with inputs fixed: .26, .47, .63 without a floor with 2 seeds."""
    generator, found, repeats = np.random.default_rng(0), 0, 150
    for table in generator.binomial(inputs, 0.9, (repeats, methods, seeds, silos)) / inputs:
        pairs = [over_seeds(a - b, step=1 / inputs) for a, b in itertools.combinations(table, 2)]
        found += min(p for *_, p in simultaneous(pairs)) < 0.05
    assert found / repeats < 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


def test_simultaneous_intervals_are_bonferronis_and_agree_with_their_p_values() -> None:
    generator = np.random.default_rng(0)
    for seeds in (2, 3, 6):
        for _ in range(50):
            found = [over_seeds(0.8 * generator.normal(size=(seeds, 1)) + 1 + generator.normal(size=(seeds, 5)))
                     for _ in range(3)]  # fmt: skip
            for each, (low, high, p) in zip(found, simultaneous(found), strict=True):
                assert (p < 0.05) == (low > 0 or high < 0)
                assert p == pytest.approx(min(1.0, 3 * each.p_different()))
                assert high - low == pytest.approx(2 * stats.t.ppf(1 - 0.025 / 3, seeds - 1) * each.error)
    tied, known = over_seeds(np.full((3, 1), 0.1)), over_seeds(drawn(3, 4))
    lost, kept = simultaneous([tied, known])
    assert all(map(math.isnan, lost))
    assert kept == (*known.interval(), known.p_different())  # a pair that cannot be tested does not count


def test_simultaneous_intervals_hold_all_differences() -> None:
    """Of normal differences that share no error, where Bonferroni's method is almost exact."""
    generator, repeats = np.random.default_rng(1), 1000
    missed = 0
    for table in generator.normal(size=(repeats, 4, 5, 1)):
        missed += any(low > 0 or high < 0 for low, high, _ in simultaneous([over_seeds(each) for each in table]))
    assert missed / repeats == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / repeats))


def test_an_interval_of_figures_in_steps_is_no_point() -> None:
    values = {0: {"": 0.9}, 1: {"": 0.9}, 2: {"": 0.9}}
    found = interval(values, steps={seed: {"": 0.1} for seed in values})
    assert found.high - 0.9 == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(0.01 / 12 / 3))


def test_ranks_of_a_worked_example() -> None:
    methods: dict[str, Values] = {
        "a": {0: {"x": 0.9, "y": 0.5}, 1: {"x": 0.7, "y": 0.9}},
        "b": {0: {"x": 0.8, "y": 0.5}, 1: {"x": 0.8, "y": NAN}},
        "c": {0: {"x": 0.1, "y": 0.4}, 1: {"x": 0.6, "z": 0.1}},
    }
    # Blocks (0, x), (0, y) with a tie, (1, x); (1, y) and (1, z) are not everyone's.
    expected = {"a": (1 + 1.5 + 2) / 3, "b": (2 + 1.5 + 1) / 3, "c": 3.0}
    assert mean_ranks(methods, higher_is_better=True) == pytest.approx(expected)
    turned = {name: 4 - rank for name, rank in expected.items()}
    assert mean_ranks(methods, higher_is_better=False) == pytest.approx(turned)


def test_ranks_where_methods_share_no_block() -> None:
    assert mean_ranks({}, True) == {}
    assert all(map(math.isnan, mean_ranks({"a": {0: {"x": 1.0}}, "b": {1: {"x": 1.0}}}, True).values()))
