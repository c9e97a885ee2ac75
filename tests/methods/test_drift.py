"""Methods against the drift of silos, MOON, FedDyn and FedDC: one reference value or invariant per formula."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from federations import ADAM, FAST, Federation, assert_same, model, silos
from torch import Tensor, nn

from caveat.core import ConfigurationError, Data, Replies, SiloContext, State, Tensors, Update, seeded
from caveat.engines.rounds import Participation
from caveat.methods import MOON, SCAFFOLD, FedAvg, FedDC, FedDyn, FedProx
from caveat.methods.moon import representations
from caveat.training.fit import Training
from caveat.training.modules import load, snapshot

LR, STEPS, ALPHA = 0.2, 3, 0.3
DESCENT = Training(local_steps=STEPS, batch_size=1000, optimizer="sgd", lr=LR)
"""A few steps of gradient descent on all data."""
COHORTS = ["abc", "ab", "ac", "abc"]


def examples(k: int) -> Data:
    """Silo k's inputs lie elsewhere, and most have a label that few have at another silo."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(30, 2, generator=generator) + torch.tensor([k, -k])
    usual = torch.rand(30, generator=generator) < 0.8
    return Data(x, torch.where(usual, k % 3, torch.randint(3, (30,), generator=generator)))


DATA = {name: examples(k) for k, name in enumerate("abc")}


def context(net: nn.Module, data: Data, round: int = 0) -> SiloContext:
    return SiloContext("s", data, data, data, net, round=round)


def federated(
    method: FedAvg, cohorts: list[str], data: dict[str, Data], state: dict[str, State] | None = None
) -> list[Tensors]:
    """The models after each round of softmax regression, whose cohorts are given by the silos' names."""
    net = linear()
    state = {} if state is None else state
    server, models = method.init_server(context(net, data["a"])), []
    for t, cohort in enumerate(cohorts):
        updates = {}
        for name in cohort:
            kept = state.get(name) or method.init_silo(context(net, data[name]))
            updates[name], state[name] = method.train(method.broadcast(server), kept, context(net, data[name], t))
        server = method.aggregate(server, Replies(updates, len(data)), context(net, data["a"]))
        models.append(server["model"])
    return models


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2, 3)


def flat(tensors: Tensors) -> Tensor:
    """(9,) weights and biases of softmax regression, in float64."""
    return torch.cat([tensors["weight"].flatten(), tensors["bias"]]).double()


def loss(theta: Tensor, data: Data) -> Tensor:
    return F.cross_entropy(data.x.double() @ theta[:6].view(3, 2).T + theta[6:], data.y)


def descent(objective, theta: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """A silo's steps on all of its objective, by automatic differentiation."""
    for _ in range(STEPS):
        theta = theta.detach().requires_grad_()
        theta = theta - LR * torch.autograd.grad(objective(theta), theta)[0]
    return theta.detach()


def assert_models(found: list[Tensors], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(flat(one), other, atol=2e-6, rtol=2e-5)


# FedDyn


def test_feddyn_is_algorithm_1_of_its_paper_with_silos_missing() -> None:
    w, h, expected = flat(snapshot(linear())), torch.zeros(9, dtype=torch.float64), []
    g = {name: torch.zeros(9, dtype=torch.float64) for name in DATA}
    for cohort in COHORTS:
        theta = {}
        for k in cohort:
            theta[k] = descent(lambda x: loss(x, DATA[k]) - g[k] @ x + ALPHA / 2 * (x - w).square().sum(), w)  # noqa: B023
            g[k] = g[k] - ALPHA * (theta[k] - w)
        h = h - ALPHA / len(DATA) * sum(theta[k] - w for k in cohort)
        w = sum(theta.values()) / len(cohort) - h / ALPHA  # type: ignore[assignment]
        expected.append(w)
    assert_models(federated(FedDyn(training=DESCENT, alpha=ALPHA), COHORTS, DATA), expected)


def test_feddyn_begins_with_fedprox_and_twice_the_mean_step() -> None:
    net, training = model(), replace(FAST, local_steps=4)
    w = snapshot(net)
    method, data = FedDyn(training=training, alpha=0.5), {name: s.train for name, s in silos().items()}
    server = method.init_server(context(net, data["silo-0"]))
    updates = {}
    for name, part in data.items():
        with seeded(name):
            proximal, _ = FedProx(training=training, mu=0.5).train({"model": w}, {"model": {}}, context(net, part))
        with seeded(name):
            start = method.init_silo(context(net, part))
            updates[name], _ = method.train(method.broadcast(server), start, context(net, part))
        for tensor, tensor_prox in zip(
            updates[name].payload["model"].values(), proximal.payload["model"].values(), strict=True
        ):
            torch.testing.assert_close(tensor, tensor_prox)
    after = method.aggregate(server, Replies(updates, 3), context(net, data["silo-0"]))["model"]
    for name, _ in net.named_parameters():
        mean = torch.stack([u.payload["model"][name] for u in updates.values()]).mean(0)
        torch.testing.assert_close(after[name], 2 * mean - w[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", [
    FedDyn(rounds=5, training=FAST, alpha=0.1), FedDyn(rounds=5, training=ADAM, alpha=0.1),
    FedDC(rounds=5, training=FAST, alpha=0.1),
])  # fmt: skip
def test_what_the_server_sums_up_is_the_mean_over_all_silos_in_the_cohort_or_not(
    method: FedAvg, tmp_path: Path
) -> None:
    federation = Federation(method, tmp_path)
    server = federation.run(participation=Participation(0, share=0.6))
    states = federation.states().values()
    assert {len(done.cohort) for done in federation.done} == {2}
    for group in set(server) - {"model"}:
        for name, summed in server[group].items():
            mean = torch.stack([state[group][name] for state in states]).mean(0)
            torch.testing.assert_close(summed, mean, atol=1e-6, rtol=1e-4)
        assert any(summed.abs().max() > 1e-3 for summed in server[group].values())
    assert len(server) > 1


@pytest.mark.parametrize("method", [FedDyn(), FedDC()])
def test_statistics_of_batchnorm_are_averaged_by_examples(method: FedAvg) -> None:
    net = model()
    server = method.init_server(context(net, DATA["a"]))
    updates = {}
    for name, value, examples in (("a", 1.0, 30), ("b", 5.0, 10)):
        sent = server["model"] | {"encoder.1.running_mean": torch.full((6,), value)}
        payload = {"model": sent, "control": server.get("control", {})}
        updates[name] = Update(payload, examples)
    after = method.aggregate(server, Replies(updates, 2), context(net, DATA["a"]))["model"]
    assert after["encoder.1.running_mean"].tolist() == [2.0] * 6


# FedDC


def test_feddc_is_algorithm_1_of_its_paper_with_silos_missing() -> None:
    w, expected = flat(snapshot(linear())), []
    h = {name: torch.zeros(9, dtype=torch.float64) for name in DATA}
    last, rate = {name: torch.zeros(9, dtype=torch.float64) for name in DATA}, LR * STEPS
    for cohort in COHORTS:
        theta, before = {}, dict(last)
        g = sum(before.values()) / len(DATA)
        for k in cohort:
            correction = before[k] - g

            def objective(x: Tensor) -> Tensor:
                pull = (x - (w - h[k])).square().sum()  # noqa: B023
                return loss(x, DATA[k]) + ALPHA / 2 * pull + x @ correction / rate  # noqa: B023

            theta[k] = descent(objective, w)
            h[k] = h[k] + theta[k] - w
            last[k] = theta[k] - w + correction  # the update that the silo would have made without it
        w = sum(theta.values()) / len(cohort) + sum(h.values()) / len(DATA)  # type: ignore[assignment]
        expected.append(w)
    assert_models(federated(FedDC(training=DESCENT, alpha=ALPHA), COHORTS, DATA), expected)


def test_feddc_with_all_silos_averages_models_with_their_drift() -> None:
    net, state = linear(), {}
    method = FedDC(training=DESCENT, alpha=ALPHA)
    server = method.init_server(context(net, DATA["a"]))
    for _ in range(3):
        updates = {}
        for name, data in DATA.items():
            kept = state.get(name) or method.init_silo(context(net, data))
            updates[name], state[name] = method.train(method.broadcast(server), kept, context(net, data))
        server = method.aggregate(server, Replies(updates, 3), context(net, DATA["a"]))
        ends = [flat(updates[name].payload["model"]) + flat(state[name]["drift"]) for name in DATA]
        torch.testing.assert_close(flat(server["model"]), sum(ends) / 3, atol=1e-6, rtol=1e-5)


def test_feddc_of_silos_with_the_same_data_is_feddyn() -> None:
    """The silos' updates are then their mean, and the correction, by which the two differ, is nothing."""
    data = dict.fromkeys("abc", DATA["b"])
    drifting = federated(FedDC(training=DESCENT, alpha=ALPHA), ["abc"] * 4, data)
    dynamic = federated(FedDyn(training=DESCENT, alpha=ALPHA), ["abc"] * 4, data)
    assert_models(drifting, [flat(tensors) for tensors in dynamic])


def test_feddc_without_penalty_trains_as_scaffold() -> None:
    training = replace(FAST, local_epochs=2, lr_decay=0.5)
    net = model()
    start = snapshot(net)
    generator = torch.Generator().manual_seed(0)
    c, c_k, h_k = (
        {name: torch.randn(p.shape, generator=generator) for name, p in net.named_parameters()} for _ in range(3)
    )
    where = context(net, silos()["silo-0"].train, round=2)
    down, state = {"model": start, "control": c}, {"model": {}, "control": c_k}
    with seeded(0):
        expected, after = SCAFFOLD(training=training).train(down, state, where)
    with seeded(0):
        update, drifted = FedDC(training=training, alpha=0).train(down, state | {"drift": h_k}, where)
    for group in ("model", "control"):
        for name, tensor in expected.payload[group].items():
            torch.testing.assert_close(update.payload[group][name], tensor, atol=1e-5, rtol=1e-5)
    for name, control in after["control"].items():
        torch.testing.assert_close(drifted["control"][name], control, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bad", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9}])
def test_feddc_refuses_optimisers_whose_steps_are_no_gradients(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="feddc needs"):
        FedDC(training=Training(**bad))  # type: ignore[arg-type]


@pytest.mark.parametrize("cohorts", [["abc"] * 40, ["ab", "bc", "ca"] * 14])
@pytest.mark.parametrize("method", [FedDyn(alpha=0.3), FedDC(alpha=0.3)])
def test_silos_that_contradict_each_other_are_led_to_the_optimum_of_their_mean_loss(
    method: FedAvg, cohorts: list[str]
) -> None:
    training = replace(DESCENT, local_steps=5)

    def slope(method: FedAvg) -> float:
        theta = flat(federated(replace(method, training=training), cohorts, DATA)[-1]).requires_grad_()
        return float(torch.autograd.grad(sum(loss(theta, part) for part in DATA.values()) / 3, theta)[0].norm())

    assert slope(method) < 0.003
    assert slope(FedAvg()) > 0.05


# MOON


@pytest.mark.parametrize(("z_glob", "z_prev", "expected"), [
    ([1, 0], [0, 3], math.log(1 + math.exp(-2))),
    ([-2, 0], [1, 0], math.log(1 + math.exp(4))),
    ([0, 1], [0, -1], math.log(2)),
    ([1, 1], [1, 1], math.log(2)),
])  # fmt: skip
def test_moon_contrast_is_a_cross_entropy_of_cosines_over_tau(
    z_glob: list[float], z_prev: list[float], expected: float
) -> None:
    z, other, previous = (torch.tensor([v], dtype=torch.float64) for v in ([5.0, 0.0], z_glob, z_prev))
    assert MOON(temperature=0.5).contrast(z, other, previous).item() == pytest.approx(expected)


def test_moon_with_mu_0_is_fedavg_and_so_is_its_first_round(tmp_path: Path) -> None:
    def after(method: FedAvg, rounds: int) -> State:
        return Federation(replace(method, rounds=rounds), tmp_path / f"{method.name}-{rounds}").run()

    assert_same(after(MOON(training=FAST, mu=0), 3), after(FedAvg(training=FAST), 3))
    assert_same(after(MOON(training=FAST, mu=5), 1), after(FedAvg(training=FAST), 1))
    far, near = after(MOON(training=FAST, mu=5), 2), after(FedAvg(training=FAST), 2)
    assert (far["model"]["head.1.weight"] - near["model"]["head.1.weight"]).abs().max() > 1e-3


def test_moon_steps_along_the_gradient_of_cross_entropy_and_contrast() -> None:
    data = silos()["silo-0"].train
    mu, tau, lr = 3.0, 0.4, 0.1
    now, glob, prev = model(1), model(1).eval(), model(2).eval()
    with seeded(0):
        order = torch.randperm(len(data))
        x, y = data.x[order], data.y[order]
        cross_entropy = F.cross_entropy(now.train()(x), y)
    z, z_glob, z_prev = (net.head.hidden(net.encoder(x)) for net in (now, glob, prev))
    positive = (F.cosine_similarity(z, z_glob.detach()) / tau).exp()
    negative = (F.cosine_similarity(z, z_prev.detach()) / tau).exp()
    (cross_entropy - mu * (positive / (positive + negative)).log().mean()).backward()
    expected = {name: p.detach() - lr * p.grad for name, p in now.named_parameters() if p.grad is not None}

    method = MOON(training=Training(local_steps=1, batch_size=1000, optimizer="sgd", lr=lr), mu=mu, temperature=tau)
    down, kept, where = {"model": snapshot(glob)}, {"model": {}, "previous": snapshot(prev)}, context(model(3), data)
    with seeded(0):
        update, state = method.train(down, kept, where)
    for name, tensor in expected.items():
        torch.testing.assert_close(update.payload["model"][name], tensor, atol=1e-6, rtol=1e-5)
    assert update.payload["model"]["encoder.1.num_batches_tracked"] == 1
    assert_same({"previous": state["previous"]}, {"previous": update.payload["model"]})


def test_moon_contrasts_what_the_models_say_in_evaluation_before_dropout() -> None:
    net, x = model(), silos()["silo-0"].train.x
    net.encoder[1].running_mean.fill_(0.7)  # type: ignore[index,union-attr]
    z = representations(net.train(), x)
    assert z.shape == (len(x), 8)
    assert not z.requires_grad
    reference = deepcopy(net).eval()
    torch.testing.assert_close(reference.head.output(z), reference(x))
    load(net, snapshot(reference))
    torch.testing.assert_close(representations(net, x[:5]), z[:5])


def test_moon_keeps_a_silo_s_last_model_until_its_next_round(tmp_path: Path) -> None:
    class Seen(MOON):
        """Replies are kept, to be looked at."""

        linear = None

    federation = Federation(Seen(rounds=4, training=FAST), tmp_path)
    federation.run(participation=Participation(1, share=0.4))
    last = {name: u.payload["model"] for done in federation.done for name, u in done.replies.updates.items()}
    states = federation.states()
    assert {name for name, state in states.items() if "previous" in state} == set(last)
    for name, sent in last.items():
        assert_same({"model": states[name]["previous"]}, {"model": sent})
