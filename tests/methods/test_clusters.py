"""Methods whose server weighs silos by what they send beside, IFCA and FedDisco: a reference value per formula."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import FAST, Federation, assert_same, model
from scipy.special import rel_entr
from torch import Tensor, nn

from caveat.core import Data, Decision, Replies, Silo, SiloContext, Tensors, Update
from caveat.engines.rounds import Participation
from caveat.methods import IFCA, FedAvg, FedDisco
from caveat.nn.custom_model import remember
from caveat.training.fit import Training


def context(module: nn.Module, data: Data) -> SiloContext:
    return SiloContext("s", data, data, data, module)


def linear(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3))


# IFCA


def opposites() -> dict[str, Silo]:
    """Four silos with inputs of one kind, of which two call everything by the other's label."""
    generator = torch.Generator().manual_seed(5)
    found = {}
    for k, name in enumerate("abcd"):
        x = torch.randn(160, 2, generator=generator)
        y = (x[:, 0] > 0).long()
        parts = [Data(x[i::4], (1 - y if k % 2 else y)[i::4]) for i in range(4)]
        found[name] = Silo(name, "", *parts)
    return found


def test_ifca_with_one_cluster_is_fedavg(tmp_path: Path) -> None:
    ours = Federation(IFCA(rounds=3, training=FAST, clusters=1), tmp_path / "ifca").run()["model"]
    plain = Federation(FedAvg(rounds=3, training=FAST), tmp_path / "fedavg").run()["model"]
    assert_same({"model": {name.removeprefix("0."): tensor for name, tensor in ours.items()}}, {"model": plain})


def test_ifca_finds_the_silos_that_call_things_alike_and_serves_both_kinds(tmp_path: Path) -> None:
    data = opposites()
    method = IFCA(rounds=8, training=Training(local_epochs=2, batch_size=16, lr=0.01))
    federation = Federation(method, tmp_path, data=data)
    begun = federation.server["model"]
    for name in [name for name in begun if name.startswith("0.")]:
        # The second model calls everything by the other's label: neither is the better one for all silos.
        swapped = begun[name][[1, 0, 2]] if name.startswith("0.head.4.") else begun[name]
        begun[f"1.{name.removeprefix('0.')}"] = swapped
    down = method.broadcast(federation.run())
    picked, right = {}, []
    for name, state in federation.states().items():
        picked[name] = int(state["cluster"]["picked"])
        (answer,) = method.answer(down, state, data[name].context(federation.place.module), data[name].test.x).values()
        right.append(float((answer.label == data[name].test.y).double().mean()))
    assert picked["a"] == picked["c"] != picked["b"] == picked["d"]
    assert min(right) > 0.85
    assert down["clusters"]["silos"].tolist() == [2, 2]


def test_ifca_picks_the_model_of_least_training_loss_and_sends_what_it_trained_from_it() -> None:
    method, net = IFCA(training=replace(FAST, local_steps=1), clusters=3), linear()
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    down = method.broadcast(method.init_server(context(net, Data(x, torch.zeros(40, dtype=torch.long)))))
    models = [{name: down["model"][f"{k}.0.{name}"] for name in ("weight", "bias")} for k in range(3)]
    assert not any(torch.equal(models[0]["weight"], other["weight"]) for other in models[1:])
    for best in range(3):
        # What the model says itself is what it has the least loss on.
        y = (x @ models[best]["weight"].T + models[best]["bias"]).argmax(-1)
        losses = [nn.functional.cross_entropy(x @ w["weight"].T + w["bias"], y) for w in models]
        update, state = method.train(down, {}, context(net, Data(x, y)))
        assert int(state["cluster"]["picked"]) == int(torch.stack(losses).argmin()) == best
        assert update.payload["clusters"]["picked"].tolist() == [float(k == best) for k in range(3)]
        moved = update.payload["model"]["0.weight"] - models[best]["weight"]
        assert 0 < float(moved.norm()) < 0.2


def test_ifca_averages_a_cluster_by_examples_and_leaves_an_empty_one_as_it_is() -> None:
    method = IFCA(clusters=3)

    def update(value: float, cluster: int, examples: int) -> Update:
        payload = {"model": {"w": torch.tensor([float(value)])}, "clusters": {"picked": torch.eye(3)[cluster]}}
        return Update(payload, examples)

    server = {"model": {f"{k}.w": torch.tensor([10.0 + k]) for k in range(3)}, "clusters": {"silos": torch.zeros(3)}}
    replies = Replies({"a": update(1, 2, 10), "b": update(4, 2, 20), "c": update(7, 0, 5)}, 3)
    after = method.aggregate(server, replies, context(linear(), Data(torch.zeros(0, 2), torch.zeros(0))))
    assert {name: float(tensor) for name, tensor in after["model"].items()} == {"0.w": 7.0, "1.w": 11.0, "2.w": 3.0}
    assert after["clusters"]["silos"].tolist() == [1, 0, 2]


def test_ifca_answers_by_the_model_of_most_silos_where_a_silo_has_picked_none(tmp_path: Path) -> None:
    federation = Federation(IFCA(rounds=2, training=FAST), tmp_path)
    server = federation.run(participation=Participation(0), stop=1)
    down = federation.method.broadcast(server)
    popular = int(down["clusters"]["silos"].argmax())
    where = federation.place.context("silo-0")
    ((whose, asked),) = federation.method.loaded(down, {}, where)
    assert whose is Decision.LOCAL
    assert torch.equal(asked.state_dict()["head.1.weight"], server["model"][f"{popular}.head.1.weight"])


def test_ifca_says_where_all_its_models_begin_alike() -> None:
    assert not IFCA().remark(model())
    given = linear()
    remember(given)
    assert IFCA().remark(given).endswith("so all clusters are equal; it equals fedavg")


# FedDisco


def reference(counts: np.ndarray, discrepancy: str, a: float, b: float) -> np.ndarray:
    """The weights from classes (S, C) of examples, as the authors' code has them, by SciPy's divergence."""
    n = counts.sum(1) / counts.sum()
    shares = counts / counts.sum(1, keepdims=True)
    uniform = np.full(counts.shape[1], 1 / counts.shape[1])
    if discrepancy == "kl":
        d = rel_entr(shares, uniform).sum(1)
        d = d / d.sum()
    else:
        d = np.linalg.norm(shares - uniform, axis=1)
    found = np.maximum(n - a * d + b, 0)
    return found / found.sum()


@pytest.mark.parametrize(
    ("discrepancy", "a", "b"), [("kl", 0.5, 0.1), ("kl", 2.0, 0.1), ("l2", 0.5, 0.1), ("l2", 0.2, 0)]
)
def test_feddisco_weighs_silos_as_its_paper(discrepancy: str, a: float, b: float) -> None:
    counts = np.array([[30, 30, 30, 28], [50, 10, 0, 0], [0, 0, 0, 40], [9, 12, 8, 11]])
    method = FedDisco(discrepancy=discrepancy, a=a, b=b)  # type: ignore[arg-type]
    labels = [torch.repeat_interleave(torch.arange(4), torch.tensor(row)) for row in counts]
    d = torch.stack([method.from_uniform(y, 4) for y in labels])
    found = method.weights(torch.tensor(counts.sum(1)).double(), d)
    np.testing.assert_allclose(found.numpy(), reference(counts, discrepancy, a, b), rtol=1e-12, atol=1e-15)
    assert not np.allclose(found.numpy(), counts.sum(1) / counts.sum(), atol=0.01)


def test_feddisco_averages_by_these_weights_what_silos_say_of_their_classes(tmp_path: Path) -> None:
    method = FedDisco(rounds=1, training=FAST, a=0.8, b=0.05)
    federation = Federation(method, tmp_path)
    after = federation.run()["model"]
    updates = list(federation.done[0].replies.updates.values())
    counts = np.stack([silo.train.y.bincount(minlength=3).numpy() for silo in federation.place.silos.values()])
    expected = reference(counts, "kl", 0.8, 0.05)
    for name, tensor in after.items():
        if tensor.is_floating_point():
            mean = sum(w * u.payload["model"][name].double() for w, u in zip(expected, updates, strict=True))
            torch.testing.assert_close(tensor, mean.float(), rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]


def test_feddisco_without_discrepancy_is_fedavg(tmp_path: Path) -> None:
    ours = Federation(FedDisco(rounds=3, training=FAST, a=0, b=0), tmp_path / "feddisco").run()
    plain = Federation(FedAvg(rounds=3, training=FAST), tmp_path / "fedavg").run()
    for name, tensor in plain["model"].items():
        torch.testing.assert_close(ours["model"][name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("d", [[0.3, 0.3], [0.0, 0.0]])
def test_feddisco_weighs_by_examples_where_no_weight_is_left_or_all_are_balanced(d: list[float]) -> None:
    n = torch.tensor([10.0, 30.0]).double()
    method = FedDisco(discrepancy="l2", a=100.0 if any(d) else 1.0, b=0)
    expected: Tensor = n / 40
    torch.testing.assert_close(method.weights(n, torch.tensor(d).double()), expected)


def test_feddisco_tells_of_a_silo_s_classes_no_more_than_one_number(tmp_path: Path) -> None:
    federation = Federation(FedDisco(rounds=1, training=FAST), tmp_path)
    federation.run()
    for update in federation.done[0].replies.updates.values():
        told: Tensors = update.payload["classes"]
        assert {name: tensor.shape for name, tensor in told.items()} == {"discrepancy": torch.Size([])}
