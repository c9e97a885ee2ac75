"""Counts for a rehearsal: phases of the schedule, sizes of silos, optimizer steps, and a shortened run."""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from ...core import Data, Method, Round, Silo, SiloId
from ...data.silo_collection import Population
from ...data.splits import NAMES
from ...engines.executor import Executor
from ...engines.silos_on_device import one_thread
from ...files import SiloStore
from ...files.schema import Features, Gallery
from ...training.fit import Training
from ..frozen_features import SilosWithFeatures
from ..local_run import LocalRun

LOOKED_AT = 50
"""Number of silos of a population whose sizes are read."""


@dataclass(frozen=True)
class Phase:
    """Consecutive rounds of one kind in a schedule."""

    step: Round
    begin: int
    """Position of the first round in the schedule."""
    count: int
    least: int
    """Number of rounds that certainly run; the others depend on training."""

    @property
    def name(self) -> str:
        return self.step.name


def phases(method: Method) -> list[Phase]:
    """Return a method's schedule as phases.

    A round whose condition holds for an empty state is unconditional. Other rounds are certain up to the first round
    that compares instead of training, because conditions depend on its outcome.
    """
    found: list[Phase] = []
    position, compared = 0, False
    for _, group in groupby(method.schedule(), key=lambda step: (step.address, step.trains)):
        steps = list(group)
        first, count = steps[0], len(steps)
        certain = is_unconditional(first) or not compared
        found.append(Phase(first, position, count, count if certain else 0))
        compared = compared or not (first.trains or is_unconditional(first))
        position += count
    return found


def is_unconditional(step: Round) -> bool:
    """Return whether a round runs for any state of the server."""
    try:
        return bool(step.when({}))
    except Exception:  # a condition may fail in any way without its state
        return False


def stopped_after(found: Iterable[Phase], least: int | None) -> list[Phase]:
    """Return the phases if training may stop after `least` rounds; None if it does not stop early."""
    cut: list[Phase] = []
    for phase in found:
        if phase.step.trains and least is not None:
            phase = replace(phase, least=min(phase.least, least))
            least -= phase.least
        cut.append(phase)
    return cut


@dataclass(frozen=True)
class Sizes:
    """Numbers of examples by split, of all silos or of `LOOKED_AT` silos of a population."""

    of: dict[SiloId, dict[str, int]]
    population: int
    """Number of all silos."""
    bytes: int
    """Bytes of the data of these silos."""

    @property
    def train(self) -> list[int]:
        return [each["train"] for each in self.of.values()]

    @property
    def inputs(self) -> int:
        """Number of examples of all silos and splits."""
        return round(sum(sum(each.values()) for each in self.of.values()) * self.population / len(self.of))

    def typical(self, count: int) -> tuple[SiloId, ...]:
        """Return the `count` silos nearest to the mean number of training examples, sorted by name."""
        middle = mean(self.train)
        nearest = sorted(self.of, key=lambda name: (abs(self.of[name]["train"] - middle), name))
        return tuple(sorted(nearest[:count]))


def sizes_of(run: LocalRun) -> Sizes:
    """Return the sizes of a run's participants, or of evenly spaced silos of a population."""
    names = run.participants
    looked_at: Sequence[SiloId] = list(names)
    if isinstance(run.silos.silos, Population) and len(names) > LOOKED_AT:
        looked_at = [names[i * (len(names) - 1) // (LOOKED_AT - 1)] for i in range(LOOKED_AT)]
    of, size, by_name = {}, 0, run.silos.by_name
    for name in looked_at:
        silo = by_name[name]
        of[name] = {split: len(getattr(silo, split)) for split in NAMES}
        size += bytes_of(silo)
    return Sizes(of, len(names), size)


def bytes_of(silo: Silo) -> int:
    """Return the bytes of a silo's inputs and labels."""
    parts = [*(getattr(silo, split) for split in NAMES), *silo.streams.values()]
    return sum(len(part) * (part.x[:1].nbytes + part.y.element_size()) for part in parts)


@dataclass(frozen=True)
class Fit:
    """A call of `Training.fit` at a silo, in which a few steps were run."""

    epochs: float | None
    steps: int | None
    batch_size: int
    done: int
    """Number of steps that were run."""
    seconds: float
    """Seconds of all steps except the first, which includes one-time costs."""

    @property
    def each(self) -> float:
        """Seconds of a step; 0 without a second step."""
        return self.seconds / (self.done - 1) if self.done > 1 else 0.0

    def count(self, examples: int) -> int:
        """Return the number of steps for a number of training examples, batched as in `Training.batches`."""
        if self.steps is not None:
            return self.steps
        whole, share = divmod(self.epochs or 1, 1)
        single = examples > self.batch_size and examples % self.batch_size == 1  # it joins the previous batch
        epoch = math.ceil(examples / self.batch_size) - single
        part = max(0 if whole else 1, round(share * epoch)) if share else 0
        return int(whole) * epoch + part


STEPS, SECONDS = 3, 0.1
"""Training steps and seconds after which a call is stopped."""
STAND_IN = 8
"""Number of inputs whose features represent a whole split."""


class SilosWithFewFeatures(SilosWithFeatures):
    """Silos with the repeated features of a few inputs, not cached; training takes as long as with all features."""

    def _behind(self, data: Data) -> Data:
        if not len(data):
            return super()._behind(data)
        with one_thread():
            rows = self.encoder(data.x[:STAND_IN])
        return Data(rows[torch.arange(len(data)) % len(rows)], data.y)


@dataclass(frozen=True, kw_only=True)
class ShortRun(LocalRun):
    """A run that evaluates a few silos. With a frozen encoder, the features of a few inputs represent all features."""

    sample: tuple[SiloId, ...]

    @cached_property
    def measured(self) -> list[SiloId]:
        return list(self.sample)

    def executor(self) -> Executor:
        silos: Mapping[SiloId, Silo] = self.silos.by_name
        if self.frozen_encoder is not None:
            silos = SilosWithFewFeatures(silos, self.frozen_encoder)
        return self.executor_of(silos, self.participants, SiloStore(self.folder / "state" / "silos"))

    def gallery(self) -> Gallery:
        """Return a gallery, empty with a frozen encoder, whose features a rehearsal does not compute."""
        return super().gallery() if self.frozen_encoder is None else Gallery(classes=[], silos=[], sure_errors=[])

    def features(self) -> Features | None:
        return super().features() if self.frozen_encoder is None else None


class StepLog:
    """Observes training, also in workers forked later, and appends every call of `Training.fit` to a file."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.read_until = 0

    def __call__(self, training: Training, examples: int, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield the first few batches."""
        done, began = 0, 0.0
        for batch in batches:
            if done == 1:
                began = time.perf_counter()
            elif done >= STEPS and time.perf_counter() - began > SECONDS:
                break
            yield batch
            done += 1
        seconds = time.perf_counter() - began if done > 1 else 0.0
        fit = Fit(training.local_epochs, training.local_steps, training.batch_size, done, seconds)
        os.write(
            self.descriptor, f"{json.dumps(asdict(fit))}\n".encode()
        )  # in one write, because other processes also write

    def new(self) -> list[Fit]:
        """Return the calls since the last call of this function, of all silos."""
        end = os.fstat(self.descriptor).st_size
        text = os.pread(self.descriptor, end - self.read_until, self.read_until).decode()
        self.read_until = end
        return [Fit(**json.loads(line)) for line in text.splitlines()]

    def close(self) -> None:
        os.close(self.descriptor)
