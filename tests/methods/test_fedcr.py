"""FedCR: the numbers of the authors' code, the Gaussians of classes, and what its silos send and keep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import ADAM, Federation
from test_authors_numbers import TWO_STEPS, N, filled, inputs, near, net_with_head, sums
from torch import Tensor, distributions

from caveat.core import Data, Replies, SiloContext, State, Tensors, Update
from caveat.methods import FedCR
from caveat.methods.fedcr import products
from caveat.nn.dropout import divergence
from caveat.training.modules import load, snapshot, split

M = torch.arange(18)


def step(method: FedCR, down: State, state: Tensors, context: SiloContext) -> tuple[float, Tensors]:
    """A step of gradient descent as `train` does it, without the order of examples; its loss, and the products of the
    model before it, which are those that the code sends."""
    module = load(context.module, down["model"] | state)
    sent = products(context)
    loss = method.objective(module.train(), down)(*context.train)
    module.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.5 * p.grad  # type: ignore[operator]
    return loss.item(), sent


def test_two_rounds_and_the_head_come_to_the_numbers_of_the_authors_code() -> None:
    """github.com/haozzh/FedCR, models/distributed_training_utils.py: `train_cnn` and `global_POE`, with beta2 = 1, on
    this model and data. Labels of the second silo lack a class, and the last step is of the head alone."""
    method = FedCR(training=TWO_STEPS, beta=0.02, samples=4, units=5)
    network = filled(method.build(net_with_head()))
    data = [Data(inputs(18, 0), M % 3), Data(inputs(18, 1), M % 2)]
    sites = [SiloContext(str(k), each, each, each, network) for k, each in enumerate(data)]
    server, own = method.init_server(sites[0]), method.private(network)
    heads = [snapshot(network, own) for _ in sites]
    losses: list[float] = []
    found: list[list[float]] = []
    for done in range(2):
        updates = {}
        for k, context in enumerate(sites):
            torch.manual_seed(10 * done + k)
            loss, sent = step(method, method.start(server), heads[k], context)
            shared, heads[k] = split(snapshot(network), own)
            updates[context.id] = Update({"model": shared, "products": sent}, 18)
            losses.append(loss)
        server = method.aggregate(server, Replies(updates, 2), sites[0])
        found.append([*sums(server["classes"].values()), *sums(server["model"].values())])
    for k, context in enumerate(sites):
        torch.manual_seed(20 + k)
        losses.append(step(method, method.start(server), heads[k], context)[0])
        heads[k] = snapshot(network, own)
    assert losses == near([1.3688828, 1.3872440, 1.2422704, 1.1763140, 1.1435601, 0.9747087])
    assert found[0] == near([-1.6257323, 0.5210969, 0.1207719, 1.2445800, 13.6349012, 0.2525028])
    assert found[1] == near([-1.9565927, 0.4977907, 0.1097214, 1.2558339, 13.6148215, 0.1434531])
    of_heads = [each for head in heads for each in sums(head.values())]
    assert of_heads == near([-2.5000688, -0.7160435, -2.6155732, -0.2194885])


def gaussians(context: SiloContext) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of a silo's training inputs."""
    module = context.module.eval()
    moments: tuple[Tensor, Tensor] = module.head[-2].moments(module.head.hidden(module.encoder(context.train.x)))  # type: ignore[union-attr,operator,index]
    return moments


@pytest.mark.parametrize("partition", [[slice(0, 12)], [slice(0, 5), slice(5, 12)]])
def test_the_product_of_a_class_is_that_of_all_silos_inputs_and_of_a_standard_gaussian(partition: list[slice]) -> None:
    method = FedCR(units=2)
    network, x = filled(method.build(net_with_head())), inputs(12, 0)
    sites = [SiloContext(str(k), *[Data(x[i], 0 * N[i])] * 3, network) for k, i in enumerate(partition)]
    server = method.init_server(sites[0])
    model, _ = split(snapshot(network), method.private(network))
    sent = {each.id: Update({"model": model, "products": products(each)}, len(each.train)) for each in sites}
    after = method.aggregate(server, Replies(sent, len(sites)), sites[0])["classes"]
    parts = [gaussians(each) for each in sites]
    mean, deviation = (torch.cat(each).double() for each in zip(*parts, strict=True))
    grid = torch.linspace(-3, 3, 60_001, dtype=torch.float64)[:, None, None]
    logarithm = distributions.Normal(mean, deviation).log_prob(grid).sum(1) - grid[:, 0].square() / 2
    weights = logarithm.softmax(0)
    center = (weights * grid[:, 0]).sum(0)
    spread = (weights * (grid[:, 0] - center).square()).sum(0).sqrt()
    torch.testing.assert_close(after["means"][0].double(), center, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(after["deviations"][0].double(), spread, rtol=1e-4, atol=1e-6)
    assert torch.equal(after["means"][1:], torch.zeros(2, 2))
    assert torch.equal(after["deviations"][1:], torch.ones(2, 2))


def test_nothing_of_a_class_with_fewer_than_five_examples_leaves_a_silo() -> None:
    network = filled(FedCR(units=2).build(net_with_head()))
    data = Data(inputs(12, 0), torch.tensor([0] * 5 + [1] * 4 + [2] * 3))
    sent = products(SiloContext("s", data, data, data, network))
    for each in sent.values():
        assert each[0].all()
        assert not each[1:].any()


def test_a_class_that_no_silo_sends_keeps_its_gaussian() -> None:
    method, network = FedCR(units=2), filled(FedCR(units=2).build(net_with_head()))
    data = Data(inputs(12, 0), torch.tensor([0] * 12))
    site = SiloContext("s", data, data, data, network)
    known = {"means": torch.full((3, 2), 0.5), "deviations": torch.full((3, 2), 0.25)}
    model, _ = split(snapshot(network), method.private(network))
    sent = Replies({"s": Update({"model": model, "products": products(site)}, 12)}, 1)
    after = method.aggregate({"model": model, "classes": known}, sent, site)["classes"]
    for name, each in known.items():
        assert torch.equal(after[name][1:], each[1:])
        assert (after[name][0] != each[0]).all()


def test_the_divergence_is_that_of_torch() -> None:
    torch.manual_seed(0)
    one, other = ((torch.randn(6, 4), torch.rand(6, 4) + 0.1) for _ in range(2))
    expected = distributions.kl_divergence(distributions.Normal(*one), distributions.Normal(*other)).sum(1)
    torch.testing.assert_close(divergence(one, other), expected)


def test_heads_stay_at_silos_and_only_they_change_after_the_last_round(tmp_path: Path) -> None:
    federation = Federation(FedCR(rounds=2, training=ADAM, samples=2, head_epochs=1), tmp_path)
    server = federation.run()
    assert not {name for name in server["model"] if name.startswith("head.5")}
    before, after = (federation.states(until).values() for until in (1, 2))
    for one, other in zip(before, after, strict=True):
        assert one["model"].keys() == other["model"].keys() == {"head.5.weight", "head.5.bias"}
        assert not torch.equal(one["model"]["head.5.weight"], other["model"]["head.5.weight"])
    assert not federation.done[-1].replies.updates["silo-0"].payload
    assert "classes" not in federation.method.broadcast(server)
