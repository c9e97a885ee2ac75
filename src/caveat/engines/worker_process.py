"""Worker processes of the single-machine engine: how they start, forked or respawned, the orders they get, their
answers.

A process cannot be forked that has started a GPU, or has trained next to one: a new Python process makes the run again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..core import ConfigurationError, RunError, SiloId, Update
from ..core.devices import device_count, known_kinds
from ..files.checkpoints import StateLost
from ..files.schema.progress import KeptState
from ..files.schema.record import as_json
from .batched_executor import BatchedExecutor, ChunkDone, ChunkOrder, ChunkPart
from .executor import Executor, Performed, SiloDiverged, SiloError
from .replies import BUFFERS, SummedPart, summed
from .shared_buffer import SharedBuffer

Rebuild = Mapping[str, Any]
"""What the function `serve_anew` of a module, the value of "by", needs to make a run again: a value of JSON."""
BEGIN = """
import importlib, json, sys
about = json.loads(sys.argv[1])
sys.path[:] = about["path"]
importlib.import_module(about["rebuild"]["by"]).serve_anew(about)
"""


class Worker:
    """A process that carries out one order at a time: a fork, unless it is told what to `rebuild`. Orders and answers
    are JSON, tensors lie in buffers.
    """

    def __init__(
        self, executor: Executor, down: SharedBuffer, others: Sequence[Worker], rebuild: Rebuild | None = None
    ) -> None:
        self.pipe, theirs = Pipe()
        self.buffers = [SharedBuffer() for _ in range(BUFFERS)]
        """One for the replies of a group of silos, one for the next group's while those are being added up."""
        self.slot = 0
        self.order: dict[str, Any] = {}
        self.fresh = True
        """Whether nothing is left of the replies in the buffer of that number."""
        if rebuild is not None:
            self.process = respawn(rebuild, executor, down, self.buffers, theirs)
            theirs.close()
            return
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            # Python warns of threads beside a fork; torch's are idle here, and the child has one thread.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = os.fork()
        if self.process == 0:
            with contextlib.suppress(BaseException):
                end_with_parent(parent)
                for end in (self.pipe, *(other.pipe for other in others)):
                    end.close()
                serve(executor, down, self.buffers, theirs)
            os._exit(0)
        theirs.close()

    def begin(self, slot: int) -> None:
        """Have replies written to the buffer of that number, from its start if nothing there is needed any more."""
        self.slot, self.fresh = slot, self.buffers[slot].unread

    def ask(self, order: dict[str, Any]) -> None:
        """Send an order. Raises RunError if the process has died."""
        self.order = order | {"slot": self.slot, "fresh": self.fresh}
        self.fresh = False
        try:
            self.pipe.send_bytes(json.dumps(self.order).encode())
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._dead() from error

    def answer(self) -> tuple[SiloId, Performed]:
        """Wait for the answer. Raises StateLost or SiloError if the silo failed, RunError if the process has died."""
        answer = self.receive()
        update = Update(self.buffers[self.order["slot"]].read(answer["up"]), answer["examples"])
        return self.order["silo"], Performed(update, _kept(answer["kept"]))

    def answer_chunk(self) -> tuple[list[ChunkPart | SummedPart], ChunkDone]:
        """Wait for the answer to an order for a chunk: its parts, and what else it has come to. Raises as `answer`."""
        answer, up = self.receive(), self.buffers[self.order["slot"]]
        parts = [
            ChunkPart(part["silos"], up.read(part["up"]), part["examples"])
            if "up" in part
            else SummedPart(part["silos"], part["examples"], up.read(part["sums"]), up.read(part["first"]))
            for part in answer["parts"]
        ]
        kept = [KeptState.model_validate(each) for each in answer["kept"]]
        return parts, ChunkDone(kept=kept, one_by_one=answer["one_by_one"])

    def receive(self) -> dict[str, Any]:
        """What the process has answered. Raises as `answer` does."""
        try:
            answer: dict[str, Any] = json.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError) as error:
            raise self._dead() from error
        if "error" in answer:
            kinds = {kind.__name__: kind for kind in (StateLost, SiloDiverged)}
            raise kinds.get(answer["kind"], SiloError)(answer["error"], answer["silo"] or self.silo)
        return answer

    @property
    def silo(self) -> SiloId:
        """The silo of the order, the first one of several."""
        return str(self.order["silos"][0] if "silos" in self.order else self.order["silo"])

    def _dead(self) -> RunError:
        others = f" or one of the {len(self.order['silos']) - 1} beside it" if "silos" in self.order else ""
        return RunError(
            f"a worker process died at silo {self.silo!r}{others} in round {self.order['t']}, work "
            f"{self.order['task']!r}; was it out of memory?",
            self.silo,
        )

    def end(self) -> None:
        """Kill the process, whatever it does, and give its memory back."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)
        self.pipe.close()
        for buffer in self.buffers:
            buffer.close()


class WorkerQueue:
    """Hands orders to idle workers."""

    def __init__(self, workers: Sequence[Worker], take: Callable[[Worker], None]) -> None:
        """`take` is called with every worker that has answered, and receives the answer."""
        self.idle, self.busy, self.take = list(workers), dict[object, Worker](), take

    def ask(self, order: dict[str, Any]) -> None:
        """Send an order as soon as a worker is idle. Raises as `Worker.ask` and `take` do."""
        while not self.idle:
            self.collect()
        worker = self.idle.pop()
        worker.ask(order)
        self.busy[worker.pipe] = worker

    def collect(self) -> None:
        """Wait until one of the busy workers has answered."""
        for pipe in wait([worker.pipe for worker in self.busy.values()]):
            worker = self.busy.pop(pipe)
            self.take(worker)
            self.idle.append(worker)

    def finish(self) -> None:
        """Wait for all answers."""
        while self.busy:
            self.collect()


def serve(executor: Executor, down: SharedBuffer, buffers: Sequence[SharedBuffer], pipe: Connection) -> None:
    """Carry out the orders that come through a pipe, until nobody is at its other end."""
    # The parent's threads did not come along, and OpenMP would wait for them.
    torch.set_num_threads(1)
    batched = BatchedExecutor(executor)
    with contextlib.suppress(EOFError):
        while True:
            order = json.loads(pipe.recv_bytes())
            up = buffers[order["slot"]]
            if order["fresh"]:
                up.restart()
            try:
                answer = _chunk(batched, order, down, up) if "silos" in order else _performed(executor, order, down, up)
            except Exception as error:
                message = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
                answer = {"error": message, "kind": type(error).__name__, "silo": getattr(error, "silo", None)}
            pipe.send_bytes(json.dumps(answer).encode())


def _performed(executor: Executor, order: dict[str, Any], down: SharedBuffer, up: SharedBuffer) -> dict[str, Any]:
    update, kept = executor.perform(
        order["t"], order["task"], down.read(order["down"]), order["silo"], _kept(order["kept"]), order["needed"]
    )
    answer: dict[str, Any] = {"up": up.write(update.payload), "examples": update.examples}
    answer["kept"] = None if kept is None else as_json(kept)
    return answer


def _kept(found: dict[str, Any] | None) -> KeptState | None:
    return None if found is None else KeptState.model_validate(found)


# Chunks of stacked silos.


def as_order(order: ChunkOrder, down: dict[str, Any], linear: bool) -> dict[str, Any]:
    """An order for a chunk as JSON, whose payload lies in the buffer of what is sent."""
    return {
        "t": order.t, "task": order.address, "down": down, "silos": list(order.silos), "needed": list(order.needed),
        "kept": [as_json(kept) for kept in order.kept.values()], "stacked": dict(order.stacked), "linear": linear,
    }  # fmt: skip


def _chunk(batched: BatchedExecutor, message: dict[str, Any], down: SharedBuffer, up: SharedBuffer) -> dict[str, Any]:
    """Carry out an order for a chunk. Tensors of the answer are written to a buffer."""
    kept = {each["silo"]: KeptState.model_validate(each) for each in message["kept"]}
    order = ChunkOrder(
        message["t"], message["task"], down.read(message["down"]), message["silos"], kept, message["needed"],
        message["stacked"],
    )  # fmt: skip
    done = batched.carry_out(order)
    parts = []
    for part in done.parts:
        about: dict[str, Any] = {"silos": part.silos, "examples": part.examples}
        if message["linear"]:
            made = summed(part)
            about |= {"sums": up.write(made.sums), "first": up.write(made.first)}
        else:
            about["up"] = up.write(part.payload)
        parts.append(about)
    return {"parts": parts, "kept": [as_json(kept) for kept in done.kept], "one_by_one": done.one_by_one}


# How processes start.


def can_fork(device: torch.device) -> bool:
    """Whether a fork of this process could train, on the CPU and on a device. A short-lived one tries it, where this
    machine has a GPU: torch has no question for it.
    """
    kinds = [kind for kind in dict.fromkeys((device.type, *known_kinds())) if device_count(kind)]
    if not kinds:
        return True
    process = os.fork()
    if process == 0:
        status = 1
        try:
            bad = [getattr(torch.get_device_module(kind), "_is_in_bad_fork", bool) for kind in kinds]
            torch.zeros(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
            status = int(any(each() for each in bad))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def check_respawn(rebuild: Rebuild | None, workers: int) -> None:
    """Raises ConfigurationError for a run that a new process cannot make again."""
    if rebuild is None:
        raise ConfigurationError(
            f"engine.workers = {workers}: this process has used a GPU, or has trained beside one, and torch can train "
            "in no fork of it; use 1 worker, a new process, or `caveat run`, whose workers begin anew",
            "engine.workers",
        )


def respawn(
    rebuild: Rebuild, executor: Executor, down: SharedBuffer, buffers: Sequence[SharedBuffer], pipe: Connection
) -> int:
    """Start a new Python process that serves at the other end of a pipe; return its process id.

    It is told in JSON what it needs to make the run again, and inherits the buffers.
    """
    descriptors = [pipe.fileno(), down.descriptor, *(buffer.descriptor for buffer in buffers)]
    about = {
        "rebuild": dict(rebuild), "path": sys.path, "parent": os.getpid(), "device": str(executor.device),
        "sharing": executor.sharing, "descriptors": descriptors,
    }  # fmt: skip
    said = json.dumps(about)
    process = os.fork()
    if process == 0:
        try:
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            os.execv(sys.executable, [sys.executable, "-c", BEGIN, said])
        finally:
            os._exit(1)
    return process


def end_with_parent(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end when it ends, however it ends; to be called first of all in a child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
