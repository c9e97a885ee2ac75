"""How to make a run once more: from its configuration, and as the user gave that."""

import shlex
from dataclasses import dataclass

from ....files.run_folder import RunFolder


@dataclass(frozen=True)
class Again:
    command: str
    """Empty for a run of a Python program, which no command makes."""
    given: str
    """The command that the user gave, from a recipe or a file of the user's; empty where it is not known."""
    about: str


def again(run: RunFolder) -> Again:
    """What to type, by whom the run was, and with which seed."""
    summary = run.summary
    known = [f"caveat {summary.version}"] if summary and summary.version else []
    known += [f"seed {summary.seed}"] if summary and summary.seed is not None else []
    about = ", ".join(known)
    if run.record is not None and run.record.in_python:
        return Again("", "", about)
    if run.federated:
        return Again("caveat flower init DIR config.toml", "", about)
    if run.failure and run.failure.diverged:
        return Again(_command(run, "config.toml", "--set", "training.lr=LOWER"), "", about)
    given = run.record.given if run.record else None
    sets = [word for each in given.sets for word in ("--set", each)] if given else []
    return Again(_command(run, "config.toml"), _command(run, given.source, *sets) if given else "", about)


def _command(run: RunFolder, source: str, *options: str) -> str:
    return shlex.join(["caveat", "run", source, *run.plugins, *options, "--out", "NEW"])
