"""FedProto: a reference value or invariant per formula, what does not leave a silo, and which models fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import ADAM, FAST, Federation, assert_same, model

import caveat
from caveat.core import ConfigurationError, Data, Payload, Replies, SiloContext, Update, seeded
from caveat.methods import FedAvg, FedProto
from caveat.methods.fedproto import prototypes
from caveat.training.modules import load, snapshot


def examples(counts: tuple[int, ...] = (12, 5, 4)) -> Data:
    y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    return Data(torch.randn(len(y), 2, generator=torch.Generator().manual_seed(0)) + y[:, None], y)


def context(data: Data | None = None) -> SiloContext:
    """A silo whose own model is another than the federation's."""
    data = data or examples()
    return SiloContext("s", data, data, data, model(0), own=model(1))


def down(known: tuple[bool, ...] = (True, False, True)) -> Payload:
    means = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    return {"prototypes": {"means": means, "known": torch.tensor(known)}}


def test_it_adds_lambda_times_the_mean_square_to_the_prototypes_that_there_are() -> None:
    own, (x, y), shared = model(1).eval(), examples(), down()["prototypes"]
    z = own.head.hidden(own.encoder(x)).detach()
    squares = [float((z[i] - shared["means"][c]).square().sum()) if c != 1 else 0.0 for i, c in enumerate(y.tolist())]
    expected = F.cross_entropy(own(x), y).item() + 0.7 * sum(squares) / z.numel()
    assert FedProto(lam=0.7).near(own, shared)(x, y).item() == pytest.approx(expected, rel=1e-5)


def test_without_lambda_or_prototypes_a_silo_trains_alone() -> None:
    method, start = FedProto(training=ADAM, lam=0.0), snapshot(model(1))
    for told, each in ((down(), method), (down((False,) * 3), replace(method, lam=5.0))):
        with seeded(0):
            _, state = each.train(told, {"own": start}, context())
        alone = load(model(), start)
        with seeded(0):
            ADAM.fit(replace(context(), module=alone), FedAvg().objective(alone, {}))
        assert_same(state, {"own": snapshot(alone)})


def test_silos_that_take_part_come_nearer_to_each_other(tmp_path: Path) -> None:
    def apart(lam: float) -> float:
        federation = Federation(FedProto(rounds=4, training=ADAM, lam=lam), tmp_path / str(lam))
        federation.run()
        sent = [update.payload["prototypes"] for update in federation.done[-1].replies.updates.values()]
        each = torch.stack([group["means"] for group in sent])
        return float((each - each.mean(0)).norm() / each.norm())

    assert apart(30.0) < 0.7 * apart(0.0)


def test_a_class_of_fewer_than_five_examples_is_not_told_of() -> None:
    own, data = model(1).eval(), examples((12, 5, 4))
    sent = prototypes(own, context(data), 3)
    assert sent["counts"].tolist() == [12, 5, 0]
    z = own.head.hidden(own.encoder(data.x)).detach()
    for c in (0, 1):
        torch.testing.assert_close(sent["means"][c], z[data.y == c].mean(0))
    assert not sent["means"][2].any()


def test_the_server_weighs_by_examples_of_the_class_and_keeps_what_nobody_sends() -> None:
    server = {"prototypes": {"means": torch.full((3, 2), 9.0), "known": torch.tensor([False, True, False])}}

    def update(means: list[float], counts: list[int]) -> Update:
        sent = {"means": torch.tensor(means)[:, None].expand(3, 2), "counts": torch.tensor(counts)}
        return Update({"prototypes": sent}, 100)

    replies = Replies({"a": update([1, 0, 0], [30, 0, 0]), "b": update([5, 0, 2], [10, 0, 7])}, 2)
    after = FedProto().aggregate(server, replies, context())["prototypes"]
    assert after["means"].tolist() == [[2, 2], [9, 9], [2, 2]]
    assert after["known"].tolist() == [True, True, True]


def silos() -> caveat.data.Silos:
    draw = np.random.default_rng(0)
    return caveat.data.from_arrays({name: (draw.normal(size=(60, 3)), np.arange(60) % 3) for name in "ab"})


def test_no_model_leaves_a_silo_and_encoders_may_differ(tmp_path: Path) -> None:
    own = [caveat.PersonalModel(name="mlp", width=5, features=3, hidden=8, silos=("b",))]
    usual = caveat.ModelSettings(name="mlp", hidden=8)
    method = FedProto(rounds=2, training=FAST)
    run = caveat.run(silos(), method, model=usual, personal=own, every=9, out=tmp_path / "run")
    ledger = (run.folder / "ledger.jsonl").read_text()
    assert '"prototypes/means"' in ledger
    assert '"model/' not in ledger
    sizes = [sum(p.numel() for p in run.module(name).parameters()) for name in "ab"]
    assert sizes[0] > 2 * sizes[1]


def test_it_has_no_use_for_the_model_of_another_run(tmp_path: Path) -> None:
    first = caveat.run(silos(), FedAvg(rounds=1, training=FAST), out=tmp_path / "first")
    with pytest.raises(
        ConfigurationError, match=r"init_from = .*first' has no effect for 'fedproto', which has no global"
    ):
        caveat.run(silos(), FedProto(rounds=1, training=FAST), out=tmp_path / "run", init_from=str(first.folder))


def test_models_of_other_sizes_are_refused_before_any_trains(tmp_path: Path) -> None:
    own = [caveat.PersonalModel(name="mlp", hidden=6, silos=("b",))]
    usual = caveat.ModelSettings(name="mlp", hidden=8)
    told = r"the personalized model of silo 'b' has 6 hidden units, but \[model\] has 8; prototypes need equal numbers"
    with pytest.raises(ConfigurationError, match=told):
        caveat.run(silos(), FedProto(rounds=1, training=FAST), model=usual, personal=own, out=tmp_path / "run")
    assert not (tmp_path / "run" / "state").exists()
