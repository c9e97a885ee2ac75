"""Uncertainty measures against mpmath, torch.distributions, simulation, and the laws that they obey."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from caveat.core import Decision, Prediction
from caveat.uncertainty import (
    dirichlet,
    entropy,
    expected_entropy,
    mutual_information,
    plug_in_mutual_information,
)


def draws(samples: int, inputs: int, alpha: tuple[float, ...] = (2.0, 1.0, 0.5, 0.5), seed: int = 0) -> Tensor:
    """(S, N, C) class probabilities from a Dirichlet distribution, of which everything is known."""
    p = np.random.default_rng(seed).dirichlet(alpha, (samples, inputs))
    return torch.from_numpy(p)


KNOWN = torch.tensor([2.0, 1.0, 0.5, 0.5], dtype=torch.float64).log()
"""log alpha of `draws`."""


# Samples


def test_jackknife_is_the_formula_with_estimates_that_leave_one_out() -> None:
    samples = draws(3, 200, alpha=(0.1, 0.1, 0.1, 0.1))
    left_out = [plug_in_mutual_information(samples[[j for j in range(3) if j != i]]) for i in range(3)]
    expected = 3 * plug_in_mutual_information(samples) - 2 * torch.stack(left_out).mean(0)
    inside = expected < math.log(4)
    assert 0.5 < inside.double().mean() < 1
    torch.testing.assert_close(mutual_information(samples)[inside], expected[inside])
    assert (mutual_information(samples)[~inside] == math.log(4)).all()


def test_jackknife_removes_the_bias_of_few_samples() -> None:
    """Over 20,000 inputs, at a standard error of 0.0003."""
    alpha = (6.0, 3.0, 2.0, 1.0)
    samples = draws(5, 20_000, alpha)
    truth = float(dirichlet.Dirichlet(torch.tensor(alpha).double().log()).mutual_information)
    assert float(plug_in_mutual_information(samples).mean()) < 0.85 * truth
    assert float(mutual_information(samples).mean()) == pytest.approx(truth, abs=0.0013)


def test_samples_of_a_dirichlet_have_its_uncertainties() -> None:
    samples = draws(20_000, 1)
    for sampled, exact in (
        (expected_entropy(samples), dirichlet.Dirichlet(KNOWN).expected_entropy),
        (mutual_information(samples), dirichlet.Dirichlet(KNOWN).mutual_information),
    ):
        assert float(sampled) == pytest.approx(float(exact), abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_samples_are_finite_and_within_bounds(dtype: torch.dtype) -> None:
    """Certain, contradictory, equal and single samples; thirds do not sum exactly, so that rounding shows."""
    certain = torch.eye(3, dtype=dtype)[torch.tensor([0, 1, 1, 2, 0])][:, None].repeat(1, 3, 1)
    certain[:, 1] = torch.eye(3, dtype=dtype)[0]
    certain[:, 2] = 1 / 3
    for samples in (certain, certain[:2], certain[:1]):
        mi = mutual_information(samples)
        assert mi.dtype == torch.float64
        assert mi.isfinite().all()
        assert (mi >= 0).all()
        assert (mi <= math.log(3)).all()
        torch.testing.assert_close(mi[1:], torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
        p = Prediction.from_samples(samples)
        assert (p.total >= p.aleatoric).all()
        assert (p.aleatoric >= 0).all()


# Dirichlet distributions


def exact(log_alpha: Tensor) -> dict[str, mp.mpf]:
    """The textbook formulas, in 60 digits."""
    with mp.workdps(60):
        a = [mp.exp(mp.mpf(v)) for v in log_alpha.tolist()]
        a0, k = mp.fsum(a), len(a)
        p = [v / a0 for v in a]
        log_beta = mp.fsum(mp.loggamma(v) for v in a) - mp.loggamma(a0)
        differential = log_beta + (a0 - k) * mp.psi(0, a0) - mp.fsum((v - 1) * mp.psi(0, v) for v in a)
        total = -mp.fsum(q * mp.log(q) for q in p)
        aleatoric = mp.fsum(q * (mp.psi(0, a0 + 1) - mp.psi(0, v + 1)) for q, v in zip(p, a, strict=True))
        return {
            "entropy": total,
            "expected_entropy": aleatoric,
            "mutual_information": total - aleatoric,
            "dirichlet_entropy": differential,
            "kl_to_symmetric": -differential - mp.loggamma(k),
            "vacuity": k / a0,
        }


def computed(log_alpha: Tensor) -> dict[str, Tensor]:
    found = dirichlet.Dirichlet(log_alpha)
    names = ("entropy", "expected_entropy", "mutual_information", "dirichlet_entropy", "vacuity")
    return {name: getattr(found, name) for name in names} | {"kl_to_symmetric": dirichlet.kl_to_symmetric(log_alpha)}


def parameters(classes: int) -> Tensor:
    """(M, K) log alpha from 1e-6 to 1e22: all alike, one unlike the rest, mixed, around the series' start."""
    generator = np.random.default_rng(classes)
    exponents = np.concatenate([np.linspace(-6, 22, 22), np.log10([0.999, 1, 1.001, 19.9, 20, 20.1])])
    alike = np.repeat(exponents[:, None], classes, 1)
    small, unit = np.full_like(alike, -6), np.zeros_like(alike)
    small[:, 0] = unit[:, 0] = exponents
    mixed = generator.uniform(-6, 22, (30, classes))
    close = generator.uniform(-6, 22, (15, 1)) + generator.uniform(-0.5, 0.5, (15, classes))
    return torch.from_numpy(np.concatenate([alike, small, unit, mixed, close]) * math.log(10))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_dirichlet_measures_against_mpmath(classes: int) -> None:
    """To a relative 1e-8 (the two parts of the total) or 1e-12; the differential entropy and what is made of it pass
    through zero, and are held to 1e-13 (1 + |H|).
    """
    log_alpha = parameters(classes)
    results = computed(log_alpha)
    for i, row in enumerate(log_alpha):
        for name, expected in exact(row).items():
            scale = abs(expected) + (1 if name in ("dirichlet_entropy", "kl_to_symmetric") else 0)
            tolerance = {"expected_entropy": 1e-8, "mutual_information": 1e-8, "dirichlet_entropy": 1e-13}
            error = abs(mp.mpf(results[name][i].item()) - expected) / scale
            assert error < tolerance.get(name, 1e-12), (name, row.exp().tolist())


def test_dirichlet_measures_against_torch_where_it_can() -> None:
    alpha = torch.rand(50, 4, dtype=torch.float64) * 5 + 0.1
    d = Dirichlet(alpha)
    torch.testing.assert_close(dirichlet.Dirichlet(alpha.log()).mean, d.mean)
    torch.testing.assert_close(dirichlet.Dirichlet(alpha.log()).dirichlet_entropy, d.entropy())
    for prior in (1.0, 0.125, 2.0):
        expected = kl_divergence(d, Dirichlet(torch.full_like(alpha, prior)))
        torch.testing.assert_close(dirichlet.kl_to_symmetric(alpha.log(), prior), expected)


def test_more_evidence_is_always_more_certain() -> None:
    """In steps of a hundredth, also where one formula takes over from another."""
    evidence = torch.linspace(-13, 60, 7301, dtype=torch.float64)[:, None]
    for shape in (torch.zeros(10), torch.tensor([5.0, *[0.0] * 9]), torch.tensor([0.0, -8.0])):
        log_alpha = evidence + shape
        assert (dirichlet.Dirichlet(log_alpha).mutual_information.diff() < 0).all()
        assert (dirichlet.Dirichlet(log_alpha).expected_entropy.diff() > -1e-14).all()
        beyond_uniform = log_alpha[(log_alpha > 0).all(-1)]
        assert (dirichlet.Dirichlet(beyond_uniform).dirichlet_entropy.diff() < 0).all()


@pytest.mark.parametrize(
    "log_alpha", [[0.0, 0.0], [1e4, 0.0, -1e4], [-1e4, -1e4], [1e4, 1e4], [800.0, 799.0, 1.0], [88.8] * 3]
)
def test_no_parameter_is_too_small_or_too_large(log_alpha: list[float]) -> None:
    row = torch.tensor(log_alpha, requires_grad=True)
    results = computed(row)
    total = results["entropy"]
    assert 0 <= results["expected_entropy"] <= total
    torch.testing.assert_close(results["expected_entropy"] + results["mutual_information"], total)
    for name in results.keys() - {"vacuity"}:
        assert results[name].isfinite(), name
    results["dirichlet_entropy"].clamp(-1e6, 1e6).backward()
    assert row.grad is not None
    assert row.grad.isfinite().all()


@pytest.mark.parametrize("measure", ["dirichlet_entropy", "mutual_information", "expected_entropy"])
def test_gradients_against_finite_differences(measure: str) -> None:
    alpha = torch.tensor([[1e-3, 2.0, 40.0], [0.2, 0.1, 0.3], [1.0, 1.0, 1.0], [1e6, 30.0, 19.0]], dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        found: Tensor = getattr(dirichlet.Dirichlet(x), measure)
        return found

    assert torch.autograd.gradcheck(function, alpha.log().requires_grad_(), rtol=1e-4)


def test_gradient_of_the_dirichlet_entropy_in_float32() -> None:
    """d H / d ln alpha_i = alpha_i ((alpha0 - K) psi'(alpha0) - (alpha_i - 1) psi'(alpha_i)), in mpmath."""
    log_alpha = torch.tensor([-13.0, 0.0, 3.0, 20.0, 50.0], requires_grad=True)
    dirichlet.Dirichlet(log_alpha).dirichlet_entropy.backward()
    assert log_alpha.grad is not None
    assert log_alpha.grad.dtype == torch.float32
    with mp.workdps(60):
        a = [mp.exp(mp.mpf(v)) for v in log_alpha.tolist()]
        a0 = mp.fsum(a)
        expected = [float(v * ((a0 - len(a)) * mp.psi(1, a0) - (v - 1) * mp.psi(1, v))) for v in a]
    assert log_alpha.grad.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_uniform_distribution_is_where_differential_entropy_peaks() -> None:
    log_alpha = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    kl = dirichlet.kl_to_symmetric(log_alpha.detach())
    dirichlet.Dirichlet(log_alpha).dirichlet_entropy.backward()
    assert float(kl) == pytest.approx(0, abs=1e-13)
    torch.testing.assert_close(log_alpha.grad, torch.zeros(6, dtype=torch.float64))
    assert float(dirichlet.Dirichlet(log_alpha.detach()).vacuity) == pytest.approx(1)


# Predictions


def test_prediction_from_a_dirichlet() -> None:
    log_alpha = 10 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    p = Prediction.from_dirichlet(log_alpha, Decision.LOCAL, log_alpha.logsumexp(-1))
    torch.testing.assert_close(p.total, entropy(p.probs), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(p.aleatoric + p.epistemic, p.total)
    assert (p.total >= p.aleatoric).all()
    assert (p.decision == Decision.LOCAL).all()
    assert set(p.uncertainty) == {"total", "aleatoric", "epistemic", "dirichlet_entropy", "vacuity"}
    assert (p.score("vacuity").argsort() == p.score("log_evidence").argsort()).all()


def test_samples_give_the_total_and_aleatoric_of_their_entropies() -> None:
    samples = draws(7, 50)
    p = Prediction.from_samples(samples)
    assert torch.equal(p.total, torch.special.entr(samples.mean(0)).sum(-1))
    torch.testing.assert_close(p.aleatoric, torch.special.entr(samples).sum(-1).mean(0))
    assert torch.equal(p.epistemic, torch.minimum(mutual_information(samples), p.total))


def test_no_part_of_an_uncertainty_exceeds_it_also_after_a_temperature() -> None:
    """Two samples that are sure of different classes: the jackknife overshoots, and a temperature keeps shares."""
    sure = torch.tensor([[0.999, 0.0005, 0.0005], [0.0005, 0.999, 0.0005]], dtype=torch.float64)[:, None]
    assert mutual_information(sure) > entropy(sure.mean(0)) + 0.1
    p = Prediction.from_samples(sure)
    for found in (p, p.calibrated(0.2), p.calibrated(3.0)):
        assert found.epistemic <= found.total <= math.log(3)
    many = Prediction.from_samples(draws(3, 2000))
    assert (many.epistemic <= many.total).all()


def test_scores_are_the_uncertainties_and_minus_the_log_evidence() -> None:
    p = Prediction.from_samples(draws(3, 4))
    assert p.scores.keys() == {"total", "aleatoric", "epistemic"}
    assert p.score("epistemic") is p.epistemic
    with pytest.raises(ValueError, match="no score 'log_evidence'; this prediction has total, aleatoric, epistemic"):
        p.score("log_evidence")
    q = Prediction.from_dirichlet(torch.zeros(2, 3), log_evidence=torch.tensor([1.0, -2.0]))
    assert q.score("log_evidence").tolist() == [-1, 2]


def test_tempering_is_a_temperature_on_the_logits_and_keeps_shares() -> None:
    logits = 5 * torch.randn(30, 4, dtype=torch.float64)
    p = Prediction(logits.softmax(-1), Prediction.from_samples(draws(3, 30)).uncertainty, torch.zeros(30).long())
    q = p.calibrated(0.3)
    torch.testing.assert_close(q.probs, (0.3 * logits).softmax(-1))
    torch.testing.assert_close(q.total, entropy(q.probs))
    torch.testing.assert_close(q.epistemic / q.total, p.epistemic / p.total)
    torch.testing.assert_close(q.aleatoric / q.total, p.aleatoric / p.total)
    torch.testing.assert_close(q.calibrated(1 / 0.3).probs, p.probs)


def test_tempering_leaves_alone_what_a_temperature_says_nothing_about() -> None:
    p = Prediction.from_dirichlet(torch.randn(5, 3), log_evidence=torch.randn(5))
    same, other = p.calibrated(1.0), p.calibrated(2.0)
    assert torch.equal(same.probs, p.probs)
    assert all(torch.equal(same.scores[name], values) for name, values in p.scores.items())
    for name in ("dirichlet_entropy", "vacuity", "log_evidence"):
        assert torch.equal(other.score(name), p.score(name))
    assert torch.equal(other.label, p.label)


@pytest.mark.parametrize("b", [1e-3, 0.5, 3.0, 1e3])
def test_tempering_keeps_zeros_and_certainty(b: float) -> None:
    p = Prediction.from_samples(torch.tensor([[[1.0, 0.0, 0.0], [0.3, 0.7, 0.0]], [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]]))
    q = p.calibrated(b)
    assert (q.probs[p.probs == 0] == 0).all()
    assert q.probs[0].tolist() == [1, 0, 0]
    assert all(values.isfinite().all() for values in q.uncertainty.values())
    assert (q.total >= q.aleatoric).all()


@pytest.mark.parametrize("b", [0.0, -1.0, math.inf, math.nan])
def test_inverse_temperature_is_positive_and_finite(b: float) -> None:
    with pytest.raises(ValueError, match="expected a positive, finite number"):
        Prediction.from_samples(draws(2, 3)).calibrated(b)


def test_rows_are_chosen_by_a_mask() -> None:
    ours = Prediction.from_dirichlet(torch.randn(4, 3), Decision.LOCAL, torch.arange(4.0))
    theirs = Prediction.from_dirichlet(torch.randn(4, 3), Decision.GLOBAL, -torch.arange(4.0))
    mask = torch.tensor([True, False, True, False])
    p = ours.where(mask, theirs)
    assert p.decision.tolist() == [Decision.LOCAL, Decision.GLOBAL] * 2
    assert p.scores.keys() == ours.scores.keys()
    assert p.log_evidence is not None
    assert p.log_evidence.tolist() == [0, -1, 2, -3]
    for chosen, rows in ((ours, mask), (theirs, ~mask)):
        assert torch.equal(p.probs[rows], chosen.probs[rows])
        assert all(torch.equal(p.score(name)[rows], chosen.score(name)[rows]) for name in p.scores)


def test_what_only_one_of_two_predictions_has_is_left_out() -> None:
    ours = Prediction.from_dirichlet(torch.randn(4, 3), log_evidence=torch.randn(4))
    theirs = Prediction.from_samples(draws(3, 4, (1.0, 1.0, 1.0)))
    for p in (ours.where(torch.ones(4).bool(), theirs), theirs.where(torch.ones(4).bool(), ours)):
        assert p.scores.keys() == {"total", "aleatoric", "epistemic"}
        assert p.sets is None
    with pytest.raises(ValueError, match="mask of"):
        ours.where(torch.ones(5).bool(), theirs)
