"""Importing all that commands import, before children are forked: nine tenths of their time otherwise."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import pkgutil
import tempfile
from functools import cache
from pathlib import Path

import torch

import caveat

from .actions import ACTIONS, run, write_inputs
from .subjects import SUBJECTS

APART = ("flower", "federation", "templates", "__main__")
"""Parts of the names of modules that need Flower, which is imported where it is tried, or that run something."""


@cache
def warm() -> None:
    """Import every module, and carry out every command once: what they import themselves is there then, too."""
    torch.set_num_threads(1)
    torch.broadcast_shapes((1,), (1,))  # imports sympy
    for module in pkgutil.walk_packages(caveat.__path__, "caveat."):
        if not any(part in module.name for part in APART):
            importlib.import_module(module.name)
    subject = SUBJECTS["fedavg"]
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name) / "run"
        write_inputs(folder.parent / "inputs.npz")
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            run(subject, folder, "rounds=1")
        for action in ACTIONS.values():
            with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                action(subject, folder)
    gc.collect()
    gc.freeze()  # so that children need not copy what they do not change
