"""Continuing a federation's run from its folder, by the project that started it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..core import ConfigurationError, RunError
from ..files.reading import record_of
from ..files.schema.small_files import Started
from ..runs.local import load_config

STARTED = "started.json"
"""The file of a run's folder that says which project started it, with which overrides."""


def resume_federation(folder: Path) -> None:
    """Have the project's `run.sh` continue the run, and wait for it.

    Raises ConfigurationError if the project is not on this machine, RunError if the run does not complete.
    """
    started = folder / STARTED
    found = record_of(started, Started) or Started()
    script = Path(found.project) / "run.sh"
    if not found.project or not script.is_file():
        raise ConfigurationError(
            f"{folder} is a federation's run: the project that started it continues it, by `./run.sh {folder}` there"
        )
    simulation = [] if load_config(folder).data.source == "silos" else ["--simulation"]
    command = [str(script), *simulation, str(folder.absolute()), *found.sets]
    # Its standard output is Flower's progress, not the result of this command.
    if subprocess.run(command, stdout=2, check=False).returncode:
        raise RunError(f"{' '.join(command)} has not completed")
