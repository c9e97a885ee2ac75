"""A round by chunks: in this process, or spread over workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from ...core import Payload, Replies, SiloId, Weights
from ...files.schema.small_files import KeptState
from ..checks.norms import Admission
from ..processes.shared_buffer import SharedBuffer
from .chunk import ChunkOrder, StackedPlace
from .messages import as_answer, as_order, order_of, parts_of
from .replies import ChunkReplies, summed


class ChunkWorker(Protocol):
    """A process that carries out one order at a time."""

    pipe: Connection
    buffers: list[SharedBuffer]
    slot: int

    def begin(self, slot: int) -> None:
        """Have replies written to the buffer of that number."""

    def ask(self, order: dict[str, Any]) -> None:
        """Send an order."""

    def receive(self) -> dict[str, Any]:
        """Wait for the answer. Raises what a silo has raised."""


class ChunkExchange:
    """Carries out the chunks of one round after the other, or each where a worker is idle."""

    def __init__(
        self,
        t: int,
        address: str,
        sent: Payload,
        chunks: Sequence[Sequence[SiloId]],
        stacked: Mapping[str, bool],
        kept: Mapping[SiloId, KeptState],
        needed: Collection[int],
        linear: Weights | None,
        examples: Mapping[SiloId, int] | None,
        keep: Callable[[KeptState], None],
        admission: Admission | None = None,
    ) -> None:
        """`keep` is told which states silos keep. Where updates have to be admitted, sums are made after that, here."""
        self.orders = [
            ChunkOrder(t, address, sent, silos, {silo: kept[silo] for silo in silos if silo in kept}, needed, stacked)
            for silos in chunks
        ]
        self.linear, self.keep = linear is not None and admission is None, keep
        self.replies = ChunkReplies(linear, examples, len(chunks), admission)
        self.one_by_one: dict[str, str] = {}

    def here(self, place: StackedPlace) -> None:
        """In this process."""
        for number, order in enumerate(self.orders):
            done = place.carry_out(order)
            self._take(number, [summed(part) for part in done.parts] if self.linear else done.parts, done.kept)
            self.one_by_one |= done.one_by_one

    def spread(self, workers: Sequence[ChunkWorker], down: SharedBuffer) -> None:
        """Over processes that see what is written `down`."""
        down.restart()
        sent = down.write(self.orders[0].sent) if self.orders else {}
        idle, busy = list(workers), dict[object, tuple[int, ChunkWorker]]()

        def collect() -> None:
            for pipe in wait([worker.pipe for _, worker in busy.values()]):
                number, worker = busy.pop(pipe)
                answer = worker.receive()
                kept = [KeptState.model_validate(each) for each in answer["kept"]]
                self._take(number, parts_of(answer, worker.buffers[worker.slot]), kept)
                self.one_by_one |= answer["one_by_one"]
                idle.append(worker)

        for worker in workers:
            worker.begin(0)
        for number, order in enumerate(self.orders):
            while not idle:
                collect()
            worker = idle.pop()
            worker.ask(as_order(order, sent, self.linear))
            busy[worker.pipe] = number, worker
        while busy:
            collect()

    def _take(self, number: int, parts: Any, kept: Sequence[KeptState]) -> None:
        for each in kept:
            self.keep(each)
        self.replies.take(number, parts)

    def result(self, population: int) -> Replies:
        """The replies of all."""
        return self.replies.replies(population)


def answer_of(place: StackedPlace, message: dict[str, Any], down: SharedBuffer, up: SharedBuffer) -> dict[str, Any]:
    """A worker's answer to an order for a chunk."""
    order = order_of(message, down.read(message["down"]))
    return as_answer(place.carry_out(order), up, message["linear"])
