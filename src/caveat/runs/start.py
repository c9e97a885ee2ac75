"""Start the run of a configuration in a new folder."""

import dataclasses
from pathlib import Path

from .. import config as configuration
from .. import data, files
from ..config import Config
from ..core import ConfigurationError
from ..core.devices import find_device, find_devices
from ..files.schema import GivenConfiguration, Summary
from .execution import execute
from .local_run import LocalRun
from .progress import Progress, Silent
from .spec import spec_of

CONFIG, GIVEN = "config.toml", "given.toml"


def start(
    config: Config,
    out: Path,
    progress: Progress | None = None,
    silos: data.Silos | None = None,
    given: GivenConfiguration | None = None,
) -> Path:
    """Run a configuration in a new folder `out`, and return the folder. `silos` are the configuration's, if already
    loaded; `given` are the user's arguments.

    Raises ConfigurationError or DataError before anything is written; RunError once the run has started, or if another
    process starts a run in the folder.
    """
    _check_engine(config)
    devices = find_devices(config.engine.device, config.engine.workers)
    silos = silos or data.load(config.data, config.seed)
    check(config, silos, out)
    check_empty(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot create the folder {out}: {error.strerror}") from error
    with files.locked(out / "state"):
        check_empty(out)  # checked again, because another process may have been faster
        run = dataclasses.replace(local_run(config, silos, out), devices=devices, given=given)
        run.keep_description()
        keep_configuration(config, out, given)
        return execute_all(run, progress or Silent())


def _check_engine(config: Config) -> None:
    if config.engine.name != "single_machine":
        raise ConfigurationError(
            f"engine.name = {config.engine.name!r} is only for federations on Flower: create the project with `caveat "
            "flower init`"
        )


def check(config: Config, silos: data.Silos, out: Path) -> None:
    """Raise ConfigurationError or DataError for a run that cannot work on these silos, before anything runs."""
    _check_engine(config)
    find_device(config.engine.device, start=False)  # this process may still be forked
    for run in local_run(config, silos, out).with_baselines():
        run.check()


def local_run(config: Config, silos: data.Silos, folder: Path) -> LocalRun:
    """Return the run of a configuration on these silos."""
    return LocalRun(spec=spec_of(config), engine_settings=config.engine, folder=folder, silos=silos)


def check_empty(out: Path) -> None:
    """Raise ConfigurationError unless a run may start in the folder."""
    if (out / files.RUN).exists():
        raise ConfigurationError(
            f"{out} already has a run: continue it with `caveat resume {out}`, or choose another folder with --out"
        )
    if not files.nothing_begun(out):
        raise ConfigurationError(f"{out} exists and is not a run; choose a new folder with --out")


def keep_configuration(config: Config, folder: Path, given: GivenConfiguration | None = None) -> None:
    """Write the complete configuration and the user's own file, with its comments, for users to read and reuse."""
    files.write_bytes(folder / CONFIG, configuration.dump(config).encode(), lasting=True)
    if given is not None and (file := Path(given.source)).is_file():
        files.write_bytes(folder / GIVEN, file.read_bytes(), lasting=True)


def execute_all(run: LocalRun, progress: Progress) -> Path:
    """Run the method, then its baselines with the same number of training rounds. The caller holds the lock of the
    folder."""
    execute(run, progress, run.method.name)
    rounds = files.read(run.folder / "summary.json", Summary).rounds_run
    for baseline in run.baselines(rounds):
        baseline.folder.mkdir(parents=True, exist_ok=True)
        execute(baseline, progress, baseline.method.name)
    return run.folder
