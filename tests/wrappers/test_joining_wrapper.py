"""Every method, and everything around one, lets a silo join what is finished: it sends nothing, and then predicts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import METHODS, WRAPPED, Federation, executor
from sampled import sampled

from caveat.core import ConfigurationError, Method, horizon
from caveat.methods import FedAvg, TrFedDis
from caveat.wrappers.ensembles import Ensemble
from caveat.wrappers.joining import Joining

NEW = "silo-1"
IDS = [f"{k}-{method.name}" for k, method in enumerate(METHODS + WRAPPED)]


@pytest.mark.parametrize("method", [*sampled(METHODS), *WRAPPED], ids=IDS)
def test_a_silo_joins_by_itself(method: Method, tmp_path: Path) -> None:
    server = Federation(method, tmp_path / "there").run()
    before = {group: {name: t.clone() for name, t in tensors.items()} for group, tensors in server.items()}
    joining = Joining(method, 1)
    place, kept = executor(joining, tmp_path / "here"), None
    place.states.begin()
    for t, step in enumerate(place.method.schedule()):
        if step.when(server):
            update, kept = place.perform(t, step.address, step.broadcast(server), NEW, kept)
            assert update.payload == {}
            assert step.aggregate(server, None, None) is server  # type: ignore[arg-type]
    state, down = place.state(NEW, kept), joining.broadcast(server)
    found = joining.predict(down, state, place.context(NEW), place.silos[NEW].test.x)
    assert found.probs.isfinite().all()
    assert torch.allclose(found.probs.sum(-1), torch.ones(len(found.probs), dtype=found.probs.dtype), atol=1e-6)
    assert all(torch.equal(t, server[group][name]) for group in before for name, t in before[group].items())


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 8])
def test_rounds_lie_in_the_middle_of_equal_parts(rounds: int) -> None:
    chosen = [t for t, step in enumerate(Joining(FedAvg(rounds=8), rounds).schedule()) if step.trains]
    assert chosen == {0: [], 1: [4], 2: [2, 6], 3: [1, 4, 6], 8: list(range(8))}[rounds]


def test_each_member_of_an_ensemble_trains_as_often() -> None:
    steps = list(Joining(Ensemble(FedAvg(rounds=4), ensemble_size=3), 2).schedule())
    assert [t for t, step in enumerate(steps) if step.trains] == [1, 3, 5, 7, 9, 11]


def test_rounds_that_were_not_made_are_not_carried_out() -> None:
    """Of a federation whose training ended early."""
    joining = Joining(FedAvg(rounds=8), 2, trained=4)
    assert horizon(joining.schedule()) == 4
    with pytest.raises(ConfigurationError, match="rounds = 5, expected 0 to 4"):
        Joining(FedAvg(rounds=8), 5, trained=4)


def test_what_silos_share_is_not_trained(tmp_path: Path) -> None:
    """TrFedDis: the module in which a newcomer has trained holds the federation's encoder and head to the bit."""
    method = TrFedDis(rounds=4)
    server = Federation(method, tmp_path / "there").run()
    place = executor(Joining(method, 1), tmp_path / "here")
    place.states.begin()
    ((t, step),) = [(t, step) for t, step in enumerate(place.method.schedule()) if step.trains]
    place.perform(t, step.address, step.broadcast(server), NEW, None)
    now = place.module.state_dict()
    shared = {f"common.{name}": tensor for name, tensor in server["model"].items()}
    assert all(torch.equal(now[name], tensor) for name, tensor in shared.items())
    assert any(name not in shared and not torch.equal(now[name], place.initial[name]) for name in now)
