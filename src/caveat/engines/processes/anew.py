"""Workers that begin anew where a process cannot be forked: one that has started a GPU, or has trained beside one.

They are told in JSON what they need to make the run again, and share the buffers that their parent has made.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from ...core import ConfigurationError
from ...core.devices import counted, known_kinds
from ..executor import Executor
from .shared_buffer import SharedBuffer

Rebuild = Mapping[str, Any]
"""What the function `serve` of a module, the value of "by", needs to make a run again: a value of JSON."""
BEGIN = """
import importlib, json, sys
about = json.loads(sys.argv[1])
sys.path[:] = about["path"]
importlib.import_module(about["rebuild"]["by"]).serve_anew(about)
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


def check_anew(rebuild: Rebuild | None, workers: int) -> None:
    """Raises ConfigurationError for a run that a process which begins anew cannot make again."""
    if rebuild is None:
        raise ConfigurationError(
            f"engine.workers = {workers}: this process has used a GPU, or has trained beside one, and torch can train "
            "in no fork of it; use 1 worker, a new process, or `caveat run`, whose workers begin anew",
            "engine.workers",
        )


def begin_anew(
    rebuild: Rebuild, executor: Executor, down: SharedBuffer, buffers: Sequence[SharedBuffer], pipe: Connection
) -> int:
    """Begin a process that serves at the other end of a pipe; return its number."""
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
