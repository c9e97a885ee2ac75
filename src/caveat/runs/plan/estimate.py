"""From what a rehearsal took to what a run will take: rounds, steps, bytes, seconds, memory."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

from ...core.settings import MANY
from ...engines.processes.collectors import AHEAD, FEWEST, TOGETHER
from ..spec import RunSpec
from .encoding import Encoding
from .phases import stopped_after
from .rehearsal import Bytes, Rehearsal, Rehearsed
from .sample import Sizes


class Span(NamedTuple):
    """What is at least, and at most."""

    least: float
    most: float

    def __add__(self, other: object) -> Span:
        least, most = other if isinstance(other, Span) else (0.0, 0.0)
        return Span(self.least + least, self.most + most)


NOTHING = Span(0, 0)


@dataclass(frozen=True)
class Steps:
    """Optimiser steps of a silo in a round."""

    least: int
    median: int
    most: int
    mean: float


@dataclass(frozen=True)
class PhaseCost:
    """Rounds of one kind, or measurements of one split."""

    name: str
    kind: str
    """What it is for: training, after training, evaluation."""
    rounds: Span
    silos: int
    """That a round asks."""
    steps: Steps | None
    """None where nothing is trained."""
    bytes_down: int
    """To one silo, in every round but the first one."""
    bytes_up: int
    """From one silo, in every round but the first one."""
    total_down: Span
    total_up: Span
    total_steps: Span
    seconds: Span
    """Of all rounds."""


@dataclass(frozen=True)
class Needs:
    """Bytes of memory and disk at the peak, as estimated; None where the system does not say what a process takes."""

    total: int | None
    parent: int | None
    worker: int | None
    workers: int
    """Processes beside the parent."""
    data: int
    """Of the silos' data, within the parent's; of a population those of one silo."""
    model: int
    replies: int
    disk: int


TRAINING, AFTER, EVALUATION = "training", "after training", "evaluation"


@dataclass(frozen=True)
class CostSheet:
    """What decides an estimate beside what was rehearsed."""

    spec: RunSpec
    rehearsal: Rehearsal
    sizes: Sizes
    encoding: Encoding | None = None
    least: int | None = None
    """Rounds of training after which it may be over, as another method's decides; None where nothing does."""
    gain: float | None = None
    """How many times as fast stacked silos are trained, which the rehearsal has in it; None where they are not."""

    @property
    def cohort(self) -> int:
        return self.spec.participation.count(self.sizes.population)

    @property
    def measured(self) -> int:
        count = self.spec.evaluation.silos
        return self.sizes.population if count is None else min(count, self.sizes.population)

    @property
    def rounds(self) -> Span:
        """Rounds of training."""
        return sum((each.rounds for each in self.phases() if each.kind == TRAINING), NOTHING)

    def phases(self) -> list[PhaseCost]:
        """All phases by name, in the order in which they first come, then measurements."""
        every, stop = self.spec.evaluation.every, self.spec.evaluation.stop_after
        least = self.least if stop is None else min((stop + 1) * every, self.least or MANY)
        steps = stopped_after([each.phase for each in self.rehearsal.phases], least)
        found, evaluations = list[PhaseCost](), list[PhaseCost]()
        before = NOTHING
        for each, phase in zip(self.rehearsal.phases, steps, strict=True):
            rounds = Span(phase.least, phase.count)
            found.append(self._phase(each, rounds))
            if phase.step.trains:
                for split in self.spec.evaluation.splits:
                    evaluations.append(self._along(each, split, before, rounds, every))
                before += rounds
        return [*merged(found), *merged([*evaluations, *self._final()])]

    def _phase(self, each: Rehearsed, rounds: Span) -> PhaseCost:
        silos = self.sizes.population if each.phase.step.everyone else self.cohort
        of_silos = [steps_of(each, n) for n in self.sizes.train] if each.fits else []
        of_round = self.round_seconds(each, silos)
        first = Span(*(silos * each.extra / self.rehearsal.workers * bool(count) for count in rounds))
        kind = TRAINING if each.phase.step.trains else AFTER
        steps = Steps(min(of_silos), int(median(of_silos)), max(of_silos), mean(of_silos)) if of_silos else None
        in_all = sum(of_silos) if silos == len(of_silos) else silos * mean(of_silos or [0])
        return PhaseCost(
            name=each.name, kind=kind, rounds=rounds, silos=silos, steps=steps,
            bytes_down=each.message.down, bytes_up=each.message.up,
            total_down=times(silos, each.first.down, each.message.down, rounds),
            total_up=times(silos, each.first.up, each.message.up, rounds),
            total_steps=Span(*(in_all * count for count in rounds)),
            seconds=Span(*(of_round * count for count in rounds)) + first,
        )  # fmt: skip

    def round_seconds(self, each: Rehearsed, silos: int) -> float:
        """Seconds of a round that asks so many silos."""
        costs = [self.silo_seconds(each, n) for n in self.sizes.train]
        if silos == len(costs):
            work = makespan(costs, self.rehearsal.workers)
        else:
            work = mean(costs) * math.ceil(silos / self.rehearsal.workers)
        return work + silos * each.server + each.books

    def silo_seconds(self, each: Rehearsed, examples: int) -> float:
        """What a round takes of a silo with so many training examples."""
        steps = sum((fit.count(examples) - 1) * fit.each for fit in each.fits)
        return each.seconds + steps / each.asked

    def _along(self, each: Rehearsed, split: str, before: Span, rounds: Span, every: int) -> PhaseCost:
        """Measurements of a split after rounds of a phase, which so many rounds of training have come before."""
        count = Span(*((done + more) // every - done // every for done, more in zip(before, rounds, strict=True)))
        return self._measuring(split, each.measuring[split].seconds, each.measuring[split].message, count)

    def _final(self) -> list[PhaseCost]:
        return [
            self._measuring(split, each.seconds, each.message, Span(1, 1))
            for split, each in self.rehearsal.final.items()
        ]

    def _measuring(self, split: str, seconds: float, message: Bytes, rounds: Span) -> PhaseCost:
        silos = self.measured
        taken = seconds * math.ceil(silos / self.rehearsal.workers)
        return PhaseCost(
            name=f"measure {split}", kind=EVALUATION, rounds=rounds, silos=silos, steps=None,
            bytes_down=message.down, bytes_up=message.up,
            total_down=times(silos, message.down, message.down, rounds),
            total_up=times(silos, message.up, message.up, rounds),
            total_steps=NOTHING, seconds=Span(*(taken * count for count in rounds)),
        )  # fmt: skip

    def of(self, *kinds: str) -> Span:
        """Seconds of phases, of some kinds or of all."""
        return sum((each.seconds for each in self.phases() if not kinds or each.kind in kinds), NOTHING)

    @property
    def seconds(self) -> Span:
        """From the start to the end."""
        beside = self.beside()
        return self.of() + Span(beside, beside)

    def beside(self) -> float:
        """Seconds that are no round's: a frozen encoder's rows, what is made in the end, the start of workers."""
        return self.encoding_seconds + self.rehearsal.once + self.rehearsal.end * self.measured

    @property
    def encoding_seconds(self) -> float:
        """Seconds until a frozen encoder's rows are there, those left out that are kept already."""
        if self.encoding is None:
            return 0.0
        return self.encoding.inputs * (1 - self.encoding.known) * self.encoding.seconds / self.rehearsal.workers

    def needs(self, workers: int) -> Needs:
        """Memory and disk."""
        memory, found = self.rehearsal.memory, self.rehearsal.phases
        replies = max(self._replies(each) for each in found)
        model = 4 * self.rehearsal.parameters
        processes = workers if workers > 1 else 0
        each = memory.worker or 0
        rows = 0 if self.encoding is None else self.encoding.bytes * self.encoding.inputs
        total = None if memory.parent is None else memory.parent + processes * each + replies + rows
        asked = max(self.sizes.population if each.phase.step.everyone else self._taking_part() for each in found)
        disk = round(2 * memory.kept * asked + 2 * memory.server)
        data = self.sizes.bytes if self.sizes.complete else self.sizes.bytes // len(self.sizes.of)
        return Needs(total, memory.parent, memory.worker, processes, data, model, replies + rows, disk)

    def _taking_part(self) -> int:
        """Silos that are expected to take part at least once, each round asking others."""
        silos, rounds = self.sizes.population, sum(each.phase.count for each in self.rehearsal.phases)
        return round(silos * (1 - (1 - self.cohort / silos) ** rounds))

    def _replies(self, each: Rehearsed) -> int:
        """Bytes of replies that are in memory at once, sums of them included."""
        silos = self.sizes.population if each.phase.step.everyone else self.cohort
        if each.phase.step.linear is None:
            return silos * each.message.up
        group = max(FEWEST, 2 * self.rehearsal.workers, TOGETHER // max(each.message.up, 1))
        return min(silos, AHEAD * group) * each.message.up + 2 * each.message.up


def steps_of(each: Rehearsed, examples: int) -> int:
    """Steps that a silo with so many training examples takes in a round."""
    return round(sum(fit.count(examples) for fit in each.fits) / each.asked)


def times(silos: int, first: int, other: int, rounds: Span) -> Span:
    """Bytes of all messages, where those of the first round are others."""
    return Span(*(silos * (first + (count - 1) * other) if count else 0 for count in rounds))


def makespan(costs: Sequence[float], workers: int) -> float:
    """When the last of the workers is done, which take the largest silos first."""
    if workers >= len(costs):
        return max(costs)
    ends = [0.0] * workers
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)


def merged(found: Sequence[PhaseCost]) -> list[PhaseCost]:
    """Phases of one name as one."""
    by_name: dict[str, list[PhaseCost]] = {}
    for each in found:
        by_name.setdefault(each.name, []).append(each)
    return [together(each) for each in by_name.values()]


def together(found: Sequence[PhaseCost]) -> PhaseCost:
    """Phases of one name: messages are those of the largest."""
    largest = max(found, key=lambda each: each.bytes_down + each.bytes_up)
    return PhaseCost(
        name=largest.name, kind=largest.kind, silos=largest.silos,
        steps=next((each.steps for each in found if each.steps), None),
        bytes_down=largest.bytes_down, bytes_up=largest.bytes_up,
        **{
            key: sum((getattr(each, key) for each in found), NOTHING)
            for key in ("rounds", "total_down", "total_up", "total_steps", "seconds")
        },
    )  # fmt: skip
