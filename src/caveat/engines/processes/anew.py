"""Workers that begin anew where a process cannot be forked: one that has started a GPU, or has trained beside one.

What they need is handed to them once, pickled, in memory that has no name and only processes of this run can read.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from ...core import ConfigurationError
from ...core.devices import CPU, counted, known_kinds
from ...core.errors import told
from ..executor import Executor
from .children import end_with_parent
from .shared_buffer import SharedBuffer

Serve = Callable[[Executor, SharedBuffer, Sequence[SharedBuffer], Connection], None]
BEGIN = """
import json, sys
given = json.loads(sys.argv[1])
sys.path[:] = given["path"]
from caveat.engines.processes.anew import serve_anew
serve_anew(given)
"""


def can_fork(device: torch.device) -> bool:
    """Whether a fork of this process could train, on the CPU and on a device. A short-lived one tries it, where this
    machine has a GPU: torch has no question for it.
    """
    kinds = [kind for kind in dict.fromkeys((device.type, *known_kinds())) if counted(kind)]
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


def handed_over(executor: Executor) -> SharedBuffer:
    """What carries out works, as workers that begin anew read it.

    Raises ConfigurationError for a run of which some part cannot be handed over.
    """
    try:
        given = pickle.dumps(replace(executor, device=CPU))
    except Exception as error:  # whatever a class of the user's raises
        raise ConfigurationError(
            "engine.workers: this process has used a GPU, or has trained beside one, so that it cannot be forked, and "
            f"workers that begin anew cannot be given this run ({told(error)}); use 1, or a new process",
            "engine.workers",
        ) from error
    buffer = SharedBuffer()
    with os.fdopen(os.dup(buffer.descriptor), "wb") as file:
        file.write(given)
    return buffer


def begin_anew(
    given: SharedBuffer, executor: Executor, down: SharedBuffer, buffers: Sequence[SharedBuffer], pipe: Connection
) -> int:
    """Begin a process that serves at the other end of a pipe; return its number."""
    descriptors = [given.descriptor, pipe.fileno(), down.descriptor, *(buffer.descriptor for buffer in buffers)]
    about = {
        "path": sys.path, "parent": os.getpid(), "device": str(executor.device), "sharing": executor.sharing,
        "descriptors": descriptors,
    }  # fmt: skip
    process = os.fork()
    if process == 0:
        try:
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            os.execv(sys.executable, [sys.executable, "-c", BEGIN, json.dumps(about)])
        finally:
            os._exit(1)
    return process


def serve_anew(about: dict[str, Any]) -> None:
    """What such a process does."""
    from .pool import serve

    end_with_parent(about["parent"])
    given, pipe, down, *buffers = about["descriptors"]
    connection = Connection(pipe)
    with mmap.mmap(given, 0, prot=mmap.PROT_READ) as memory:
        try:
            executor: Executor = pickle.loads(memory)
        except Exception as error:
            connection.recv_bytes()
            why = f"a worker cannot be begun anew: {told(error)}; use engine.workers = 1, or a new process"
            connection.send_bytes(json.dumps({"error": why, "kind": type(error).__name__}).encode())
            return
    executor.device, executor.sharing = torch.device(about["device"]), about["sharing"]
    serve(executor, SharedBuffer(down), [SharedBuffer(each) for each in buffers], connection)
