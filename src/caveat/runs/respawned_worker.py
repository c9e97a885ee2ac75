"""A worker process that is not a fork: it reconstructs the run from its folder and data, and serves requests."""

import dataclasses
import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ..core.errors import CaveatError, message_of
from ..engines.executor import Executor
from ..engines.worker_process import SharedBuffer, end_with_parent, serve
from ..methods.plugins import use
from .continuing_checks import check_same_data
from .local_run import LocalRun
from .spec import with_rounds
from .spec_file import run_file, spec_in, with_sets
from .user_code import import_named


def serve_respawned(about: Mapping[str, Any]) -> None:
    """Serve requests in a process started by `respawn`. If the run cannot be reconstructed, answer with the error."""
    end_with_parent(about["parent"])
    pipe, *buffers = about["descriptors"]
    connection, (down, *up) = Connection(pipe), map(SharedBuffer, buffers)
    try:
        executor = rebuilt_executor(about["rebuild"])
    except Exception as error:
        connection.recv_bytes()
        why = str(error) if isinstance(error, CaveatError) else message_of(error)
        answer = {
            "error": f"a worker process cannot reconstruct the run: {why}",
            "kind": type(error).__name__,
            "silo": None,
        }
        connection.send_bytes(json.dumps(answer).encode())
        return
    executor.device, executor.sharing = torch.device(about["device"]), about["sharing"]
    serve(executor, down, up, connection)


def rebuilt_executor(rebuild: Mapping[str, Any]) -> Executor:
    """Return the executor of a run. When starting the run, the user named all code that is imported here. Raises
    RunError if the data have changed, and the errors of reading them."""
    for plugin in rebuild["plugins"]:
        use(plugin)
    folder = Path(rebuild["folder"])
    spec = spec_in(folder, with_sets(run_file(folder), rebuild["sets"]))
    spec = dataclasses.replace(spec, method=with_rounds(spec.method, rebuild["rounds"]))
    import_named(spec)
    silos = spec.read_silos()
    check_same_data(folder, silos)
    return LocalRun(spec=spec, folder=folder, silos=silos).executor()
