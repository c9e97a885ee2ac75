"""Familiarity: densities from sums are those of all rows in one place."""

from __future__ import annotations

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
