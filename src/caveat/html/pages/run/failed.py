"""Of what a run has failed, where, and what to do: never to go on with what would fail again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....core.text import plain
from ....files.rollback import can_go_back
from ....files.run_folder import RunFolder
from ....files.schema.small_files import Failure

_LONGEST = 600
"""Letters of an error that are shown."""


@dataclass(frozen=True)
class Failed:
    """In words: what happened, what to do, and the error itself; `command` continues the run, where one does."""

    what: str
    todo: str
    error: str
    command: str = ""


def failures(run: RunFolder) -> list[Failed]:
    """Of the run itself, or of methods beside it; empty where nothing failed."""
    own = [_told(run, run.failure, "")] if run.failure else []
    return own + [_told(run, each.failure, f"{name} beside it ") for name, each in run.beside.items() if each.failure]


def _rate(run: RunFolder) -> str:
    """The learning rate that the run was given; empty where its folder does not say."""
    section = run.settings.get("training")
    found = section.get("lr") if isinstance(section, Mapping) else None
    return f"{found:g}" if isinstance(found, int | float) else ""


def _told(run: RunFolder, failure: Failure, whose: str) -> Failed:
    at = f" at {plain(failure.silo)}" if failure.silo else ""
    what = f"{whose}failed in round {failure.round}{at}"
    # Where and when is said above; the error itself counts rounds of the schedule, from 0.
    error = plain(failure.error.partition(": ")[2] if failure.silo else failure.error, _LONGEST)
    if failure.diverged:
        used = _rate(run)
        was = f", which was {used}," if used else ""
        todo = f"No model came of it. Lower training.lr{was} and begin another run; this one would fail again."
        if run.federated and can_go_back(run.path):
            todo += (
                " If a silo is the cause, leave it out: the round has not counted, and the run goes on without it, or "
                "goes back first. This lists the rounds that it can go back to:"
            )
            return Failed(f"{what}: training diverged.", todo, error, f"caveat rollback {run.path.name}")
        return Failed(f"{what}: training diverged.", todo, error)
    if failure.lost:
        todo = "Put the silo's state back from a copy and resume, or have the silo begin afresh:"
        return Failed(
            f"{what}: its private state is lost.", todo, error, f"{run.resumed} --reset {plain(failure.silo)}"
        )
    return Failed(f"{what}.", "Once what is said below is mended, this continues it:", error, run.resumed)
