"""A rehearsal of a run: every kind of round once or twice, at a few silos, with the first few steps of training.

It is carried out by the run's own engine, executor and books, in a folder that is gone when it is over: what it takes
is what the run will take. Silos are those that are nearest to the mean, two per worker.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from ...core import Payload, Round, Silo, SiloId
from ...core.tensors import size
from ...engines.executor import Executor
from ...engines.one_thread import one_thread
from ...engines.rounds import FinishedRound, owned
from ...files.checkpoints import ServerStore, SiloStore
from ...files.schema.gallery import Features, Gallery
from ...files.schema.small_files import RunState
from ...training.rehearsal import watched_by
from ..local import LocalRun
from ..progress import Silent
from ..recorder import Recorder
from .encoding import SilosStandingIn
from .memory import Memory, memory_of
from .phases import Phase, phases
from .steps import Fit, StepLog

Result = TypeVar("Result")

PER_WORKER = 2
"""Silos of a rehearsed round per worker."""
ENOUGH = 1.0
"""Seconds after which a round is not rehearsed again."""
AGAIN = 4
"""Times at most that a round is rehearsed, of which the fastest counts."""
EACH = 6
"""Phases of one name up to which all are rehearsed; of more the first ones and the last one."""


@dataclass(frozen=True)
class Bytes:
    """Bytes that one silo is sent, and those that it sends."""

    down: int
    up: int


@dataclass(frozen=True)
class Measuring:
    """What measuring a split costs."""

    seconds: float
    """Of one silo, where the workers share the silos."""
    message: Bytes


@dataclass(frozen=True)
class Rehearsed:
    """A phase, and what a round of it costs."""

    phase: Phase
    first: Bytes
    """Of its first round."""
    message: Bytes
    """Of all others."""
    seconds: float
    """Outside of steps of training, of one silo by one of the workers."""
    fits: tuple[Fit, ...]
    """Calls of `Training.fit` of all silos that were asked."""
    asked: int
    """How many these are."""
    extra: float
    """What its first round takes beyond others, of one silo."""
    server: float
    """Seconds of the server's aggregation for each silo that was asked."""
    books: float
    """Seconds of a round's checkpoint, ledger and rows."""
    measuring: Mapping[str, Measuring] = field(default_factory=dict)
    """By split, after a round of it; nothing where the phase does not train."""

    @property
    def name(self) -> str:
        return self.phase.name


@dataclass(frozen=True)
class Rehearsal:
    """What a run was seen to take."""

    phases: tuple[Rehearsed, ...]
    """All of the schedule, in its order."""
    final: Mapping[str, Measuring]
    """What measuring the final model costs, by split."""
    end: float
    """Seconds for what else is done in the end, of one silo that is measured."""
    once: float
    """Seconds before the first round, and for what is only needed once in the end."""
    workers: int
    """That had something to do."""
    parameters: int
    """Numbers in the model, and in what a method adds to it."""
    memory: Memory


@dataclass(frozen=True, kw_only=True)
class RehearsedRun(LocalRun):
    """A run of which a few silos are measured, and behind a frozen encoder rows of a few inputs stand for all."""

    sample: tuple[SiloId, ...]

    @cached_property
    def measured(self) -> list[SiloId]:
        return list(self.sample)

    def executor(self) -> Executor:
        by_name = self.silos.by_name
        silos: Mapping[SiloId, Silo] = by_name
        if self.frozen_encoder is not None:
            silos = SilosStandingIn(by_name, self.frozen_encoder)
        return self.executor_of(silos, self.participants, SiloStore(self.folder / "state" / "silos"))

    def gallery(self) -> Gallery:
        """Without a frozen encoder's rows, which a rehearsal does not compute, of no silos."""
        return super().gallery() if self.frozen_encoder is None else Gallery(classes=[], silos=[], sure_errors=[])

    def features(self) -> Features | None:
        return super().features() if self.frozen_encoder is None else None


def rehearse(run: LocalRun, sample: Sequence[SiloId]) -> Rehearsal:
    """What a run takes, by some of its silos. Nothing is written to its folder."""
    with TemporaryDirectory(prefix="caveat-plan-") as folder:
        return Stage(in_short(run, folder, sample)).rehearse()


def glance(run: LocalRun, sample: Sequence[SiloId]) -> Rehearsed:
    """What the first phase of training takes, for comparison with the same of another run."""
    with TemporaryDirectory(prefix="caveat-plan-") as folder:
        return Stage(in_short(run, folder, sample)).glance()


def in_short(run: LocalRun, folder: str, sample: Sequence[SiloId]) -> RehearsedRun:
    """A run as it is rehearsed. No round is measured by itself: the rehearsal asks for it."""
    spec = replace(run.spec, evaluation=replace(run.spec.evaluation, every=10**9, stop_after=None))
    return RehearsedRun(
        folder=Path(folder), spec=spec, silos=run.silos, workers=run.workers, sample=tuple(sample),
        sync_seconds=run.sync_seconds, devices=run.devices,
    )  # fmt: skip


class Stage:
    """Where a rehearsal goes on."""

    def __init__(self, run: RehearsedRun) -> None:
        self.run, self.sample = run, run.sample
        self.splits = run.spec.evaluation.splits
        self.log = StepLog(run.folder / "steps.jsonl")
        self.workers = max(1, min(run.workers, len(run.sample)))
        self.share = self.workers / len(run.sample)
        """Of the time of a round that is one silo's, in its worker."""
        self.seen = set[str]()

    @contextmanager
    def open(self) -> Iterator[float]:
        """With the run's engine and books; gives the seconds until they were there."""
        run, began = self.run, time.perf_counter()
        run.prepare()
        self.site = run.server_site()
        self.server = run.spec.init_server(run.info, self.site, run.complete_method)
        with closing(self.log), watched_by(self.log), run.engine() as self.engine, one_thread():
            self.recorder = Recorder(run, self.engine, ServerStore(run.folder / "state"), RunState(), Silent())
            self.recorder.rewind(None)
            self.engine.begin(0, {}, {})
            yield time.perf_counter() - began

    def rehearse(self) -> Rehearsal:
        with self.open() as start:
            planned = phases(self.engine.method)
            found = {each.begin: self.phase(each) for each in chosen(planned)}
            memory = memory_of(self.engine, self.run.folder, self.server)
            final = {split: self.measure(split) for split in ("validation", "test")}
            first, again = (timed(lambda: self.recorder.finish(self.server))[1] for _ in range(2))
        measured = sum(each.seconds for each in final.values()) / self.share
        return Rehearsal(
            phases=tuple(completed(planned, found)),
            final=final,
            end=max(0.0, again - measured) / len(self.sample),
            once=start + max(0.0, first - again),
            workers=self.workers,
            parameters=sum(each.numel() for each in self.site.module.parameters()),
            memory=memory,
        )

    def glance(self) -> Rehearsed:
        with self.open():
            return self.phase(next(each for each in phases(self.engine.method) if each.step.trains))

    def phase(self, phase: Phase) -> Rehearsed:
        """Rehearse a phase: a first round, then another one, if there is one, in which time is taken."""
        step, t = phase.step, phase.begin
        sent, (done, cold) = size(step.broadcast(self.server)), timed(lambda: self.exchange(t, step))
        first = Bytes(sent, mean_up(done))
        if phase.count > 1:
            self.aggregate(step, done)
            t += 1
        least, spent, fits = math.inf, 0.0, list[Fit]()
        for _ in range(AGAIN):
            del done  # the memory of its replies can be used again
            self.log.taken()
            done, taken = timed(lambda: self.exchange(t, step))
            spent, found = spent + taken, self.log.taken()
            if taken < least:  # whatever else runs on a machine only takes time
                least, fits = taken, found
            if spent > ENOUGH:
                break
        each = least * self.share
        message = Bytes(size(step.broadcast(self.server)), mean_up(done))
        server, books = self.aggregate(step, done)
        repeated = phase.name in self.seen  # what only the first round of all takes is not one silo's
        self.seen.add(phase.name)
        return Rehearsed(
            phase=phase,
            first=first,
            message=message,
            seconds=max(0.0, each - sum(fit.seconds for fit in fits) / len(self.sample)),
            fits=tuple(fits),
            asked=len(self.sample),
            extra=max(0.0, cold * self.share - 1.5 * each) if repeated else 0.0,
            server=0.0 if step.linear else server / len(self.sample),
            books=books + (server if step.linear else 0.0),
            measuring={split: self.measure(split, phase) for split in self.splits} if step.trains else {},
        )

    def exchange(self, t: int, step: Round) -> FinishedRound:
        sent = step.broadcast(self.server)
        replies = self.engine.exchange(t, step.address, sent, self.sample, step.linear)
        return FinishedRound(t, 1, step, sent, self.sample, replies)

    def aggregate(self, step: Round, done: FinishedRound) -> tuple[float, float]:
        """Go on with a round's replies; how long the server takes, and the books."""
        server, seconds = timed(lambda: step.aggregate(self.server, done.replies, self.site))
        self.server = owned(server, done.replies)
        _, books = timed(lambda: self.recorder.after(done, self.server))
        return seconds, books

    def measure(self, split: str, phase: Phase | None = None) -> Measuring:
        """What measuring the present model on a split costs; not the first time, which is slower."""
        t, name = (phase.begin, phase.name) if phase else (self.recorder.run_state.last, "final")

        def evaluate() -> Mapping[SiloId, Payload]:
            return self.recorder.evaluate(t, 1, name, split, self.server, self.sample)[1]

        (payloads, _), *others = (timed(evaluate) for _ in range(3))
        seconds = min(taken for _, taken in others)
        up = round(sum(map(size, payloads.values())) / len(payloads))
        return Measuring(seconds * self.share, Bytes(size(self.engine.method.broadcast(self.server)), up))


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What some work gives, and its seconds."""
    began = time.perf_counter()
    found = work()
    return found, time.perf_counter() - began


def mean_up(done: FinishedRound) -> int:
    """Bytes that a silo sends, of those that were asked."""
    sizes = [size(update.payload) for update in done.replies.updates.values()]
    return round(sum(sizes) / len(sizes))


def chosen(planned: Sequence[Phase]) -> list[Phase]:
    """The phases that are rehearsed: of many of one name the first ones and the last one."""
    many, found = Counter(each.name for each in planned), list[Phase]()
    number = Counter[str]()
    for each in planned:
        number[each.name] += 1
        if number[each.name] < EACH or number[each.name] == many[each.name]:
            found.append(each)
    return found


def completed(planned: Sequence[Phase], found: Mapping[int, Rehearsed]) -> Iterator[Rehearsed]:
    """All phases, those that were not rehearsed with the costs of the last one before them of their name."""
    last: dict[str, Rehearsed] = {}
    for each in planned:
        known = found[each.begin] if each.begin in found else last[each.name]
        last[each.name] = replace(known, phase=each)
        yield last[each.name]
