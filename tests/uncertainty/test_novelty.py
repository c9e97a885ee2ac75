"""The distance to the nearest training input, and the p-values of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from torch import Tensor

from caveat.uncertainty import novelty, typicality


def features(n: int, seed: int, width: int = 12) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)).relu() + 0.01


@pytest.mark.parametrize(("rows", "inputs"), [(1, 3), (40, 70), (2000, 500)])
def test_it_is_the_distance_on_the_unit_sphere_to_the_nearest_row(rows: int, inputs: int) -> None:
    train, new = features(rows, 0), 5 * features(inputs, 1)
    known = NearestNeighbors(n_neighbors=1).fit(normalize(train.double()))
    wanted = known.kneighbors(normalize(new.double()))[0][:, 0]
    found = novelty.log_distances(novelty.directions(train), new)
    np.testing.assert_allclose(found, np.log(wanted**2 + novelty.NEAR) / 2, atol=novelty.STEP)


def test_it_is_the_same_for_any_number_of_inputs_at_once() -> None:
    rows, new = novelty.directions(features(1500, 0, 84)), features(3000, 1, 84)
    together = novelty.log_distances(rows, new)
    for size in (1, 7, 1000):
        parts = torch.split(new[: 100 * size], size)
        assert torch.equal(torch.cat([novelty.log_distances(rows, part) for part in parts]), together[: 100 * size])
    assert torch.equal(novelty.log_distances_directly(rows, new), together)


def test_inputs_that_are_training_inputs_are_the_nearest_of_all() -> None:
    train = features(300, 0)
    train[0] = 0  # units that all inputs of a kind leave silent
    rows = novelty.directions(train)
    nearest = novelty.log_distances(rows, torch.cat([train, 7 * train]))
    assert nearest.max() <= math.log(novelty.NEAR) / 2 + 2 * novelty.STEP
    assert novelty.log_distances(rows, features(50, 3)).min() > nearest.max()


def test_features_that_are_no_numbers_are_the_farthest() -> None:
    new = features(3, 1)
    new[1, 2], new[2, 0] = math.nan, math.inf
    found = novelty.log_distances(novelty.directions(features(9, 0)), new)
    assert found.isfinite().tolist() == [True, False, False]
    assert novelty.log_distances(torch.zeros(0, 12), new).isinf().all()


def test_of_many_training_inputs_a_sample_is_kept() -> None:
    assert novelty.sampled(30).tolist() == list(range(30))
    many = novelty.sampled(9000)
    assert len(many) == len(set(many.tolist())) == novelty.MOST_ROWS
    assert (many.diff() > 0).all()
    assert torch.equal(many, novelty.sampled(9000))
    assert 4000 < many.double().mean() < 5000


def test_rows_are_as_far_from_other_folds_as_new_ones() -> None:
    rows = novelty.directions(features(23, 0))
    found = novelty.left_out_log_distances(rows, 5)
    folds = torch.arange(23) % 5
    wanted = [novelty.log_distances(rows[folds != k], rows[folds == k]) for k in range(5)]
    assert torch.equal(found, torch.cat(wanted))
    assert found.isfinite().all()
    assert not len(novelty.left_out_log_distances(rows[:1], 5))


@pytest.mark.parametrize("n", [19, 60, 200])
def test_p_values_hold_for_inputs_like_the_calibration_inputs(n: int) -> None:
    """Whatever the training rows are: here half of them are of a class that the others do not have."""
    generator = torch.Generator().manual_seed(n)
    rates, joint, new_class = [], [], []
    for _ in range(300):
        rows = novelty.directions(torch.randn(80, 5, generator=generator) + 3 * (torch.arange(80) % 2)[:, None])
        own, new = (torch.randn(k, 5, generator=generator).round(decimals=1) + 3 for k in (n, 100))
        foreign = torch.randn(100, 5, generator=generator) + torch.tensor([6.0, -6, 6, -6, 0])
        near, fresh, others = (novelty.log_distances(rows, each) for each in (own, new, foreign))
        rates.append(float((typicality.sureness(near, fresh) <= 0.05).double().mean()))
        far, new_far = own.norm(dim=1).log()[:, None], new.norm(dim=1).log()[:, None]
        given = torch.cat([far, near[:, None]], 1), own[:, 0].exp(), torch.cat([new_far, fresh[:, None]], 1)
        joint.append(float((typicality.typicality(*given, new[:, 0].exp(), novelty=True) <= 0.05).double().mean()))
        new_class.append(float((typicality.sureness(near, others) <= 0.05).double().mean()))
    for each in (rates, joint):
        assert np.mean(each) <= 0.05 + 3 * np.std(each) / len(each) ** 0.5
    assert np.mean(new_class) > 0.5
