"""Small federations for tests: three silos whose data differ, a model with BatchNorm and dropout."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from caveat.core import Data, Method, Payload, Replies, Silo, Site, State, Update
from caveat.engines.executor import Executor, channels_last
from caveat.engines.processes.pool import EmbeddedEngine
from caveat.engines.rounds import FinishedRound, Participation, run
from caveat.files.checkpoints import SiloStore
from caveat.files.kept_states import adopted
from caveat.methods import (
    APFL,
    FML,
    FMLU,
    MOON,
    SCAFFOLD,
    UEFL,
    FedAvg,
    FedBABU,
    FedBN,
    FedDC,
    FedDyn,
    FedPer,
    FedPN,
    FedProx,
    FedRep,
    Local,
    PerFedAvg,
    TrFedDis,
)
from caveat.nn.encoders import Model, Tokens, head
from caveat.training.fit import Training
from caveat.wrappers.base import Wrapper
from caveat.wrappers.conformal import Conformal
from caveat.wrappers.ensemble import Ensemble
from caveat.wrappers.evaluation import Evaluated
from caveat.wrappers.familiar import Familiar
from caveat.wrappers.guaranteed import Guaranteed
from caveat.wrappers.laplace import Laplace
from caveat.wrappers.private import Private
from caveat.wrappers.switched import Switched
from caveat.wrappers.tempered import Tempered

FAST = Training(batch_size=16, lr=0.05, optimizer="sgd")
ADAM = Training(batch_size=16, lr=0.01)
METHODS: list[Method] = [
    Local(rounds=4, training=ADAM),
    FedAvg(rounds=4, training=ADAM),
    FedProx(rounds=4, training=FAST, mu=0.1),
    FedBN(rounds=4, training=FAST),
    SCAFFOLD(rounds=4, training=FAST),
    MOON(rounds=4, training=ADAM),
    FedDyn(rounds=4, training=FAST, alpha=0.1),
    FedDC(rounds=4, training=FAST, alpha=0.1),
    FedPer(rounds=4, training=FAST),
    FedRep(rounds=4, training=FAST, head_epochs=2),
    FedBABU(rounds=4, training=FAST, fine_tune_epochs=2),
    PerFedAvg(rounds=4, training=FAST, order="hessian-free", adapt_steps=2),
    APFL(rounds=4, training=ADAM),
    FML(rounds=4, training=FAST),
    FMLU(rounds=4, training=FAST),
    FMLU(rounds=4, training=ADAM, weigh_loss=False, weights="examples"),
    TrFedDis(rounds=4, training=FAST),
    TrFedDis(rounds=4, training=ADAM, anneal_rounds=2, fusion="discounted", trust=0.8),
    # With a threshold of 0 every silo but the most certain is extended.
    UEFL(
        rounds=3, extra_rounds=2, iterations=3, codewords=4, threshold=0, margin=0, segments=2, training=ADAM,
        mc_samples=5,
    ),
    UEFL(
        rounds=2, extra_rounds=1, iterations=3, codewords=4, threshold=0, margin=0, training=ADAM, mc_samples=5,
        segments=2, growth="double", keep="newest", reference="mean", refresh=False, extension="normal",
    ),
    FedPN(rounds=4, training=ADAM, layers=4, personal_epochs=2),
    FedPN(
        rounds=4, training=ADAM, layers=4, personal_epochs=2, stop_gradient="embedding", density_trains_encoder=True,
        normalise=False, entropy=1e-3, density_rounds=1, moments=False,
    ),
]  # fmt: skip
WRAPPED: list[Method] = [
    Switched(FedPN(rounds=2, training=ADAM, layers=4, personal_epochs=2), score="dirichlet_entropy", outliers=0.3),
    Switched(Tempered(FedAvg(rounds=2, training=ADAM)), abstain=0.3),
    Private(FedAvg(rounds=2, training=ADAM), clip=1.0, noise=0.3, silos=3),
    Switched(Familiar(FedPN(rounds=2, training=ADAM, layers=4, personal_epochs=2)), outliers=0.3),
    Familiar(Tempered(UEFL(rounds=2, extra_rounds=1, iterations=2, codewords=4, training=ADAM, mc_samples=5))),
    Familiar(FML(rounds=2, training=FAST)),
    Familiar(Private(FedAvg(rounds=2, training=ADAM), clip=1.0, noise=0.3, silos=3), shared=False),
    Guaranteed(FedBABU(rounds=2, training=FAST, fine_tune_epochs=2), risk=0.5, confidence=0.6),
    Conformal(Guaranteed(FedAvg(rounds=2, training=ADAM), risk=0.5, confidence=0.6, per="silo"), coverage=0.8),
    Laplace(FedBN(rounds=2, training=FAST)),
    Familiar(Laplace(FedPer(rounds=2, training=FAST))),
    Laplace(Private(FedAvg(rounds=2, training=ADAM), clip=1.0, noise=0.3, silos=3)),
    Switched(Tempered(Laplace(FML(rounds=2, training=FAST))), score="logit_variance", abstain=0.3),
    Familiar(Ensemble(FedPer(rounds=2, training=ADAM), members=3, seed=7)),
    Guaranteed(Ensemble(FedPN(rounds=1, training=ADAM, layers=4, personal_epochs=2), members=2), risk=0.5),
    Ensemble(
        UEFL(rounds=2, extra_rounds=1, iterations=2, codewords=4, threshold=0, margin=0, training=ADAM, mc_samples=5),
        members=2,
    ),
]
"""Methods with other sources of uncertainty, calibration, decisions, or clipping and noise around them."""


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), Tokens())
    return Model(encoder, head(1, 6, 8, 3, dropout=0.3, dropout_logits=False), tokens=1, features=6)


@cache
def architectures() -> tuple[nn.Module, nn.Module]:
    """The one above, and a smaller one without BatchNorm: the models of silos' own."""
    encoder = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), Tokens())
    return model(), Model(encoder, head(1, 4, 4, 3, dropout=0.3, dropout_logits=False), tokens=1, features=4)


def inner(method: Method) -> Method:
    return method.method if isinstance(method, Wrapper) else method


@dataclass(frozen=True)
class Failing(FedAvg):
    """Fails at one silo; a plain dataclass, so that it needs no configuration."""

    at: str = "silo-1"

    def train(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        if site.id == self.at:
            raise ValueError("the scanner is broken")
        return super().train(down, state, site)


def silo(k: int, generator: torch.Generator) -> Silo:
    x = torch.randn(100 + 20 * k, 2, generator=generator) + k
    y = (x.sum(-1) > k).long() + (x[:, 0] > k + 1).long()
    parts = [Data(x[i:j], y[i:j]) for i, j in ((0, 20), (20, 40), (40, 60), (60, len(x)))]
    return Silo(f"silo-{k}", f"shift({k})", parts[3], parts[2], parts[1], parts[0])


def silos(count: int = 3) -> dict[str, Silo]:
    generator = torch.Generator().manual_seed(1)
    return {s.name: s for s in (silo(k, generator) for k in range(count))}


def executor(method: Method, folder: Path, data: dict[str, Silo] | None = None, seed: int = 0) -> Executor:
    module, data = channels_last(method.build(model())), data or silos()
    own = {name: architectures()[k % 2] for k, name in enumerate(data)} if inner(method).personal else {}
    return Executor(Evaluated(method), module, data, SiloStore(folder), seed, own)


class Federation:
    """A method on the small federation: runs rounds, keeps the server's state and what was sent."""

    def __init__(self, method: Method, folder: Path, workers: int = 1, data: dict[str, Silo] | None = None) -> None:
        self.method, self.workers, self.place = method, workers, executor(method, folder, data)
        none = Data(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
        self.site = Site("server", none, none, none, method.build(model()))
        self.server: State = method.init_server(self.site)
        self.done: list[FinishedRound] = []

    def run(
        self,
        engine: EmbeddedEngine | None = None,
        participation: Participation | None = None,
        after: Callable[[FinishedRound, State], None] | None = None,
        **bounds: int,
    ) -> State:
        more = after or (lambda done, server: None)

        def after_each(done: FinishedRound, server: State) -> None:
            self.done.append(done)
            self.server = server
            more(done, server)

        with engine or EmbeddedEngine(self.place, self.workers) as transport:
            start = bounds.get("start", 0)
            if isinstance(transport, EmbeddedEngine):
                transport.begin(start, {}, adopted(self.place.states, start - 1))
            self.server = run(
                self.place.method, transport, self.site, self.server,
                participation=participation or Participation(0), after=after_each, **bounds,
            )  # fmt: skip
        return self.server

    def states(self, until: int = 10**6) -> dict[str, State]:
        return {name: kept_state(self.place, name, until) for name in self.place.silos}


class Level(NamedTuple):
    """What a federation's processes have in use after a round."""

    shared: int
    """Bytes of shared memory."""
    descriptors: int
    processes: int


def is_level(early: Level, late: Level) -> bool:
    """Whether nothing has grown by what rounds send. Which worker takes which silo differs from round to round, so that
    one that takes more of them than ever needs a little more memory, once.
    """
    return late.shared <= 2 * early.shared and late[1:] == early[1:]


def levels_over_rounds(method: Method, folder: Path) -> list[Level]:
    """After each round of training with two workers, what is in use."""
    federation = Federation(method, folder, workers=2)
    engine, levels = EmbeddedEngine(federation.place, 2), list[Level]()

    def look(done: FinishedRound, server: State) -> None:
        federation.done.clear()  # which would keep the replies
        buffers = [engine.down, *(buffer for worker in engine.workers for buffer in worker.buffers)]
        shared = sum(512 * os.fstat(buffer.descriptor).st_blocks for buffer in buffers)
        alive = [Path(f"/proc/{worker.process}").exists() for worker in engine.workers]
        if done.step.trains:
            levels.append(Level(shared, len(os.listdir("/proc/self/fd")), sum(alive)))

    federation.run(engine=engine, after=look)
    return levels


def kept_state(place: Executor, silo: str, until: int = 10**6) -> State:
    """What a silo has kept until a round, by what is there."""
    return place.state(silo, place.states.adopt(silo, until))


def flat(payload: Payload) -> dict[str, torch.Tensor]:
    return {f"{group}/{name}": tensor for group, named in payload.items() for name, tensor in named.items()}


def check(condition: bool, message: str) -> None:
    """Raise AssertionError unless the condition holds; `assert` would not, in a helper under `python -O`."""
    if not condition:
        raise AssertionError(message)


def assert_same(a: Payload, b: Payload) -> None:
    one, other = flat(a), flat(b)
    check(one.keys() == other.keys(), f"other tensors: {sorted(one.keys() ^ other.keys())}")
    for name in one:
        check(torch.equal(one[name], other[name]), f"{name} is another")


def assert_same_states(a: dict[str, State], b: dict[str, State]) -> None:
    check(a.keys() == b.keys(), f"other silos: {sorted(a.keys() ^ b.keys())}")
    for name in a:
        assert_same(a[name], b[name])


__all__ = ["METHODS", "WRAPPED", "Federation", "Replies", "assert_same", "assert_same_states", "flat", "model", "silos"]
