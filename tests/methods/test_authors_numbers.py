"""Rounds of IFCA, Ditto, FedRoD, FedALA, FedProto and FedDisco come to the numbers of released code.

Each test protects what a method does from the first step to the last: its losses, its order of steps, its averages.
The numbers are what the code that a test names printed once, in its own loops, for the same models, data and steps.
Full batches make the order of examples meaningless, and silos of equal size the weights of the mean where a method's
docstring says that caveat's are others. Of a tensor the sum of its products with cosines is compared, which sees
every element: plain sums of a last layer never change, as gradients of the cross-entropy add up to 0 over classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caveat.core import Data, Method, Replies, SiloContext, State, Tensors, Update
from caveat.methods import IFCA, Ditto, FedALA, FedDisco, FedProto, FedRoD
from caveat.methods.fedrod import balanced_softmax
from caveat.methods.ifca import model_of
from caveat.nn.encoders import Model, Tokens, head
from caveat.training.fit import Training
from caveat.training.modules import load, snapshot

TWO_STEPS = Training(local_steps=2, batch_size=100, lr=0.5, optimizer="sgd")
"""Two steps of plain gradient descent on all data of a silo."""
N = torch.arange(12)


def inputs(count: int, shift: int) -> Tensor:
    """(count, 2) cosines."""
    return torch.cos(torch.arange(2 * count, dtype=torch.float32) + shift).view(count, 2)


def filled(module: nn.Module, shift: float = 0.0) -> nn.Module:
    """A module whose parameters are sines."""
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float32) + i + shift).view(p.shape) / 2)
    return module


def net(shift: float = 0.0) -> nn.Module:
    """Two inputs, six units, three classes."""
    return filled(nn.Sequential(nn.Linear(2, 6), nn.GELU(), nn.Linear(6, 3)), shift)


def net_with_head(shift: float = 0.0) -> nn.Module:
    """The same as an encoder and a head."""
    encoder = nn.Sequential(nn.Linear(2, 6), nn.GELU(), Tokens())
    return filled(Model(encoder, head(1, 6, 0, 3, 0.0, False), 1, 6), shift)


def sums(tensors: Iterable[Tensor]) -> list[float]:
    """Of each tensor, the sum of its products with cosines."""
    flat = [tensor.detach().double().flatten() for tensor in tensors]
    return [float((each * torch.cos(torch.arange(len(each), dtype=torch.float64))).sum()) for each in flat]


def sites_of(data: Sequence[Data]) -> list[SiloContext]:
    return [SiloContext(str(k), each, each, each, net()) for k, each in enumerate(data)]


def one_round(
    method: Method, server: State, states: list[State], sites: list[SiloContext]
) -> tuple[State, list[Update]]:
    """The server's state after a round of all silos, whose states change in place, and what they sent."""
    (step, *_) = method.schedule()
    down = step.broadcast(server)
    sent = []
    for k, context in enumerate(sites):
        update, states[k] = step.task(down, states[k], context)
        assert isinstance(update, Update)
        sent.append(update)
    replies = Replies({context.id: update for context, update in zip(sites, sent, strict=True)}, len(sites))
    return step.aggregate(server, replies, sites[0]), sent


def loss_of(model: Tensors, data: Data) -> float:
    """The mean cross-entropy of a model of these tensors."""
    return F.cross_entropy(load(net(), model)(data.x), data.y).item()


def near(expected: Sequence[float]) -> object:
    return pytest.approx(expected, abs=1e-6)


def test_two_rounds_of_ifca_come_to_the_numbers_of_the_authors_code() -> None:
    """github.com/jichan3751/ifca (61e44b8), mnist/train_cluster_mnist.py: `run`, on these models and data, not MNIST's.

    In every round silos pick anew, and nobody ever picks the second model. The last choice is `settle`'s.
    """
    sites = sites_of([Data(inputs(12, k), (N + k * (N // (3 + k % 2))) % 3) for k in range(6)])
    method = IFCA(training=replace(TWO_STEPS, lr=1.0), clusters=3)
    begun = {f"{k}.{name}": t for k in range(3) for name, t in snapshot(net(2.0 * k)).items()}
    server: State = {"model": begun, "clusters": {"silos": torch.zeros(3)}}
    states: list[State] = [{} for _ in sites]
    picked, losses = [], []
    for done in range(3):
        down = method.broadcast(server)
        picked.append([method.nearest(down, context) for context in sites])
        of_picked = [model_of(down, cluster) for cluster in picked[-1]]
        losses.append([loss_of(model, context.train) for model, context in zip(of_picked, sites, strict=True)])
        if done < 2:
            server, _ = one_round(method, server, states, sites)
            assert [int(state["cluster"]["picked"]) for state in states] == picked[-1]
    assert picked == [[2, 2, 2, 0, 2, 0], [2, 2, 0, 0, 0, 0], [2, 2, 0, 0, 0, 2]]
    assert [sum(each) / 6 for each in losses] == near([1.0915077, 1.0684088, 1.0382477])
    settled = [method.settle(method.broadcast(server), {}, context)[1] for context in sites]
    assert [int(state["cluster"]["picked"]) for state in settled] == picked[-1]
    models = [model_of(server, k).values() for k in range(3)]
    assert sums(models[0]) == near([0.1382851, 1.3871537, 4.0907419, 0.0232153])
    assert sums(models[1]) == near([2.6609113, 0.1295494, -3.5922837, -0.6916480])
    assert sums(models[2]) == near([-2.5407866, -1.4905169, -1.1171048, 0.5075150])


def test_two_rounds_of_ditto_come_to_the_numbers_of_the_authors_code() -> None:
    """github.com/litian96/ditto (26d9b29), flearn/trainers_MTL/ditto.py: `Server.train`, with a model of torch in place
    of one of TensorFlow 1. There the two models take turns, which on full batches comes to the same.
    """
    method = Ditto(training=TWO_STEPS, lam=0.7)
    sites = sites_of([Data(inputs(12, 0), N % 3), Data(inputs(12, 1), N // 2 % 2 * 2)])
    server, states = method.init_server(sites[0]), [method.init_silo(context) for context in sites]
    for _ in range(2):
        server, _ = one_round(method, server, states, sites)
    assert sums(server["model"].values()) == near([0.1855996, 1.2537434, 4.0739323, -0.1378500])
    assert sums(states[0]["own"].values()) == near([0.1973323, 1.2093760, 4.0814875, -0.0808754])
    assert sums(states[1]["own"].values()) == near([0.1711602, 1.3042879, 4.0666063, -0.1510785])


def test_two_steps_of_fedrod_come_to_the_numbers_of_pfllib() -> None:
    """github.com/TsingZ0/PFLlib (d832e76), system/flcore/clients/clientrod.py: `clientROD.train`.

    It is not the authors' code: their repository (github.com/hongyouc/Fed-RoD) holds a README alone. There a silo's own
    layer begins as the generic one, where caveat's begins at 0; here it is given the same beginning.
    """
    data = Data(inputs(12, 0), torch.tensor([0, 0, 2, 0, 0, 2, 0, 0, 2, 0, 1, 0]))
    (context,) = sites_of([data])
    down = {"model": snapshot(net())}
    layer = {name.removeprefix("2."): t for name, t in down["model"].items() if name.startswith("2.")}
    counts = torch.tensor([8, 1, 3])
    begun, losses = down["model"], []
    for steps in (1, 2):
        losses.append(balanced_softmax(load(net(), begun)(data.x), data.y, counts).item())
        method = FedRoD(training=replace(TWO_STEPS, local_steps=steps))
        update, state = method.train(down, {"layer": layer}, context)
        begun = update.payload["model"]
    assert losses == near([0.8497133, 0.8383663])
    assert sums(update.payload["model"].values()) == near([0.1675643, 1.2657065, 4.0627063, -0.0234432])
    assert sums(state["layer"].values()) == near([4.0389818, 0.1126246])
    personal = method.added(context.module, update.payload["model"], state["layer"])
    assert 12 * loss_of(personal, data) == pytest.approx(10.3952830, abs=1e-5)


def test_three_rounds_of_fedala_come_to_the_numbers_of_the_authors_code() -> None:
    """github.com/TsingZ0/FedALA (a7a9b21), system/flcore/servers/serverALA.py: `FedALA.train`, with utils/ALA.py.

    There the first learning of W takes eleven passes at least, and ten here. So that both take as many, the silos call
    the same inputs by opposite labels: their losses settle after twelve and thirteen passes. W is learnt on all data,
    where it does not matter that the code takes neighbours in a file. What the code measures is the mixture.
    """
    x = inputs(12, 0)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.3).long()
    method = FedALA(training=replace(TWO_STEPS, local_steps=10, lr=1.0), eta=0.3, share=1.0)
    sites = sites_of([Data(x, y), Data(x, 2 - y)])
    server, states = method.init_server(sites[0]), [method.init_silo(context) for context in sites]
    mixtures = []
    for done in range(3):
        for state, context in zip(states, sites, strict=True) if done else ():
            load(context.module, server["model"])
            method.mix(server["model"], state, context)
            mixtures.append(sums(context.module.parameters()))
        server, _ = one_round(method, server, states, sites)
    assert mixtures[0] == near([0.5560787, 1.1902731, 4.2593059, 0.1926657])
    assert mixtures[1] == near([0.5560787, 1.1902731, 4.5189140, 0.1402900])
    assert mixtures[2] == near([1.0249532, 1.2134428, 4.1965134, 0.3657609])
    assert mixtures[3] == near([1.0249532, 1.2134428, 4.7225651, 0.3418105])
    assert sums(states[0]["weights"].values()) == near([-1.2572192, 1.0423921])
    assert sums(states[1]["weights"].values()) == near([-1.4336024, 1.1258614])
    assert sums(states[0]["own"].values()) == near([1.4305567, 1.4607569, 4.1212165, 0.5282877])
    assert sums(states[1]["own"].values()) == near([1.4474002, 1.2437455, 4.8024278, 0.3488673])


def test_two_rounds_of_fedproto_come_to_the_numbers_of_the_authors_code() -> None:
    """github.com/yuetan031/FedProto (97e42e2), exps/federated_main.py: `FedProto_taskheter`, with lib/update.py.

    There a silo sends what its model made of the last batch before the step on it. Here that is what it sends after
    one step less. The code's SGD has a momentum of 0.5, and silos have as many examples of a class as others.
    """
    two = FedProto(training=replace(TWO_STEPS, momentum=0.5), lam=0.7)
    one = replace(two, training=replace(two.training, local_steps=1))
    data = [Data(inputs(12, 0), N % 2), Data(inputs(12, 1), 1 + N % 2)]
    sites = [replace(context, module=net_with_head(), own=net_with_head()) for context in sites_of(data)]
    server = two.init_server(sites[0])
    states: list[State] = [{"own": snapshot(net_with_head(2.0 * k))} for k in range(2)]
    shared = []
    for _ in range(2):
        before, down = list(states), two.broadcast(server)
        server, _ = one_round(one, server, list(before), sites)
        states = [two.train(down, state, context)[1] for state, context in zip(before, sites, strict=True)]
        shared.append(sums([server["prototypes"]["means"]]))
    assert shared == [near([0.4904979]), near([0.5019046])]
    first = [0.3005614, 0.3282506, 0.0864724, -0.1253010, -0.0767507, 0.0146862]
    assert server["prototypes"]["means"][0].tolist() == near(first)
    assert sums(states[0]["own"].values()) == near([0.1688719, 1.2849054, 4.0205473, 0.6483194])
    assert sums(states[1]["own"].values()) == near([2.5362623, 0.2117999, -3.6854676, -0.9052939])


def test_a_step_of_fedproto_without_one_prototype_comes_to_the_numbers_of_the_authors_code() -> None:
    """`update_weights_het` of lib/update.py of that repository, where nobody has sent a prototype of class 1."""
    method = FedProto(training=replace(TWO_STEPS, local_steps=1), lam=0.7)
    data, units = Data(inputs(12, 0), N % 3), torch.arange(6.0)
    means = torch.stack([torch.cos(units), torch.full((6,), 9.0), torch.sin(units)])
    down = {"prototypes": {"means": means, "known": torch.tensor([True, False, True])}}
    own = net_with_head()
    assert isinstance(own, Model)
    losses = [replace(method, lam=lam).near(own, down["prototypes"])(data.x, data.y).item() for lam in (0.0, 0.7)]
    assert losses == near([1.1332985, 1.3067656])
    context = replace(sites_of([data])[0], module=net_with_head(), own=net_with_head())
    _, state = method.train(down, {"own": snapshot(own)}, context)
    assert sums(state["own"].values()) == near([0.2036781, 1.2786646, 4.0606039, 0.0210594])


@pytest.mark.parametrize(
    ("discrepancy", "a", "b", "weights", "model"),
    [
        ("kl", 0.5, 0.1, [0.6353155586, 0.3646844414, 0.0], [0.1995732, 1.2040464, 4.0608807, -0.0001367]),
        ("l2", 0.5, 0.2, [0.6662661212, 0.3273343977, 0.0063994811], [0.2021381, 1.1978154, 4.0650876, -0.0102893]),
    ],
)
def test_two_rounds_of_feddisco_come_to_the_numbers_of_the_authors_code(
    discrepancy: str, a: float, b: float, weights: list[float], model: list[float]
) -> None:
    """github.com/MediaBrain-SJTU/FedDisco (f3ea299), algorithms/fedavg.py: `fedavg_alg`, which weighs by disco.py.

    Its SGD has a momentum of 0.9. With "kl" the silo of one class is left out, as its weight would be below 0.
    """
    labels = [N % 3, torch.tensor([0] * 7 + [2] * 3), torch.ones(6, dtype=torch.long)]
    sites = sites_of([Data(inputs(len(y), k), y) for k, y in enumerate(labels)])
    method = FedDisco(training=replace(TWO_STEPS, momentum=0.9), discrepancy=discrepancy, a=a, b=b)  # type: ignore[arg-type]
    server, states = method.init_server(sites[0]), [method.init_silo(context) for context in sites]
    for _ in range(2):
        server, sent = one_round(method, server, states, sites)
        d = torch.stack([update.payload["classes"]["discrepancy"] for update in sent])
        n = torch.tensor([update.examples for update in sent]).double()
        assert method.weights(n, d).tolist() == pytest.approx(weights, abs=1e-9)
    assert sums(server["model"].values()) == near(model)
