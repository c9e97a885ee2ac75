"""Measure the speed of vectorized rounds relative to the same rounds with one silo after the other.

python benchmarks/vectorized.py [JOB ...]      jobs: see JOBS; all by default. Two workers on both sides.

Next to each ratio are the kB of a silo's training step, and the decision of `vectorized = "auto"`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from jobs import Job, one_thread, ratio, rounds, side_by_side
from torch import nn

from caveat.core import Data, Silo
from caveat.data.silo_collection import Population, SilosByName
from caveat.engines.vectorization import SILOS, STEP, Vectorization
from caveat.methods import FedAvg
from caveat.nn.encoders import Model, Tokens, head
from caveat.nn.models import ModelSettings
from caveat.training.fit import Training

FEATURES = 1280
PERCEPTRON = ModelSettings(name="mlp")
FOUR, TWO, PASS, ONE = {"local_epochs": 4}, {"local_epochs": 2}, {"local_epochs": 1}, {"local_steps": 1}


@dataclass(frozen=True)
class Heads(Job):
    """A head behind a frozen encoder, whose features are the inputs."""

    def module(self) -> nn.Module:
        return Model(Tokens(), head(1, FEATURES, 128, self.classes, 0.1, dropout_logits=False), 1, FEATURES)


def table(silos: int) -> Job:
    """Tables of 13 numbers, 20 rows each, and the default perceptron with its dropout."""
    return Job(silos, 20, (13,), PERCEPTRON, batch=10, classes=2)


def perceptron(units: int, batch: int) -> Job:
    """32 silos with two batches of 64 features each, and a perceptron with so many units in each layer."""
    return Job(32, 2 * batch, (64,), ModelSettings(name="mlp", width=units, hidden=units), batch=batch)


def images(model: str, side: int, batch: int, **settings: Any) -> Job:
    """32 silos with two batches of images of one channel."""
    return Job(32, 2 * batch, (1, side, side), ModelSettings(name=model, **settings), batch=batch)  # type: ignore[arg-type]


def even(job: Job) -> Mapping[str, Silo]:
    return job.data()


def uneven(job: Job) -> Mapping[str, Silo]:
    """Silos of 11 to 30 rows, 20 in the mean."""
    found = replace(job, examples=30).data()
    return {
        name: replace(silo, train=Data(silo.train.x[: 11 + k % 20], silo.train.y[: 11 + k % 20]))
        for k, (name, silo) in enumerate(found.items())
    }


def population(job: Job) -> Mapping[str, Silo]:
    """The same silos, each made when a round asks for it."""
    found = list(job.data().values())
    return SilosByName(Population(len(found), lambda number, name: replace(found[number], name=name)))


@dataclass(frozen=True)
class Case:
    about: str
    job: Job
    data: Callable[[Job], Mapping[str, Silo]]
    training: dict[str, int]
    pairs: int = 9
    asked: int = 0


JOBS = {
    "few": Case("9 silos x 20 rows, perceptron, 4 epochs", table(9), even, FOUR),
    "sixteen": Case("16 silos x 20 rows, perceptron, 4 epochs", table(16), even, FOUR),
    "hundred": Case("100 silos x 20 rows, perceptron, 4 epochs", table(100), even, FOUR),
    "step": Case("100 silos x 20 rows, perceptron, one step", table(100), even, ONE),
    "uneven": Case("100 silos x 11 to 30 rows, perceptron, 4 epochs", table(100), uneven, FOUR),
    "thousand": Case("1,000 silos x 20 rows, perceptron, 4 epochs", table(1000), even, FOUR, 3),
    "thousand-step": Case("1,000 silos x 20 rows, perceptron, one step", table(1000), even, ONE, 3),
    "population": Case("50 of 1,000 silos made on demand, perceptron, 4 epochs", table(1000), population, FOUR, 9, 50),
    "256": Case("32 silos, perceptron of 256 units, batch 10, 2 epochs", perceptron(256, 10), even, TWO),
    "256-64": Case("32 silos, perceptron of 256 units, batch 64, 2 epochs", perceptron(256, 64), even, TWO),
    "512": Case("32 silos, perceptron of 512 units, batch 10, 2 epochs", perceptron(512, 10), even, TWO),
    "1024": Case("32 silos, perceptron of 1,024 units, batch 10, 2 epochs", perceptron(1024, 10), even, TWO),
    "residual": Case("32 silos, 8 x 8 images, residual of 4 channels, batch 16, 2 epochs",
                     images("residual", 8, 16, width=4), even, TWO, 5),
    "lenet5-4": Case("32 silos, 28 x 28 images, LeNet-5, batch 4, 2 epochs", images("lenet5", 28, 4), even, TWO, 5),
    "lenet5-16": Case("32 silos, 28 x 28 images, LeNet-5, batch 16, 2 epochs", images("lenet5", 28, 16), even, TWO, 5),
    "heads": Case(
        "20 silos x 200 cached features of 1,280 numbers, a head, batch 64, 1 epoch",
        Heads(20, 200, (FEATURES,), PERCEPTRON), even, PASS, 5,
    ),
    "lenet5": Case(
        "10 silos x 128 images, LeNet-5, batch 64, 1 epoch",
        Job(10, 128, (1, 28, 28), ModelSettings(name="lenet5")), even, PASS, 3,
    ),
}  # fmt: skip


def measured(case: Case) -> str:
    """The ratio of a case, both sides in milliseconds, and what "auto" does."""
    job, silos = case.job, case.data(case.job)
    method = FedAvg(rounds=10**5, training=Training(batch_size=job.batch, **case.training))  # type: ignore[arg-type]
    on, auto = Vectorization("on"), Vectorization("auto")
    with (
        one_thread(),
        rounds(job, method, silos, 2, asked=case.asked) as apart,
        rounds(job, method, silos, 2, on, case.asked) as together,
        rounds(job, method, silos, 2, auto, case.asked) as asked,
    ):
        asked()
        one, other = side_by_side(apart, together, pairs=case.pairs)
    (kept,), (decided,) = (each.works.values() for each in (on, auto))
    step = 4 * sum(parameter.numel() for parameter in job.module().parameters()) + kept.bytes
    milliseconds = f"{1e3 * median(one):.1f} and {1e3 * median(other):.1f} ms"
    said = "vectorized" if decided.vectorized else f"not vectorized: {decided.why}"
    return f"{ratio(one, other):.2f} x ({milliseconds}; a step of {step / 1e3:.0f} kB; {said})"


def main() -> None:
    torch.manual_seed(0)
    print(f"auto stacks {SILOS} silos or more, and steps of at most {STEP / 1e3:.0f} kB")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} when this began")
    for name in sys.argv[1:] or JOBS:
        print(f"{JOBS[name].about}: {measured(JOBS[name])}", flush=True)
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
