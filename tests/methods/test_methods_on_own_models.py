"""Every method on models of one's own: partly frozen, with adapters, tied weights, buffers, parts nothing can draw."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from federations import METHODS, Federation
from own_models import Adapted, Headless, Plain, Unusual, model_of
from sampled import different, sampled
from torch import nn

from caveat.core import ConfigurationError, Method
from caveat.methods import FedAvg, FedBABU, FedPer, FedRep
from caveat.testing import CheckedMethod, checks, flat
from caveat.training.fit import Training
from caveat.training.modules import frozen, tensors_of

CHECKS = [
    checks.two_workers_give_the_bits_of_one,
    checks.resumed_run_equals_uninterrupted,
    checks.a_round_done_twice_after_a_kill_changes_nothing,
    checks.weights_left_in_the_workspace_mean_nothing,
    checks.predictions_are_well_formed,
    checks.in_the_end_a_silo_can_ask_the_models_that_are_declared,
    checks.a_prediction_does_not_depend_on_the_inputs_beside_it,
]
FIRST = {type(method): method for method in reversed(METHODS)}
EVERY = sorted(FIRST.values(), key=lambda method: method.name)
NEED_PARTS = (
    "distrans",
    "fedbabu",
    "fedcr",
    "fedper",
    "fedpn",
    "fedproto",
    "fedrep",
    "fedsr",
    "moon",
    "trfeddis",
    "uefl",
)
FAST = Training(batch_size=16, lr=0.05, optimizer="sgd")


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "code"),
    [*((method, Adapted) for method in EVERY), *((method, Unusual) for method in different(EVERY))],
    ids=lambda each: getattr(each, "name", None) or each.__name__,
)
def test_a_method_keeps_its_contract_on_an_own_model(method: Method, code: type[nn.Module], tmp_path: Path) -> None:
    trial = CheckedMethod(method, tmp_path, {}, partial(model_of, code))
    for check in CHECKS[:-1] if code is Unusual else CHECKS:  # it drops units within, where inputs have their own masks
        check(trial)


@pytest.mark.parametrize("method", sampled(EVERY), ids=lambda method: str(method.name))
def test_nothing_frozen_leaves_a_silo_or_is_kept_there(method: Method, tmp_path: Path) -> None:
    federation = Federation(method, tmp_path, model=partial(model_of, Adapted))
    before = {name: tensor.clone() for name, tensor in model_of(Adapted).state_dict().items()}
    federation.run()
    left_out = {name for name in before if name in frozen(model_of(Adapted))}
    assert len(left_out) == 9  # two layers, and the five tensors of BatchNorm
    payloads = [update.payload for done in federation.done for update in done.replies.updates.values()]
    for payload in (*payloads, *federation.states().values(), federation.server):
        assert not [path for path in flat(payload) for name in left_out if path.endswith(name)]
    inner = getattr(federation.place.module, "common", federation.place.module)
    there = inner.state_dict()
    for name in left_out & there.keys():
        assert torch.equal(there[name], before[name]), f"{name} has changed"


@pytest.mark.parametrize("method", EVERY, ids=lambda method: str(method.name))
def test_what_a_method_needs_and_a_module_lacks_is_one_sentence(method: Method, tmp_path: Path) -> None:
    if method.name not in NEED_PARTS:
        Federation(method, tmp_path, model=partial(model_of, Headless)).run(stop=1)
        return
    with pytest.raises(
        ConfigurationError,
        match=r"Headless (does not have both|has no module `head`): give it modules `encoder` and `head`",
    ) as why:
        Federation(method, tmp_path, model=partial(model_of, Headless))
    assert len(str(why.value).splitlines()) == 1


@pytest.mark.parametrize("kind", [FedPer, FedRep, FedBABU])
@pytest.mark.parametrize("code", [Plain, Headless])
def test_the_last_layer_alone_can_stay(kind: type[FedPer], code: type[nn.Module], tmp_path: Path) -> None:
    federation = Federation(kind(rounds=2, training=FAST, stays="last"), tmp_path, model=partial(model_of, code))
    federation.run()
    sent = set(federation.done[0].replies.updates["silo-0"].payload["model"])
    stays = set(tensors_of(model_of(code))) - sent
    assert stays == ({"out.weight", "out.bias"} if code is Headless else {"head.4.weight", "head.4.bias"})


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(2, 3), nn.Linear(3, 3)
        self.encoder = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
        self.head.weight = self.encoder[1].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.encoder(x))
        return out


def test_tied_weights_travel_once_and_cannot_stay_and_travel(tmp_path: Path) -> None:
    federation = Federation(FedAvg(rounds=2, training=FAST), tmp_path / "a", model=partial(model_of, TiedHead))
    federation.run()
    names = set(federation.server["model"])
    assert len(names) == 5  # two weights, three biases
    model = model_of(TiedHead)
    assert names == set(tensors_of(model))
    with pytest.raises(ConfigurationError, match=r"'head.*weight' is tied to 'encoder.*weight', so it cannot stay"):
        Federation(FedPer(rounds=2, training=FAST), tmp_path / "b", model=partial(model_of, TiedHead)).run()
