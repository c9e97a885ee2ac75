"""Worker processes of the single-machine engine: how they start, and the requests and answers they exchange.

A process that has initialized a GPU, or trained next to one, cannot be forked; a new Python process then reconstructs
the run. Tensors are in memory shared by a process and its workers: an anonymous file, deleted when the last process
ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import mmap
import os
import signal
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..core import ConfigurationError, Payload, RunError, SiloId, Update
from ..core.devices import device_count, known_kinds
from ..files import StateLost
from ..files.schema import KeptState, as_json
from .batched_executor import BatchedExecutor, ChunkDone, ChunkOrder, ChunkPart
from .executor import Executor, Performed, SiloDiverged, SiloError
from .sums_on_arrival import BUFFERS, SummedPart, summed

ALIGNED = 64
"""Alignment of tensors in bytes."""
MANY = 1000
"""Number of views of a buffer after which unused ones are removed."""
BufferLayout = dict[str, list[list[Any]]]
"""Name, type, shape and position of each tensor by group, as JSON values for a reader."""


class SharedBuffer:
    """Payloads in sequence, written by one process and read by others without a copy. A payload is valid until the
    buffer is written from the start again; check `unread` first."""

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor` is the file descriptor of a buffer inherited from another process."""
        # Neither file has a name, so nothing is left behind, however the processes end.
        if descriptor is not None:
            self.descriptor = descriptor
        elif hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("caveat")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        self.map: mmap.mmap | None = None
        self.end = 0
        self.windows: list[weakref.ref[memoryview]] = []
        """The parts of the buffer that were read; each exists as long as one of its tensors."""
        self.many = MANY

    @property
    def unread(self) -> bool:
        """Whether no tensor that this process has read is still in use."""
        self.windows = [window for window in self.windows if window() is not None]
        return not self.windows

    def restart(self) -> None:
        """Write from the start again."""
        self.end = 0

    def write(self, payload: Payload) -> BufferLayout:
        """Append a payload; return its layout for a reader."""
        layout: BufferLayout = {}
        for group, tensors in payload.items():
            layout[group] = []
            for name, tensor in tensors.items():
                layout[group].append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), self.end])
                self.end += math.ceil(tensor.nbytes / ALIGNED) * ALIGNED
        if os.fstat(self.descriptor).st_size < self.end:
            # Much larger than needed, which costs nothing until used, because a new mapping must load its pages again.
            os.ftruncate(self.descriptor, 64 * self.end)
        for group, there in self.read(layout).items():
            for name, tensor in there.items():
                tensor.copy_(payload[group][name])
        return layout

    def read(self, layout: BufferLayout) -> Payload:
        """Return the payload with this layout as views, which must not be changed."""
        window = self._window()
        return {group: {each[0]: _tensor(window, *each[1:]) for each in entries} for group, entries in layout.items()}

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        os.close(self.descriptor)

    def _window(self) -> memoryview:
        """Return a view of the whole file; an older, shorter mapping remains valid for tensors read from it."""
        size = os.fstat(self.descriptor).st_size
        if not size:
            return memoryview(b"")
        if self.map is None or len(self.map) < size:
            self.map = mmap.mmap(self.descriptor, size)
        window = memoryview(self.map)
        self.windows.append(weakref.ref(window))
        if len(self.windows) > self.many and not self.unread:
            self.many = 2 * len(self.windows) + MANY
        return window


def _tensor(window: memoryview, dtype: str, shape: list[int], start: int) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(window, dtype=kind, count=count, offset=start).view(shape)


Rebuild = Mapping[str, Any]
"""The arguments with which `serve_respawned` of the module named by "by" reconstructs a run, as JSON values."""
BEGIN = """
import importlib, json, sys
about = json.loads(sys.argv[1])
sys.path[:] = about["path"]
importlib.import_module(about["rebuild"]["by"]).serve_respawned(about)
"""


class Worker:
    """A process that runs one request at a time: a fork, or a new process if `rebuild` is given. Requests and answers
    are JSON; tensors are in shared buffers."""

    def __init__(
        self, executor: Executor, down: SharedBuffer, others: Sequence[Worker], rebuild: Rebuild | None = None
    ) -> None:
        self.pipe, theirs = Pipe()
        self.buffers = [SharedBuffer() for _ in range(BUFFERS)]
        """One buffer for the replies of a group of silos, and one for the next group while the first is summed."""
        self.slot = 0
        self.order: dict[str, Any] = {}
        self.fresh = True
        """Whether no replies in the current buffer are in use."""
        if rebuild is not None:
            self.process = respawn(rebuild, executor, down, self.buffers, theirs)
            theirs.close()
            return
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            # Python warns of threads at a fork; torch's are idle here, and the child has one thread.
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
        """Write replies to the buffer `slot`, from its start if nothing in it is needed any more."""
        self.slot, self.fresh = slot, self.buffers[slot].unread

    def ask(self, order: dict[str, Any]) -> None:
        """Send a request. Raises RunError if the process died."""
        self.order = order | {"slot": self.slot, "fresh": self.fresh}
        self.fresh = False
        try:
            self.pipe.send_bytes(json.dumps(self.order).encode())
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._dead() from error

    def answer(self) -> tuple[SiloId, Performed]:
        """Wait for the answer. Raises StateLost or SiloError if the silo failed, RunError if the process died."""
        answer = self.receive()
        update = Update(self.buffers[self.order["slot"]].read(answer["up"]), answer["examples"])
        return self.order["silo"], Performed(update, _kept(answer["kept"]))

    def answer_chunk(self) -> tuple[list[ChunkPart | SummedPart], ChunkDone]:
        """Wait for the answer to a request for a chunk: its parts and other results. Raises as `answer` does."""
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
        """Return the answer of the process. Raises as `answer` does."""
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
        """The silo of the request, or the first of several."""
        return str(self.order["silos"][0] if "silos" in self.order else self.order["silo"])

    def _dead(self) -> RunError:
        others = f" or one of {len(self.order['silos']) - 1} others in its chunk" if "silos" in self.order else ""
        return RunError(
            f"a worker process died at silo {self.silo!r}{others} in round {self.order['t'] + 1} of the schedule, task "
            f"{self.order['task']!r}; was it out of memory?",
            self.silo,
        )

    def end(self) -> None:
        """Kill the process, and free its memory."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)
        self.pipe.close()
        for buffer in self.buffers:
            buffer.close()


class WorkerQueue:
    """Hands requests to idle workers."""

    def __init__(self, workers: Sequence[Worker], take: Callable[[Worker], None]) -> None:
        """`take` is called with every worker that has answered, to receive its answer."""
        self.idle, self.busy, self.take = list(workers), dict[object, Worker](), take

    def ask(self, order: dict[str, Any]) -> None:
        """Send a request as soon as a worker is idle. Raises as `Worker.ask` and `take` do."""
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
    """Run the requests that arrive through a pipe, until its other end is closed."""
    # The parent's threads do not exist in a fork, and OpenMP would wait for them.
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


def as_order(order: ChunkOrder, down: dict[str, Any], linear: bool) -> dict[str, Any]:
    """Return a request for a chunk as JSON; `down` locates its payload in the buffer."""
    return {
        "t": order.t, "task": order.address, "down": down, "silos": list(order.silos), "needed": list(order.needed),
        "kept": [as_json(kept) for kept in order.kept.values()], "vectorized": dict(order.vectorized), "linear": linear,
    }  # fmt: skip


def _chunk(batched: BatchedExecutor, message: dict[str, Any], down: SharedBuffer, up: SharedBuffer) -> dict[str, Any]:
    """Run a request for a chunk. Tensors of the answer are written to a buffer."""
    kept = {each["silo"]: KeptState.model_validate(each) for each in message["kept"]}
    order = ChunkOrder(
        message["t"], message["task"], down.read(message["down"]), message["silos"], kept, message["needed"],
        message["vectorized"],
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


def can_fork(device: torch.device) -> bool:
    """Return whether a fork of this process could train, on the CPU and on a device. If this machine has a GPU, a
    short-lived fork tries it, because torch has no function to test it."""
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
    """Raise ConfigurationError for a run that a new process cannot reconstruct."""
    if rebuild is None:
        raise ConfigurationError(
            f"engine.workers = {workers}: this process has used a GPU, or has trained next to one, and torch cannot "
            "train in its forks; use 1 worker, a new process, or `caveat run`",
            "engine.workers",
        )


def respawn(
    rebuild: Rebuild, executor: Executor, down: SharedBuffer, buffers: Sequence[SharedBuffer], pipe: Connection
) -> int:
    """Start a new Python process that serves the other end of a pipe; return its process id. It gets the data to
    reconstruct the run as JSON, and inherits the buffers."""
    descriptors = [pipe.fileno(), down.descriptor, *(buffer.descriptor for buffer in buffers)]
    about = {
        "rebuild": dict(rebuild), "path": sys.path, "parent": os.getpid(), "device": str(executor.device),
        "sharing": executor.sharing, "descriptors": descriptors,
    }  # fmt: skip
    argument = json.dumps(about)
    process = os.fork()
    if process == 0:
        try:
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            os.execv(sys.executable, [sys.executable, "-c", BEGIN, argument])
        finally:
            os._exit(1)
    return process


def end_with_parent(parent: int) -> None:
    """Ignore Ctrl-C, and exit when the parent exits for any reason; call this first in a child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
