"""Methods for domains left out, FedSR and FedIIR: the numbers of the authors' code, and what does not leave a silo.

The numbers are what the released code prints (github.com/atuannguyen/FedSR, github.com/YamingGuo98/FedIIR) for the same
model, data and, for FedSR, noise, with plain SGD.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import FAST, Federation, assert_same, model
from torch import Tensor, nn

from caveat.core import ConfigurationError, Data, Replies, SiloContext, Update, seeded
from caveat.methods import FedAvg, FedIIR, FedSR
from caveat.methods.fedsr import GaussianUnitsOfClasses
from caveat.nn.dropout import GaussianUnits, mc_dropout
from caveat.nn.encoders import Model, Tokens, head
from caveat.training.fit import Training
from caveat.training.modules import load, snapshot
from caveat.wrappers.aggregation import Combined
from caveat.wrappers.privacy import Private

PLAIN = Training(batch_size=20, lr=0.1, optimizer="sgd")


def filled(module: nn.Module) -> nn.Module:
    """A module whose parameters are sines, other than those that FedSR keeps at silos."""
    parameters = [p for name, p in module.named_parameters() if "class_" not in name and "scale" not in name]
    with torch.no_grad():
        for i, p in enumerate(parameters):
            p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float32) + i).view(p.shape) / 2)
    return module


def small() -> Model:
    """Two inputs, six units, three classes."""
    return Model(nn.Sequential(nn.Linear(2, 6), nn.GELU(), Tokens()), head(1, 6, 0, 3, 0.0, False), 1, 6)


X, Y = torch.cos(torch.arange(40, dtype=torch.float32)).view(20, 2), torch.arange(20) % 3


def context(module: nn.Module, x: Tensor = X, y: Tensor = Y, name: str = "s") -> SiloContext:
    data = Data(x, y)
    return SiloContext(name, data, data, data, module)


# FedSR


def test_two_steps_of_fedsr_come_to_the_numbers_of_the_authors_code() -> None:
    method = FedSR(training=PLAIN, cmi=0.05, units=5)
    module = filled(method.build(small()))
    torch.manual_seed(3)
    losses = []
    for _ in range(2):
        loss = method.objective(module.train(), {})(X, Y)
        module.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad  # type: ignore[operator]
        losses.append(loss.item())
    terms = [(1.2045, 1.7441, 1.5232), (1.7233, 2.1681, 1.4943)]
    assert losses == pytest.approx([ce + 0.01 * l2r + 0.05 * cmi for ce, l2r, cmi in terms], abs=1e-4)
    after = snapshot(module)
    expected = {
        "head.1.weight": [0.4369943, 0.0506426, -0.3622226, -0.4805169, -0.1440625, 0.3393463],
        "encoder.0.weight": [-0.0104988, 0.4203351],
        "head.2.class_means": [0.00084308, 0.00015761, 0.00012540, 0.00090367, 0.00183070],
    }
    for name, numbers in expected.items():
        assert after[name][0].tolist() == pytest.approx(numbers, abs=1e-6), name
    assert after["head.3.bias"].tolist() == pytest.approx([-0.4743336, -0.1312877, 0.3149448], abs=1e-6)
    spreads = [0.9997952, 0.9992266, 0.9986452, 0.9984674, 0.9990608]
    assert after["head.2.class_spreads"][1].tolist() == pytest.approx(spreads, abs=1e-6)
    assert float(after["head.2.scale"]) == pytest.approx(1.0242862, abs=1e-6)


def test_the_gaussians_of_classes_stay_at_the_silo(tmp_path: Path) -> None:
    federation = Federation(FedSR(rounds=2, training=FAST), tmp_path)
    server = federation.run()
    assert not [name for name in server["model"] if "class_" in name or "scale" in name]
    kept = [state["model"] for state in federation.states().values()]
    assert {name.rsplit(".", 1)[1] for name in kept[0]} == {"class_means", "class_spreads", "scale"}
    assert len({float(state["head.4.scale"]) for state in kept}) == 3


def test_a_representation_is_its_mean_in_evaluation_and_drawn_once_for_all_inputs_of_a_pass() -> None:
    module = filled(FedSR(units=5).build(small())).eval()
    h = module.head.hidden(module.encoder(X))  # type: ignore[operator,union-attr]
    assert torch.equal(module(X), module.head[-1](h[:, :5]))  # type: ignore[index]
    several = mc_dropout(module, X, 7)
    assert several.shape == (7, 20, 3)
    assert several.std(0).min() > 1e-3
    for part in (slice(3, 4), slice(10, 20)):
        torch.testing.assert_close(mc_dropout(module, X[part], 7), several[:, part])


def test_draws_have_the_moments_that_the_encoder_says() -> None:
    units, h = GaussianUnits().train(), torch.tensor([[1.0, -2.0, 0.0, 1.0]])
    torch.manual_seed(0)
    drawn = units(h.expand(100_000, 4))
    mean, deviation = units.moments(h)
    assert drawn.mean(0).tolist() == pytest.approx(mean[0].tolist(), abs=0.02)
    assert drawn.std(0).tolist() == pytest.approx(deviation[0].tolist(), rel=0.01)


def test_the_divergence_is_that_of_torch() -> None:
    torch.manual_seed(0)
    units, h, y = GaussianUnitsOfClasses(4, 3), torch.randn(6, 8), torch.tensor([0, 1, 2, 2, 1, 0])
    with torch.no_grad():
        for p in units.parameters():
            p.copy_(torch.randn(p.shape).abs() + 0.5)
        mean, deviation = (each * units.scale for each in units.moments(h))
        ours = torch.distributions.Normal(mean, deviation)
        theirs = torch.distributions.Normal(units.class_means[y], nn.functional.softplus(units.class_spreads)[y])
        torch.testing.assert_close(units.divergence(h, y), torch.distributions.kl_divergence(ours, theirs).sum(1))


# FedIIR


def test_three_rounds_of_fediir_come_to_the_numbers_of_the_authors_code() -> None:
    method = FedIIR(training=replace(PLAIN, batch_size=10), penalty=0.5)
    module = small()
    for part in (module.encoder, module.head):
        filled(part)
    server = method.init_server(context(module))
    data = {"a": (X[:10], Y[:10]), "b": (X[10:], 2 - Y[10:])}
    penalties = []
    for _ in range(3):
        sites = [context(module, x, y, name) for name, (x, y) in data.items()]
        told = {each.id: method.tell({"model": server["model"]}, {"model": {}}, each)[0] for each in sites}
        server = method.remember(server, Replies(told, 2), sites[0])
        down = method.broadcast(server)
        load(module, down["model"])
        x, y = data["b"]
        whole, plain = (m.objective(module, down)(x, y).item() for m in (method, FedAvg(training=PLAIN)))
        penalties.append((whole - plain) / 0.5)
        trained = {each.id: method.train(down, {"model": {}}, each)[0] for each in sites}
        server = method.aggregate(server, Replies(trained, 2), sites[0])
    assert penalties == pytest.approx([0.1180711, 0.1117008, 0.1060172], abs=1e-6)
    assert server["gradient"]["head.2.weight"].flatten()[:4].tolist() == pytest.approx(
        [0.00014015, 0.00061242, -0.00167479, -0.00082264], abs=1e-7
    )
    assert server["model"]["encoder.0.weight"][0].tolist() == pytest.approx([-0.0037526, 0.4043534], abs=1e-6)
    assert server["model"]["head.2.bias"].tolist() == pytest.approx([0.4032702, 0.4457333, 0.0969407], abs=1e-6)


def test_fediir_without_a_penalty_is_fedavg() -> None:
    down = {"model": snapshot(model(0)), "gradient": {"head.4.weight": torch.ones(3, 8), "head.4.bias": torch.ones(3)}}
    trained = []
    for method in (FedAvg(training=PLAIN), FedIIR(training=PLAIN, penalty=0), FedIIR(training=PLAIN, penalty=1)):
        with seeded(0):
            trained.append(method.train(down, {"model": {}}, context(model(0)))[0].payload)
    for name, tensor in trained[0]["model"].items():
        torch.testing.assert_close(trained[1]["model"][name], tensor)
    assert float((trained[2]["model"]["head.4.weight"] - trained[0]["model"]["head.4.weight"]).abs().max()) > 1e-3


def test_the_gradient_is_that_of_all_data_whatever_the_batches_and_the_partition() -> None:
    module = model(0)
    w, whole = {"model": snapshot(module)}, context(module)
    told = []
    for size, parts in ((20, [slice(0, 20)]), (7, [slice(0, 20)]), (4, [slice(0, 6), slice(6, 20)])):
        method = FedIIR(training=replace(PLAIN, batch_size=size), ema=0.0)
        sites = {str(i): context(module, X[part], Y[part]) for i, part in enumerate(parts)}
        replies = Replies({name: method.tell(w, {"model": {}}, each)[0] for name, each in sites.items()}, len(parts))
        told.append(method.remember(method.init_server(whole), replies, whole)["gradient"])
    for gradient in told[1:]:
        for name, each in gradient.items():
            torch.testing.assert_close(each, told[0][name], rtol=1e-5, atol=1e-7)


def test_the_head_as_classifier_sends_gradients_of_all_of_it(tmp_path: Path) -> None:
    server = Federation(FedIIR(rounds=1, training=FAST, classifier="head"), tmp_path).run()
    assert sorted(server["gradient"]) == sorted(name for name in server["model"] if name.startswith("head."))


def test_telling_a_gradient_leaves_the_model_and_its_statistics_alone() -> None:
    module = model(0)
    w = snapshot(module)
    with seeded(0):
        FedIIR(training=PLAIN).tell({"model": w}, {"model": {}}, context(module))
    assert_same({"model": w}, {"model": snapshot(module)})


def test_clipping_and_noise_are_refused_as_gradients_would_leave_without_them() -> None:
    with pytest.raises(ConfigurationError, match="clipping and noise do not fit 'fediir'"):
        Private(FedIIR(), clip_norm=1.0, noise_multiplier=1.0, silos=3)


def test_a_rule_against_liars_is_applied_to_gradients_too() -> None:
    method, module = FedIIR(rounds=1, training=PLAIN, ema=0.0), model(0)
    told = {}
    for name, factor in (("a", 1.0), ("b", 1.0), ("malicious_silo", 1e9)):
        update, _ = method.tell({"model": snapshot(module)}, {"model": {}}, context(module))
        gradient = {key: factor * each for key, each in update.payload["gradient"].items()}
        told[name] = Update({"gradient": gradient}, 20)
    step = next(iter(Combined(method, "median", 1).schedule()))
    found = step.aggregate(method.init_server(context(module)), Replies(told, 3), context(module))["gradient"]
    assert step.name == "tell"
    for key, each in told["a"].payload["gradient"].items():
        torch.testing.assert_close(found[key], each)
