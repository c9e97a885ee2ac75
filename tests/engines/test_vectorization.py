"""Vectorized silos: the numbers of each silo by itself, the same bits for any distribution, and reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import ADAM, FAST, METHODS, Federation, assert_same, assert_same_states, silos
from torch import Tensor, nn

from caveat.core import Method, Payload, RunError, SiloContext, State, Update
from caveat.engines.executor import SiloDiverged
from caveat.engines.single_machine import SingleMachineEngine
from caveat.engines.vectorization import MOST, SILOS, STEP, Mode, Vectorization, chunks
from caveat.files.schema import VectorizedRecord
from caveat.methods import (
    APFL,
    FML,
    FMLU,
    IFCA,
    MOON,
    SCAFFOLD,
    UEFL,
    FedALA,
    FedAvg,
    FedBN,
    FedCR,
    FedDisco,
    FedIIR,
    FedPN,
    FedProto,
    FedRoD,
    FedSR,
    Local,
    PerFedAvg,
    PFedBayes,
    TrFedDis,
)
from caveat.nn.encoders import Model, Tokens, head
from caveat.training.fit import Loss, Training
from caveat.training.modules import learning, load
from caveat.wrappers.training_options import trained

TOLERANCE = 1e-3
"""Of a tensor's largest number, after two rounds in float32."""
REFUSED: dict[type[Method], dict[str, str]] = {
    MOON: {"train (previous)": "context.train"},
    PerFedAvg: {"train": "computes gradients itself"},
    FMLU: {
        "train": "draws random numbers", "train of model 1": "draws random numbers",
        "train (own)": "context.validation", "train (own) of model 1": "context.validation",
    },
    FML: {"train": "draws random numbers", "train of model 1": "draws random numbers"},
    TrFedDis: {"train (model)": "draws random numbers"},
    UEFL: {"train (entropy, model)": "depends on a silo's values"},
    FedDisco: {"train": "context.train"},
    IFCA: {"train": "context.train", "train (cluster)": "context.train", "settle (cluster)": "context.train"},
    FedRoD: {"train": "context.train", "train (layer)": "context.train"},
    FedSR: {"train (model)": "draws random numbers other than batches"},
    FedCR: dict.fromkeys(("train (model)", "personalise (model)"), "draws random numbers other than batches"),
    FedIIR: {"tell": "reads a silo's values", "train": "does not require grad"},
    FedALA: {"train (own)": "reads a silo's values"},
    FedProto: {"train (own)": "context.train"},
    PFedBayes: dict.fromkeys(("train", "train (own, rho)"), "draws random numbers other than batches"),
    FedPN: {"train": "torch.autograd.Function", "personalise": "context.train", "train_densities": "context.train"},
}  # fmt: skip
"""The works of methods that are not vectorized, and what their reasons say."""
NEVER = (FMLU, UEFL, FedPN, FedDisco, IFCA, FedRoD, FedProto, FedSR, FedCR, FedIIR, PFedBayes)


def plain() -> nn.Module:
    """A model without BatchNorm, which hides the size of inputs, and before which a bias has no gradient but rounding,
    which Adam takes for a direction.
    """
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), Tokens())
    return Model(encoder, head(1, 6, 8, 3, dropout=0.3, dropout_logits=False), tokens=1, features=6)


def federation(
    method: Method, folder: Path, mode: Mode, workers: int = 1, **about: Any
) -> tuple[Federation, Mapping[str, VectorizedRecord]]:
    """A federation of six silos with 40 to 140 examples after all its rounds, and which works were vectorized."""
    stop, model, data = about.get("stop"), about.get("model"), about.get("data") or silos(6)
    found, vectorization = (
        Federation(method, folder, workers, data=data, model=model),
        Vectorization(mode, about.get("works")),
    )
    engine = SingleMachineEngine(found.place, workers, vectorization=vectorization)
    found.run(engine=engine, **({} if stop is None else {"stop": stop}))
    return found, {name.removeprefix("base."): record for name, record in vectorization.works.items()}


def assert_near(one: Payload, other: Payload, tolerance: float = TOLERANCE) -> None:
    for group, tensors in one.items():
        assert tensors.keys() == other[group].keys()
        for name, tensor in tensors.items():
            if not torch.equal(tensor, other[group][name]):
                off = float((tensor.double() - other[group][name].double()).abs().max())
                assert off <= tolerance * max(0.1, float(tensor.double().abs().max())), (group, name)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.long
def test_vectorized_silos_come_to_the_numbers_of_each_by_itself(method: Method, tmp_path: Path) -> None:
    short: Any = replace(method, rounds=2, training=FAST)  # type: ignore[call-arg,type-var]
    refused = REFUSED.get(type(method), {})
    stop = 1 if isinstance(method, UEFL) else None
    apart, none = federation(short, tmp_path / "off", "off", stop=stop)
    together, works = federation(short, tmp_path / "on", "on", stop=stop)
    assert none == {}
    assert {name for name, record in works.items() if not record.vectorized} <= refused.keys()
    assert any(record.vectorized for record in works.values()) or type(method) in NEVER
    for name, record in works.items():
        assert not record.padded  # a BatchNorm would see what does not count
        assert bool(record.why) != record.vectorized
        assert record.vectorized or refused[name] in record.why
    assert_near(apart.server, together.server)
    one, other = apart.states(), together.states()
    for silo in one:
        assert_near(one[silo], other[silo])


@pytest.mark.parametrize("method", [FedBN(rounds=2, training=ADAM), SCAFFOLD(rounds=2, training=FAST)])
def test_two_workers_give_the_bits_of_one(method: Method, tmp_path: Path) -> None:
    one, _ = federation(method, tmp_path / "one", "on", 1, data=silos(17))
    two, works = federation(method, tmp_path / "two", "on", 2, data=silos(17))
    assert all(record.vectorized for record in works.values())
    assert_same(one.server, two.server)
    assert_same_states(one.states(), two.states())


def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    method, works = FedBN(rounds=3, training=ADAM), dict[str, VectorizedRecord]()
    whole, _ = federation(method, tmp_path / "whole", "on")
    parts, _ = federation(method, tmp_path / "parts", "on", stop=2, works=works)
    again = Federation(method, tmp_path / "parts", data=silos(6))
    again.server = parts.server
    again.run(engine=SingleMachineEngine(again.place, 1, vectorization=Vectorization("on", works)), start=2)
    assert_same(whole.server, again.server)
    assert_same_states(whole.states(), again.states())


@pytest.mark.parametrize(
    "training",
    [
        Training(batch_size=16, optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=0.01, local_steps=5),
        Training(batch_size=16, optimizer="adamw", lr=0.01, weight_decay=0.1, clip_norm=0.05, local_epochs=1.5),
        Training(batch_size=16, lr=0.01, class_weights=(1.0, 2.0, 3.0), lr_schedule="cosine", warmup=1),
        Training(batch_size=100, lr=0.01, label_smoothing=0.1, lr_decay=0.5),
    ],
    ids=["momentum", "clip", "weights", "smoothing"],
)
def test_every_setting_of_training_is_followed(training: Training, tmp_path: Path) -> None:
    method = FedAvg(rounds=2, training=training)
    apart, _ = federation(method, tmp_path / "off", "off", model=plain)
    together, works = federation(method, tmp_path / "on", "on", model=plain)
    assert works["train"].vectorized
    assert works["train"].padded
    assert_near(apart.server, together.server)


@pytest.mark.parametrize("state", ["keep", "average"])
def test_what_optimisers_remember_goes_on(state: Any, tmp_path: Path) -> None:
    method = trained(FedAvg(rounds=3, training=replace(ADAM, optimizer_state=state)))
    apart, _ = federation(method, tmp_path / "off", "off", model=plain)
    together, works = federation(method, tmp_path / "on", "on", model=plain)
    assert all(record.vectorized for record in works.values())
    assert_near(apart.server, together.server, 1e-2)
    one, other = apart.states(), together.states()
    for silo in one:
        assert_near(one[silo], other[silo], 1e-2)


def test_frozen_parts_stay_and_tied_tensors_stay_tied(tmp_path: Path) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 6), Tokens())
        encoder[3].weight = encoder[2].weight
        encoder[0].requires_grad_(False)
        return Model(encoder, head(1, 6, 8, 3, dropout=0.3, dropout_logits=False), tokens=1, features=6)

    method = FedAvg(rounds=2, training=FAST)
    apart, _ = federation(method, tmp_path / "off", "off", model=model)
    together, works = federation(method, tmp_path / "on", "on", model=model)
    assert works["train"].vectorized
    assert_near(apart.server, together.server, 1e-5)


@dataclass(frozen=True)
class Behind(FedAvg):
    """Looks at the parameters that its workspace had before training, wherever it trains; they differ if vectorized."""

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        before, loss = list(learning(module).values()), super().objective(module, down)
        return lambda x, y: loss(x, y) + sum(p.square().sum() for p in before)


@dataclass(frozen=True)
class Changing(FedAvg):
    """Changes what it was sent."""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update = super().train(down, state, context)
        load(context.module, down["model"])
        with torch.no_grad():
            for parameter in context.module.parameters():
                parameter.zero_()
        return update


@dataclass(frozen=True)
class Named(FedAvg):
    """Asks which silo it is at."""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        return super().train(down, state, context) if context.id.startswith("silo") else (Update({}, 1), state)


@dataclass(frozen=True)
class Noisy(FedAvg):
    """Draws beside what training draws."""

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        loss = super().objective(module, down)
        return lambda x, y: loss(x + 0.1 * torch.randn_like(x), y)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Behind, "differs by"),
        (Changing, "changes tensors of its arguments in place"),
        (Named, "context.id"),
        (Noisy, "random numbers"),
    ],
)
def test_what_cannot_be_vectorized_is_carried_out_as_ever_and_says_why(
    kind: Callable[..., FedAvg], why: str, tmp_path: Path
) -> None:
    method = kind(rounds=2, training=FAST)
    apart, _ = federation(method, tmp_path / "off", "off")
    together, works = federation(method, tmp_path / "on", "on")
    assert not works["train"].vectorized
    assert why in works["train"].why
    assert_same(apart.server, together.server)


@pytest.mark.parametrize("shuffled", [False, True])
def test_certainties_that_are_shuffled_are_so_for_each_silo_by_itself(shuffled: bool, tmp_path: Path) -> None:
    method = FMLU(rounds=2, training=FAST, weigh_mean=False, shuffled=shuffled)
    together, works = federation(method, tmp_path / "on", "on")
    assert works["train (own)"].vectorized != shuffled
    if shuffled:
        assert "draws random numbers" in works["train (own)"].why
        assert_same(federation(method, tmp_path / "off", "off")[0].server, together.server)


@dataclass(frozen=True)
class Later(FedAvg):
    """Asks which silo it is at in its second round, when it has been decided that it is vectorized."""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        if context.round == 1 and not context.id:
            raise RunError("never")
        return super().train(down, state, context)


def test_a_round_that_cannot_be_vectorized_after_all_is_carried_out_one_by_one(tmp_path: Path) -> None:
    together, works = federation(Later(rounds=3, training=FAST), tmp_path / "on", "on")
    assert works["train"].vectorized
    assert works["train"].why == "in round 2 of the schedule it reads context.id, which differs between silos"
    apart, _ = federation(Later(rounds=3, training=FAST), tmp_path / "off", "off")
    assert_near(apart.server, together.server)


@pytest.mark.parametrize("workers", [1, 2])
def test_training_that_diverges_names_the_silo(tmp_path: Path, workers: int) -> None:
    data = silos(6)
    data["silo-4"] = replace(data["silo-4"], train=data["silo-4"].train.labeled(data["silo-4"].train.y))
    data["silo-4"].train.x.mul_(1e25)
    method = FedAvg(rounds=1, training=Training(batch_size=16, optimizer="sgd", lr=0.05))
    with pytest.raises(SiloDiverged, match=r"'silo-4' failed in round 1 of the schedule, task 'base\.train'"):
        federation(method, tmp_path, "on", workers, data=data, model=plain)


def large() -> nn.Module:
    """A model whose parameters alone are more than a step of training may take."""
    torch.manual_seed(0)
    hidden = STEP // 4 // 6 + 1
    return Model(nn.Sequential(nn.Linear(2, 6), Tokens()), head(1, 6, hidden, 3, 0.3, dropout_logits=False), 1, 6)


@pytest.mark.parametrize("mode", ["auto", "on"])
@pytest.mark.parametrize(
    ("count", "model", "why"),
    [
        (SILOS, plain, ""),
        (SILOS - 1, plain, f"{SILOS - 1} silos of one architecture take part in a round, expected at least {SILOS}"),
        (SILOS, large, "per silo, expected at most 0.52"),
    ],
    ids=["many", "few", "large"],
)
def test_auto_asks_for_many_silos_and_small_steps(
    mode: Mode, count: int, model: Callable[[], nn.Module], why: str, tmp_path: Path
) -> None:
    method = Local(rounds=1, training=replace(FAST, local_steps=2, local_epochs=None))
    _, works = federation(method, tmp_path, mode, data=silos(count), model=model)
    assert works["train (model)"].vectorized == (mode == "on" or not why)
    assert (why in works["train (model)"].why) if mode == "auto" else not works["train (model)"].why


def test_auto_comes_to_the_bits_of_on_and_keeps_what_it_decided(tmp_path: Path) -> None:
    method, decided = FedAvg(rounds=1, training=FAST), dict[str, VectorizedRecord]()
    together, works = federation(method, tmp_path / "auto", "auto", 2, data=silos(SILOS), works=decided)
    assert_same(federation(method, tmp_path / "on", "on", data=silos(SILOS))[0].server, together.server)
    # With fewer silos it would decide otherwise now.
    assert federation(method, tmp_path / "again", "auto", works=decided)[1] == works


def test_chunks_are_a_function_of_the_cohort() -> None:
    names = [f"silo-{k:04d}" for k in range(1000)]
    sizes = {name: k % 7 for k, name in enumerate(names)}
    found = chunks(names, {}, sizes, lambda silo: sizes[silo] == 6)
    assert sorted(silo for silos in found for silo in silos) == names
    assert max(map(len, found)) <= MOST
    assert all(len({sizes[silo] == 6 for silo in silos}) == 1 for silos in found)
    rest = [sizes[silo] for silos in found for silo in silos if sizes[silo] != 6]
    assert rest == sorted(rest, reverse=True)
    assert found == chunks(list(reversed(names)), {}, sizes, lambda silo: sizes[silo] == 6)
    large = {"model": {"weight": torch.zeros(10**7)}}
    assert [len(silos) for silos in chunks(names[:5], large, None, lambda silo: 0)] == [2, 1, 2]


def test_mixtures_are_vectorized_although_they_are_made_anew_for_each_silo(tmp_path: Path) -> None:
    found, works = federation(APFL(rounds=2, training=FAST), tmp_path, "on")
    assert all(record.vectorized for record in works.values())
    alphas: list[Tensor] = [state["mixture"]["alpha"] for state in found.states().values()]
    assert len({float(alpha) for alpha in alphas}) == len(alphas)


@dataclass(frozen=True)
class Annealed(FedAvg):
    """Drops fewer units from round to round."""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        for part in context.module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.4 / (1 + context.round)
        return super().train(down, state, context)


def test_dropout_may_change_from_round_to_round(tmp_path: Path) -> None:
    apart, _ = federation(Annealed(rounds=3, training=FAST), tmp_path / "off", "off", model=plain)
    together, works = federation(Annealed(rounds=3, training=FAST), tmp_path / "on", "on", model=plain)
    assert works["train"].why == "in round 2 of the schedule it drops different units than before"
    assert_near(apart.server, together.server)
