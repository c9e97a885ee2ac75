"""Continuing a federation's run from its folder, by the project that the user names."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ...config import load
from ...config.toml import parse
from ...core import ConfigurationError, RunError, check_silo_name
from ...core.settings import dotted
from ...core.text import plain
from ...files.reading import RUN, read, record_of
from ...files.schema import FederationFile, Started
from ...files.schema.run import RunFile
from ...runs.spec_file import described_config, differences, run_file
from ..name_keys import SILO_KEYS
from ..terms import differing

STARTED = "started.json"
"""The file of a run's folder that says which project started it, with which overrides."""


def resume_federation(folder: Path, project: Path | None) -> None:
    """Have the `run.sh` of a project continue the run, and wait for it.

    A folder may come from anybody, so that the project it names is only printed, and its overrides count only where
    they change nothing about its configuration. Raises ConfigurationError if no project is given, and if it is none or
    has another configuration; RunError if the run does not complete.
    """
    started = record_of(folder / STARTED, Started) or Started()
    if project is None:
        raise ConfigurationError(_what_to_type(folder, started))
    record, script = run_file(folder), _script(project)
    sets = _confirmed(folder, record, project, started.sets)
    simulation = [] if record.spec["data"]["source"] == "on_site" else ["--simulation"]
    # With full paths: neither is looked for elsewhere, or read as an option.
    command = [str(script.absolute()), *simulation, str(folder.absolute()), *sets]
    # Its standard output is Flower's progress, not the result of this command.
    if subprocess.run(command, stdout=2, check=False).returncode:
        raise RunError(f"{script} has not completed {folder}; the same command continues it")


def deliver_models(folder: Path, project: Path, silos: Sequence[str], rounds: int | None) -> None:
    """Have the `run.sh` of a project wait for silos and give them the model of a finished run.

    Raises ConfigurationError for what is no name of a silo, a run that is not finished, and a project that is none or
    has another configuration; RunError if some of the silos have no model in the end.
    """
    for silo in silos:
        check_silo_name(silo, "--silo: ")
        if "," in silo:
            raise ConfigurationError(f"--silo {silo!r}: run.sh separates names by commas, and cannot take this one")
    if not (folder / "summary.json").exists():
        raise ConfigurationError(f"{folder} is not finished: silos get its model once it is")
    _check_known(folder, project, silos)
    started, record, script = record_of(folder / STARTED, Started) or Started(), run_file(folder), _script(project)
    sets = _confirmed(folder, record, project, started.sets)
    given = [] if rounds is None else ["--rounds", str(rounds)]
    command = [str(script.absolute()), "--deliver", ",".join(silos), *given, str(folder.absolute()), *sets]
    if subprocess.run(command, stdout=2, check=False).returncode:
        raise RunError(f"{script} has not delivered the model of {folder} to all of {', '.join(silos)}")


def _check_known(folder: Path, project: Path, silos: Sequence[str]) -> None:
    """Raises ConfigurationError for a silo that never took part and whose key the project's server was not told.

    Where the project has no keys of silos, anybody may still come under any name.
    """
    files = [path for path in (folder / "federation.json", folder / "delivered" / "federation.json") if path.exists()]
    known = {name for path in files for name in read(path, FederationFile).silos}
    if not (admitted := {path.name.removesuffix(".pub") for path in (project / SILO_KEYS).glob("*.pub")}):
        return
    if unknown := [silo for silo in silos if silo not in known | admitted]:
        raise ConfigurationError(
            f"--silo {plain(unknown[0])}: no such silo is known; these took part or were admitted: "
            f"{', '.join(map(plain, sorted(known | admitted)))}. A new one is admitted first: ./admit.sh NAME.pub"
        )


def _what_to_type(folder: Path, started: Started) -> str:
    """How to continue a run. The project is not part of a command: it is for the user to see that it is theirs."""
    named = f"{STARTED} names the project '{plain(started.project)}'" if started.project else "it names no project"
    if started.sets:
        named += f" and the overrides '{plain(' '.join(started.sets))}'"
    return (
        f"{folder} is a federation's run, and nothing that a folder names is started ({named}): "
        f"`caveat resume {folder} --project DIR` has run.sh in DIR continue it"
    )


def _script(project: Path) -> Path:
    script = project / "run.sh"
    if not script.is_file() or not os.access(script, os.X_OK):
        raise ConfigurationError(
            f"--project {project}: {script} is no script that can be started; expected the folder of the project that "
            "started the run, as `caveat flower init` writes it"
        )
    return script


def _confirmed(folder: Path, record: RunFile, project: Path, sets: Sequence[str]) -> list[str]:
    """The overrides that a run began with, with which the project continues it, and does not begin another run.

    Raises ConfigurationError for one that the run's description does not have, and for a project of another run.
    """
    where, file = folder / STARTED, project / "config.toml"
    for each in sets:
        # run.sh puts them together with ";", and nobody writes others.
        if ";" in each or not each.isprintable():
            raise ConfigurationError(f"{where}: '{plain(each)}' is no override, expected SECTION.KEY=VALUE")
    if not file.is_file():
        raise ConfigurationError(f"--project {project}: it has no config.toml; expected a federation's project")
    try:
        given, overridden = load(str(file), sets), {dotted(path) for path in parse("", "--set", sets).overrides}
    except ConfigurationError as error:
        raise _others(folder, sets, plain(str(error))) from None
    whole = {**described_config(given, record.spec), "engine": vars(given.engine)}
    others = differences({**record.spec, "engine": record.engine}, whole)
    if wrong := [each.key for each in others if each.key in overridden]:
        raise _others(folder, sets, f"they change {', '.join(wrong)}")
    if found := differing(record.spec, given):
        with_sets = f" with {plain(' '.join(sets))}" if sets else ""
        raise ConfigurationError(
            f"--project {project}: {file}{with_sets} is another configuration than that which {folder} began with: "
            f"{found}"
        )
    return list(sets)


def _others(folder: Path, sets: Sequence[str], why: str) -> ConfigurationError:
    shown = plain(" ".join(sets))
    return ConfigurationError(f"{folder / STARTED}: its overrides '{shown}' are not those of {folder / RUN}: {why}")
