"""What a round gains where silos are trained side by side, over the same round one silo after the other.

python benchmarks/stacked.py [JOB ...]      jobs: see JOBS; all by default. Two workers on both sides, rounds in turns.

Behind each ratio is what `stacked = "auto"` measures itself before the first round, and whether it would stack.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import torch
from jobs import Job, one_thread, ratio, rounds, side_by_side
from torch import nn

from caveat.core import Data, Silo
from caveat.data.population import Population, SilosByName
from caveat.engines.stacking.decisions import Stacking
from caveat.engines.stacking.trial import GAIN
from caveat.methods import FedAvg
from caveat.nn.encoders import Model, Tokens, head
from caveat.nn.models import ModelSettings
from caveat.training.fit import Training

FEATURES = 1280
PERCEPTRON = ModelSettings(name="mlp")
FOUR, ONE = {"local_epochs": 4}, {"local_steps": 1}


@dataclass(frozen=True)
class Heads(Job):
    """A head behind a frozen encoder, whose features are the inputs."""

    def module(self) -> nn.Module:
        return Model(Tokens(), head(1, FEATURES, 128, self.classes, 0.1, dropout_logits=False), 1, FEATURES)


def table(silos: int) -> Job:
    """Tables of 13 numbers, 20 rows each, and the default perceptron with its dropout."""
    return Job(silos, 20, (13,), PERCEPTRON, batch=10, classes=2)


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
    "hundred": Case("100 silos x 20 rows, perceptron, 4 epochs", table(100), even, FOUR),
    "step": Case("100 silos x 20 rows, perceptron, one step", table(100), even, ONE),
    "uneven": Case("100 silos x 11 to 30 rows, perceptron, 4 epochs", table(100), uneven, FOUR),
    "thousand": Case("1,000 silos x 20 rows, perceptron, 4 epochs", table(1000), even, FOUR, 3),
    "thousand-step": Case("1,000 silos x 20 rows, perceptron, one step", table(1000), even, ONE, 3),
    "population": Case("50 of 1,000 silos made on demand, perceptron, 4 epochs", table(1000), population, FOUR, 9, 50),
    "heads": Case(
        "20 silos x 200 cached features of 1,280 numbers, a head, batch 64, 1 epoch",
        Heads(20, 200, (FEATURES,), PERCEPTRON), even, {"local_epochs": 1}, 5,
    ),
    "lenet5": Case(
        "10 silos x 128 images, LeNet-5, batch 64, 1 epoch",
        Job(10, 128, (1, 28, 28), ModelSettings(name="lenet5")), even, {"local_epochs": 1}, 3,
    ),
}  # fmt: skip


def measured(case: Case) -> str:
    """The ratio of a case, both sides in milliseconds, and what "auto" would do."""
    job, silos = case.job, case.data(case.job)
    method = FedAvg(rounds=10**5, training=Training(batch_size=job.batch, **case.training))  # type: ignore[arg-type]
    auto = Stacking("auto")
    with (
        one_thread(),
        rounds(job, method, silos, 2, asked=case.asked) as apart,
        rounds(job, method, silos, 2, Stacking("on"), case.asked) as together,
        rounds(job, method, silos, 2, auto, case.asked) as asked,
    ):
        asked()
        one, other = side_by_side(apart, together, pairs=case.pairs)
    ((_, decided),) = auto.works.items()
    chosen = "stacked" if decided.stacked else "not stacked"
    milliseconds = f"{1e3 * median(one):.1f} and {1e3 * median(other):.1f} ms"
    said = f"auto measured {decided.gain:.2f}: {chosen}" if decided.gain is not None else f"refused: {decided.why}"
    return f"{ratio(one, other):.2f} x ({milliseconds}; {said})"


def main() -> None:
    torch.manual_seed(0)
    print(f"auto stacks from {GAIN} on; load of the machine: {os.getloadavg()[0]:.1f} when this began")
    for name in sys.argv[1:] or JOBS:
        print(f"{JOBS[name].about}: {measured(JOBS[name])}", flush=True)
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
