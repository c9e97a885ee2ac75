"""Methods with Gaussians over weights, FedBE and pFedBayes: moments, divergences and bounds computed in other ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import ADAM, FAST, Federation, assert_same, model
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import norm
from torch import Tensor, nn

from caveat.core import ConfigurationError, Data, Decision, Replies, SiloContext, Tensors, Update, seeded
from caveat.methods import FedAvg, FedBE, PFedBayes
from caveat.methods.fedbe import draws
from caveat.methods.pfedbayes import DrawnNetwork, divergence
from caveat.training.modules import load, snapshot
from caveat.wrappers.privacy import Private


def context(module: nn.Module, x: Tensor, y: Tensor) -> SiloContext:
    data = Data(x, y)
    return SiloContext("s", data, data, data, module)


# DrawnNetwork models


def test_drawn_weights_have_the_gaussian_s_moments_and_are_always_the_same() -> None:
    mean = {"a": torch.tensor([1.0, -2.0]), "count": torch.tensor(3)}
    deviation = {"a": torch.tensor([0.5, 0.0])}
    before = torch.get_rng_state()
    *drawn, last = draws(mean, deviation, 1001)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same({"last": last}, {"last": mean})
    a = torch.stack([each["a"] for each in drawn]).double().numpy()
    assert a[:, 0].mean() == pytest.approx(1, abs=4 * 0.5 / 1000**0.5)
    assert a[:, 0].std() == pytest.approx(0.5, abs=4 * 0.5 / 2000**0.5)
    assert (a[:, 1] == -2).all()
    assert all(each["count"] == 3 for each in drawn)
    assert_same({"first": next(draws(mean, deviation, 2))}, {"first": drawn[0]})


def test_drawn_weights_do_not_depend_on_the_order_of_names() -> None:
    """Tensors read from a file are in another order than those of a module."""
    mean, deviation = {"b": torch.zeros(3), "a": torch.zeros(3)}, {"b": torch.ones(3), "a": torch.ones(3)}
    one, other = (next(draws(each, spread, 2)) for each, spread in (
        (mean, deviation), (dict(sorted(mean.items())), dict(sorted(deviation.items()))),
    ))  # fmt: skip
    assert_same({"drawn": one}, {"drawn": other})


# FedBE


def test_fedbe_trains_the_model_of_fedavg(tmp_path: Path) -> None:
    found, plain = (Federation(each(rounds=3, training=ADAM), tmp_path / each.__name__) for each in (FedBE, FedAvg))
    assert_same({"model": found.run()["model"]}, {"model": plain.run()["model"]})
    assert set(found.done[0].sent) == {"model"}


def test_fedbe_has_the_mean_and_the_variance_of_the_silos_models(tmp_path: Path) -> None:
    method = FedBE(rounds=3, training=ADAM)
    federation = Federation(method, tmp_path)
    before = federation.run(stop=2)
    updates = {}
    for silo in federation.place.silos:
        with seeded(silo):
            updates[silo], _ = method.train(method.start(before), {"model": {}}, federation.place.context(silo))
    after = method.aggregate(before, Replies(updates, 3), federation.context)
    weights = [update.examples for update in updates.values()]
    for name, variance in after["variance"].items():
        models = np.stack([update.payload["model"][name].double().numpy() for update in updates.values()])
        mean = np.average(models, axis=0, weights=weights)
        expected = np.average((models - mean) ** 2, axis=0, weights=weights)
        np.testing.assert_allclose(after["model"][name].numpy(), mean, atol=1e-6)
        np.testing.assert_allclose(variance.numpy(), expected, rtol=1e-3, atol=1e-9)
        assert variance.any()
    assert set(after["variance"]) == {name for name, _ in federation.place.module.named_parameters()}


@pytest.mark.parametrize("count", [1, 4])
def test_a_prediction_is_the_mean_over_the_drawn_models_and_their_mean(count: int, tmp_path: Path) -> None:
    federation = Federation(FedBE(rounds=2, training=ADAM, mc_samples=count), tmp_path)
    server, x = federation.run(), torch.randn(7, 2)
    module, probs = model(), []
    for tensors in draws(server["model"], {k: v.sqrt() for k, v in server["variance"].items()}, count):
        with torch.no_grad():
            probs.append(load(module, tensors).eval()(x).double().softmax(-1))
    found = federation.method.predict(
        federation.method.broadcast(server), {"model": {}}, federation.place.context("silo-0"), x
    )
    torch.testing.assert_close(found.probs, torch.stack(probs).mean(0))
    assert bool((found.epistemic > 0).any()) == (count > 1)


@pytest.mark.parametrize("method", [FedBE(), PFedBayes()])
def test_squares_are_not_covered_by_clipping_and_noise(method: FedBE) -> None:
    with pytest.raises(ConfigurationError, match=f"do not fit '{method.name}'"):
        Private(method, clip_norm=1.0, noise_multiplier=1.0, silos=3)


# pFedBayes


@pytest.mark.parametrize(("mean", "sd", "prior", "deviation"), [(0.3, 0.2, -0.1, 0.5), (1.0, 2.0, 1.0, 0.7)])
def test_the_divergence_is_the_integral_that_defines_it(mean: float, sd: float, prior: float, deviation: float) -> None:
    q, p = norm(mean, sd), norm(prior, deviation)
    expected, _ = quad(lambda w: q.pdf(w) * (q.logpdf(w) - p.logpdf(w)), mean - 12 * sd, mean + 12 * sd)
    found = divergence(*(torch.tensor([each] * 3).double() for each in (mean, np.log(sd), prior, deviation**2)))
    assert float(found) == pytest.approx(3 * expected, rel=1e-6)


def test_the_federation_s_gaussian_minimizes_the_mean_divergence_of_the_silos() -> None:
    method, module = PFedBayes(), nn.Linear(1, 1, bias=False)
    means, deviations, counts = [0.2, -0.5, 0.9], [0.3, 0.1, 0.6], [30, 10, 60]
    start, server = 0.4, {"model": {"weight": torch.tensor([[0.4]])}, "variance": {"weight": torch.tensor([[1.0]])}}
    replies = Replies({
        str(k): Update({"model": {"weight": torch.tensor([[m]])},
                        "squares": {"weight": torch.tensor([[(m - start) ** 2 + s**2]])}}, n)
        for k, (m, s, n) in enumerate(zip(means, deviations, counts, strict=True))
    }, 3)  # fmt: skip
    after = method.aggregate(server, replies, context(module, torch.zeros(0, 1), torch.zeros(0)))

    def mean_divergence(at: np.ndarray) -> float:
        apart = [np.log(np.exp(at[1]) / s) + (s**2 + (m - at[0]) ** 2) / (2 * np.exp(2 * at[1])) - 0.5
                 for m, s in zip(means, deviations, strict=True)]  # fmt: skip
        return float(np.average(apart, weights=counts))

    least = minimize(mean_divergence, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}).x
    assert float(after["model"]["weight"]) == pytest.approx(least[0], abs=1e-5)
    assert float(after["variance"]["weight"].sqrt()) == pytest.approx(np.exp(least[1]), rel=1e-4)


class Squared(PFedBayes):
    """Half the mean squared error of a linear model, whose evidence lower bound has a closed form."""

    def objective(self, module: nn.Module, down: dict[str, Tensors]):  # type: ignore[no-untyped-def]
        return lambda x, y: (module(x)[:, 0] - y).square().mean() / 2


@pytest.mark.parametrize("zeta", [1.0, 5.0])
def test_the_bound_of_a_linear_model_is_the_closed_form_with_its_minimum_at_the_posterior(zeta: float) -> None:
    x, y = torch.linspace(-1, 2, 12).double()[:, None], torch.linspace(0, 1, 12).double()
    prior, variance, n = 0.2, 0.09, len(x)
    module = nn.Linear(1, 1, bias=False).double()
    down = {"model": {"weight": torch.tensor([[prior]]).double()}, "variance": {"weight": torch.tensor([[variance]])}}
    xx, xy = float(x.square().sum()), float((x[:, 0] * y).sum())
    precision = xx / zeta + 1 / variance  # of the posterior, with the likelihood to the power 1 / zeta
    mean, sd = (xy / zeta + prior / variance) / precision, precision**-0.5
    with torch.no_grad():
        module.weight.fill_(mean)
    rho = load(nn.Linear(1, 1, bias=False).double(), {"weight": torch.tensor([[np.log(sd)]]).double()})
    drawn = DrawnNetwork(module, rho)
    loss = Squared(zeta=zeta).bound(drawn, down, context(module, x, y))
    values, slopes = [], []
    with seeded(0):
        for _ in range(400):
            value = loss(x, y)
            slopes.append([float(g) for g in torch.autograd.grad(value, list(drawn.parameters()))])
            values.append(float(value.detach()))
    expected = (float((y - mean * x[:, 0]).square().sum()) + sd**2 * xx) / (2 * n)
    expected += zeta / n * (np.log(variance**0.5 / sd) + (sd**2 + (mean - prior) ** 2) / (2 * variance) - 0.5)
    for found, truth in zip(np.transpose([[v, *s] for v, s in zip(values, slopes, strict=True)]), (expected, 0, 0),
                            strict=True):  # fmt: skip
        assert found.mean() == pytest.approx(truth, abs=4 * found.std() / 400**0.5 + 1e-9)


def test_a_silo_keeps_its_gaussian_and_sends_its_moments(tmp_path: Path) -> None:
    method = PFedBayes(rounds=2, training=FAST, deviation=0.02)
    federation = Federation(method, tmp_path)
    before = method.broadcast(federation.server)
    silo, x = federation.place.context("silo-1"), torch.randn(5, 2)
    assert set(method.answer(before, {}, silo, x)) == {Decision.GLOBAL}
    with seeded(1):
        update, state = method.train(before, {}, silo)
    assert_same({"own": state["own"]}, {"own": update.payload["model"]})
    for name, rho in state["rho"].items():
        moved = state["own"][name] - before["model"][name]
        torch.testing.assert_close(update.payload["squares"][name], moved.square() + rho.exp().square())
        assert moved.any() or name == "encoder.0.bias"  # which the BatchNorm after it cancels
        assert rho.exp().mean() == pytest.approx(0.02, rel=0.2)
    answers = method.answer(before, state, silo, x)
    drawn = draws(state["own"], {k: v.exp() for k, v in state["rho"].items()}, method.mc_samples)
    expected = [load(model(), each).eval()(x).double().softmax(-1) for each in drawn]
    torch.testing.assert_close(answers[Decision.LOCAL].probs, torch.stack(expected).mean(0).detach())


def test_a_heavy_divergence_keeps_silos_at_the_federation_s_gaussian() -> None:
    module = model()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 2, generator=generator)
    silo, moved = context(module, x, (x[:, 0] > 0).long()), []
    for zeta in (0.0, 1e4):
        method = PFedBayes(training=replace(ADAM, local_epochs=8, lr=0.003), zeta=zeta)
        with seeded(0):
            load(module, snapshot(model()))
            start = method.broadcast(method.init_server(silo))
            _, state = method.train(start, {}, silo)
        apart = [(state["own"][name] - start["model"][name]).square().sum() for name in state["rho"]]
        moved.append(float(torch.stack(apart).sum().sqrt()))
    assert moved[1] < moved[0] / 2
