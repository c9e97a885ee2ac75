"""Familiarity: densities from sums are those of all rows in one place, and p-values keep their promise."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from caveat.uncertainty import familiarity

CLASSES = 4


def rows(n: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(n, width) numbers far from zero, of unequal spread and correlated, and labels."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator)
    y = torch.randint(CLASSES, (n,), generator=generator)
    return torch.randn(n, width, generator=generator) @ mix + 5 * y[:, None] + 100, y


def test_the_density_is_that_of_class_means_and_the_pooled_covariance() -> None:
    h, y = rows(400, 6)
    means, covariance = familiarity.moments(familiarity.sums(h, y, CLASSES))
    wanted = np.stack([h.double().numpy()[y == c].mean(0) for c in range(CLASSES)])
    residuals = h.double().numpy() - wanted[y]
    assert np.allclose(means, wanted, rtol=1e-12)
    assert np.allclose(covariance, residuals.T @ residuals / 400, atol=1e-8)


@given(st.lists(st.integers(0, 2), min_size=60, max_size=60), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_sums_of_any_partition_add_up_to_the_pooled_ones(silo_of: list[int], width: int) -> None:
    h, y = rows(60, width)
    silo = torch.tensor(silo_of)
    parts = [familiarity.sums(h[silo == k], y[silo == k], CLASSES) for k in range(3)]
    pooled = familiarity.sums(h, y, CLASSES)
    added = {name: torch.stack([part[name] for part in parts]).sum(0) for name in pooled}
    for one, other in zip(familiarity.moments(added), familiarity.moments(pooled), strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8)
    one, other = (familiarity.log_distances(familiarity.density(each, 60), h) for each in (added, pooled))
    assert torch.allclose(one, other, rtol=1e-3, atol=1e-3)


def test_a_density_does_not_depend_on_whether_it_is_given_sums_or_means() -> None:
    h, y = rows(200, 5)
    sums = familiarity.sums(h, y, CLASSES)
    one = familiarity.density(sums, 200)
    other = familiarity.density({name: tensor / 7 for name, tensor in sums.items()}, 200)
    for name in familiarity.DENSITY:
        assert torch.allclose(one[name], other[name], rtol=1e-4, atol=1e-4)


def test_distances_are_mahalanobis_distances_to_the_nearest_class() -> None:
    h, y = rows(20_000, 3)
    found = familiarity.log_distances(familiarity.density(familiarity.sums(h, y, CLASSES), 20_000), h[:50])
    mean = torch.stack([h[y == c].double().mean(0) for c in range(CLASSES)])
    residuals = h.double() - mean[y]
    covariance = residuals.T @ residuals / len(h)
    inverse = torch.linalg.inv(0.99 * covariance + 0.01 * covariance.diagonal().diag())
    difference = h[:50, None].double() - mean
    wanted = torch.einsum("nkd,de,nke->nk", difference, inverse, difference).amin(1)
    # A hundredth of the expected distance is added to all.
    assert torch.allclose(found.exp() - 0.03, wanted, rtol=1e-3, atol=1e-3)


def test_a_class_of_few_rows_is_sent_with_others_or_not_at_all() -> None:
    y = torch.tensor([0] * 20 + [1] * 3 + [2] * 2 + [3] * 9)
    assert familiarity.grouped(y, 4).bincount().tolist() == [20, 0, 0, 9, 5]
    y = torch.tensor([0] * 20 + [1] * 3 + [3] * 9)
    group = familiarity.grouped(y, 4)
    assert (group == -1).sum() == 3
    h = torch.randn(32, 2)
    sent = familiarity.sums(h, group, 4)
    assert sent["counts"].tolist() == [20, 0, 0, 9, 0]
    kept = torch.cat([h[:20], h[23:]]).double()
    wanted = kept.T @ kept
    assert torch.allclose(sent["squares"], wanted[[0, 0, 1], [0, 1, 1]])


@pytest.mark.parametrize("width", [3, 80])
def test_more_numbers_than_rows_and_constant_numbers_have_a_density(width: int) -> None:
    h, y = rows(30, width)
    h[:, 1] = 2.5
    density = familiarity.density(familiarity.sums(h, y, CLASSES), 30)
    own = familiarity.log_distances(density, h)
    assert own.isfinite().all()
    moved = h.clone()
    moved[:, 1] += 1
    assert (familiarity.log_distances(density, moved) > own.max()).all()


def test_a_stage_that_is_constant_throughout_has_a_density() -> None:
    """As behind units that have died: the covariance is rounding alone, and what it says of directions is nothing."""
    h = torch.rand(120, generator=torch.Generator().manual_seed(1)).expand(12_000, 120)
    parts = [familiarity.sums(each, torch.arange(len(each)) % CLASSES, CLASSES) for each in h.split(601)]
    added = {name: 0.05 * sum((part[name] for part in parts), torch.tensor(0.0)) for name in parts[0]}
    density = familiarity.density(added, 12_000)
    own = familiarity.log_distances(density, h[:5])
    assert own.isfinite().all()
    assert (familiarity.log_distances(density, h[:5] + 0.1) > own + 1).all()


def naive(calibration: Tensor, new: Tensor) -> list[float]:
    """Full conformal p-values, input by input."""
    found, calibration, new = [], familiarity.settled(calibration), familiarity.settled(new)
    for each in new:
        points = torch.cat([calibration, each[None]])
        n = len(points)
        ordered = points.sort(0).values
        median, high = ordered[(n - 1) // 2], ordered[math.ceil(0.9 * n - 1e-9) - 1]
        combined = ((points - median) / (high - median).clamp_min(familiarity.LEAST_UNIT)).amax(1)
        found.append(float((combined >= combined[-1]).double().mean()))
    return found


@pytest.mark.parametrize("n", [1, 2, 18, 19, 20, 57])
@pytest.mark.parametrize("grid", [None, 0.5])
def test_p_values_are_those_of_counting_each_input_among_all(n: int, grid: float | None) -> None:
    generator = torch.Generator().manual_seed(n)
    calibration = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    new = 1.5 * torch.randn(200, 3, generator=generator, dtype=torch.float64)
    if grid:
        calibration, new = (calibration / grid).round() * grid, (new / grid).round() * grid
    assert familiarity.conformal(calibration, new).tolist() == pytest.approx(naive(calibration, new), abs=1e-12)


@pytest.mark.parametrize(("n", "grid"), [(10, None), (25, None), (25, 0.5), (100, None), (100, 1.0)])
def test_no_level_is_exceeded_more_often_than_promised(n: int, grid: float | None) -> None:
    """Over calibration splits and inputs drawn alike, with seven correlated stages, ties among them."""
    generator = torch.Generator().manual_seed(5)
    draws, inputs = 400, 20
    p = []
    for _ in range(draws):
        both = torch.randn(n + inputs, 7, generator=generator, dtype=torch.float64)
        both = both + torch.randn(n + inputs, 1, generator=generator, dtype=torch.float64)
        if grid:
            both = (both / grid).round() * grid
        p.append(familiarity.conformal(both[:n], both[n:]))
    rates = torch.stack(p)
    for level in (0.05, 0.1, 0.2, 0.5):
        by_draw = (rates <= level).double().mean(1)
        error = float(by_draw.std()) / draws**0.5
        assert float(by_draw.mean()) <= level + 3 * error, level
    if not grid:  # and they are not needlessly cautious: as near as n allows
        assert float((rates <= 0.2).double().mean()) >= math.floor(0.2 * (n + 1)) / (n + 1) - 0.02


def test_below_nineteen_calibration_inputs_nothing_can_be_called_unfamiliar() -> None:
    far = torch.full((3, 2), 50.0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    least = {n: familiarity.conformal(torch.randn(n, 2, generator=generator).double(), far) for n in (0, 18, 19)}
    assert least[0].tolist() == [1, 1, 1]
    assert (least[18] > 0.05).all()
    assert (least[19] <= 0.05).all()


def test_a_model_that_says_the_same_of_everything_raises_no_alarm() -> None:
    h, y = torch.full((40, 3), 7.0), torch.arange(40) % CLASSES
    density = familiarity.density(familiarity.sums(h, y, CLASSES), 40)
    same = familiarity.log_distances(density, h)[:, None]
    assert familiarity.conformal(same, same).tolist() == [1.0] * 40
    assert familiarity.score(same, same).tolist() == [0.0] * 40


def test_numbers_that_are_not_finite_are_the_least_familiar() -> None:
    h, y = rows(40, 3)
    density = familiarity.density(familiarity.sums(h, y, CLASSES), 40)
    own = familiarity.log_distances(density, h)[:, None]
    odd = familiarity.log_distances(density, torch.tensor([[math.nan, 1, 1], [math.inf, 1, 1]]))[:, None]
    assert familiarity.conformal(own, odd).tolist() == pytest.approx([1 / 41] * 2)
    assert (familiarity.score(own, odd) > 10 * familiarity.score(own, own).max()).all()
    far = torch.full((99, 1), math.inf)
    assert familiarity.conformal(far, far[:3]).tolist() == [1.0] * 3


def test_the_score_goes_on_to_grow_where_p_cannot_fall_any_further() -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(30, 2, generator=generator).double()
    far = torch.tensor([[5.0, 0], [50.0, 0], [500.0, 0]], dtype=torch.float64)
    assert familiarity.conformal(own, far).unique().numel() == 1
    assert (familiarity.score(own, far).diff() > 0).all()


def test_equal_inputs_tie_whatever_the_last_digits_of_their_distances() -> None:
    """Of two kinds of row, half each, none is called unfamiliar, however many are asked at once."""
    near, far = torch.full((50, 3), 0.5), torch.full((50, 3), 2.0)
    noise = 3e-7 * torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    calibration = torch.cat([near, far])
    p = familiarity.conformal(calibration, torch.cat([near, far]) * (1 + noise))
    assert p.min() >= 0.5


def test_many_distances_that_are_infinite_keep_the_promise() -> None:
    generator = torch.Generator().manual_seed(1)
    rates = []
    for _ in range(300):
        both = torch.randn(60, 2, generator=generator).masked_fill(
            torch.rand(60, 2, generator=generator) < 0.3, math.inf
        )
        rates.append(float((familiarity.conformal(both[:40], both[40:]) <= 0.05).double().mean()))
    assert np.mean(rates) <= 0.05 + 3 * np.std(rates) / 300**0.5


@pytest.mark.parametrize("inputs", [30, 4000])
def test_many_inputs_are_ranked_as_each_by_itself(inputs: int) -> None:
    generator = torch.Generator().manual_seed(2)
    calibration = torch.randn(60, 3, generator=generator).round(decimals=1).double()  # with ties
    new = torch.randn(inputs, 3, generator=generator).round(decimals=1).double()
    p = familiarity.conformal(calibration, new)
    assert torch.equal(p, familiarity.conformal_directly(calibration, new))
    assert torch.equal(p[:7], torch.cat([familiarity.conformal(calibration, each[None]) for each in new[:7]]))


def draws(n: int, generator: torch.Generator, tied: bool) -> tuple[Tensor, Tensor]:
    """(n, 2) log-distances and (n,) uncertainties that depend on each other."""
    common = torch.randn(n, 1, generator=generator)
    far = common + torch.randn(n, 2, generator=generator)
    scores = (common[:, 0] + torch.randn(n, generator=generator)).exp()
    return (far.round(), scores.log().round().exp()) if tied else (far, scores)


@pytest.mark.parametrize("novelty", [False, True], ids=["", "novelty"])
@pytest.mark.parametrize("tied", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("n", [19, 20, 45, 99, 500])
def test_all_alarms_together_are_false_at_most_at_the_rate(n: int, tied: bool, novelty: bool) -> None:
    generator = torch.Generator().manual_seed(n)
    draws_of = 400 if n < 100 else 100
    for rate in (0.05, 0.1):
        rates = []
        for _ in range(draws_of):
            (far, scores), (new_far, new_scores) = draws(n, generator, tied), draws(200, generator, tied)
            p = familiarity.typicality(far, scores, new_far, new_scores, novelty=novelty)
            rates.append(float((p <= rate).double().mean()))
        error = np.std(rates) / draws_of**0.5
        assert np.mean(rates) <= rate + 3 * error
        assert tied or np.mean(rates) >= math.floor(rate * (n + 1) + 1e-9) / (n + 1) - 3 * error  # nothing is lost


@pytest.mark.parametrize("novelty", [False, True], ids=["", "novelty"])
def test_one_row_of_each_group_keeps_the_rate_for_new_groups(novelty: bool) -> None:
    """Rows of a group are alike; calibration holds one row of each, and new rows are of other groups."""
    generator = torch.Generator().manual_seed(3)
    rates = []
    for _ in range(300):
        far, scores = draws(40, generator, tied=False)
        groups = [each.repeat_interleave(5, 0) for each in draws(40, generator, tied=False)]
        p = familiarity.typicality(far, scores, *groups, novelty=novelty)
        rates.append(float((p <= 0.05).double().mean()))
    assert np.mean(rates) <= 0.05 + 3 * np.std(rates) / 300**0.5


def naive_typicality(
    calibration: Tensor, scores: Tensor, new: Tensor, new_scores: Tensor, novelty: bool
) -> list[float]:
    """Full conformal p-values of all together, input by input; of novelty the last column."""
    found = []
    for far, score in zip(familiarity.settled(new), familiarity.settled_scores(new_scores), strict=True):
        points = torch.cat([familiarity.settled(calibration), far[None]])
        answers = torch.cat([familiarity.settled_scores(scores), score[None]])
        n = len(points)
        low, high = (n + 1) // 2 - 1, math.ceil(0.9 * n - 1e-9) - 1
        ordered, sorted_answers = points.sort(0).values, answers.sort().values
        distance = (points - ordered[low]) / (ordered[high] - ordered[low]).clamp_min(0.05)
        uncertainty = (answers - sorted_answers[low]) / (sorted_answers[high] - sorted_answers[low]).clamp_min(1e-12)
        far, near = (distance[:, :-1], distance[:, -1]) if novelty else (distance, torch.zeros(n))
        unsure = (0.75 if novelty else 1) * uncertainty.clamp(0, 4).square()
        ranked = far.amax(1).clamp_min(0).square() + (near.clamp_min(0).square() + unsure)
        found.append(float((ranked >= ranked[-1]).double().mean()))
    return found


@pytest.mark.parametrize(("n", "inputs"), [(1, 5), (19, 40), (60, 30), (60, 4000)])
def test_typicality_is_the_rank_of_the_diagonal(n: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(n)
    for tied, novelty in product((False, True), (False, True)):
        given = *draws(n, generator, tied), *draws(inputs, generator, tied)
        p = familiarity.typicality(*given, novelty=novelty)
        assert torch.equal(p, familiarity.typicality_directly(*given, novelty=novelty))
        naive = naive_typicality(*given[:2], *(each[:30] for each in given[2:]), novelty)
        assert p[:30].tolist() == pytest.approx(naive)
    assert familiarity.typicality(torch.zeros(0, 2), torch.zeros(0), torch.zeros(3, 2), torch.zeros(3)).eq(1).all()


def test_sureness_is_the_rank_of_the_uncertainty() -> None:
    generator = torch.Generator().manual_seed(4)
    scores, new = draws(50, generator, tied=True)[1], draws(300, generator, tied=True)[1]
    wanted = [(1 + int((scores >= each * (1 - 1e-6)).sum())) / 51 for each in new]
    assert familiarity.sureness(scores, new).tolist() == pytest.approx(wanted)
    # Those of any scale and sign are ranked, and what is not a number is the least certain.
    assert torch.equal(familiarity.sureness(1e-7 * scores, 1e-7 * new), familiarity.sureness(scores, new))
    below = -torch.tensor([3.0, 2.0, 1.0, math.inf])
    assert familiarity.sureness(below, torch.tensor([-0.5, -4.0, math.nan])).tolist() == [0.2, 0.8, 0.2]


def test_equal_answers_tie_whatever_the_last_digits_of_their_uncertainty() -> None:
    noise = 1 + 1e-7 * torch.randn(100, generator=torch.Generator().manual_seed(0)).double()
    scores = torch.cat([torch.full((50,), 1e-5), torch.full((50,), 0.7)]).double()
    assert familiarity.sureness(scores, scores * noise).min() >= 0.5


def test_no_uncertainty_outweighs_an_input_that_is_far_from_all_data() -> None:
    """Also where all own answers have almost the same uncertainty, so that their units are rounding."""
    generator = torch.Generator().manual_seed(5)
    far, scores = draws(19, generator, tied=False)
    scores = 0.9 + 1e-3 * scores
    scores[0] = 3.0
    p = familiarity.typicality(far, scores, far[:2] + 40, torch.tensor([0.9, 0.1]))
    assert (p <= 0.05).all()


def test_the_least_number_of_calibration_inputs() -> None:
    assert [familiarity.least(rate) for rate in (0.05, 0.1, 0.01)] == [19, 9, 99]


def test_distances_by_the_others_density_are_those_of_new_inputs() -> None:
    """By the density that it was counted in an input is too near, the more so the fewer there are."""
    h, y = rows(30, 6)
    group = familiarity.grouped(y, CLASSES)
    apart = familiarity.left_out_distances(h, group, CLASSES, 10)
    assert apart.shape == (30,)
    within = familiarity.log_distances(familiarity.density(familiarity.sums(h, group, CLASSES), 30), h)
    fold = torch.arange(30) % 10 == 3
    others = familiarity.density(familiarity.sums(h[~fold], group[~fold], CLASSES), int((group[~fold] >= 0).sum()))
    assert torch.isclose(familiarity.log_distances(others, h[fold])[:, None], apart, rtol=1e-3, atol=1e-3).any(1).all()
    assert float(apart.median()) > float(within.median())
