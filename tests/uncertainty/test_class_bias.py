"""Biases of classes: the fit against a minimizer, their width against a simulation, and what cannot be sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from caveat.uncertainty.class_bias import NARROWEST, WIDEST, fitted, impossible, message, usable, width


def draw(n: int, bias: Tensor, seed: int, spread: float = 2.0) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn from them with a bias."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, len(bias), generator=generator, dtype=torch.float64)
    return logits.log_softmax(1), torch.multinomial((logits + bias).softmax(1), 1, generator=generator).flatten()


@pytest.mark.parametrize("spread", [0.1, 2.0, 200.0])
@pytest.mark.parametrize("sd", [0.1, 1.0])
def test_the_bias_has_the_largest_posterior_density(spread: float, sd: float) -> None:
    """Logits far apart make undamped Newton steps diverge."""
    log_probs, y = draw(40, torch.tensor([1.0, -1.0, 0.5, 0.0]), 0, spread)

    def loss(bias: np.ndarray) -> float:
        nll = torch.nn.functional.cross_entropy(log_probs + torch.from_numpy(bias), y, reduction="sum")
        return float(nll) + float((bias**2).sum()) / sd**2 / 2

    found = fitted(log_probs, y, sd)
    assert found is not None
    best = minimize(loss, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10, "maxiter": 5000})
    torch.testing.assert_close(found, torch.from_numpy(best.x), atol=1e-4, rtol=0)


def test_without_inputs_or_differences_there_is_none() -> None:
    log_probs, y = draw(40, torch.zeros(3), 0)
    assert fitted(log_probs, y, NARROWEST / 2) is None
    assert fitted(log_probs[:0], y[:0], 1.0) is None
    assert width(message(log_probs[:0], y[:0])) == 0


@pytest.mark.parametrize("apart", [0.0, 0.3, 0.8])
def test_how_far_silos_lie_apart_is_estimated(apart: float) -> None:
    found = []
    for seed in range(10):
        generator = torch.Generator().manual_seed(1000 + seed)
        biases = apart * torch.randn(20, 5, generator=generator, dtype=torch.float64)
        silos = [draw(40, bias - bias.mean(), 100 * seed + k) for k, bias in enumerate(biases)]
        found.append(width(torch.stack([message(*silo) for silo in silos]).sum(0)))
    assert 0 <= min(found) <= max(found) <= WIDEST
    assert float(np.mean(found)) == pytest.approx(apart, abs=0.12)


def test_silos_that_differ_gain_and_silos_that_do_not_lose_nothing() -> None:
    for apart, gain in ((1.0, 0.03), (0.0, -0.003)):
        generator = torch.Generator().manual_seed(5)
        biases = apart * torch.randn(20, 5, generator=generator, dtype=torch.float64)
        fits = [draw(40, bias, k) for k, bias in enumerate(biases)]
        sd = width(torch.stack([message(*silo) for silo in fits]).sum(0))
        better = []
        for k, (fit, bias) in enumerate(zip(fits, biases, strict=True)):
            log_probs, y = draw(2000, bias, 500 + k)
            own = fitted(*fit, sd)
            nll = torch.nn.functional.cross_entropy
            better.append(nll(log_probs, y) - nll(log_probs if own is None else log_probs + own, y))
        assert float(torch.stack(better).mean()) > gain


def test_rows_without_label_or_numbers_are_left_out_and_impossible_classes_are_faint() -> None:
    inf = float("inf")
    log_probs = torch.tensor([[-inf, 0.0], [float("nan"), 0.0], [-0.7, -0.7], [inf, 0.0]])
    z, y = usable(log_probs, torch.tensor([0, 0, -1, 1]))
    assert z.tolist() == [[-30.0, 0.0]]
    assert y.tolist() == [0]


@pytest.mark.parametrize("spread", [0.01, 2.0, 100.0])
def test_what_silos_send_is_possible_and_other_numbers_are_not(spread: float) -> None:
    for seed in range(5):
        sent = message(*draw(30, torch.full((4,), 1.0 * seed), seed, spread))
        assert not impossible(sent, 30)
    for wrong in ([2e3, 1.0], [-61.0, 1.0], [0.0, -1.0], [0.0, 300.0], [float("nan"), 0.0], [0.0]):
        assert impossible(torch.tensor(wrong), 30)
