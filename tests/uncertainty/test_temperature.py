"""Federated temperature scaling against the exact optimum of pooled data, and inputs that would decide alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from caveat.uncertainty.temperature import (
    ALONE,
    CONTAMINATION,
    LEAST,
    POWERS,
    SPREAD,
    agreed,
    curve,
    impossible,
    message,
    near,
)

Part = tuple[Tensor, Tensor]
EDGES = range(0, 97, 8)


def draw(n: int = 600, classes: int = 5, spread: float = 2.0, seed: int = 0, scale: float = 1.0) -> Part:
    """Logits times `scale`, and labels drawn from them as they were: the optimum is near b = 1 / scale."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return scale * logits, torch.multinomial(logits.softmax(1), 1, generator=generator).flatten()


def nll(log_probs: Tensor, y: Tensor, u: float | Tensor) -> Tensor:
    """Written down once more: of labels of which a share is drawn at random, at b = exp(u)."""
    p = (torch.as_tensor(u).exp() * log_probs).softmax(1)[torch.arange(len(y)), y]
    return -((1 - CONTAMINATION) * p + CONTAMINATION / log_probs.shape[1]).log()


def fit(*silos: Part) -> tuple[float, float]:
    """The federation's power and the silos' spread, from what silos send."""
    power, spread = agreed(torch.stack([message(curve(*silo)) for silo in silos]).sum(0)).tolist()
    return power, spread


def optimum(log_probs: Tensor, y: Tensor) -> tuple[float, float]:
    """The u = ln b that minimises the pooled sum with the prior, found on the exact function; and that minimum."""

    def whole(u: float) -> float:
        return float(nll(log_probs, y, u).sum()) + (u / SPREAD) ** 2 / 2

    start = min(torch.linspace(-11, 22, 166).tolist(), key=whole)
    found = minimize_scalar(whole, bounds=(start - 0.2, start + 0.2), method="bounded", options={"xatol": 1e-10})
    return found.x, found.fun


@pytest.mark.parametrize("k", EDGES)
def test_a_curve_is_the_likelihood_and_its_derivatives(k: int) -> None:
    log_probs, y = draw(40)
    u = torch.tensor(POWERS[k], dtype=torch.float64).log().requires_grad_()
    each = nll(log_probs, y, u)
    (first,) = torch.autograd.grad(each.sum(), u, create_graph=True)
    (second,) = torch.autograd.grad(first, u)
    v = u.detach().expand(40, 1).clone().requires_grad_()
    (firsts,) = torch.autograd.grad(nll(log_probs, y, v).sum(), v)
    expected = torch.stack([each.sum(), first, second, firsts.square().sum()]).detach()
    torch.testing.assert_close(curve(log_probs, y)[:, k], expected)


def test_logits_will_do_and_rows_without_label_or_number_are_left_out() -> None:
    log_probs, y = draw(40)
    known = curve(log_probs, y)
    torch.testing.assert_close(curve(log_probs.log_softmax(1), y), known)
    strange = torch.stack([torch.full((5,), each, dtype=torch.float64) for each in (math.nan, math.inf, 1.0)])
    more = curve(torch.cat([log_probs, strange]), torch.cat([y, torch.tensor([0, 0, -1])]))
    torch.testing.assert_close(more, known)


@pytest.mark.parametrize("scale", [1e-6, 0.02, 0.3, 1.0, 20.0, 2000.0])
@pytest.mark.parametrize(("n", "classes"), [(60, 2), (600, 5), (1000, 30)])
@pytest.mark.parametrize("seed", range(3))
def test_what_silos_send_gives_the_optimum_of_the_pooled_inputs(scale: float, n: int, classes: int, seed: int) -> None:
    log_probs, y = draw(n, classes, (0.5, 2.0, 8.0)[seed], seed, scale)
    cuts = [slice(0, 0), slice(0, 7), slice(7, n // 3), slice(n // 3, n)]
    b, _ = fit(*[(log_probs[cut], y[cut]) for cut in cuts])
    best, lowest = optimum(log_probs, y)
    assert math.log(b) == pytest.approx(best, abs=1e-3)
    assert float(nll(log_probs, y, math.log(b)).sum()) + math.log(b) ** 2 / 2 - lowest < 1e-6 * n


def test_a_label_that_was_given_no_chance_moves_nothing() -> None:
    log_probs, y = draw(200, 10, scale=0.6)
    before, _ = fit((log_probs.log_softmax(1), y))
    impossible = torch.full((1, 10), -math.inf, dtype=torch.float64)
    impossible[0, 3] = 0.0
    after, _ = fit((torch.cat([log_probs.log_softmax(1), impossible]), torch.cat([y, torch.tensor([4])])))
    assert after == pytest.approx(before, rel=1e-12)
    hardly = impossible.clamp_min(-700.0)
    after, _ = fit((torch.cat([log_probs.log_softmax(1), hardly]), torch.cat([y, torch.tensor([4])])))
    assert after == pytest.approx(before, rel=1e-3)
    nothing = torch.full((1, 10), -math.inf, dtype=torch.float64)
    assert curve(nothing, torch.tensor([0])).isfinite().all()


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_no_input_moves_the_derivative_by_more_than_is_said(classes: int) -> None:
    bound = math.log((1 - CONTAMINATION) * classes / CONTAMINATION)
    largest = 0.0
    for exponent in torch.linspace(-2, 3, 60).tolist():
        log_probs, y = draw(1, classes, 10**exponent, int(100 * exponent) + 300)
        for label in (y, log_probs.argmin(1), log_probs.argmax(1)):
            largest = max(largest, float(curve(log_probs, label)[1].abs().max()))
    assert bound / 2 < largest <= bound


def test_where_there_is_little_to_go_by_little_changes() -> None:
    nothing = curve(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    assert agreed(message(nothing)).tolist() == [1.0, LEAST]
    assert near(nothing, 0.4, 0.1) == 0.4
    certain = torch.tensor([[0.9, 0.1]] * 8, dtype=torch.float64).log()
    b = near(curve(certain, torch.zeros(8, dtype=torch.long)), 1.0, ALONE)
    assert 1 < b < 2  # without a prior it would be the end of the range
    b, _ = fit((certain[:2], torch.zeros(2, dtype=torch.long)))
    assert 1 < b < 3


def test_a_silo_lies_between_the_federation_and_what_its_own_inputs_say() -> None:
    own = curve(*draw(100, scale=4.0))
    b = [near(own, 1.0, spread) for spread in (1e-4, 0.05, 0.2, 1.0, 1e4)]
    assert b == sorted(b, reverse=True)
    assert b[0] == pytest.approx(1, rel=1e-3)
    best = minimize_scalar(lambda u: float(nll(*draw(100, scale=4.0), u).sum()), bounds=(-3, 0), method="bounded").x
    assert b[-1] == pytest.approx(math.exp(best), rel=1e-3)


def scales(apart: float, seed: int, silos: int) -> Sequence[float]:
    return (apart * torch.randn(silos, generator=torch.Generator().manual_seed(seed))).exp().tolist()


@pytest.mark.parametrize("apart", [0.0, 0.2, 0.4])
def test_how_far_silos_lie_apart_is_estimated(apart: float) -> None:
    found = []
    for seed in range(5):
        silos = [draw(80, 5, 2.0, 100 * seed + k, by) for k, by in enumerate(scales(apart, seed, 60))]
        found.append(fit(*silos)[1])
    assert LEAST <= min(found) <= max(found) <= SPREAD
    assert sum(found) / 5 == pytest.approx(apart, abs=0.07)


def test_silos_that_differ_gain_by_their_own_and_silos_that_do_not_lose_nothing() -> None:
    for apart, gain in ((0.6, 0.02), (0.0, -0.002)):
        fits = [draw(60, 5, 3.0, k, by) for k, by in enumerate(scales(apart, 0, 30))]
        tests = [draw(2000, 5, 3.0, 1000 + k, by) for k, by in enumerate(scales(apart, 0, 30))]
        common, spread = fit(*fits)
        own = [math.log(near(curve(*each), common, spread)) for each in fits]
        better = [
            nll(*test, math.log(common)).mean() - nll(*test, u).mean() for test, u in zip(tests, own, strict=True)
        ]
        assert float(torch.stack(better).mean()) > gain


@pytest.mark.parametrize("sums", [torch.zeros(4, 97), torch.zeros(5, 3), torch.full((5, 97), math.nan)])
def test_sums_that_are_none_are_refused(sums: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected \(5, 97\) and only finite"):
        agreed(sums)


def test_inputs_without_evidence_do_not_pull_the_temperature_to_an_extreme() -> None:
    """Nearly equal probabilities that rank classes correctly gain from a huge power what few confident errors cost."""
    right, wrong, none = 960, 4, 40
    confident = torch.zeros(right + wrong, 10).double()
    confident[:, 0] = 6.0
    tilted = torch.zeros(none, 10).double()
    tilted[:, 0] = 1e-6
    log_probs = torch.cat([confident, tilted]).log_softmax(1)
    y = torch.zeros(len(log_probs), dtype=torch.long)
    y[right : right + wrong] = 1
    sums = curve(log_probs, y)
    assert POWERS[int(sums[0].argmin())] > 1000  # the lowest point of all
    b = near(sums, 1.0, SPREAD)
    assert 0.5 < b < 2
    exact = -(b * log_probs).log_softmax(1).gather(1, y[:, None]).mean()
    untempered = -log_probs.gather(1, y[:, None]).mean()
    assert exact <= untempered + 1e-6
    assert 0.5 < float(agreed(message(sums))[0]) < 2


def test_censored_times_count_for_all_later_bars() -> None:
    """Values and derivatives in ln b of the likelihood of half the own bar and all later ones, and checks of sums."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(30, 8, generator=generator, dtype=torch.float64).log_softmax(1)
    y = torch.randint(16, (30,), generator=generator)
    found = curve(z, y)
    for k in (20, 32, 40):
        b = torch.tensor(POWERS[k], dtype=torch.float64).log().requires_grad_()
        p = (b.exp() * z).softmax(1)
        own = p.gather(1, y[:, None] % 8)[:, 0]
        later = torch.where(y % 8 == 7, own, own / 2 + (p * (torch.arange(8) > y[:, None] % 8)).sum(1))
        bars = torch.where((y < 8) | (y % 8 == 7), 1.0, 7.5 - y.double() % 8)
        e = CONTAMINATION
        nll = -((1 - e) * torch.where(y < 8, own, later) + e * bars / 8).log().sum()
        (first,) = torch.autograd.grad(nll, b, create_graph=True)
        (second,) = torch.autograd.grad(first, b)
        assert found[:3, k].tolist() == pytest.approx([each.item() for each in (nll, first, second)], rel=1e-9)
    assert not impossible(message(found), 30, 8, censored=True)
    assert impossible(message(found), 3, 8, censored=True)
