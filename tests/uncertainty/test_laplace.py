"""The last layer's posterior: against an independent Gauss-Newton matrix, over partitions, with n, and its prior."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.autograd.functional import hessian

from caveat.uncertainty import laplace, temperature

N, H, C = 240, 5, 4


def problem(seed: int = 0, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    """(N, D) hidden units with the bias's 1, a weight (C, D), and logits (N, C); float64."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, H, generator=generator, dtype=torch.float64)
    hidden = torch.cat([hidden, torch.ones(n, 1, dtype=torch.float64)], 1)
    weight = torch.randn(C, H + 1, generator=generator, dtype=torch.float64)
    return hidden, weight, hidden @ weight.T


def posterior(n: int = N, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    hidden, weight, logits = problem(seed, n)
    found = laplace.sums(hidden, logits)
    return found, laplace.posterior(found, weight)


@pytest.mark.parametrize("seed", range(20))
def test_sums_over_any_partition_are_those_of_all_inputs_together(seed: int) -> None:
    hidden, weight, logits = problem(seed)
    rng = np.random.default_rng(seed)
    silos = torch.from_numpy(rng.integers(rng.integers(1, 12), size=N))
    parts = [laplace.sums(hidden[silos == k], logits[silos == k]) for k in silos.unique()]
    summed = {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
    pooled = laplace.sums(hidden, logits)
    for name, tensor in pooled.items():
        torch.testing.assert_close(summed[name], tensor, rtol=1e-8, atol=1e-8)
    x = torch.randn(7, H + 1, dtype=torch.float64)
    one, other = laplace.posterior(summed, weight), laplace.posterior(pooled, weight)
    variances = [laplace.logit_variance(laplace.direction_variances(each, x)) for each in (one, other)]
    torch.testing.assert_close(variances[0], variances[1], rtol=1e-8, atol=1e-12)


def test_factors_are_those_of_the_gauss_newton_matrix_where_inputs_agree_on_p() -> None:
    """By autograd: the Hessian of the cross-entropy in a last layer's weights, which is its Gauss-Newton matrix.

    The Kronecker form is exact where all inputs have the same hidden units.
    """
    hidden, weight, _ = problem()
    same = hidden[:1].expand(N, -1)
    labels = torch.randint(C, (N,), generator=torch.Generator().manual_seed(1))

    def loss(w: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(same @ w.view(C, -1).T, labels, reduction="sum")

    expected = hessian(loss, weight.flatten())
    found = laplace.sums(same, same @ weight.T)
    torch.testing.assert_close(torch.kron(found["outputs"], found["inputs"]) / found["examples"], expected)


def test_traces_are_those_of_the_gauss_newton_matrix_for_any_inputs_of_equal_norm() -> None:
    """Against a loop over inputs by autograd's Hessian of the log-partition function."""
    hidden, weight, logits = problem(n=12)
    hidden = hidden / hidden.norm(dim=1, keepdim=True)
    logits = hidden @ weight.T
    curvatures = [hessian(lambda f: f.logsumexp(-1), f) for f in logits]
    full = sum(torch.kron(b, torch.outer(phi, phi)) for b, phi in zip(curvatures, hidden, strict=True))
    found = laplace.sums(hidden, logits)
    torch.testing.assert_close(found["outputs"], torch.stack(curvatures).sum(0))
    approximate = torch.kron(found["outputs"], found["inputs"]) / found["examples"]
    torch.testing.assert_close(approximate.trace(), torch.as_tensor(full).trace())


def test_covariances_of_logits_are_those_of_the_dense_posterior() -> None:
    """The posterior as one matrix over all weights, inverted: beside what softmax does not see, the same."""
    found, known = posterior()
    x = torch.randn(6, H + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    q = laplace.contrasts(C)
    precision = torch.kron(q.T @ found["outputs"] @ q, found["inputs"]) / found["examples"]
    precision += float(known["prior"]) * torch.eye(len(precision), dtype=torch.float64)
    precision *= laplace.COLD
    variances = laplace.direction_variances(known, x)
    for phi, variance in zip(x, variances, strict=True):
        jacobian = torch.kron(q, phi[None])  # (C, (C - 1) D)
        dense = jacobian @ torch.linalg.solve(precision, jacobian.T)
        torch.testing.assert_close(known["outputs"] @ variance.diag() @ known["outputs"].T, dense)
    torch.testing.assert_close(
        laplace.logit_variance(variances),
        (known["outputs"].square() @ variances.T).mean(0),
    )


def test_variances_fall_as_one_over_n_on_fixed_features() -> None:
    hidden, weight, logits = problem()
    x = torch.randn(50, H + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found, means = laplace.sums(hidden, logits), []
    times = [1, 4, 16, 64, 256]
    for k in times:
        known = laplace.posterior({name: k * tensor for name, tensor in found.items()}, weight)
        means.append(float(laplace.logit_variance(laplace.direction_variances(known, x)).mean()))
    slope = np.polyfit(np.log(times), np.log(means), 1)[0]
    assert slope == pytest.approx(-1, abs=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_a_layer_that_fits_its_training_labels_keeps_the_likelihood_of_one_pass(seed: int) -> None:
    """Its curvature is next to nothing, which must not make the posterior wide: confidence would be .3 here."""
    digits = load_digits()
    hidden, y = torch.from_numpy(digits.data / 16), torch.from_numpy(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, validation, test = order[:200], order[200:400], order[400:]
    fitted = LogisticRegression(C=1e4, max_iter=3000).fit(hidden[train].numpy(), y[train].numpy())
    assert fitted.score(hidden[train].numpy(), y[train].numpy()) == 1
    weight = torch.from_numpy(np.column_stack([fitted.coef_, fitted.intercept_]))
    hidden = torch.cat([hidden, torch.ones(len(y), 1)], 1)
    logits = hidden @ weight.T
    found = laplace.posterior(laplace.sums(hidden[train], logits[train]), weight)
    variances = laplace.direction_variances(found, hidden)
    probs = laplace.mean_probabilities(found["outputs"], logits, variances)
    assert float(probs[test].amax(1).mean()) == pytest.approx(float(logits[test].softmax(1).amax(1).mean()), abs=0.03)

    def tempered(log_probs: Tensor) -> float:
        power = temperature.near(temperature.curve(log_probs[validation], y[validation]), 1.0, 1.0)
        return float(torch.nn.functional.cross_entropy(power * log_probs[test], y[test]))

    assert tempered(probs.log()) < 1.02 * tempered(logits)


def test_what_no_data_determine_is_left_to_the_prior() -> None:
    _, weight, _ = problem()
    nothing = {
        "inputs": torch.zeros(H + 1, H + 1, dtype=torch.float64),
        "outputs": torch.zeros(C, C, dtype=torch.float64),
        "examples": torch.tensor(0.0, dtype=torch.float64),
    }
    found = laplace.posterior(nothing, weight)
    assert all(tensor.isfinite().all() for tensor in found.values())
    contrasts = weight - weight.mean(0)
    assert float(found["prior"]) == pytest.approx(contrasts.numel() * (C - 1) / C / float(contrasts.square().sum()))
    torch.testing.assert_close(1 / found["variances"], (laplace.COLD * found["prior"]).expand(H + 1, C - 1))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_contrasts_are_an_orthonormal_basis_of_what_softmax_sees(classes: int) -> None:
    q = laplace.contrasts(classes)
    torch.testing.assert_close(q.T @ q, torch.eye(classes - 1, dtype=torch.float64))
    torch.testing.assert_close(q.sum(0), torch.zeros(classes - 1, dtype=torch.float64))


def test_mean_probabilities_of_two_classes_are_mackay_s() -> None:
    q = laplace.contrasts(2)
    logits = torch.tensor([[1.0, -0.5], [3.0, 3.0]], dtype=torch.float64)
    variances = torch.tensor([[2.0], [5.0]], dtype=torch.float64)
    difference = 2 * variances[:, 0]  # of both logits: (1, -1) / sqrt 2 times the direction's standard deviation
    expected = torch.sigmoid((logits[:, 0] - logits[:, 1]) / (1 + math.pi / 8 * difference).sqrt())
    torch.testing.assert_close(laplace.mean_probabilities(q, logits, variances)[:, 0], expected)


@pytest.mark.parametrize(("scale", "apart"), [(0.0, 1e-12), (0.1, 0.01), (1.0, 0.05), (10.0, 0.15)])
def test_mean_probabilities_are_near_those_of_many_draws(scale: float, apart: float) -> None:
    generator = torch.Generator().manual_seed(4)
    _, known = posterior()
    logits = 3 * torch.randn(40, C, generator=generator, dtype=torch.float64)
    variances = scale * torch.rand(40, C - 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(20_000, C - 1, generator=generator, dtype=torch.float64)
    drawn = laplace.draw_logits(known["outputs"], logits, variances, noise).softmax(1).mean(0).T
    closed = laplace.mean_probabilities(known["outputs"], logits, variances)
    torch.testing.assert_close(closed.sum(-1), torch.ones(40, dtype=torch.float64))
    assert float((closed - drawn).abs().max()) <= apart
    shifted = laplace.mean_probabilities(known["outputs"], logits + 100, variances)
    torch.testing.assert_close(shifted, closed)


def test_mean_probabilities_are_finite_however_far_logits_are_apart() -> None:
    q = laplace.contrasts(3)
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]], dtype=torch.float64)
    probs = laplace.mean_probabilities(q, logits, torch.tensor([[0.0, 1.0], [1e9, 1e9]], dtype=torch.float64))
    assert probs.isfinite().all()
    torch.testing.assert_close(probs[0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(probs[1], torch.full((3,), 1 / 3, dtype=torch.float64))


def test_mutual_information_is_that_of_many_draws() -> None:
    """In the mean over sets of 20 draws, and never negative."""
    generator = torch.Generator().manual_seed(5)
    q = laplace.contrasts(C)
    logits = torch.randn(30, C, generator=generator, dtype=torch.float64)
    variances = 0.2 * torch.rand(30, C - 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(300, 20, C - 1, generator=generator, dtype=torch.float64)
    few = torch.stack([laplace.decomposed(q, logits, variances, each)[1] for each in noise])
    many = laplace.decomposed(q, logits, variances, noise.flatten(0, 1))
    assert float(few.min()) >= 0
    torch.testing.assert_close(few.mean(0), many[1], rtol=0.1, atol=2e-4)
    none = laplace.decomposed(q, logits, 0 * variances, noise[0])
    torch.testing.assert_close(none[1], torch.zeros(30, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(none[0], -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1))
