"""The methods that tests are about, on the small federations of `caveat.testing`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from caveat.core import Method, Payload, Replies, SiloContext, State, Update
from caveat.engines.rounds import FinishedRound
from caveat.engines.single_machine import SingleMachineEngine
from caveat.methods import (
    APFL,
    FML,
    FMLU,
    IFCA,
    MOON,
    SCAFFOLD,
    UEFL,
    DisTrans,
    Ditto,
    FedALA,
    FedAvg,
    FedBABU,
    FedBE,
    FedBN,
    FedCR,
    FedDC,
    FedDisco,
    FedDyn,
    FedIIR,
    FedPer,
    FedPN,
    FedProto,
    FedProx,
    FedRep,
    FedRoD,
    FedSR,
    Local,
    PerFedAvg,
    PFedBayes,
    TrFedDis,
)
from caveat.testing.federation import SmallFederation as Federation
from caveat.testing.federation import assert_same, assert_same_states, check, flat, kept_state
from caveat.testing.federation import small_executor as executor
from caveat.testing.federation import small_model as model
from caveat.testing.federation import small_silo as silo
from caveat.testing.federation import small_silos as silos
from caveat.training.fit import Training
from caveat.wrappers.alarms import Familiar
from caveat.wrappers.choice_policies import Best, Blended, Surer, Switched
from caveat.wrappers.ensembles import Ensemble, Snapshots
from caveat.wrappers.error_guarantee_policy import Guaranteed
from caveat.wrappers.laplace import Laplace
from caveat.wrappers.pooled_alarms import PooledAlarms
from caveat.wrappers.prediction_sets import Conformal, LabelShifted
from caveat.wrappers.privacy import Private
from caveat.wrappers.temperature_scaling import ClassBiased, TemperatureScaled

FAST = Training(batch_size=16, lr=0.05, optimizer="sgd")
ADAM = Training(batch_size=16, lr=0.01)
SUBGROUPS = ("low", "high")
METHODS: list[Method] = [
    Local(rounds=4, training=ADAM),
    FedAvg(rounds=4, training=ADAM),
    FedProx(rounds=4, training=FAST, mu=0.1),
    FedBN(rounds=4, training=FAST),
    SCAFFOLD(rounds=4, training=FAST),
    MOON(rounds=4, training=ADAM),
    FedDyn(rounds=4, training=FAST, alpha=0.1),
    FedDC(rounds=4, training=FAST, alpha=0.1),
    FedDisco(rounds=4, training=FAST),
    IFCA(rounds=4, training=ADAM),
    DisTrans(rounds=4, training=ADAM),
    FedSR(rounds=4, training=ADAM),
    FedIIR(rounds=4, training=FAST, penalty=0.1),
    FedPer(rounds=4, training=FAST),
    FedRep(rounds=4, training=FAST, head_epochs=2),
    FedBABU(rounds=4, training=FAST, fine_tune_epochs=2),
    FedCR(rounds=4, training=ADAM, samples=3, head_epochs=2),
    PerFedAvg(rounds=4, training=FAST, order="hessian-free", adapt_steps=2),
    APFL(rounds=4, training=ADAM),
    Ditto(rounds=4, training=ADAM),
    FedRoD(rounds=4, training=FAST),
    FedALA(rounds=4, training=FAST),
    FedProto(rounds=4, training=FAST),
    FedBE(rounds=4, training=ADAM, mc_samples=5),
    PFedBayes(rounds=4, training=ADAM, mc_samples=5),
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
    FedPN(rounds=4, training=ADAM, layers=4, personal_epochs=2, personal_steps=0),
    FedPN(
        rounds=4, training=ADAM, layers=4, personal_epochs=2, personal_steps=0, stop_gradient="embedding",
        density_trains_encoder=True, normalize=False, entropy=1e-3, density_rounds=1, moments=False,
    ),
]  # fmt: skip
WRAPPED: list[Method] = [
    Switched(
        FedPN(rounds=2, training=ADAM, layers=4, personal_epochs=2, personal_steps=0),
        score="dirichlet_entropy",
        handover_rate=0.3,
    ),
    Switched(TemperatureScaled(FedAvg(rounds=2, training=ADAM)), abstain_rate=0.3),
    ClassBiased(FML(rounds=2, training=FAST)),
    Private(FedAvg(rounds=2, training=ADAM), clip_norm=1.0, noise_multiplier=0.3, silos=3),
    Switched(
        Familiar(FedPN(rounds=2, training=ADAM, layers=4, personal_epochs=2, personal_steps=0)), handover_rate=0.3
    ),
    Familiar(TemperatureScaled(UEFL(rounds=2, extra_rounds=1, iterations=2, codewords=4, training=ADAM, mc_samples=5))),
    Familiar(FML(rounds=2, training=FAST)),
    PooledAlarms(FML(rounds=2, training=FAST), false_alarm_rate=0.01),
    Familiar(Private(FedAvg(rounds=2, training=ADAM), clip_norm=1.0, noise_multiplier=0.3, silos=3), shared=False),
    Guaranteed(FedBABU(rounds=2, training=FAST, fine_tune_epochs=2), risk=0.5, confidence_level=0.6),
    Conformal(
        Guaranteed(FedAvg(rounds=2, training=ADAM), risk=0.5, confidence_level=0.6, guarantee_scope="silo"),
        coverage=0.8,
    ),
    Laplace(FedBN(rounds=2, training=FAST)),
    Familiar(Laplace(FedPer(rounds=2, training=FAST))),
    Laplace(Private(FedAvg(rounds=2, training=ADAM), clip_norm=1.0, noise_multiplier=0.3, silos=3)),
    Switched(TemperatureScaled(Laplace(FML(rounds=2, training=FAST))), score="logit_variance", abstain_rate=0.3),
    Familiar(Ensemble(FedPer(rounds=2, training=ADAM), ensemble_size=3, seed=7)),
    Snapshots(Ditto(rounds=5, training=ADAM), ensemble_size=3),
    Guaranteed(
        Ensemble(FedPN(rounds=1, training=ADAM, layers=4, personal_epochs=2, personal_steps=0), ensemble_size=2),
        risk=0.5,
    ),
    Ensemble(
        UEFL(rounds=2, extra_rounds=1, iterations=2, codewords=4, threshold=0, margin=0, training=ADAM, mc_samples=5),
        ensemble_size=2,
    ),
    LabelShifted(FedBN(rounds=2, training=FAST), coverage=0.999),
    Conformal(
        Guaranteed(FedAvg(rounds=2, training=ADAM), risk=0.5, confidence_level=0.6, subgroups=SUBGROUPS),
        coverage=0.8,
        subgroups=SUBGROUPS,
    ),
    Conformal(
        Guaranteed(
            FedBABU(rounds=2, training=FAST, fine_tune_epochs=2),
            risk=0.5,
            confidence_level=0.6,
            guarantee_scope="silo",
            subgroups=SUBGROUPS,
        ),
        coverage=0.96,
        subgroups=SUBGROUPS,
    ),
    Guaranteed(
        Familiar(FedBN(rounds=2, training=FAST), false_alarm_rate=0.2, subgroups=2),
        risk=0.5,
        confidence_level=0.6,
        subgroups=SUBGROUPS,
    ),
    Best(Familiar(TemperatureScaled(FedBABU(rounds=2, training=FAST)))),
    Blended(Familiar(FML(rounds=2, training=FAST))),
    Conformal(Blended(TemperatureScaled(Ensemble(APFL(rounds=1, training=ADAM), ensemble_size=2)))),
    Surer(FedPN(rounds=2, training=ADAM, layers=4, personal_epochs=2, personal_steps=0), score="vacuity"),
]
"""Methods with other sources of uncertainty, calibration, decisions, or clipping and noise around them."""


@dataclass(frozen=True)
class Failing(FedAvg):
    """Fails at one silo; a plain dataclass, so that it needs no configuration."""

    at: str = "silo-1"

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        if context.id == self.at:
            raise ValueError("the scanner is broken")
        return super().train(down, state, context)


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
    engine, levels = SingleMachineEngine(federation.place, 2), list[Level]()

    def look(done: FinishedRound, server: State) -> None:
        federation.done.clear()  # which would keep the replies
        buffers = [engine.down, *(buffer for worker in engine.workers for buffer in worker.buffers)]
        shared = sum(512 * os.fstat(buffer.descriptor).st_blocks for buffer in buffers)
        alive = [Path(f"/proc/{worker.process}").exists() for worker in engine.workers]
        if done.step.trains:
            levels.append(Level(shared, len(os.listdir("/proc/self/fd")), sum(alive)))

    federation.run(engine=engine, after=look)
    return levels


__all__ = [
    "METHODS", "WRAPPED", "Federation", "Replies", "assert_same", "assert_same_states", "check", "executor", "flat",
    "kept_state", "model", "silo", "silos",
]  # fmt: skip
