"""A worker process of the embedded engine, and what it does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from ...core import RunError, SiloId, Update
from ...files.checkpoints import StateLost
from ...files.schema.record import as_json
from ...files.schema.small_files import KeptState
from ..executor import Executor, Performed, SiloDiverged, SiloError
from ..stacking.chunk import StackedPlace
from ..stacking.exchange import answer_of
from .anew import Rebuild, begin_anew
from .children import end_with_parent
from .collectors import AHEAD
from .shared_buffer import SharedBuffer


class Worker:
    """A process that carries out one order at a time: a fork, unless it is told what to `rebuild`. Orders and answers
    are JSON, tensors lie in buffers.
    """

    def __init__(
        self, executor: Executor, down: SharedBuffer, others: Sequence[Worker], rebuild: Rebuild | None = None
    ) -> None:
        self.pipe, theirs = Pipe()
        self.buffers = [SharedBuffer() for _ in range(AHEAD)]
        """One for the replies of a group of silos, one for the next group's while those are being added up."""
        self.slot = 0
        self.order: dict[str, Any] = {}
        self.fresh = True
        """Whether nothing is left of the replies in the buffer of that number."""
        if rebuild is not None:
            self.process = begin_anew(rebuild, executor, down, self.buffers, theirs)
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
            f"{self.order['work']!r}; was it out of memory?",
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


def serve(executor: Executor, down: SharedBuffer, buffers: Sequence[SharedBuffer], pipe: Connection) -> None:
    """Carry out the orders that come through a pipe, until nobody is at its other end."""
    # The parent's threads did not come along, and OpenMP would wait for them.
    torch.set_num_threads(1)
    place = StackedPlace(executor)
    with contextlib.suppress(EOFError):
        while True:
            order = json.loads(pipe.recv_bytes())
            up = buffers[order["slot"]]
            if order["fresh"]:
                up.restart()
            try:
                if "silos" in order:
                    answer = answer_of(place, order, down, up)
                else:
                    answer = _performed(executor, order, down, up)
            except Exception as error:
                message = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
                answer = {"error": message, "kind": type(error).__name__, "silo": getattr(error, "silo", None)}
            pipe.send_bytes(json.dumps(answer).encode())


def _performed(executor: Executor, order: dict[str, Any], down: SharedBuffer, up: SharedBuffer) -> dict[str, Any]:
    update, kept = executor.perform(
        order["t"], order["work"], down.read(order["down"]), order["silo"], _kept(order["kept"]), order["needed"]
    )
    answer: dict[str, Any] = {"up": up.write(update.payload), "examples": update.examples}
    answer["kept"] = None if kept is None else as_json(kept)
    return answer


def _kept(found: dict[str, Any] | None) -> KeptState | None:
    return None if found is None else KeptState.model_validate(found)
