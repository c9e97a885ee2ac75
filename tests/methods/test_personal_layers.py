"""Ditto, FedRoD and FedALA, whose silos keep a model beside the federation's: a reference value per formula."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from federations import FAST, Federation, assert_same, model, silos
from torch import Tensor, nn

from caveat.core import ConfigurationError, Data, Decision, SiloContext, Tensors
from caveat.methods import Ditto, FedALA, FedAvg, FedRoD, Local
from caveat.methods.fedrod import balanced_softmax
from caveat.training.fit import Training
from caveat.training.modules import load, snapshot

LR = 0.2
ONE_STEP = Training(local_steps=1, batch_size=1000, optimizer="sgd", lr=LR)
"""One step of gradient descent on all data."""
NAMES = ("0.weight", "0.bias")


def linear(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3))


def examples(count: int = 40, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(torch.randn(count, 2, generator=generator), torch.randint(3, (count,), generator=generator))


def context(module: nn.Module, data: Data | None = None) -> SiloContext:
    data = data or examples()
    return SiloContext("s", data, data, data, module)


def gradient(w: Tensors, data: Data, y: Tensor | None = None, shift: Tensor | float = 0.0) -> Tensors:
    """The gradient of softmax regression's mean cross-entropy, by its formula, with something added to the logits."""
    logits = data.x @ w["0.weight"].T + w["0.bias"] + shift
    residual = logits.softmax(-1) - F.one_hot(data.y if y is None else y, 3)
    return {"0.weight": residual.T @ data.x / len(data), "0.bias": residual.mean(0)}


def assert_close(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=1e-6, rtol=1e-5)


# Ditto


def test_ditto_steps_along_its_own_gradient_and_back_to_what_was_broadcast() -> None:
    data, w, v = examples(), snapshot(linear(1)), snapshot(linear(2))
    update, state = Ditto(training=ONE_STEP, lam=0.7).train({"model": w}, {"own": v}, context(linear(), data))
    g, h = gradient(w, data), gradient(v, data)
    assert_close(update.payload["model"], {name: w[name] - LR * g[name] for name in NAMES})
    assert_close(state["own"], {name: v[name] - LR * (h[name] + 0.7 * (v[name] - w[name])) for name in NAMES})


def test_ditto_without_lambda_is_local_at_every_silo(tmp_path: Path) -> None:
    data, method = {name: silo.train for name, silo in silos().items()}, Ditto(training=ONE_STEP, lam=0.0)
    start = snapshot(linear())
    own: dict[str, Tensors] = {}
    alone = dict.fromkeys(data, start)
    down = {"model": start}
    for _ in range(3):
        sent = {}
        for name, part in data.items():
            state = {"own": own[name]} if name in own else {}
            update, after = method.train(down, state, context(linear(), part))
            own[name], sent[name] = after["own"], update.payload["model"]
            _, kept = Local(training=ONE_STEP).train({"model": {}}, {"model": alone[name]}, context(linear(), part))
            alone[name] = kept["model"]
        down = {"model": {name: torch.stack([each[name] for each in sent.values()]).mean(0) for name in NAMES}}
    for name, theirs in alone.items():
        assert_close(own[name], theirs)
    assert not torch.allclose(own["silo-0"]["0.weight"], down["model"]["0.weight"], atol=1e-3)


def test_ditto_s_federation_is_fedavg_s(tmp_path: Path) -> None:
    ours = Federation(Ditto(rounds=3, training=FAST, lam=2.0), tmp_path / "ditto").run()
    assert_same(ours, Federation(FedAvg(rounds=3, training=FAST), tmp_path / "fedavg").run())


# FedRoD


def test_balanced_softmax_is_that_of_its_paper_and_leaves_absent_classes_alone() -> None:
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    y, n = torch.tensor([0, 1, 1, 0, 2, 2]), [7, 2, 1, 0]
    terms = []
    for row, c in zip(logits.tolist(), y.tolist(), strict=True):
        terms.append(n[c] * math.exp(row[c]) / sum(m * math.exp(value) for m, value in zip(n, row, strict=True)))
    loss = balanced_softmax(logits, y, torch.tensor(n))
    assert loss.item() == pytest.approx(-sum(map(math.log, terms)) / 6, rel=1e-12)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert not logits.grad[:, 3].any()
    assert logits.grad[:, :3].all()
    even = torch.full((4,), 3)
    assert balanced_softmax(logits, y, even).item() == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-12)


def test_fedrod_steps_along_both_gradients_each_for_its_own_layer() -> None:
    data, w = examples(), snapshot(linear(1))
    data = Data(data.x, data.y.clamp_max(1) * 2)  # classes 0 and 2, unequally often
    layer = {"weight": torch.full((3, 2), 0.3), "bias": torch.tensor([0.1, 0.0, -0.2])}
    method = FedRoD(training=ONE_STEP)
    update, state = method.train({"model": w}, {"layer": layer}, context(linear(), data))
    shift = torch.bincount(data.y, minlength=3).log()
    generic = gradient(w, data, shift=shift)
    added = {"0.weight": w["0.weight"] + layer["weight"], "0.bias": w["0.bias"] + layer["bias"]}
    own = gradient(added, data)
    assert_close(update.payload["model"], {name: w[name] - LR * generic[name] for name in NAMES})
    assert_close(state["layer"], {name: tensor - LR * own[f"0.{name}"] for name, tensor in layer.items()})


def test_fedrod_s_body_learns_from_the_balanced_loss_alone(tmp_path: Path) -> None:
    """A silo's own layer moves nothing that is sent: another one gives the same bits of it."""
    net, data = model(), silos()["silo-0"].train
    down, method = {"model": snapshot(net)}, FedRoD(training=FAST)
    sent = []
    for value in (0.0, 3.0):
        layer = {"weight": torch.full((3, 8), value), "bias": torch.full((3,), -value)}
        torch.manual_seed(0)
        update, _ = method.train(down, {"layer": layer}, context(model(), data))
        sent.append(update.payload)
    assert_same(*sent)


def test_fedrod_answers_with_the_sum_of_logits_and_with_the_generic_ones(tmp_path: Path) -> None:
    method = FedRoD(rounds=2, training=FAST, mc_samples=3)
    federation = Federation(method, tmp_path)
    where = federation.place.context("silo-1")
    x = where.validation.x
    assert set(method.answer(method.broadcast(federation.server), {}, where, x)) == {Decision.GLOBAL}
    down, state = method.broadcast(federation.run()), federation.states()["silo-1"]
    says = dict.fromkeys(Decision, torch.zeros(0))
    for whose, module in method.loaded(down, state, where):
        says[whose] = module.eval()(x).detach()
    net = load(model(), down["model"]).eval()
    hidden = net.head.hidden(net.encoder(x)).detach()
    torch.testing.assert_close(says[Decision.GLOBAL], net(x).detach())
    own = hidden @ state["layer"]["weight"].T + state["layer"]["bias"]
    torch.testing.assert_close(says[Decision.LOCAL], says[Decision.GLOBAL] + own, atol=1e-5, rtol=1e-5)
    assert own.abs().max() > 0.01
    answers = method.answer(down, state, where, x)
    assert set(answers) == {Decision.GLOBAL, Decision.LOCAL}


class Pooled(nn.Module):
    """Says the mean of a linear layer's logits over two halves of its hidden units."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(2, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.body(x).view(-1, 2, 4)).mean(1)
        return logits


def test_fedrod_refuses_a_model_that_does_not_end_in_a_linear_layer(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fedrod needs a model that ends in a trainable linear layer"):
        Federation(FedRoD(rounds=1), tmp_path, model=Pooled)


# FedALA


def test_fedala_steps_along_the_gradient_of_its_mixture_and_cuts_to_0_and_1() -> None:
    data, w, v = examples(), snapshot(linear(1)), snapshot(linear(2))
    method = FedALA(training=replace(ONE_STEP, lr=1e-9), upper="all", eta=2.0, share=1.0)
    weights = {"0.weight": torch.full((3, 2), 0.4), "0.bias": torch.tensor([0.0, 0.5, 1.0])}
    _, state = method.train({"model": w}, {"own": v, "weights": weights}, context(linear(), data))
    mixed = {name: v[name] + (w[name] - v[name]) * weights[name] for name in NAMES}
    g = gradient(mixed, data)
    steps = {name: weights[name] - 2.0 * g[name] * (w[name] - v[name]) for name in NAMES}
    after = {name: step.clamp(0, 1) for name, step in steps.items()}
    assert_close(state["weights"], after)
    assert any((step < 0).any() or (step > 1).any() for step in steps.values())
    assert_close(state["own"], {name: v[name] + (w[name] - v[name]) * after[name] for name in NAMES})


def test_fedala_without_a_rate_is_fedavg_and_its_first_round_is(tmp_path: Path) -> None:
    plain = Federation(FedAvg(rounds=1, training=FAST), tmp_path / "fedavg").run()
    assert_same(Federation(FedALA(rounds=1, training=FAST), tmp_path / "first").run(), plain)
    data, w, v = examples(), snapshot(linear(1)), snapshot(linear(2))
    update, _ = FedALA(training=ONE_STEP, eta=0.0).train({"model": w}, {"own": v}, context(linear(), data))
    g = gradient(w, data)
    assert_close(update.payload["model"], {name: w[name] - LR * g[name] for name in NAMES})


def test_fedala_takes_lower_layers_from_the_federation_and_mixes_the_last() -> None:
    net, data = model(), silos()["silo-0"].train
    w, v = snapshot(model(1)), snapshot(model(2))
    weights = {"head.4.weight": torch.full((3, 8), 0.25), "head.4.bias": torch.full((3,), 0.25)}
    method = FedALA(training=FAST, eta=0.0)
    names = list(weights)
    assert method.mixed(net) == names
    load(net, w)
    method.mix(w, {"own": v, "weights": weights}, context(net, data))
    found = snapshot(net)
    assert_same({"model": {n: t for n, t in found.items() if n not in names}},
                {"model": {n: t for n, t in w.items() if n not in names}})  # fmt: skip
    for name in names:
        torch.testing.assert_close(found[name], 0.75 * v[name] + 0.25 * w[name])


def test_fedala_learns_until_its_loss_has_settled_at_first_and_in_one_pass_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes, original = list[float](), FedALA.one_pass

    def counted(self: FedALA, *given: object) -> tuple[Tensors, float]:
        weights, loss = original(self, *given)  # type: ignore[arg-type]
        passes.append(loss)
        return weights, loss

    monkeypatch.setattr(FedALA, "one_pass", counted)
    method, w, v = FedALA(training=ONE_STEP), snapshot(linear(1)), snapshot(linear(2))
    where = context(linear(), Data(examples().x, torch.zeros(40, dtype=torch.long)))
    load(where.module, w)
    weights = method.mix(w, {"own": v}, where)
    assert len(passes) >= 10
    assert torch.tensor(passes[-10:]).std(correction=0) < 0.1
    assert passes[-1] <= passes[0]
    passes.clear()
    load(where.module, w)
    method.mix(w, {"own": v, "weights": weights}, where)
    assert len(passes) == 1
