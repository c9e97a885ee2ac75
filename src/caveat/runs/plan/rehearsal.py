"""Rehearsal of a run: every kind of round once or twice, at a few silos, with the first few training steps.

It uses the run's engine, executor and recorder, in a temporary folder. Its silos, two per worker, are those whose
numbers of training examples are nearest to the mean.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from ...core import Replies, Round, SiloId
from ...core.aggregation import size
from ...core.devices import brought
from ...engines.batched_executor import ChunkOrder
from ...engines.rounds import FinishedRound, owned
from ...engines.silos_on_device import one_thread
from ...engines.vectorization import Mode, Vectorization
from ...files import ServerStore, hashes
from ...files.schema import RunState
from ...training.fit import Training, watched_by
from ..frozen_features import PART, encoder_on, known_rows
from ..local_run import LocalRun
from ..progress import Silent
from ..recorder import Recorder
from .counts import STEPS, Fit, Phase, ShortRun, Sizes, StepLog, phases

Result = TypeVar("Result")
PER_WORKER = 2
"""Silos of a rehearsed round per worker."""
ENOUGH, AGAIN = 1.0, 4
"""Seconds for which a round is repeated, and the maximum number of repetitions; the fastest one counts."""
EACH = 6
"""Maximum number of rehearsed phases with the same name; if there are more, the first ones and the last one."""
ENCODING = 0.3
"""Seconds after which no more inputs are encoded."""


@dataclass(frozen=True)
class Bytes:
    """Bytes sent to one silo, and by it."""

    down: int
    up: int


@dataclass(frozen=True)
class Measuring:
    """The cost of evaluating one split at one silo."""

    seconds: float
    message: Bytes


@dataclass(frozen=True)
class Rehearsed:
    """A phase, and the cost of a round."""

    phase: Phase
    first: Bytes
    """Bytes of the phase's first round."""
    message: Bytes
    """Bytes of all other rounds."""
    seconds: float
    """Seconds outside of training steps, of one silo at one worker."""
    fits: tuple[Fit, ...]
    """Calls of `Training.fit` at all rehearsed silos."""
    asked: int
    """Number of rehearsed silos."""
    extra: float
    """Additional seconds of the first round, of one silo."""
    server: float
    """Seconds of the server's aggregation per silo."""
    books: float
    """Seconds of a round's checkpoint, ledger and rows."""
    measuring: Mapping[str, Measuring] = field(default_factory=dict)
    """The cost of evaluation after a round, by split; empty if the phase does not train."""


@dataclass(frozen=True)
class Rehearsal:
    """The observed cost of a run."""

    phases: tuple[Rehearsed, ...]
    """All phases of the schedule, in order."""
    final: Mapping[str, Measuring]
    """The cost of evaluating the final model, by split."""
    end: float
    """Seconds for everything else at the end, of one evaluated silo."""
    once: float
    """Seconds before the first round, and of computations at the end."""
    workers: int
    """Number of workers that had a silo to train."""
    parameters: int
    """Trainable parameters, including those that the method adds."""
    parent: int | None
    """Bytes of this process, without those shared with its workers; None if unknown."""
    worker: int | None
    """Bytes of a worker, without those shared with its parent."""
    server: int
    """Bytes of the server's state."""
    kept: int
    """Bytes of the state file of one silo."""
    encoding: float = 0.0
    """Seconds of one worker for a frozen encoder's features that are not cached, over all silos."""
    rows: int = 0
    """Bytes of a frozen encoder's features, over all silos."""
    gain: float | None = None
    """Speed-up of training rounds by batching silos, not included in `phases`; None if they are not batched."""


def rehearse(run: LocalRun, sizes: Sizes, cohort: int) -> Rehearsal:
    """Rehearse a run in which `cohort` silos take part in a round. Nothing is written to its folder."""
    sample = sizes.typical(PER_WORKER * run.workers)
    with rehearsal_of(run, sample) as runner:
        found = runner.rehearse()
    encoding, rows = encoding_of(run, sizes, sample[0])
    return replace(found, encoding=encoding, rows=rows, gain=vectorization_gain(run, sizes, cohort))


def encoding_of(run: LocalRun, sizes: Sizes, silo: SiloId) -> tuple[float, int]:
    """Return the seconds of one worker for a frozen encoder's features that are not cached, and the bytes of all
    features, estimated from some inputs of a silo; 0 without such an encoder."""
    if (encoder := run.frozen_encoder) is None:
        return 0.0, 0
    x, placed = run.silos.by_name[silo].train.x, encoder_on(encoder, run.device)
    with one_thread():
        row = placed(brought(x[:1], run.device)).cpu()  # the first call takes longer
        done, began = 0, time.perf_counter()
        while done < len(x) and time.perf_counter() - began < ENCODING:
            placed(brought(x[done : done + 1], run.device)).cpu()
            done += 1
    seconds, some = (time.perf_counter() - began) / max(done, 1), x[:PART]
    known = known_rows(encoder, hashes(some.numpy()), run.device) / len(some)
    return sizes.inputs * (1 - known) * seconds, sizes.inputs * row.nbytes


@contextmanager
def rehearsal_of(run: LocalRun, sample: Sequence[SiloId]) -> Iterator[RehearsalRunner]:
    """Open the run's engine and recorder in a temporary folder; rounds are not evaluated automatically."""
    measured = replace(run.spec.evaluation, every=10**9, early_stopping_patience=None)
    spec = replace(run.spec, evaluation=measured, data=None, baselines=())  # workers cannot read the data
    with TemporaryDirectory(prefix="caveat-plan-") as folder:
        short = ShortRun(
            folder=Path(folder), spec=spec, silos=run.silos, engine_settings=run.engine_settings, sample=tuple(sample),
            devices=run.devices,
        )  # fmt: skip
        runner = RehearsalRunner(short)
        with runner.open():
            yield runner


class RehearsalRunner:
    """Runs rounds of a rehearsal and measures them."""

    def __init__(self, run: ShortRun) -> None:
        self.run, self.sample = run, run.sample
        self.log = StepLog(run.folder / "steps.jsonl")
        self.workers = max(1, min(run.workers, len(run.sample)))
        self.share = self.workers / len(run.sample)
        """Fraction of a round's time spent on one silo, at its worker."""
        self.seen = set[str]()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open the engine and the recorder."""
        run, began = self.run, time.perf_counter()
        run.prepare()
        self.context = run.server_context()
        self.server = run.spec.init_server(run.info, self.context, run.complete_method)
        with closing(self.log), watched_by(self.log), run.engine() as self.engine, one_thread():
            self.recorder = Recorder(run, self.engine, ServerStore(run.folder / "state"), RunState(), Silent())
            self.recorder.rewind(None)
            self.engine.begin(0, {}, {})
            self.start = time.perf_counter() - began
            yield

    def rehearse(self) -> Rehearsal:
        """Rehearse all phases of the schedule, then the end of the run."""
        planned, found = phases(self.engine.method), list[Rehearsed]()
        left, number, last = Counter(each.name for each in planned), Counter[str](), dict[str, Rehearsed]()
        for each in planned:
            number[each.name] += 1
            left[each.name] -= 1
            if number[each.name] < EACH or not left[each.name]:
                last[each.name] = self.phase(each)
            found.append(replace(last[each.name], phase=each))
        parent, worker = resident_bytes(), [private_bytes(worker.process) for worker in self.engine.workers]
        files = sorted((self.run.folder / "state" / "silos").glob("*/*.safetensors"))
        kept = {file.parent: file.stat().st_size for file in files}  # the newest of each silo
        final = {split: self.measure(split) for split in ("validation", "test")}
        first, again = (timed(lambda: self.recorder.finish(self.server))[1] for _ in range(2))
        measured = sum(each.seconds for each in final.values()) / self.share
        return Rehearsal(
            phases=tuple(found),
            final=final,
            end=max(0.0, again - measured) / len(self.sample),
            once=self.start + max(0.0, first - again),
            workers=self.workers,
            parameters=sum(each.numel() for each in self.context.module.parameters()),
            parent=parent,
            worker=max((each for each in worker if each is not None), default=None),
            server=size(self.server),
            kept=round(sum(kept.values()) / len(kept)) if kept else 0,
        )

    def phase(self, phase: Phase) -> Rehearsed:
        """Rehearse a phase: its first round, then another one, if there is one, which is timed."""
        step, t = phase.step, phase.begin
        sent, (done, cold) = size(step.broadcast(self.server)), timed(lambda: self.exchange(t, step))
        first = Bytes(sent, mean_up(done))
        if phase.count > 1:
            self.aggregate(step, done)
            t += 1
        least, spent, fits = math.inf, 0.0, list[Fit]()
        for _ in range(AGAIN):
            del done  # so the memory of its replies can be reused
            self.log.new()
            done, taken = timed(lambda: self.exchange(t, step))
            spent, found = spent + taken, self.log.new()
            if taken < least:  # other processes on the machine only add time
                least, fits = taken, found
            if spent > ENOUGH:
                break
        each = least * self.share
        message = Bytes(size(step.broadcast(self.server)), mean_up(done))
        server, books = self.aggregate(step, done)
        repeated = phase.name in self.seen  # the very first round includes one-time costs
        self.seen.add(phase.name)
        splits = self.run.spec.evaluation.splits if step.trains else ()
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
            measuring={split: self.measure(split, phase) for split in splits},
        )

    def exchange(self, t: int, step: Round) -> FinishedRound:
        sent = step.broadcast(self.server)
        replies = self.engine.exchange(t, step.address, sent, self.sample, step.linear)
        return FinishedRound(t, 1, step, sent, self.sample, replies)

    def aggregate(self, step: Round, done: FinishedRound) -> tuple[float, float]:
        """Aggregate a round's replies; return the seconds of the server and of the recorder."""
        server, seconds = timed(lambda: step.aggregate(self.server, done.replies, self.context))
        self.server = owned(server, done.replies)
        _, books = timed(lambda: self.recorder.after(done, self.server))
        return seconds, books

    def measure(self, split: str, phase: Phase | None = None) -> Measuring:
        """Return the cost of evaluating the current model on a split; the first, slower evaluation does not count."""
        t, name = (phase.begin, phase.name) if phase else (self.recorder.run_state.last, "final")

        def evaluate() -> Replies:
            return self.recorder.evaluate(t, 1, name, split, self.server, self.sample)[1]

        (replies, _), *others = (timed(evaluate) for _ in range(3))
        seconds = min(taken for _, taken in others)
        up = round(replies.sent / len(replies))
        return Measuring(seconds * self.share, Bytes(size(self.engine.method.broadcast(self.server)), up))

    def gain(self, mode: Mode, cohort: int, workers: int) -> float | None:
        """Return the speed-up of a training round by batching silos, from its first chunk; None if not batched."""
        engine = self.engine
        phase = next(each for each in phases(engine.method) if each.step.trains)
        step, t = phase.step, phase.begin
        done = self.exchange(t, step)
        if phase.count > 1:  # later rounds are like the second one
            self.aggregate(step, done)
            t += 1
        silos = list(engine.silos)[:cohort]
        state = engine.states.get(self.sample[0])  # represents the states of all silos
        kept = {} if state is None else dict.fromkeys(silos, state)
        sent, vectorization = step.broadcast(self.server), Vectorization(mode)
        chunks, vectorized = vectorization.plan(engine.batched, t, step.address, sent, silos, engine.examples, kept)
        if not chunks:
            return None
        order = ChunkOrder(t, step.address, sent, chunks[0], kept, (), vectorized)
        few = chunks[0][:: max(1, len(chunks[0]) // STEPS)][:STEPS]

        def one_by_one() -> None:
            for silo in few:
                engine.executor.perform(t, step.address, sent, silo, kept.get(silo))

        one, other = (
            min([timed(task)[1] for _ in range(3)][1:])
            for task in (one_by_one, lambda: engine.batched.carry_out(order))
        )
        busy = min(len(chunks), workers) / min(len(silos), workers)
        return busy * (one / len(few)) / (other / len(chunks[0]))


def vectorization_gain(run: LocalRun, sizes: Sizes, cohort: int) -> float | None:
    """Return the speed-up of training rounds by batching silos, from a few training steps; None if not batched."""
    method: Any = run.spec.method
    training = vars(method).get("training")
    if run.vectorized == "off" or not isinstance(training, Training):
        return None
    few = replace(method, training=replace(training, local_epochs=None, local_steps=STEPS))
    short = replace(run, spec=replace(run.spec, method=few), engine_settings=replace(run.engine_settings, workers=1))
    with rehearsal_of(short, sizes.typical(PER_WORKER)) as runner:
        return runner.gain(run.vectorized, cohort, run.workers)


def timed(task: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of a function, and its seconds."""
    began = time.perf_counter()
    found = task()
    return found, time.perf_counter() - began


def mean_up(done: FinishedRound) -> int:
    """Return the mean bytes that a silo sends."""
    sizes = [size(update.payload) for update in done.replies.updates.values()]
    return round(sum(sizes) / len(sizes))


def resident_bytes() -> int | None:
    """Return the bytes of this process in memory, without shared ones; None if unknown."""
    found = _proc("self/status")
    return found["RssAnon"] + found["RssFile"] if "RssAnon" in found else None


def private_bytes(process: int) -> int | None:
    """Return the bytes that only this process uses; None if unknown."""
    found = _proc(f"{process}/smaps_rollup")
    return found["Private_Clean"] + found["Private_Dirty"] if found else None


def _proc(name: str) -> dict[str, int]:
    """Return the bytes in a file such as /proc/self/status, by name; empty without such a file."""
    try:
        lines = [line.split() for line in (Path("/proc") / name).read_text().splitlines()]
    except OSError:
        return {}
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if len(line) == 3 and line[2] == "kB"}
