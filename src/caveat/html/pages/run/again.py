"""The command that makes a run once more, from its configuration and, where it is of one, from a recipe."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ....files.run_folder import RunFolder


@dataclass(frozen=True)
class Again:
    command: str
    recipe: str
    """The command that starts from a recipe; empty where no recipe is near."""
    about: str


def again(run: RunFolder) -> Again:
    """What to type, by whom the run was, and with which seed."""
    summary = run.summary
    known = [f"caveat {summary.version}"] if summary and summary.version else []
    known += [f"seed {summary.seed}"] if summary and summary.seed is not None else []
    if run.federated:
        return Again("caveat flower init DIR config.toml", "", ", ".join(known))
    if run.failure and run.failure.diverged:
        return Again(_from_configuration(run, "--set", "training.lr=LOWER"), "", ", ".join(known))
    words = [word for each in run.origin.sets for word in ("--set", each)] if run.origin else []
    recipe = shlex.join(["caveat", "run", run.origin.recipe, *words, "--out", "NEW"]) if run.origin else ""
    return Again(_from_configuration(run), recipe, ", ".join(known))


def _from_configuration(run: RunFolder, *options: str) -> str:
    return shlex.join(["caveat", "run", "config.toml", *run.plugins, *options, "--out", "NEW"])
