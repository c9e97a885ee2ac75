"""Intervals against closed forms, resampling and simulated coverage; tests and ranks against worked examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from caveat.analysis.statistics import Difference, Interval, Values, holm, interval, mean_ranks, paired

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
    one, other = paired(a, b), paired(shuffled(a), b)
    assert ends(one) == ends(other)
    assert one.p == pytest.approx(other.p, nan_ok=True, abs=0)


def test_scaling_and_shifting_figures_does_the_same_to_intervals() -> None:
    table = drawn(3, 5)
    expected = [1 + 1e-9 * part for part in ends(interval(values_of(table)))]
    assert ends(interval(values_of(1 + 1e-9 * table))) == pytest.approx(expected, rel=1e-12)


def test_nan_is_as_if_the_silo_were_not_there() -> None:
    full = values_of(drawn(3, 5))
    gaps = {seed: silos | {"other": NAN} for seed, silos in full.items()} | {9: {"silo-0": NAN}, 10: {}}
    other = values_of(drawn(3, 5, 1))
    assert interval(gaps) == interval(full)
    assert paired(gaps, other | {9: {"silo-0": 1.0}}) == paired(full, other)
    assert mean_ranks({"a": gaps, "b": other}, True) == mean_ranks({"a": full, "b": other}, True)


def test_what_too_little_says() -> None:
    assert ends(interval({0: {"a": 0.5}})) == pytest.approx((0.5, NAN, NAN), nan_ok=True)
    for nothing in ({}, {0: {}}, {0: {"a": NAN}}):
        assert all(map(math.isnan, ends(interval(nothing))))
        difference = paired(nothing, {0: {"a": 1.0}})
        assert all(map(math.isnan, (*ends(difference), difference.p)))


def test_equal_figures_have_a_point_for_an_interval() -> None:
    assert interval({0: {"a": 0.5, "b": 0.5}, 1: {"a": 0.5}}) == Interval(0.5, 0.5, 0.5)
    assert interval({0: {"": 0.25}, 1: {"": 0.25}}) == Interval(0.25, 0.25, 0.25)


def test_infinite_figures_have_no_interval() -> None:
    found = interval({0: {"a": INF, "b": 1.0}, 1: {"a": 2.0}})
    assert ends(found) == pytest.approx((INF, NAN, NAN), nan_ok=True)
    assert all(map(math.isnan, ends(interval({0: {"a": INF, "b": -INF}, 1: {"a": 2.0}}))))
    lost = paired({0: {"a": INF}, 1: {"a": 2.0}}, {0: {"a": INF}, 1: {"a": 1.0}})
    assert all(map(math.isnan, (*ends(lost), lost.p)))  # what both have not is not dropped in silence


def test_paired_takes_differences_first() -> None:
    a, noise = drawn(3, 5), 100 * drawn(3, 5, 2)
    found = paired(values_of(noise + a), values_of(noise))
    assert ends(found) == pytest.approx(students(a.mean(1).tolist()))
    assert found.p == pytest.approx(stats.ttest_1samp(a.mean(1), 0).pvalue)


def test_paired_uses_only_what_both_have() -> None:
    a = {0: {"x": 1.0, "y": 2.0}, 1: {"x": 4.0, "y": NAN}, 2: {"x": 7.0}, 3: {"x": 9.0}}
    b = {0: {"x": 0.5, "z": 8.0}, 1: {"x": 3.0, "y": 1.0}, 2: {"y": 7.0}, 4: {"x": 9.0}}
    found = paired(a, b)
    assert ends(found) == pytest.approx(students([0.5, 1.0]))
    assert found.p == pytest.approx(stats.ttest_1samp([0.5, 1.0], 0).pvalue)


def test_swapping_methods_turns_the_sign_only() -> None:
    a, b = values_of(drawn(3, 4)), values_of(drawn(3, 4, 1))
    one, other = paired(a, b), paired(b, a)
    assert (-one.mean, -one.high, -one.low, one.p) == pytest.approx((other.mean, other.low, other.high, other.p))


def test_silos_of_one_seed_are_no_evidence() -> None:
    silos = np.arange(20.0)
    found = paired(values_of((silos + 1 + 0.01 * silos)[None]), values_of(silos[None]))
    assert found.low > 0
    assert math.isnan(found.p)


def test_equal_differences() -> None:
    a = values_of(drawn(3, 4))
    assert paired(a, a) == Difference(0.0, 0.0, 0.0, 1.0)
    tenths = {seed: {"x": 0.1} for seed in range(3)}  # the mean of which is not 0.1 in floating point
    for one, other in ((tenths, 0.0), ({0: {"x": 1.5}, 1: {"x": 1.5}}, 1.0)):
        found = paired(one, {seed: {"x": other} for seed in one})
        assert found.mean == pytest.approx(one[0]["x"] - other)
        assert all(map(math.isnan, (found.low, found.high, found.p)))


def test_seeds_that_tie_are_held_against_what_rounding_makes() -> None:
    """Two accuracies on 31 inputs that differ by 2 in each of 2 seeds: 2 steps of h, with a variance of h^2 / 6."""
    a, b = ({seed: {"x": right / 31} for seed in (0, 1)} for right in (28, 26))
    found = paired(a, b, steps={seed: {"x": 1 / 31} for seed in (0, 1)})
    error = math.sqrt(1 / 31**2 / 6 / 2)
    assert found.p == pytest.approx(2 * stats.t.sf(2 / 31 / error, 1))
    assert ends(found) == pytest.approx((2 / 31, *stats.t.interval(0.95, 1, 2 / 31, error)))
    assert 0.05 < found.p < 0.15
    # Over 4 silos of a seed the mean comes in finer steps; a larger variance than that stays what it is.
    four = values_of(np.array([[0.2] * 4, [0.2] * 4]))
    steps = {seed: dict.fromkeys(four[seed], 0.1) for seed in four}
    nothing = values_of(np.zeros((2, 4)))
    half = paired(four, nothing, steps=steps).high - 0.2
    assert half == pytest.approx(stats.t.ppf(0.975, 1) * math.sqrt(0.01 / 6 / 4 / 2))
    apart = values_of(drawn(3, 4))
    small = {seed: dict.fromkeys(apart[seed], 1e-3) for seed in apart}
    assert paired(apart, values_of(np.zeros((3, 4))), steps=small) == paired(apart, values_of(np.zeros((3, 4))))


@pytest.mark.parametrize(
    ("seeds", "silos", "inputs", "methods"),
    [(2, 9, 40, 5), (2, 4, 31, 6), (2, 1, 31, 6), (3, 9, 40, 5), (3, 4, 31, 6), (3, 1, 31, 6), (5, 1, 31, 6)],
)
def test_methods_that_are_all_alike_are_hardly_ever_told_apart(
    seeds: int, silos: int, inputs: int, methods: int
) -> None:
    """The family-wise error of Holm's p-values of accuracies: .26, .47, .63 without a floor with 2 seeds."""
    generator, found, repeats = np.random.default_rng(0), 0, 150
    steps = {seed: {f"silo-{k}": 1 / inputs for k in range(silos)} for seed in range(seeds)}
    for table in generator.binomial(inputs, 0.9, (repeats, methods, seeds, silos)) / inputs:
        each = [values_of(one) for one in table]
        pairs = [paired(a, b, steps=steps).p for i, a in enumerate(each) for b in each[:i]]
        found += min(holm(pairs)) < 0.05
    assert found / repeats < 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


def test_p_and_interval_of_a_difference_never_disagree() -> None:
    generator = np.random.default_rng(0)
    for seeds in (2, 3, 6):
        for _ in range(100):
            table = 0.8 + generator.normal(size=(seeds, 1)) + generator.normal(size=(seeds, 5))
            found = paired(values_of(table), values_of(np.zeros((seeds, 5))))
            assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


def test_an_interval_of_figures_in_steps_is_no_point() -> None:
    values = {0: {"": 0.9}, 1: {"": 0.9}, 2: {"": 0.9}}
    found = interval(values, steps={seed: {"": 0.1} for seed in values})
    assert found.high - 0.9 == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(0.01 / 12 / 3))


def test_level_of_the_paired_test() -> None:
    """Where there is no difference and silos of a seed go together, one test in twenty finds one."""
    generator, runs = np.random.default_rng(3), 1_000
    nothing = values_of(np.zeros((3, 8)))
    found = 0
    for _ in range(runs):
        table = generator.normal(size=(3, 1)) + 0.3 * generator.normal(size=(3, 8))
        found += paired(values_of(table), nothing).p < 0.05
    assert found / runs == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / runs))


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
