"""Ditto, FedRoD and FedALA, whose silos keep a model beside the federation's: a reference value per formula."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from federations import FAST, Federation, assert_same, silos
from torch import Tensor, nn

from caveat.core import Data, Site, Tensors
from caveat.methods import Ditto, FedAvg, Local
from caveat.training.fit import Training
from caveat.training.modules import snapshot

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


def site(module: nn.Module, data: Data | None = None) -> Site:
    data = data or examples()
    return Site("s", data, data, data, module)


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
    update, state = Ditto(training=ONE_STEP, lam=0.7).train({"model": w}, {"own": v}, site(linear(), data))
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
            update, after = method.train(down, state, site(linear(), part))
            own[name], sent[name] = after["own"], update.payload["model"]
            _, kept = Local(training=ONE_STEP).train({"model": {}}, {"model": alone[name]}, site(linear(), part))
            alone[name] = kept["model"]
        down = {"model": {name: torch.stack([each[name] for each in sent.values()]).mean(0) for name in NAMES}}
    for name, theirs in alone.items():
        assert_close(own[name], theirs)
    assert not torch.allclose(own["silo-0"]["0.weight"], down["model"]["0.weight"], atol=1e-3)


def test_ditto_s_federation_is_fedavg_s(tmp_path: Path) -> None:
    ours = Federation(Ditto(rounds=3, training=FAST, lam=2.0), tmp_path / "ditto").run()
    assert_same(ours, Federation(FedAvg(rounds=3, training=FAST), tmp_path / "fedavg").run())
