"""Methods that leave a silo with a model of its own: one reference value or invariant per formula."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from federations import FAST, Federation, assert_same, flat, model, silos
from torch import Tensor, nn

from caveat.core import ConfigurationError, Data, Decision, Method, Silo, SiloContext, Tensors, seeded
from caveat.methods import APFL, FedAvg, FedBABU, FedBN, FedPer, FedRep, PerFedAvg
from caveat.methods.fedbabu import fit_alone
from caveat.training.fit import Training
from caveat.training.modules import load, names_below, snapshot

ONE_STEP = Training(local_steps=1, batch_size=1000, optimizer="sgd", lr=0.2)
"""One step of gradient descent on all data."""


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(2, 3)


def examples(count: int, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    return Data(x, torch.randint(3, (count,), generator=generator))


def context(module: nn.Module, data: Data | None = None) -> SiloContext:
    data = data or silos()["silo-0"].train
    return SiloContext("silo-0", data, data, data, module)


def gradient(w: Tensors, data: Data) -> Tensors:
    """The gradient of softmax regression's mean cross-entropy, by its formula."""
    residual = (data.x @ w["weight"].T + w["bias"]).softmax(-1) - F.one_hot(data.y, 3)
    return {"weight": residual.T @ data.x / len(data), "bias": residual.mean(0)}


def stepped(w: Tensors, along: Tensors, by: float) -> Tensors:
    return {name: w[name] - by * along[name] for name in w}


def changed(one: Tensors, other: Tensors) -> set[str]:
    """Names of the tensors of which any bit differs."""
    assert one.keys() == other.keys()
    return {name for name, tensor in one.items() if not torch.equal(tensor, other[name])}


def distance(one: Tensors, other: Tensors) -> float:
    return float(torch.cat([(one[name] - other[name]).flatten() for name in one]).norm())


def slope(w: Tensors, v: Tensors, g: Tensors) -> float:
    """<v - w, g>, the derivative by alpha of a function of alpha v + (1 - alpha) w whose gradient is g."""
    return sum(float(((v[name] - w[name]) * g[name]).sum()) for name in w)


def assert_close(one: Tensors, other: Tensors, **tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], **tolerance)


BODY = {"encoder.0.weight", "encoder.1.weight", "encoder.1.running_mean", "encoder.1.running_var", "encoder.3.weight"}
"""Tensors of the test federation's body that any training moves; a bias before BatchNorm has no gradient."""


def opposites() -> dict[str, Silo]:
    """Two silos with the same inputs that call everything by the other's label."""
    generator = torch.Generator().manual_seed(5)
    parts = []
    for _ in range(4):
        x = torch.randn(150, 2, generator=generator)
        parts.append(Data(x, (x[:, 0] > 0).long()))
    swapped = [Data(x, 1 - y) for x, y in parts]
    return {"a": Silo("a", "", *parts), "b": Silo("b", "", *swapped)}


@pytest.mark.parametrize("method", [
    FedPer(rounds=8), FedRep(rounds=8, head_epochs=3), FedBABU(rounds=8), APFL(rounds=8),
    FedBABU(rounds=8, fine_tune="head", fine_tune_epochs=20), PerFedAvg(rounds=8, adapt_lr=0.5, adapt_steps=10),
    PerFedAvg(rounds=8, order="hessian-free", adapt_lr=0.5, adapt_steps=10),
])  # fmt: skip
@pytest.mark.long
def test_silos_that_contradict_each_other_are_served_by_models_of_their_own(method: FedAvg, tmp_path: Path) -> None:
    data = opposites()

    def accuracy(method: Method, folder: Path, whose: Decision) -> float:
        federation = Federation(method, folder, data=data)
        down = method.broadcast(federation.run())
        right = []
        for name, state in federation.states().items():
            answers = method.answer(down, state, data[name].context(federation.place.module), data[name].test.x)
            right.append((answers[whose].label == data[name].test.y).double().mean())
        return float(min(right))

    training = Training(local_epochs=2, batch_size=16, lr=0.01)
    federated = accuracy(FedAvg(rounds=8, training=training), tmp_path / "fedavg", Decision.GLOBAL)
    assert federated < 0.6
    assert accuracy(replace(method, training=training), tmp_path / "own", Decision.LOCAL) > 0.85


# FedPer and FedRep


def test_the_head_is_the_part_called_head_and_no_part_that_is_called_so_elsewhere() -> None:
    net = nn.Module()
    net.encoder, net.head, net.header = nn.Module(), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.Linear(2, 2)
    net.encoder.head = nn.Linear(2, 2)
    statistics = {f"head.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert FedPer().private(net) == {"head.0.weight", "head.0.bias"} | statistics
    with pytest.raises(ConfigurationError, match="fedper needs a model with a head, but Linear has no module"):
        FedPer().private(nn.Linear(2, 3))


@pytest.mark.parametrize("method", [FedPer(), FedRep(), FedBABU()], ids=["fedper", "fedrep", "fedbabu"])
def test_a_head_after_a_frozen_encoder_leaves_nothing_to_share(method: FedPer | FedBABU) -> None:
    net = nn.Module()
    net.encoder, net.head = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert method.private(net) == {"head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"}
    net.encoder.requires_grad_(False)
    with pytest.raises(ConfigurationError, match=r"leaves fed.* no parameters to share.* set model.adapter"):
        method.private(net)
    assert replace(method, stays="last").private(net) == {"head.2.weight", "head.2.bias"}
    assert method.private(net.requires_grad_(False)) >= {"head.0.weight"}  # a module that only predicts


def test_fedper_of_one_silo_is_fedavg(tmp_path: Path) -> None:
    data = silos(1)
    probs = []
    for method in (FedPer(rounds=3, training=FAST), FedAvg(rounds=3, training=FAST)):
        federation = Federation(method, tmp_path / method.name, data=data)
        down = method.broadcast(federation.run())
        where = data["silo-0"].context(federation.place.module)
        probs.append(method.predict(down, federation.states()["silo-0"], where, where.validation.x).probs)
    assert torch.equal(*probs)


def test_fedper_trains_body_and_head_together() -> None:
    """One silo's round is FedAvg's, cut in two."""
    net = model()
    start, head = snapshot(net), names_below(net, "head")
    with seeded(0):
        whole, _ = FedAvg(training=FAST).train({"model": start}, {"model": {}}, context(net))
    method = FedPer(training=FAST)
    load(net, start)
    down, state = method.broadcast(method.init_server(context(net))), method.init_silo(context(net))
    with seeded(0):
        update, after = method.train(down, state, context(net))
    assert set(after["model"]) == head
    assert_same({"model": update.payload["model"] | after["model"]}, whole.payload)


def test_fedrep_fits_the_head_to_the_body_that_was_sent_and_then_the_body_to_that_head() -> None:
    method = FedRep(training=FAST, head_epochs=3)
    net = model()
    start, head = snapshot(net), names_below(net, "head")
    down, state = method.broadcast(method.init_server(context(net))), method.init_silo(context(net))
    with seeded(0):
        update, after = method.train(down, state, context(net))
    load(net, start)
    learnt = frozenset(name for name, _ in net.named_parameters())
    with seeded(0):
        replace(FAST, local_epochs=3).fit(context(net), method.objective(net, down), frozen=learnt - head)
        fitted = snapshot(net)
        method.training.fit(context(net), method.objective(net, down), frozen=head)
    assert changed(fitted, start) & learnt == head
    assert_same({"head": after["model"]}, {"head": {name: fitted[name] for name in head}})
    body = {name: tensor for name, tensor in snapshot(net).items() if name not in head}
    assert_same(update.payload, {"model": body})
    assert changed(body, {name: start[name] for name in body}) >= BODY


# FedBABU


def test_fedbabu_keeps_its_initial_head_to_the_bit_until_silos_fine_tune(tmp_path: Path) -> None:
    method = FedBABU(rounds=4, training=FAST)
    federation = Federation(method, tmp_path)
    start, head = federation.server["model"], names_below(federation.place.module, "head")
    federation.run(stop=4)
    assert not any("own" in state for state in federation.states().values())
    down = method.broadcast(federation.server)
    where = federation.place.silos["silo-0"].context(federation.place.module)
    before = method.answer(down, {}, where, where.validation.x)
    assert set(before) == {Decision.GLOBAL}
    server = federation.run(start=4)
    moved = changed(server["model"], start)
    assert moved >= BODY
    assert not moved & head
    assert all(path.startswith("model/encoder.") for path in flat(federation.done[0].replies.updates["silo-0"].payload))
    after = method.answer(down, federation.states()["silo-0"], where, where.validation.x)
    assert torch.equal(after[Decision.GLOBAL].probs, before[Decision.GLOBAL].probs)
    assert not torch.allclose(after[Decision.LOCAL].probs, before[Decision.GLOBAL].probs, atol=1e-3)


def test_fedbabu_trains_the_body_under_the_head_that_was_sent() -> None:
    method = FedBABU(training=FAST)
    net = model()
    start, head = snapshot(net), names_below(net, "head")
    with seeded(0):
        method.training.fit(context(net), method.objective(net, {}), frozen=head)
    expected = {name: tensor for name, tensor in snapshot(net).items() if name not in head}
    with seeded(0):
        update, _ = method.train({"model": start}, {}, context(net))
    assert_same(update.payload, {"model": expected})


@pytest.mark.parametrize("part", ["all", "head"])
def test_fedbabu_fine_tunes_a_copy_of_all_or_of_the_head_alone(part: str) -> None:
    method = FedBABU(training=FAST, fine_tune=part)  # type: ignore[arg-type]
    net = model()
    start, head = snapshot(net), names_below(net, "head")
    update, state = method.personalise({"model": start}, {"other": {"x": torch.ones(1)}}, context(net))
    assert not flat(update.payload)
    assert set(state) == {"own", "other"}
    moved = changed(state["own"], start)
    assert moved >= BODY | head if part == "all" else moved == head


def test_fedbabu_fine_tunes_a_head_to_the_features_that_it_will_predict_from() -> None:
    net = model()
    net.head = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    net.encoder[1].running_mean.fill_(0.7)
    reference = deepcopy(net).eval()
    where = context(net)
    fit_alone(ONE_STEP, where, lambda x, y: F.cross_entropy(net(x), y), "head")
    features = Data(reference.encoder(where.train.x).flatten(1).detach(), where.train.y)
    before = {"weight": reference.head[1].weight.detach(), "bias": reference.head[1].bias.detach()}
    assert_close(snapshot(net.head[1]), stepped(before, gradient(before, features), 0.2), atol=1e-6, rtol=1e-4)


# Per-FedAvg


def test_perfedavg_first_order_is_the_second_half_s_gradient_after_a_step_on_the_first() -> None:
    method = PerFedAvg(training=ONE_STEP, adapt_lr=0.8)
    net, data = linear(), examples(20)
    w = snapshot(net)
    with seeded(3):
        update, _ = method.train({"model": w}, {"model": {}}, context(net, data))
    with seeded(3):
        order = torch.randperm(20)
    one, two = (Data(data.x[part], data.y[part]) for part in order.split(10))
    adapted = stepped(w, gradient(w, one), 0.8)
    assert_close(update.payload["model"], stepped(w, gradient(adapted, two), 0.2), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-2])
def test_perfedavg_hessian_free_is_the_gradient_through_the_step_of_adaptation(scale: float) -> None:
    """With D = D' = D'' it is that of f(w - alpha grad f(w)), which autograd knows by second derivatives."""
    method = PerFedAvg(adapt_lr=2.0, order="hessian-free")
    net, data = linear(), examples(10)
    data = Data(data.x * scale, data.y)  # short gradients as well
    w = {name: tensor.requires_grad_() for name, tensor in snapshot(net).items()}

    def loss(w: Tensors) -> Tensor:
        return F.cross_entropy(F.linear(data.x, w["weight"], w["bias"]), data.y)

    inner = dict(zip(w, torch.autograd.grad(loss(w), [*w.values()], create_graph=True), strict=True))
    exact = dict(zip(w, torch.autograd.grad(loss(stepped(w, inner, 2.0)), [*w.values()]), strict=True))
    hessian_free = method.direction(net, data.x.repeat(3, 1), data.y.repeat(3))
    first = replace(method, order="first").direction(net, data.x.repeat(2, 1), data.y.repeat(2))
    assert distance(hessian_free, exact) < 2e-3 * distance(first, exact)


def test_perfedavg_hessian_free_takes_its_three_gradients_on_three_parts() -> None:
    net, data = linear(), examples(30)
    w = snapshot(net)
    one, two, three = (Data(x, y) for x, y in zip(data.x.split(10), data.y.split(10), strict=True))
    v = gradient(stepped(w, gradient(w, one), 0.5), two)
    flat_v = torch.cat([v["weight"].flatten(), v["bias"]])

    def loss(flat_w: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(three.x, flat_w[:6].view(3, 2), flat_w[6:]), three.y)

    hessian = torch.autograd.functional.hessian(loss, torch.cat([w["weight"].flatten(), w["bias"]]))
    expected = flat_v - 0.5 * hessian @ flat_v
    found = PerFedAvg(adapt_lr=0.5, order="hessian-free").direction(net, data.x, data.y)
    torch.testing.assert_close(torch.cat([found["weight"].flatten(), found["bias"]]), expected, atol=1e-4, rtol=1e-3)
    assert (expected - flat_v).abs().max() > 0.01


def test_perfedavg_takes_both_gradients_of_a_difference_under_the_same_dropout() -> None:
    net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Dropout(0.5), nn.Linear(50, 3)).train()
    data = examples(3)  # too few to be cut: both orders see all of them
    directions = []
    for order in ("first", "hessian-free"):
        with seeded(1):
            method = PerFedAvg(adapt_lr=1e-3, order=order)  # type: ignore[arg-type]
            directions.append(torch.cat([part.flatten() for part in method.direction(net, *data).values()]))
    first, free = directions
    assert (first - free).norm() < 0.005 * first.norm()


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_perfedavg_counts_a_batch_once_in_the_statistics_of_batchnorm(order: str) -> None:
    net = model()
    load(net, start := snapshot(net))
    training = replace(FAST, local_steps=5)
    update, _ = PerFedAvg(training=training, order=order).train({"model": start}, {"model": {}}, context(net))  # type: ignore[arg-type]
    assert update.payload["model"]["encoder.1.num_batches_tracked"] == 5


def test_perfedavg_takes_its_steps_of_adaptation_from_the_final_model() -> None:
    outer = Training(batch_size=1000, optimizer="adam", lr=0.3, lr_decay=0.5, weight_decay=0.1)
    method = PerFedAvg(training=outer, adapt_lr=0.7, adapt_steps=2)
    net, data = linear(), examples(20)
    w = snapshot(net)
    where = replace(context(net, data), round=9)
    update, state = method.personalise({"model": w}, {"other": {"x": torch.ones(1)}}, where)
    assert not flat(update.payload)
    assert set(state) == {"own", "other"}
    once = stepped(w, gradient(w, data), 0.7)
    assert_close(state["own"], stepped(once, gradient(once, data), 0.7), atol=1e-6, rtol=1e-5)


# APFL


def apfl_round(method: APFL, alpha: float, w: Tensors, v: Tensors, data: Data) -> tuple[Tensors, Tensors, float]:
    """The shared model, the silo's own one and the weight of its own after a round from w, v and alpha."""
    state = {"own": v, "mixture": {"alpha": torch.tensor(alpha)}}
    update, after = method.train({"model": w}, state, context(linear(), data))
    return update.payload["model"], after["own"], float(after["mixture"]["alpha"])


@pytest.fixture
def rivals() -> tuple[Tensors, Tensors, Data]:
    """Two models, and data that the second one labels."""
    w, v, x = snapshot(linear(1)), snapshot(linear(2)), examples(40).x
    return w, v, Data(x, (x @ v["weight"].T + v["bias"]).argmax(-1))


def test_apfl_steps_along_the_gradients_of_the_mixed_parameters(rivals: tuple[Tensors, Tensors, Data]) -> None:
    w, v, data = rivals
    w_after, v_after, alpha = apfl_round(APFL(training=ONE_STEP), 0.3, w, v, data)
    g = gradient({name: 0.3 * v[name] + 0.7 * w[name] for name in w}, data)
    assert_close(w_after, stepped(w, gradient(w, data), 0.2), atol=1e-6, rtol=1e-5)
    assert_close(v_after, stepped(v, g, 0.2 * 0.3), atol=1e-6, rtol=1e-5)
    assert alpha == pytest.approx(0.3 - 0.2 * slope(w, v, g), abs=1e-6)
    assert abs(slope(w, v, g)) > 0.1


@pytest.mark.parametrize("better", [0, 1])
def test_apfl_clips_alpha_after_every_step(rivals: tuple[Tensors, Tensors, Data], better: int) -> None:
    """The first step takes alpha far outside; the second one mixes with 0 or 1, and its result is clipped as well."""
    w, v, data = rivals if better else (rivals[1], rivals[0], rivals[2])
    method = APFL(training=replace(ONE_STEP, local_steps=2, lr=20.0))
    _, v_after, alpha = apfl_round(method, 0.5, w, v, data)
    g = gradient({name: (w[name] + v[name]) / 2 for name in w}, data)
    assert not 0 <= 0.5 - 20 * slope(w, v, g) <= 1
    v_once = stepped(v, g, 20 * 0.5)
    expected = stepped(v_once, gradient(v_once, data), 20) if better else v_once
    assert_close(v_after, expected, atol=1e-4, rtol=1e-4)
    assert 0 <= alpha <= 1


def test_apfl_keeps_the_weight_that_it_is_given_unless_adaptive(rivals: tuple[Tensors, Tensors, Data]) -> None:
    w, v, data = rivals
    _, v_after, alpha = apfl_round(APFL(training=ONE_STEP, adaptive=False), 0.3, w, v, data)
    assert alpha == pytest.approx(0.3, abs=1e-7)
    assert changed(v_after, v) == set(v)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_apfl_s_alpha_has_no_weight_decay(rivals: tuple[Tensors, Tensors, Data], optimizer: str) -> None:
    w, v, data = rivals
    training = replace(ONE_STEP, optimizer=optimizer, lr=0.01)
    plain, decayed = (
        apfl_round(APFL(training=replace(training, weight_decay=decay)), 0.3, w, v, data) for decay in (0.0, 0.5)
    )
    assert decayed[2] == plain[2]
    assert plain[2] != pytest.approx(0.3, abs=1e-4)
    for one, other in zip(plain[:2], decayed[:2], strict=True):
        assert changed(one, other) == set(w)


def test_apfl_trains_what_it_shares_as_fedavg() -> None:
    net, data = linear(), examples(50)
    w, training = snapshot(net), replace(FAST, local_epochs=3)
    with seeded(0):
        plain, _ = FedAvg(training=training).train({"model": w}, {"model": {}}, context(net, data))
    with seeded(0):
        update, _ = APFL(training=training).train({"model": w}, {}, context(net, data))
    assert_same(update.payload, plain.payload)


def test_apfl_answers_with_the_mixture_of_parameters_and_its_own_statistics(tmp_path: Path) -> None:
    method = APFL(rounds=2, training=FAST, adaptive=False, alpha=0.25)
    federation = Federation(method, tmp_path)
    module, name = federation.place.module, "silo-1"
    where = federation.place.silos[name].context(module)
    x = where.validation.x
    assert set(method.answer(method.broadcast(federation.server), {}, where, x)) == {Decision.GLOBAL}
    down, state = method.broadcast(federation.run()), federation.states()[name]
    w, v = down["model"], state["own"]
    learnt = {name for name, _ in module.named_parameters()}
    mixed = {name: 0.25 * v[name] + 0.75 * w[name] if name in learnt else v[name] for name in w}
    assert not torch.equal(v["encoder.1.running_mean"], w["encoder.1.running_mean"])
    answers = method.answer(down, state, where, x)
    for whose, tensors in ((Decision.GLOBAL, w), (Decision.LOCAL, mixed)):
        expected = method.ask(load(module, tensors), x, whose)
        torch.testing.assert_close(answers[whose].probs, expected.probs)
    assert not torch.allclose(answers[Decision.LOCAL].probs, answers[Decision.GLOBAL].probs, atol=1e-3)


def test_fedbn_says_where_it_is_fedavg() -> None:
    plain, normed = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert FedBN().remark(plain) == "fedbn: this model has no batch normalization; it equals fedavg"
    assert not FedBN().remark(normed)
