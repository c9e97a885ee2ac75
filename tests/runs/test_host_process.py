"""A program that imports caveat, or predicts with a finished run, is left as it was; the command line sets its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import caveat

pytestmark = pytest.mark.long

BEFORE = """
import ctypes, json, os, sys
os.environ.pop("THP_MEM_ALLOC_ENABLE", None)
import torch, typer.core
calls = []
class Library:
    def __init__(self, name, *given, **named):
        self.real = real(name, *given, **named)
    def __getattr__(self, name):
        calls.extend(["mallopt"] * (name == "mallopt"))
        return getattr(self.real, name)
real, ctypes.CDLL = ctypes.CDLL, Library
torch.set_num_threads(2)
def state():
    return {
        "environment": dict(os.environ), "rich": typer.core.HAS_RICH, "calls": len(calls),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "default": [str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled()],
    }
before = state()
"""
AFTER = "\nprint(json.dumps([before, state()]))"
IMPORTS = """
import importlib, pkgutil, caveat, caveat.cli
for name in caveat.__all__:
    getattr(caveat, name)
for module in pkgutil.walk_packages(caveat.__path__, "caveat."):
    if not module.name.endswith("__main__") and ".templates." not in module.name:
        importlib.import_module(module.name)
"""
PREDICTS = """
import caveat
run = caveat.load({folder!r})
silo = run.silos[0]
assert len(run.predictor(silo.name)(silo.test.x[:3])) == 3
assert len(run.answers(silo.name)(silo.test.x[:3])) >= 1
"""
RUNS = """
import numpy as np, caveat
x = np.sin(np.arange(2 * 150 * 3)).reshape(2, 150, 3)
silos = caveat.data.from_arrays({{str(k): (x[k], (x[k].sum(1) > 0).astype(int)) for k in range(2)}})
caveat.run(silos, caveat.FedAvg(rounds=1), workers={workers})
"""
HUGE = """
import caveat, caveat.federation
for name in caveat.__all__:
    getattr(caveat, name)
from caveat.engines.allocator import use_huge_pages
use_huge_pages()
import torch
tensor = torch.empty(16_000_000).fill_(1.0)
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")))
"""
COMMAND = """
import caveat.cli
try: caveat.cli.app(["list", "methods"])
except SystemExit: pass
"""


PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


OF_SCIKIT_LEARN = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
"""What scikit-learn sets when it is imported."""


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    return OF_SCIKIT_LEARN | kept | {"PYTHONPATH": str(Path(caveat.__file__).parents[1])}


def seen(code: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of a process of its own before and after some code."""
    command = [sys.executable, "-c", BEFORE + code + AFTER]
    done = subprocess.run(command, env=environment(), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    return before, after


def test_importing_changes_nothing() -> None:
    pytest.importorskip("flwr")  # `make lowest` goes without it
    before, after = seen(IMPORTS)
    # Flower, which the modules of a federation import, says in the environment which processes of gRPC may fork.
    after["environment"] = {name: after["environment"].get(name) for name in before["environment"]}
    assert after == before


def test_importing_the_library_sets_no_variable() -> None:
    before, after = seen("import caveat\nfor name in caveat.__all__: getattr(caveat, name)\nimport caveat.cli")
    assert after == before


def test_predicting_with_a_finished_run_changes_nothing(finished: tuple[Path, Result]) -> None:
    before, after = seen(PREDICTS.format(folder=str(finished[0])))
    assert after == before


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_engine_that_starts_keeps_memory_and_sets_nothing_else(workers: int) -> None:
    before, after = seen(RUNS.format(workers=workers))
    assert after.pop("calls") > before.pop("calls") == 0
    assert after == before


@pytest.mark.skipif(
    not PAGES.exists() or "[madvise]" not in PAGES.read_text(), reason="the system gives huge pages to all or to nobody"
)
def test_no_import_makes_a_tensor_so_that_huge_pages_can_be_asked_for_after_it() -> None:
    pytest.importorskip("flwr")
    done = subprocess.run([sys.executable, "-c", HUGE], env=environment(), text=True, capture_output=True)
    assert int(done.stdout) > 32_000, done.stderr


def test_the_command_line_sets_what_its_process_needs() -> None:
    before, after = seen(COMMAND)
    assert (before["rich"], after["rich"]) == (True, False)
    assert after["environment"] == before["environment"] | {"THP_MEM_ALLOC_ENABLE": "1"}
