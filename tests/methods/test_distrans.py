"""DisTrans: the numbers of the authors' code, and what its model does with a head, with inputs and with many inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import ADAM, FAST, Federation, model
from test_authors_numbers import TWO_STEPS, N, filled, inputs, near, net_with_head, one_round, sums
from torch import nn

from caveat.core import ConfigurationError, Data, SiloContext, State
from caveat.methods import DisTrans
from caveat.nn.encoders import Head, Model
from caveat.nn.stage_features import recording, stages
from caveat.training.modules import load
from caveat.wrappers.alarms import Familiar


def plain() -> Model:
    module = net_with_head()
    assert isinstance(module, Model)
    return Model(module.encoder, module.head, 1, 6, shape=(2,))


def test_three_rounds_come_to_the_numbers_of_the_authors_code() -> None:
    """github.com/hyhmia/DisTrans, FedUser.py: `User.train`, with one rate, and modelUtil.py: `agg_weights`, on this
    model and data."""
    method = DisTrans(training=TWO_STEPS)
    network = method.build(plain())
    filled(nn.ModuleList([network.encoder.network, network.head]))  # type: ignore[union-attr,list-item]
    data = [Data(inputs(12, k), (N + k * (N // (3 + k % 2))) % 3) for k in range(2)]
    sites = [SiloContext(str(k), each, each, each, network) for k, each in enumerate(data)]
    server = method.init_server(sites[0])
    offsets = torch.tensor([0.3, -0.7]), torch.tensor([-0.5, 0.2])
    states: list[State] = [{"model": {"encoder.offset": each}} for each in offsets]
    losses = []
    for done in range(4):
        for state, context in zip(states, sites, strict=True):
            load(network, server["model"] | state["model"])
            losses.append(method.objective(network, {})(*context.train).item())
        if done < 3:
            server, _ = one_round(method, server, states, sites)
    expected = [1.1214548, 1.1106082, 0.9857459, 1.0933206, 0.8859608, 1.0989283, 0.8076301, 1.1119827]
    assert losses == near(expected)
    moved = torch.stack([state["model"]["encoder.offset"] for state in states]).flatten()
    assert moved.tolist() == near([0.3075003, -0.6957806, -0.5006412, 0.2000732])
    assert sums(server["model"].values()) == near([0.3696272, 1.0795192, 8.6171641, 0.0282363])


def test_every_silo_starts_with_another_offset_and_keeps_it(tmp_path: Path) -> None:
    federation = Federation(DisTrans(rounds=1, training=replace(FAST, lr=1e-9)), tmp_path)
    server = federation.run()
    assert "encoder.offset" not in server["model"]
    offsets = torch.stack([state["model"]["encoder.offset"] for state in federation.states().values()])
    assert offsets.abs().max() <= 1
    assert len(offsets.unique()) == offsets.numel() == 6


def test_without_a_weight_both_views_are_the_input() -> None:
    built = DisTrans(alpha=0).build(plain()).eval()
    x = inputs(5, 0)
    one, other = built.encoder(x).chunk(2, -1)  # type: ignore[operator]
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one[:, 0], plain().encoder(x)[:, 0])


def test_features_for_familiarity_are_those_of_both_views_of_each_input(tmp_path: Path) -> None:
    federation = Federation(Familiar(DisTrans(rounds=1, training=ADAM)), tmp_path)
    server = federation.run()
    module, x = federation.place.module.eval(), torch.randn(1100, 2)
    (stage,) = stages(module)
    down, (state, *_) = federation.place.method.broadcast(server), federation.states().values()
    with recording([stage]) as found:
        federation.place.method.answer(down, state, federation.place.context("silo-0"), x)
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(found[0]), module.encoder(x)[:, 0])  # type: ignore[operator]


def test_ids_and_heads_without_a_linear_layer_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^distrans adds a learned offset to inputs, so inputs must be numbers"
    ):
        DisTrans().build(net_with_head())
    built = model()
    built.head = Head(list(built.head)[:3], [nn.LayerNorm(8), nn.Linear(8, 3)])
    with pytest.raises(
        ConfigurationError, match=r"a linear layer behind its hidden units, but this model's head has LayerNorm there"
    ):
        DisTrans().build(built)
