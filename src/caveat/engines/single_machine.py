"""The single-machine engine: all silos in this process, or in worker processes with one thread each."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import torch

from ..core import ConfigurationError, Payload, Replies, SiloId, Weights
from ..core.aggregation import size
from ..files.schema import KeptState, VectorizedRecord, as_json
from .allocator import keep_freed_memory
from .batched_executor import BatchedExecutor, ChunkDone, ChunkOrder, ChunkPart
from .executor import Executor, Performed
from .norm_bounding import Admission
from .secure_sums import sums_alone, weights_of
from .sums_on_arrival import BUFFERS, BufferedReplies, ChunkReplies, ReplyCollector, StreamingMean, SummedPart, summed
from .vectorization import Vectorization
from .worker_process import Rebuild, SharedBuffer, Worker, WorkerQueue, as_order, can_fork, check_respawn


class SingleMachineEngine:
    """A transport to silos on this machine, a context manager that starts the workers on entry, and ends them on exit.

    With one worker everything runs in the calling process, so a debugger can stop inside a client task. Results are
    bit-identical for any number of workers. If there are several `devices`, workers take turns with them, and each
    initializes its own.
    """

    def __init__(
        self,
        executor: Executor,
        workers: int = 1,
        devices: Sequence[torch.device] = (),
        rebuild: Rebuild | None = None,
        vectorization: Vectorization | None = None,
        secure: bool = False,
    ) -> None:
        """With `secure`, the server gets the sums that secure aggregation gives, wherever sums suffice."""
        if workers > 1 and not hasattr(os, "fork"):
            raise ConfigurationError(f"engine.workers = {workers} needs a system with fork; use 1")
        self.devices = devices or [executor.device]
        self.executor, self.secure = executor, secure
        self.vectorization, self.batched = vectorization or Vectorization("off"), BatchedExecutor(executor)
        self.method = executor.method
        self.silos: Sequence[SiloId] = executor.sorted_names
        self.examples: Mapping[SiloId, int] | None = None
        """The number of training examples by silo; None if silos are created on demand."""
        if isinstance(executor.silos, dict):
            self.examples = {name: len(silo.train) for name, silo in executor.silos.items()}
        self.states: dict[SiloId, KeptState] = {}
        """The last stored state of each silo, if any."""
        self.needed: list[int] = []
        """The rounds whose states stay on disk."""
        self.changed: dict[SiloId, KeptState] = {}
        self.down = SharedBuffer()
        self.count = workers if workers > 1 else 0
        self.workers: list[Worker] = []
        self.rebuild = rebuild
        """The data from which workers reconstruct a run if the process cannot be forked."""
        self.aside: ThreadPoolExecutor | None = None
        """A thread that sums replies while workers run; started by the first sum, after the workers were forked."""
        if workers > 1:
            self.aside = ThreadPoolExecutor(1, "caveat-sums", torch.set_num_threads, (1,))

    def __enter__(self) -> SingleMachineEngine:
        keep_freed_memory()
        self.executor.states.begin()
        forked = not self.count or can_fork(self.executor.device)
        if not forked:
            check_respawn(self.rebuild, self.count)
        try:
            for number in range(self.count):
                self.executor.device = self.devices[number % len(self.devices)]
                self.executor.sharing = math.ceil(self.count / len(self.devices))
                self.workers.append(Worker(self.executor, self.down, self.workers, None if forked else self.rebuild))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.aside is not None:
            self.aside.shutdown(cancel_futures=True)
        for worker in self.workers:
            worker.end()
        self.workers = []
        self.down.close()

    @property
    def vectorized(self) -> dict[str, VectorizedRecord]:
        """The decisions so far on whether tasks are batched over silos, by task."""
        return self.vectorization.works

    @vectorized.setter
    def vectorized(self, works: dict[str, VectorizedRecord]) -> None:
        self.vectorization.works = works

    def begin(
        self, t: int, counted: Mapping[SiloId, int], kept: Mapping[SiloId, KeptState], rollbacks: int = 0
    ) -> None:
        """Start at round t; silos discard states of rounds that were never completed."""
        self.executor.states.forget_all(t - 1)
        self.states = dict(kept)

    def kept(self) -> list[KeptState]:
        """Return the states that silos stored since the last call, by name."""
        changed, self.changed = self.changed, {}
        return [changed[silo] for silo in sorted(changed)]

    def keep(self, rounds: Sequence[int]) -> None:
        """Keep only the states of `rounds` on disk when saving later states."""
        self.needed = list(rounds)

    def end_training(self) -> None:
        """Do nothing, because all silos are present from the start."""

    def exchange(
        self,
        t: int,
        address: str,
        payload: Payload,
        cohort: Sequence[SiloId],
        linear: Weights | None = None,
        admission: Admission | None = None,
    ) -> Replies:
        """Let every silo of the cohort run the task; in a linear round, keep only means. Raises SiloError if a task
        fails."""
        if self.secure and (weights := weights_of(self.method, t, address)) is not None:
            return sums_alone(self._exchange(t, address, payload, cohort, None, None), weights)
        return self._exchange(t, address, payload, cohort, linear, admission)

    def _exchange(
        self,
        t: int,
        address: str,
        payload: Payload,
        cohort: Sequence[SiloId],
        linear: Weights | None,
        admission: Admission | None,
    ) -> Replies:
        chunks, vectorized = self.vectorization.plan(
            self.batched, t, address, payload, cohort, self.examples, self.states
        )
        if chunks:
            orders = [
                ChunkOrder(t, address, payload, silos, self._states_of(silos), self.needed, vectorized)
                for silos in chunks
            ]
            return self._exchange_chunks(orders, linear, admission)
        collector = self._collector(payload, cohort, linear, admission)
        if self.workers:
            self._spread(t, address, payload, collector)
        else:
            for silo in chain.from_iterable(map(self.queue, collector.groups)):
                done = self.executor.perform(t, address, payload, silo, self.states.get(silo), self.needed)
                self._take(collector, silo, done)
        return collector.replies(len(self.silos))

    def queue(self, group: Sequence[SiloId]) -> Sequence[SiloId]:
        """Return the order in which silos of a group are asked: largest first, if sizes are known, so no worker is left
        with a large silo at the end. Results do not depend on it."""
        return group if self.examples is None else sorted(group, key=self.examples.__getitem__, reverse=True)

    def _collector(
        self, payload: Payload, cohort: Sequence[SiloId], linear: Weights | None, admission: Admission | None
    ) -> ReplyCollector:
        if linear == "silos":
            counts = dict.fromkeys(cohort, 1)
        elif linear == "examples" and self.examples is not None:
            counts = {silo: self.examples[silo] for silo in cohort}
        else:
            return BufferedReplies(cohort, admission)
        return StreamingMean(counts, size(payload), len(self.workers), self.aside, admission)

    def _take(self, collector: ReplyCollector, silo: SiloId, done: Performed) -> None:
        if done.kept is not None and done.kept != self.states.get(silo):
            self._keep(done.kept)
        collector.take(silo, done.update)

    def _keep(self, kept: KeptState) -> None:
        self.states[kept.silo] = self.changed[kept.silo] = kept

    def _spread(self, t: int, address: str, payload: Payload, collector: ReplyCollector) -> None:
        self.down.restart()
        order = {"t": t, "task": address, "down": self.down.write(payload), "needed": self.needed}
        queue = WorkerQueue(self.workers, lambda worker: self._take(collector, *worker.answer()))
        for group, silos in enumerate(collector.groups):
            while not collector.ready(group):
                queue.collect()
            for worker in self.workers:
                worker.begin(group % BUFFERS)
            for silo in self.queue(silos):
                kept = self.states.get(silo)
                queue.ask(order | {"silo": silo, "kept": None if kept is None else as_json(kept)})
        queue.finish()

    def _states_of(self, silos: Sequence[SiloId]) -> dict[SiloId, KeptState]:
        return {silo: self.states[silo] for silo in silos if silo in self.states}

    def _exchange_chunks(
        self, orders: Sequence[ChunkOrder], linear: Weights | None, admission: Admission | None
    ) -> Replies:
        """Run chunks of silos one after the other, or on idle workers."""
        replies = ChunkReplies(linear, self.examples, len(orders), admission)
        reasons: list[dict[str, str]] = [{} for _ in orders]
        adds_up = linear is not None and admission is None  # otherwise updates are admitted before they are summed

        def take(number: int, parts: Sequence[ChunkPart | SummedPart], done: ChunkDone) -> None:
            for kept in done.kept:
                self._keep(kept)
            replies.take(number, parts)
            reasons[number] = done.one_by_one

        if self.workers:
            self.down.restart()
            sent = self.down.write(orders[0].sent)
            queue = WorkerQueue(self.workers, lambda worker: take(worker.order["chunk"], *worker.answer_chunk()))
            for worker in self.workers:
                worker.begin(0)
            for number, order in enumerate(orders):
                queue.ask(as_order(order, sent, adds_up) | {"chunk": number})
            queue.finish()
        else:
            for number, order in enumerate(orders):
                done = self.batched.carry_out(order)
                take(number, [summed(part) for part in done.parts] if adds_up else done.parts, done)
        for each in reasons:
            self.vectorization.fell_back(orders[0].t, each)
        return replies.replies(len(self.silos))
