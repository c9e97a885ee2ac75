"""The project of a federation on Flower: an app, and scripts that start the server, the silos and runs."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from ..config import load
from ..config.toml import parse
from ..core import ConfigurationError, RunError, check_silo_name
from ..core.settings import dotted
from ..core.text import plain
from ..files import RUN, read, record_of
from ..files.schema import FederationFile, RunFile, Started
from ..methods.plugins import is_file, module_of
from ..runs.spec_file import described_config, differences, run_file
from ..runs.user_code import split_name
from .keys import SILO_KEYS
from .request_terms import differing

APP = "federation/__init__.py"
"""The module that both apps import first."""
SIDES = ("client_app.py", "server_app.py")
PLACES = {"package.py": APP, "gitignore": ".gitignore", **{name: f"federation/{name}" for name in SIDES}}
"""Paths of templates, if they differ from their names."""


def write_project(
    folder: Path,
    config_text: str,
    simulation_silos: int | None,
    plugins: Sequence[str] = (),
    codes: Sequence[str] = (),
    dictionary: str = "",
) -> list[Path]:
    """Write a Flower app around a configuration, and its scripts; return the files.

    `simulation_silos` is the number of silos made from the configured data; None if every silo reads its own. The files
    among `plugins` and the models' `codes` are copied, and the app imports them. `dictionary` is the text of a data
    dictionary, of which silos may have a copy. Raises ConfigurationError if the folder exists and is not empty, or
    cannot be written, and for a file that cannot be copied under its name.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} exists and is not empty; choose a new folder")
    texts = {PLACES.get(name, name): text for name, text in _templates().items()}
    texts["run.sh"] = texts["run.sh"].replace("@SILOS@", str(simulation_silos or "none"))
    texts["pyproject.toml"] = texts["pyproject.toml"].replace("@FLOWER@", version("flwr"))
    for named in plugins:
        texts |= _carried(named, texts, f"--plugin {named}")
    for code in codes:
        place, name = split_name(code)
        texts = {**texts, **_carried(place, texts, f"model {code}")}
        module = Path(place).stem if is_file(place) else place
        known = f"make_known({json.dumps(code)}, {module}.{name})"
        texts |= texts | _with_line(texts, "from caveat.federation import make_known", "", known)
    texts |= {"config.toml": config_text} | ({"dictionary.toml": dictionary} if dictionary else {})
    try:
        return [_write(folder / name, text) for name, text in sorted(texts.items())]
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder}: {error.strerror}") from error


def _carried(named: str, texts: Mapping[str, str], what: str) -> dict[str, str]:
    """Return the app with an import of the file or module `named`, and the file to copy, if any."""
    if not is_file(named):
        return _with_line(texts, f"import {module_of(named)}  # noqa: F401")
    source = Path(named).expanduser()
    place = f"federation/{source.name}"
    text = source.read_text(encoding="utf-8")
    if not source.stem.isidentifier() or texts.get(place, text) != text or source.name in ("__init__.py", *SIDES):
        raise ConfigurationError(f"{what}: {source.name} cannot be a module of the project; rename the file")
    return _with_line(texts, f"from . import {source.stem}  # noqa: F401") | {place: text}


def _with_line(texts: Mapping[str, str], *lines: str) -> dict[str, str]:
    """Return the app with a further paragraph of those `lines` that it does not have yet."""
    text = texts[APP]
    new = [line for line in lines if line not in text.splitlines()]
    return {APP: "\n".join([text.rstrip("\n"), "", *new, ""])} if new else {APP: text}


def _templates() -> dict[str, str]:
    entries = (files(__package__) / "templates").iterdir()
    return {entry.name: entry.read_text(encoding="utf-8") for entry in entries if entry.is_file()}


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".sh" and text.startswith("#!"):
        path.chmod(0o755)
    return path


STARTED = "started.json"
"""The file of a run's folder with the project that started it, and its overrides."""


def resume_federation(folder: Path, project: Path | None) -> None:
    """Continue a run with the `run.sh` of a project, and wait for it.

    A folder may come from anyone, so the project that it names is only printed, and its overrides are used only if they
    do not change its configuration. Raises ConfigurationError without a project, or if it is invalid or has another
    configuration; RunError if the run does not complete.
    """
    started = record_of(folder / STARTED, Started) or Started()
    if project is None:
        # The command names no project, because users must check that the project is theirs.
        named = f"{STARTED} names the project '{plain(started.project)}'" if started.project else "it names no project"
        if started.sets:
            named += f" and the overrides '{plain(' '.join(started.sets))}'"
        raise ConfigurationError(
            f"{folder} is a federation's run, and caveat never executes what a folder names ({named}): "
            f"to continue it with run.sh in DIR, use `caveat resume {folder} --project DIR`"
        )
    record, script = run_file(folder), _script(project)
    sets = _confirmed(folder, record, project, started.sets)
    simulation = [] if record.spec["data"]["source"] == "on_site" else ["--simulation"]
    # Absolute paths are neither searched for elsewhere nor parsed as options.
    command = [str(script.absolute()), *simulation, str(folder.absolute()), *sets]
    # The script's standard output is Flower's progress, not the result of this command.
    if subprocess.run(command, stdout=2, check=False).returncode:
        raise RunError(f"{script} did not complete {folder}; repeat the command to continue")


def deliver_models(folder: Path, project: Path, silos: Sequence[str], rounds: int | None) -> None:
    """Wait for silos with the `run.sh` of a project, and send them the model of a finished run.

    Raises ConfigurationError for an invalid silo name, for a run that is not finished, and for a project that is
    invalid or has another configuration; RunError if a silo did not get a model.
    """
    for silo in silos:
        check_silo_name(silo, "--silo: ")
        if "," in silo:
            raise ConfigurationError(f"--silo {silo!r}: run.sh separates names by commas, so names cannot contain them")
    if not (folder / "summary.json").exists():
        raise ConfigurationError(f"{folder} is not finished, so its model cannot be delivered yet")
    _check_known(folder, project, silos)
    started, record, script = record_of(folder / STARTED, Started) or Started(), run_file(folder), _script(project)
    sets = _confirmed(folder, record, project, started.sets)
    given = [] if rounds is None else ["--rounds", str(rounds)]
    command = [str(script.absolute()), "--deliver", ",".join(silos), *given, str(folder.absolute()), *sets]
    if subprocess.run(command, stdout=2, check=False).returncode:
        raise RunError(f"{script} did not deliver the model of {folder} to all of {', '.join(silos)}")


def _check_known(folder: Path, project: Path, silos: Sequence[str]) -> None:
    """Raise ConfigurationError for a silo that never took part and has no key at the project's server. If the project
    has no keys of silos, any silo may still join under any name."""
    files = [path for path in (folder / "federation.json", folder / "delivered" / "federation.json") if path.exists()]
    known = {name for path in files for name in read(path, FederationFile).silos}
    if not (admitted := {path.name.removesuffix(".pub") for path in (project / SILO_KEYS).glob("*.pub")}):
        return
    if unknown := [silo for silo in silos if silo not in known | admitted]:
        raise ConfigurationError(
            f"--silo {plain(unknown[0])}: unknown silo, expected one that took part or is registered "
            f"({', '.join(map(plain, sorted(known | admitted)))}); register a new silo with ./admit.sh NAME.pub"
        )


def _script(project: Path) -> Path:
    script = project / "run.sh"
    if not script.is_file() or not os.access(script, os.X_OK):
        raise ConfigurationError(
            f"--project {project}: {script} is not an executable script; expected the folder of the project that "
            "started the run, written by `caveat flower init`"
        )
    return script


def _confirmed(folder: Path, record: RunFile, project: Path, sets: Sequence[str]) -> list[str]:
    """Return the overrides with which a run started, so the project continues it instead of starting another run.

    Raises ConfigurationError for overrides that are not in the run's description, and for the project of another run.
    """
    where, file = folder / STARTED, project / "config.toml"
    for each in sets:
        # run.sh joins them with ";".
        if ";" in each or not each.isprintable():
            raise ConfigurationError(f"{where}: '{plain(each)}' is not an override, expected SECTION.KEY=VALUE")
    if not file.is_file():
        raise ConfigurationError(f"--project {project}: no config.toml in this folder; expected a federation's project")
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
            f"--project {project}: {file}{with_sets} differs from the configuration of {folder}: {found}"
        )
    return list(sets)


def _others(folder: Path, sets: Sequence[str], why: str) -> ConfigurationError:
    shown = plain(" ".join(sets))
    return ConfigurationError(f"{folder / STARTED}: its overrides '{shown}' differ from those of {folder / RUN}: {why}")
