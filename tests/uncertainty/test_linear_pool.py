"""Weights of a linear pool of two models, from sums that add up over silos."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from caveat.uncertainty import linear_pool
from caveat.uncertainty.temperature import CONTAMINATION


def drawn(n: int, seed: int = 0, classes: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of two models and labels, of which the first model's are drawn with probability 0.7."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(n, classes, generator=generator).double().softmax(1) for _ in range(2))
    y = torch.multinomial(0.7 * p + 0.3 * q, 1, generator=generator)[:, 0]
    return p, q, y


def loss(weight: float, p: Tensor, q: Tensor, y: Tensor) -> float:
    mixed = (1 - CONTAMINATION) * (weight * p + (1 - weight) * q) + CONTAMINATION / p.shape[1]
    return float(-mixed.gather(1, y[:, None]).log().sum())


def test_the_shared_weight_is_that_of_pooled_labels() -> None:
    silos = [drawn(n, seed) for seed, n in enumerate((40, 300, 2000))]
    weight = linear_pool.shared_weight(sum((linear_pool.curve(*silo) for silo in silos), torch.zeros(41)))
    pooled = tuple(torch.cat(parts) for parts in zip(*silos, strict=True))
    best = minimize_scalar(lambda w: loss(w, *pooled), bounds=(0, 1), method="bounded").x
    assert weight == pytest.approx(best, abs=0.0126)  # half a step of the grid
    assert weight == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
def test_an_own_weight_counts_the_shared_one_as_some_labels(shared: float) -> None:
    p, q, y = drawn(60, seed=3)
    found = linear_pool.own_weight(linear_pool.curve(p, q, y), shared, strength=50.0)

    def penalized(w: float) -> float:
        return loss(w, p, q, y) - 50 * (shared * math.log(w) + (1 - shared) * math.log(1 - w))

    best = minimize_scalar(penalized, bounds=(1e-9, 1 - 1e-9), method="bounded").x
    assert found == pytest.approx(best, abs=0.0126)


def test_few_labels_stay_near_the_shared_weight_and_many_leave_it() -> None:
    p = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    weights = []
    for n in (1, 10, 100, 1000):
        curve = linear_pool.curve(p.repeat(n, 1), p.flip(1).repeat(n, 1), torch.zeros(n).long())
        weights.append(linear_pool.own_weight(curve, 0.2))
    assert weights == sorted(weights)
    assert weights[0] < 0.35
    assert weights[-1] > 0.9


def test_without_labels_the_weight_is_the_shared_one() -> None:
    nothing = linear_pool.curve(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0).long())
    assert linear_pool.own_weight(nothing, 0.35) == 0.35
    assert linear_pool.shared_weight(nothing) == 0.5


def test_equal_models_have_the_shared_weight() -> None:
    p, _, y = drawn(50)
    assert linear_pool.own_weight(linear_pool.curve(p, p, y), 0.35, strength=0) == pytest.approx(0.35)


def test_labels_and_probabilities_that_are_none_are_left_out() -> None:
    p, q, y = drawn(30)
    worse = p.clone()
    worse[3] = math.nan
    y[5] = -1
    kept = torch.tensor([i for i in range(30) if i not in (3, 5)])
    assert torch.equal(linear_pool.curve(worse, q, y), linear_pool.curve(p[kept], q[kept], y[kept]))


def test_what_no_likelihoods_can_be_is_told() -> None:
    p, q, y = drawn(40)
    honest = linear_pool.curve(p, q, y)
    assert linear_pool.impossible(honest, 40, 4) == ""
    assert linear_pool.impossible(0 * honest, 40, 4) == ""
    bent = honest.clone()
    bent[20] += 5
    for bad in (-honest, 100 * honest, bent):
        assert "likelihoods that are impossible for 40 inputs" in linear_pool.impossible(bad, 40, 4)
    for bad in (honest[:3], honest * math.nan):
        assert "invalid likelihoods" in linear_pool.impossible(bad, 40, 4)
