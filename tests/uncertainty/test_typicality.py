"""P-values of inputs among calibration inputs: they are full conformal ones, and keep their promise."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from test_familiarity import CLASSES, rows
from torch import Tensor

from caveat.uncertainty import familiarity, typicality


def naive(calibration: Tensor, new: Tensor) -> list[float]:
    """Full conformal p-values, input by input."""
    found, calibration, new = [], typicality.settled(calibration), typicality.settled(new)
    for each in new:
        points = torch.cat([calibration, each[None]])
        n = len(points)
        ordered = points.sort(0).values
        median, high = ordered[(n - 1) // 2], ordered[math.ceil(0.9 * n - 1e-9) - 1]
        combined = ((points - median) / (high - median).clamp_min(typicality.LEAST_UNIT)).amax(1)
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
    assert typicality.conformal(calibration, new).tolist() == pytest.approx(naive(calibration, new), abs=1e-12)


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
        p.append(typicality.conformal(both[:n], both[n:]))
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
    least = {n: typicality.conformal(torch.randn(n, 2, generator=generator).double(), far) for n in (0, 18, 19)}
    assert least[0].tolist() == [1, 1, 1]
    assert (least[18] > 0.05).all()
    assert (least[19] <= 0.05).all()


def test_a_model_that_says_the_same_of_everything_raises_no_alarm() -> None:
    h, y = torch.full((40, 3), 7.0), torch.arange(40) % CLASSES
    density = familiarity.density(familiarity.sums(h, y, CLASSES), 40)
    same = familiarity.log_distances(density, h)[:, None]
    assert typicality.conformal(same, same).tolist() == [1.0] * 40
    assert typicality.score(same, same).tolist() == [0.0] * 40


def test_numbers_that_are_not_finite_are_the_least_familiar() -> None:
    h, y = rows(40, 3)
    density = familiarity.density(familiarity.sums(h, y, CLASSES), 40)
    own = familiarity.log_distances(density, h)[:, None]
    odd = familiarity.log_distances(density, torch.tensor([[math.nan, 1, 1], [math.inf, 1, 1]]))[:, None]
    assert typicality.conformal(own, odd).tolist() == pytest.approx([1 / 41] * 2)
    assert (typicality.score(own, odd) > 10 * typicality.score(own, own).max()).all()
    far = torch.full((99, 1), math.inf)
    assert typicality.conformal(far, far[:3]).tolist() == [1.0] * 3


def test_the_score_goes_on_to_grow_where_p_cannot_fall_any_further() -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(30, 2, generator=generator).double()
    far = torch.tensor([[5.0, 0], [50.0, 0], [500.0, 0]], dtype=torch.float64)
    assert typicality.conformal(own, far).unique().numel() == 1
    assert (typicality.score(own, far).diff() > 0).all()


def test_equal_inputs_tie_whatever_the_last_digits_of_their_distances() -> None:
    """Of two kinds of row, half each, none is called unfamiliar, however many are asked at once."""
    near, far = torch.full((50, 3), 0.5), torch.full((50, 3), 2.0)
    noise = 3e-7 * torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    calibration = torch.cat([near, far])
    p = typicality.conformal(calibration, torch.cat([near, far]) * (1 + noise))
    assert p.min() >= 0.5


def test_many_distances_that_are_infinite_keep_the_promise() -> None:
    generator = torch.Generator().manual_seed(1)
    rates = []
    for _ in range(300):
        both = torch.randn(60, 2, generator=generator).masked_fill(
            torch.rand(60, 2, generator=generator) < 0.3, math.inf
        )
        rates.append(float((typicality.conformal(both[:40], both[40:]) <= 0.05).double().mean()))
    assert np.mean(rates) <= 0.05 + 3 * np.std(rates) / 300**0.5


@pytest.mark.parametrize("inputs", [30, 4000])
def test_many_inputs_are_ranked_as_each_by_itself(inputs: int) -> None:
    generator = torch.Generator().manual_seed(2)
    calibration = torch.randn(60, 3, generator=generator).round(decimals=1).double()  # with ties
    new = torch.randn(inputs, 3, generator=generator).round(decimals=1).double()
    p = typicality.conformal(calibration, new)
    assert torch.equal(p, typicality.conformal_directly(calibration, new))
    assert torch.equal(p[:7], torch.cat([typicality.conformal(calibration, each[None]) for each in new[:7]]))


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
            p = typicality.typicality(far, scores, new_far, new_scores, novelty=novelty)
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
        p = typicality.typicality(far, scores, *groups, novelty=novelty)
        rates.append(float((p <= 0.05).double().mean()))
    assert np.mean(rates) <= 0.05 + 3 * np.std(rates) / 300**0.5


def naive_typicality(
    calibration: Tensor, scores: Tensor, new: Tensor, new_scores: Tensor, novelty: bool
) -> list[float]:
    """Full conformal p-values of all together, input by input; of novelty the last column."""
    found = []
    for far, score in zip(typicality.settled(new), typicality.settled_scores(new_scores), strict=True):
        points = torch.cat([typicality.settled(calibration), far[None]])
        answers = torch.cat([typicality.settled_scores(scores), score[None]])
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
        p = typicality.typicality(*given, novelty=novelty)
        assert torch.equal(p, typicality.typicality_directly(*given, novelty=novelty))
        naive = naive_typicality(*given[:2], *(each[:30] for each in given[2:]), novelty)
        assert p[:30].tolist() == pytest.approx(naive)
    assert typicality.typicality(torch.zeros(0, 2), torch.zeros(0), torch.zeros(3, 2), torch.zeros(3)).eq(1).all()


def test_sureness_is_the_rank_of_the_uncertainty() -> None:
    generator = torch.Generator().manual_seed(4)
    scores, new = draws(50, generator, tied=True)[1], draws(300, generator, tied=True)[1]
    wanted = [(1 + int((scores >= each * (1 - 1e-6)).sum())) / 51 for each in new]
    assert typicality.sureness(scores, new).tolist() == pytest.approx(wanted)
    # Those of any scale and sign are ranked, and what is not a number is the least certain.
    assert torch.equal(typicality.sureness(1e-7 * scores, 1e-7 * new), typicality.sureness(scores, new))
    below = -torch.tensor([3.0, 2.0, 1.0, math.inf])
    assert typicality.sureness(below, torch.tensor([-0.5, -4.0, math.nan])).tolist() == [0.2, 0.8, 0.2]


def test_equal_answers_tie_whatever_the_last_digits_of_their_uncertainty() -> None:
    noise = 1 + 1e-7 * torch.randn(100, generator=torch.Generator().manual_seed(0)).double()
    scores = torch.cat([torch.full((50,), 1e-5), torch.full((50,), 0.7)]).double()
    assert typicality.sureness(scores, scores * noise).min() >= 0.5


def test_no_uncertainty_outweighs_an_input_that_is_far_from_all_data() -> None:
    """Also where all own answers have almost the same uncertainty, so that their units are rounding."""
    generator = torch.Generator().manual_seed(5)
    far, scores = draws(19, generator, tied=False)
    scores = 0.9 + 1e-3 * scores
    scores[0] = 3.0
    p = typicality.typicality(far, scores, far[:2] + 40, torch.tensor([0.9, 0.1]))
    assert (p <= 0.05).all()


def test_the_least_number_of_calibration_inputs() -> None:
    assert [typicality.least(rate) for rate in (0.05, 0.1, 0.01)] == [19, 9, 99]


def test_discoveries_of_a_worked_example() -> None:
    """The first example of Benjamini & Hochberg (1995): four of fifteen at 5 %."""
    p = torch.tensor([0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
                      0.6528, 0.7590, 1.0000])  # fmt: skip
    assert typicality.benjamini_hochberg(p.flip(0), 0.05).flip(0).tolist() == [True] * 4 + [False] * 11
    assert not typicality.benjamini_hochberg(p[5:], 0.05).any()
    assert typicality.benjamini_hochberg(torch.zeros(0), 0.05).shape == (0,)


def test_a_small_share_of_the_discoveries_among_conformal_p_values_is_false() -> None:
    random, shares, power = np.random.default_rng(0), [], []
    for _ in range(300):
        known, new = random.normal(size=200), random.normal(size=50) + 4 * (np.arange(50) < 10)
        p = torch.from_numpy((1 + (known >= new[:, None]).sum(1)) / 201)
        found = typicality.benjamini_hochberg(p, 0.1)
        shares.append(float(found[10:].sum()) / max(int(found.sum()), 1))
        power.append(float(found[:10].double().mean()))
    assert np.mean(shares) <= 0.1 + 2 * np.std(shares) / math.sqrt(300)
    assert np.mean(power) > 0.8
