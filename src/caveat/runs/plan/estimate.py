"""The estimated cost of a run, as `caveat.plan` returns it: rounds, optimizer steps, bytes, seconds and memory."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from ... import data
from ...config import Config
from ...core.devices import find_devices
from ...core.settings import MAX_COUNT
from ...data import Silos
from ...engines.sums_on_arrival import BUFFERS, FEWEST, TOGETHER
from ..local_run import LocalRun
from ..spec import RunSpec
from ..start import check, local_run
from .counts import Sizes, sizes_of, stopped_after
from .rehearsal import Measuring, Rehearsal, Rehearsed, rehearse

TRAINING, AFTER, EVALUATION = "training", "after training", "evaluation"


class Span(NamedTuple):
    """A number that depends on training: its minimum and maximum."""

    least: float
    most: float

    def __add__(self, other: object) -> Span:
        least, most = other if isinstance(other, Span) else (0.0, 0.0)
        return Span(self.least + least, self.most + most)

    def times(self, number: float) -> Span:
        return Span(self.least * number, self.most * number)


NOTHING = Span(0, 0)


class Steps(NamedTuple):
    """Optimizer steps of a silo in a round, over the silos."""

    least: int
    median: int
    most: int


@dataclass(frozen=True)
class PhaseCost:
    """Rounds of one kind, or evaluations of one split. Bytes are from all rounds except the first."""

    name: str
    kind: str
    """training, after training or evaluation."""
    silos: int
    """Silos that take part in a round."""
    steps: Steps | None
    """Optimizer steps; None without training."""
    bytes_down: int
    """Bytes to one silo."""
    bytes_up: int
    """Bytes from one silo."""
    rounds: Span
    total_down: Span
    """Bytes to all silos in all rounds."""
    total_up: Span
    total_steps: Span
    seconds: Span


@dataclass(frozen=True)
class Needs:
    """Estimated peak memory in bytes; None if the system does not report the memory of processes."""

    total: int | None
    parent: int | None
    worker: int | None
    workers: int
    """Number of processes besides the parent."""
    data: int
    """The silos' data, in the parent's memory; for a population, one silo's data."""
    replies: int
    """Replies in memory at once, and a frozen encoder's features."""
    disk: int
    """States of the server and of silos on disk."""


@dataclass(frozen=True)
class MethodCost:
    """The cost of one method. Bytes are exact if the shapes of messages do not depend on data, as in all built-in
    methods."""

    method: str
    silos: int
    """Silos that take part."""
    looked_at: int
    """Silos whose sizes were read: all, or some of a population."""
    examples: tuple[int, int, int]
    """Training examples of a silo: minimum, median, maximum."""
    parameters: int
    """Trainable parameters of the method's model."""
    workers: int
    gain: float | None
    """Speed-up of training rounds by batching silos; None if they are not batched."""
    phases: tuple[PhaseCost, ...]
    seconds: Span
    """Seconds from reading the data to the end of the run."""
    seconds_other: float
    """Seconds outside of phases: start, gallery, files, and a frozen encoder's features."""
    seconds_encoding: float
    """Seconds for computing a frozen encoder's features."""
    needs: Needs

    def total(self, what: str, *kinds: str) -> Span:
        """Return a sum over phases of some kinds, or of all, such as `total("total_up", "evaluation")`."""
        return sum((getattr(each, what) for each in self.phases if not kinds or each.kind in kinds), NOTHING)


@dataclass(frozen=True)
class Plan:
    """The cost of a run and its baselines."""

    methods: tuple[MethodCost, ...]
    """The run's method first."""

    @property
    def seconds(self) -> Span:
        """Seconds of all methods."""
        return sum((each.seconds for each in self.methods), NOTHING)

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers as plain values, as printed by `caveat plan --json`. Spans are [minimum, maximum]."""
        return {"seconds": self.seconds, **asdict(self)}


def plan_configured(config: Config, silos: Silos | None = None) -> Plan:
    """Estimate the cost of `caveat run` of a configuration, including its baselines, with its silos if they are loaded.
    Raises ConfigurationError or DataError for a run that cannot work, before anything is tried."""
    silos, nowhere = silos or data.load(config.data, config.seed), Path()
    check(config, silos, nowhere)
    devices = find_devices(config.engine.device, config.engine.workers)
    run = replace(local_run(config, silos, nowhere), devices=devices)
    return plan(run, run.baselines)


def plan(run: LocalRun, baselines: Callable[[int], Iterable[LocalRun]] = lambda rounds: ()) -> Plan:
    """Estimate the cost of a checked run by a rehearsal, which writes nothing to its folder.

    `baselines` returns the runs of baselines for a number of training rounds. Raises RunError if a silo fails in the
    rehearsal, as it would in the run.
    """
    first = estimate_of(run)
    rounds = first.rounds
    found = [first.cost(run.workers)]
    for other in baselines(round(rounds.most)):
        found.append(replace(estimate_of(other), least=round(rounds.least)).cost(other.workers))
    return Plan(tuple(found))


def estimate_of(run: LocalRun) -> Estimate:
    """Rehearse a run, and return its estimate."""
    sizes = sizes_of(run)
    return Estimate(run.spec, rehearse(run, sizes, run.spec.participation.count(sizes.population)), sizes)


@dataclass(frozen=True)
class Estimate:
    """The cost of a run, computed from a rehearsal."""

    spec: RunSpec
    rehearsal: Rehearsal
    sizes: Sizes
    least: int | None = None
    """Training rounds after which the run may stop because another method may; None if no other method stops early."""

    @property
    def cohort(self) -> int:
        """Number of silos in a round."""
        return self.spec.participation.count(self.sizes.population)

    @property
    def measured(self) -> int:
        """Number of silos that are evaluated."""
        count = self.spec.evaluation.n_silos
        return self.sizes.population if count is None else min(count, self.sizes.population)

    @property
    def rounds(self) -> Span:
        """Number of training rounds."""
        return sum((each.rounds for each in self.phases() if each.kind == TRAINING), NOTHING)

    def cost(self, workers: int) -> MethodCost:
        """Return the cost of the run with a number of workers."""
        train, rehearsal = sorted(self.sizes.train), self.rehearsal
        encoding = rehearsal.encoding / rehearsal.workers
        other = encoding + rehearsal.once + rehearsal.end * self.measured
        found = tuple(self.phases())
        return MethodCost(
            method=self.spec.method.name,
            silos=self.sizes.population,
            looked_at=len(train),
            examples=(train[0], train[len(train) // 2], train[-1]),
            parameters=rehearsal.parameters,
            workers=workers,
            gain=rehearsal.gain,
            phases=found,
            seconds=sum((each.seconds for each in found), Span(other, other)),
            seconds_other=other,
            seconds_encoding=encoding,
            needs=self.needs(workers),
        )

    def phases(self) -> list[PhaseCost]:
        """Return phases merged by name, in order of their first occurrence, then evaluations."""
        every, stop = self.spec.evaluation.every, self.spec.evaluation.early_stopping_patience
        least = self.least if stop is None else min((stop + 1) * every, self.least or MAX_COUNT)
        found, evaluations, before = list[PhaseCost](), list[PhaseCost](), NOTHING
        planned = stopped_after([each.phase for each in self.rehearsal.phases], least)
        for each, phase in zip(self.rehearsal.phases, planned, strict=True):
            rounds = Span(phase.least, phase.count)
            found.append(self._phase(each, rounds))
            if phase.step.trains:
                after = before + rounds
                count = Span(*(end // every - begin // every for begin, end in zip(before, after, strict=True)))
                evaluations += [self._evaluation(*found, count) for found in each.measuring.items()]
                before = after
        evaluations += [self._evaluation(*found, Span(1, 1)) for found in self.rehearsal.final.items()]
        return [*merged(found), *merged(evaluations)]

    def _asked(self, each: Rehearsed) -> int:
        return self.sizes.population if each.phase.step.everyone else self.cohort

    def _phase(self, each: Rehearsed, rounds: Span) -> PhaseCost:
        silos, gain = self._asked(each), self._gain(each)
        steps = [round(sum(fit.count(n) for fit in each.fits) / each.asked) for n in self.sizes.train]
        in_all = sum(steps) if silos == len(steps) else silos * mean(steps)
        first = Span(*(bool(count) for count in rounds)).times(silos * each.extra / gain / self.rehearsal.workers)
        return PhaseCost(
            name=each.phase.name,
            kind=TRAINING if each.phase.step.trains else AFTER,
            silos=silos,
            steps=Steps(min(steps), int(median(steps)), max(steps)) if each.fits else None,
            bytes_down=each.message.down,
            bytes_up=each.message.up,
            rounds=rounds,
            total_down=messages(silos, each.first.down, each.message.down, rounds),
            total_up=messages(silos, each.first.up, each.message.up, rounds),
            total_steps=rounds.times(in_all),
            seconds=rounds.times(self.round_seconds(each, silos)) + first,
        )

    def _gain(self, each: Rehearsed) -> float:
        return (self.rehearsal.gain or 1.0) if each.phase.step.trains else 1.0

    def round_seconds(self, each: Rehearsed, silos: int) -> float:
        """Return the seconds of a round with a number of silos."""
        costs, workers = [self.silo_seconds(each, n) for n in self.sizes.train], self.rehearsal.workers
        task = makespan(costs, workers) if silos == len(costs) else mean(costs) * math.ceil(silos / workers)
        return task + silos * each.server + each.books

    def silo_seconds(self, each: Rehearsed, examples: int) -> float:
        """Return the seconds of a round at a silo with a number of training examples."""
        steps = sum((fit.count(examples) - 1) * fit.each for fit in each.fits)
        return (each.seconds + steps / each.asked) / self._gain(each)

    def _evaluation(self, split: str, each: Measuring, rounds: Span) -> PhaseCost:
        silos, message = self.measured, each.message
        return PhaseCost(
            name=f"evaluate {split}",
            kind=EVALUATION,
            silos=silos,
            steps=None,
            bytes_down=message.down,
            bytes_up=message.up,
            rounds=rounds,
            total_down=rounds.times(silos * message.down),
            total_up=rounds.times(silos * message.up),
            total_steps=NOTHING,
            seconds=rounds.times(each.seconds * math.ceil(silos / self.rehearsal.workers)),
        )

    def needs(self, workers: int) -> Needs:
        """Return the memory and disk that the run needs."""
        rehearsal, found, processes = self.rehearsal, self.rehearsal.phases, workers if workers > 1 else 0
        replies = max(map(self._replies, found)) + rehearsal.rows
        total = None if rehearsal.parent is None else rehearsal.parent + processes * (rehearsal.worker or 0) + replies
        asked = max(self.sizes.population if each.phase.step.everyone else self._taking_part() for each in found)
        data = self.sizes.bytes
        if len(self.sizes.of) < self.sizes.population:
            data //= len(self.sizes.of)
        disk = round(2 * rehearsal.kept * asked + 2 * rehearsal.server)
        return Needs(total, rehearsal.parent, rehearsal.worker, processes, data, replies, disk)

    def _taking_part(self) -> int:
        """Return the expected number of silos that take part at least once."""
        silos, rounds = self.sizes.population, sum(each.phase.count for each in self.rehearsal.phases)
        return round(silos * (1 - (1 - self.cohort / silos) ** rounds))

    def _replies(self, each: Rehearsed) -> int:
        """Return the bytes of replies in memory at once, with their sums."""
        silos, up = self._asked(each), each.message.up
        if each.phase.step.linear is None:
            return silos * up
        group = max(FEWEST, 2 * self.rehearsal.workers, TOGETHER // max(up, 1))
        return min(silos, BUFFERS * group) * up + 2 * up


def messages(silos: int, first: int, other: int, rounds: Span) -> Span:
    """Return the bytes of all messages; the first round may differ."""
    return Span(*(silos * (first + (count - 1) * other) if count else 0 for count in rounds))


def makespan(costs: Sequence[float], workers: int) -> float:
    """Return the seconds until all workers are done, if the largest silos are processed first."""
    if workers >= len(costs):
        return max(costs)
    ends = [0.0] * workers
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)


def merged(found: Sequence[PhaseCost]) -> list[PhaseCost]:
    """Merge phases of the same name; messages are those of the largest phase."""
    by_name: dict[str, list[PhaseCost]] = {}
    for each in found:
        by_name.setdefault(each.name, []).append(each)
    return [reduce(_together, same) for same in by_name.values()]


def _together(one: PhaseCost, other: PhaseCost) -> PhaseCost:
    larger = max(one, other, key=lambda each: each.bytes_down + each.bytes_up)
    return replace(
        larger,
        steps=one.steps or other.steps,
        rounds=one.rounds + other.rounds,
        total_down=one.total_down + other.total_down,
        total_up=one.total_up + other.total_up,
        total_steps=one.total_steps + other.total_steps,
        seconds=one.seconds + other.seconds,
    )
