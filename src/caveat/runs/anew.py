"""A worker of a configured run in a process that begins anew: it makes the run again from its folder and its data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .. import data
from ..core.errors import CaveatError, told
from ..engines.executor import Executor
from ..engines.processes.shared_buffer import SharedBuffer
from ..engines.processes.worker import end_with_parent, serve
from ..methods.plugins import use
from .begun import check_same
from .configured import load_config, local_run
from .own_code import import_named


def serve_anew(about: Mapping[str, Any]) -> None:
    """Carry out orders, on what `begin_anew` says. A run that cannot be made again is the answer to the first one."""
    end_with_parent(about["parent"])
    pipe, *buffers = about["descriptors"]
    connection, (down, *up) = Connection(pipe), map(SharedBuffer, buffers)
    try:
        executor = executor_anew(about["rebuild"])
    except Exception as error:
        connection.recv_bytes()
        why = str(error) if isinstance(error, CaveatError) else told(error)
        answer = {"error": f"a worker cannot begin anew: {why}", "kind": type(error).__name__, "silo": None}
        connection.send_bytes(json.dumps(answer).encode())
        return
    executor.device, executor.sharing = torch.device(about["device"]), about["sharing"]
    serve(executor, down, up, connection)


def executor_anew(rebuild: Mapping[str, Any]) -> Executor:
    """What carries out the works of a run. Its user has named all code that is imported here, to the run's process.

    Raises RunError for other data than the run's, and what reading them raises.
    """
    for plugin in rebuild["plugins"]:
        use(plugin)
    folder, name = Path(rebuild["folder"]), rebuild["method"]
    config = dataclasses.replace(load_config(folder), rounds=rebuild["rounds"])
    import_named(config)
    silos = data.load(config.data, config.seed)
    own = folder if name is None else folder / "beside" / name
    check_same(own, silos)
    return local_run(config, silos, own, name).executor()
