"""Calling the command line in tests: the calls, what they leave, and a run so small that it takes a second."""

from __future__ import annotations

from pathlib import Path

from federations import check
from typer.testing import CliRunner, Result

from caveat.cli.main import app

TINY = ["method.name=fedavg", "model.name=mlp", "model.hidden=8", "rounds=1", "training.local_epochs=1", "baselines=[]"]
TINY += ["data.n_silos=3", "engine.workers=1", "uncertainty.mc_samples=2"]


def caveat(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def sets(*items: str) -> list[str]:
    return [part for item in items for part in ("--set", item)]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def one_error(result: Result, status: int) -> str:
    check(result.exit_code == status, result.stderr)
    lines = result.stderr.splitlines()
    check(all(line.startswith("error: ") for line in lines), result.stderr)
    check(result.stdout == "", result.stdout)
    return "\n".join(lines)
