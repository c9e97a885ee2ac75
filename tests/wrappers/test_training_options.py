"""Optimisers that go on over rounds: what is kept, what is shared, what stays at silos, and the bits of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import ADAM, FAST, METHODS, Federation, assert_same, assert_same_states, flat
from sampled import different

import caveat
from caveat.core import ConfigurationError, Method
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays
from caveat.files import read_ledger
from caveat.methods import FedAvg, FedPer, Local
from caveat.training.fit import Training
from caveat.wrappers.ensembles import Ensemble
from caveat.wrappers.privacy import Private
from caveat.wrappers.training_options import Carried, trained

MOMENTUM = replace(FAST, momentum=0.9)
ALONE = ("FML", "FMLU", "TrFedDis", "APFL", "FedRoD", "FedProto", "PFedBayes")
"""Whose silos train more than what they send, or something else."""
AFRESH = ("FedPN", "SCAFFOLD", "FedDC", "Ditto", "IFCA")
"""Whose optimisers begin every round afresh, or have a way of their own."""


def carrying(method: Any, state: str) -> Method:
    """The method with what its optimisers remember carried on, by sgd with momentum where it is by sgd."""
    training = method.training if method.training.optimizer == "adam" else replace(method.training, momentum=0.9)
    return trained(replace(method, training=replace(training, optimizer_state=state)))


def takes(method: Method, state: str) -> bool:
    name = type(method).__name__
    return name not in AFRESH and not (state == "average" and name in ALONE)


EVERY = [(method, state) for method in METHODS for state in ("keep", "average") if takes(method, state)]
IDS = [f"{type(m).__name__}-{i}-{state}" for i, (m, state) in enumerate(EVERY)]
each = pytest.mark.parametrize(("method", "state"), EVERY, ids=IDS)
KINDS = {id(method) for method in different(METHODS)}


@each
@pytest.mark.long
def test_states_over_rounds_are_the_same_bits_with_two_workers_and_after_an_interruption(
    method: Method, state: str, tmp_path: Path
) -> None:
    carried = carrying(method, state)
    assert isinstance(carried, Carried)
    whole = Federation(carried, tmp_path / "whole")
    whole.run()
    first = Federation(carried, tmp_path / "cut", workers=2)
    first.run(stop=2)
    second = Federation(carried, tmp_path / "cut")
    second.server = first.server
    assert_same(whole.server, second.run(start=2))
    assert_same_states(whole.states(), second.states())
    fresh = Federation(carrying(method, "reset"), tmp_path / "fresh")
    fresh.run()
    one, other = ({**flat(f.server), **flat(f.states()["silo-0"])} for f in (whole, fresh))
    assert any(not torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize(
    ("method", "state"),
    [
        pytest.param(method, state, marks=() if state == "average" or id(method) in KINDS else pytest.mark.long)
        for method, state in EVERY
    ],
    ids=IDS,
)
def test_private_parts_send_no_moments(method: Method, state: str, tmp_path: Path) -> None:
    federation = Federation(carrying(method, state), tmp_path)
    federation.run()
    for done in federation.done:
        for update in done.replies.updates.values():
            sent = update.payload.get("moments", {})
            assert "moments" not in update.payload or state == "average"
            assert {name.partition(".")[2] for name in sent} <= update.payload.get("model", {}).keys()


def test_kept_is_one_long_training_where_a_silo_is_alone(tmp_path: Path) -> None:
    """Two rounds of as many steps are as two rounds of a silo whose optimiser was never stopped."""
    training = Training(batch_size=16, lr=0.01, local_steps=4, optimizer_state="keep")
    federation = Federation(trained(Local(rounds=2, training=training)), tmp_path)
    federation.run(stop=1)
    state = federation.states()["silo-0"]
    assert {float(tensor) for name, tensor in state["moments"].items() if name.startswith("step.")} == {4.0}
    federation.run(start=1)
    state = federation.states()["silo-0"]
    assert {float(tensor) for name, tensor in state["moments"].items() if name.startswith("step.")} == {8.0}


def test_shared_moments_are_the_mean_over_silos_and_are_sent_with_the_model(tmp_path: Path) -> None:
    federation = Federation(carrying(FedAvg(rounds=2, training=ADAM), "average"), tmp_path)
    assert not any(bool(tensor.any()) for tensor in federation.server["moments"].values())
    seen = []
    federation.run(after=lambda done, server: seen.append((done, server)))
    (first, after), (second, _) = seen
    assert_same({"moments": second.sent["moments"]}, {"moments": after["moments"]})
    assert {"model", "moments"} == second.sent.keys()
    replies = first.replies
    for name, mean in after["moments"].items():
        if replies.means is None:
            each = [update.payload["moments"][name].double() for update in replies.updates.values()]
            shares = [update.examples for update in replies.updates.values()]
            expected = sum(w * t for w, t in zip(shares, each, strict=True)) / sum(shares)
            torch.testing.assert_close(mean.double(), expected)
    parameters = {name for name, _ in federation.context.module.named_parameters()}
    assert {name.partition(".")[2] for name in after["moments"]} == parameters


def test_zeros_before_the_first_round_are_a_fresh_optimiser(tmp_path: Path) -> None:
    training = replace(ADAM, local_steps=3)
    one = Federation(carrying(FedAvg(rounds=1, training=training), "average"), tmp_path / "one")
    other = Federation(FedAvg(rounds=1, training=training), tmp_path / "other")
    assert_same({"model": one.run()["model"]}, {"model": other.run()["model"]})


def test_what_stays_at_a_silo_keeps_its_moments_there(tmp_path: Path) -> None:
    federation = Federation(carrying(FedPer(rounds=2, training=MOMENTUM), "average"), tmp_path)
    federation.run()
    kept = {name.partition(".")[2] for name in federation.states()["silo-0"]["moments"]}
    assert kept
    assert all(name.startswith("head.") for name in kept)
    assert not any(".head." in name for name in federation.server["moments"])


def test_members_of_an_ensemble_have_moments_of_their_own(tmp_path: Path) -> None:
    base = carrying(FedAvg(rounds=2, training=ADAM), "average")
    alone = Federation(base, tmp_path / "alone")
    alone.run()
    federation = Federation(Ensemble(base, ensemble_size=2), tmp_path / "both")
    server = federation.run()
    assert_same({"moments": server["0.moments"]}, {"moments": alone.server["moments"]})
    assert any(not torch.equal(server["0.moments"][name], server["1.moments"][name]) for name in server["0.moments"])


def test_noise_does_not_go_together_with_shared_moments() -> None:
    shared = carrying(FedAvg(rounds=2, training=ADAM), "average")
    with pytest.raises(ConfigurationError, match=r"training\.optimizer_state = 'average' cannot be used with clipping"):
        Private(shared, clip_norm=1.0, noise_multiplier=1.0, silos=3)
    assert Private(
        carrying(FedAvg(rounds=2, training=ADAM), "keep"), clip_norm=1.0, noise_multiplier=1.0, silos=3
    ).covers == ("train",)


@pytest.fixture(scope="module")
def silos() -> Silos:
    draw = np.random.default_rng(0)
    y = np.arange(80) % 2
    return from_arrays({name: (draw.normal(size=(80, 3)) + y[:, None], y) for name in "ab"})


def test_the_ledger_shows_what_is_shared(silos: Silos) -> None:
    run = caveat.run(silos, FedAvg(), rounds=1, training=Training(batch_size=8, optimizer_state="average"))
    messages = [m for m in read_ledger(run.folder / "ledger.jsonl").messages if m.phase == "train" and not m.split]
    assert messages
    plain = caveat.run(silos, FedAvg(), rounds=1, training=Training(batch_size=8))
    usual = [m for m in read_ledger(plain.folder / "ledger.jsonl").messages if m.phase == "train" and not m.split]
    assert messages[0].bytes > 2.5 * usual[0].bytes
