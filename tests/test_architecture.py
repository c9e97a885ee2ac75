"""Imports go down: what methods, engines and reports must never know."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import caveat
from caveat.methods import METHODS

SOURCE = Path(caveat.__file__).parent
ABOVE = {
    "config", "cli", "api", "experiment", "summary", "listing", "progress", "report", "wrappers", "loop", "engines",
    "metrics", "methods", "tally", "auditing", "plan", "keeper", "federation", "console", "cli_flower",
    "cli_compare", "comparing", "reproducing",
}  # fmt: skip
"""Everything that is not a foundation."""
FORBIDDEN = {
    "uncertainty": ABOVE | {"prediction", "core", "nn", "local", "data", "store"},
    "prediction": ABOVE | {"core", "nn", "local", "data", "store"},
    "core": ABOVE | {"nn", "local", "data", "store"},
    "nn": ABOVE | {"local", "data", "store"},
    "local": ABOVE | {"nn", "data", "store"},
    "data": ABOVE | {"nn", "local", "store"},
    "store": ABOVE | {"nn", "local", "data"},
    "methods": ABOVE - {"methods"} | {"data", "store"},
    "metrics": ABOVE - {"metrics"} | {"nn", "local", "data", "store"},
    "tally": ABOVE - {"tally", "metrics"} | {"nn", "local", "data", "store"},
    "wrappers": ABOVE - {"wrappers", "metrics"} | {"store"},
    "loop": ABOVE - {"loop"} | {"nn", "local", "data", "store"},
    "engines": ABOVE - {"engines", "loop"} | {"nn", "data"},
    "auditing": {"api", "cli", "summary", "listing", "methods", "metrics", "tally", "engines"},
    "comparing": {"api", "cli", "summary", "auditing", "reproducing", "engines", "plan", "federation"},
    "reproducing": {"api", "cli", "cli_compare", "summary", "auditing", "engines", "plan", "experiment", "methods"},
    "roster": ABOVE | {"nn", "local", "data", "store"},
    "ledger": ABOVE | {"nn", "local", "data"},
    "plan": {"api", "cli", "cli_flower", "console", "experiment", "federation", "auditing", "report", "data"},
    "report": ABOVE - {"report"} | {"nn", "local", "data", "store", "prediction"},
}


def imported(file: Path) -> set[str]:
    """The first names below `caveat` that a file imports."""
    package = file.relative_to(SOURCE.parent).parent.parts
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            path = (*base, *(node.module or "").split("."))
            modules = [path] if node.module else [(*base, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        names |= {module[1] for module in modules if module[0] == "caveat" and len(module) > 1}
    return names


def files(part: str) -> list[Path]:
    return [SOURCE / f"{part}.py"] if (SOURCE / f"{part}.py").exists() else sorted((SOURCE / part).rglob("*.py"))


@pytest.mark.parametrize("part", FORBIDDEN)
def test_imports_go_down(part: str) -> None:
    assert files(part)
    for file in files(part):
        assert not imported(file) & FORBIDDEN[part], file.name


def test_the_reader_of_imports_sees_them() -> None:
    assert {"core", "engines", "data"} <= imported(SOURCE / "experiment.py")
    assert "core" in imported(SOURCE / "methods" / "fedavg.py")


@pytest.mark.parametrize(
    "part",
    [
        "core",
        "loop",
        "local",
        "engines",
        "store",
        "metrics",
        "summary",
        "report",
        "experiment",
        "auditing",
        "comparing",
    ],
)
def test_only_the_table_of_methods_names_one(part: str) -> None:
    for file in files(part):
        strings = {n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)}
        assert not strings & (set(METHODS) - {"local"}), file.name


@pytest.mark.parametrize("word", ["import pickle", "allow_pickle=True", "joblib", "torch.load", "torch.save"])
def test_no_pickle(word: str) -> None:
    for file in SOURCE.rglob("*.py"):
        assert word not in file.read_text(), file.name
