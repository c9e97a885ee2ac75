"""What commands import, each in a process of its own: what answers at once does so without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import caveat
from caveat.cli.preparing import MODELS
from caveat.core.method import Method
from caveat.methods import METHODS
from caveat.nn.models import ModelSettings

COMMAND = """
import sys
from caveat.cli import main
main()
"""
REPORT = """
import atexit, sys
atexit.register(lambda: print(*sorted({name.partition(".")[0] for name in sys.modules} | set(sys.modules) & {NAMED}),
                              file=sys.stderr))
"""
NAMED = {"scipy.stats", "scipy.optimize"}


def imported(code: str, *arguments: str) -> set[str]:
    """The packages, and those modules of `NAMED`, that a process has imported when it ends."""
    report = REPORT.replace("{NAMED}", repr(NAMED))
    command = [sys.executable, "-c", report + code, *arguments]
    environment = {"PYTHONPATH": str(Path(caveat.__file__).parents[1]), "PATH": "", "HOME": ""}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "command",
    [
        "--help", "--version", "run --help", "list methods", "list models", "list recipes", "reproduce --list",
    ],
)  # fmt: skip
def test_a_command_that_computes_nothing_imports_neither_torch_nor_scipy(command: str) -> None:
    found = imported(COMMAND, *command.split())
    assert "typer" in found
    assert not found & {"torch", "scipy", "sklearn", "pandas", "numpy"}


@pytest.mark.parametrize("command", ["list datasets", "config digits"])
def test_sources_and_configurations_take_torch_but_no_statistics(command: str) -> None:
    found = imported(COMMAND, *command.split())
    assert "torch" in found
    assert not found & {"sklearn", "pandas", "jinja2", *NAMED}


def test_the_library_imports_nothing_before_it_is_used() -> None:
    assert not imported("import caveat; dir(caveat); caveat.__version__") & {"torch", "numpy", "pydantic"}


def test_no_module_imports_statistics_of_scipy_or_scikit_learn_but_the_estimator() -> None:
    pytest.importorskip("flwr")
    code = """
import importlib, pkgutil, caveat
for module in pkgutil.walk_packages(caveat.__path__, "caveat."):
    if module.name.split(".")[1] in ("analysis", "html", "methods", "metrics", "nn", "runs", "uncertainty", "wrappers"):
        importlib.import_module(module.name)
"""
    assert not imported(code) & {"sklearn", "pandas", *NAMED}


def test_lists_say_what_the_classes_say() -> None:
    assert list(MODELS) == list(get_args(get_type_hints(ModelSettings)["name"]))
    for name, kind in METHODS.items():
        assert issubclass(kind, Method)
        assert kind().name == name
        assert METHODS.about(name) == (kind.__doc__ or "").strip().splitlines()[0]


def test_every_public_name_can_be_had() -> None:
    assert dir(caveat) == caveat.__all__
    assert all(getattr(caveat, name) is not None for name in caveat.__all__)
    with pytest.raises(AttributeError, match="module 'caveat' has no attribute 'FedAverage'"):
        caveat.FedAverage  # noqa: B018
