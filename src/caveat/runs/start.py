"""From a configuration to a run's folder: all checks, `run.json`, then the run itself and the baselines beside it."""

import dataclasses
from pathlib import Path

from .. import config as configuration
from .. import data
from ..config import Config
from ..core import ConfigurationError
from ..core.devices import find_device, find_devices
from ..files.reading import RUN, read
from ..files.schema.run import GivenConfiguration
from ..files.schema.summary import Summary
from ..files.writing import locked, nothing_begun, write_bytes
from .execution import carry_out
from .local import LocalRun
from .progress import Progress, Silent
from .spec import spec_of

CONFIG = "config.toml"


def start(
    config: Config,
    out: Path,
    progress: Progress | None = None,
    silos: data.Silos | None = None,
    given: GivenConfiguration | None = None,
) -> Path:
    """Run a configuration in a new folder `out`, and return it; `silos` are those it describes, if they were loaded
    before, and `given` is what the user gave for it. All that can be checked is checked before anything is written:
    raises ConfigurationError or DataError; RunError once the run has begun, or if another process begins one there.
    """
    _check_engine(config)
    devices = find_devices(config.engine.device, config.engine.workers)
    silos = silos or data.load(config.data, config.seed)
    check(config, silos, out)
    check_empty(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {out}: {error.strerror}") from error
    with locked(out / "state"):
        check_empty(out)  # once more: another process may have been quicker
        run = dataclasses.replace(local_run(config, silos, out), devices=devices, given=given)
        run.keep_description()
        keep_configuration(config, out)
        return carry_out_all(run, progress or Silent())


def _check_engine(config: Config) -> None:
    if config.engine.name != "single_machine":
        raise ConfigurationError(
            f"engine.name = {config.engine.name!r} is for runs that Flower starts: `caveat flower init` writes the app"
        )


def check(config: Config, silos: data.Silos, out: Path) -> None:
    """Raises ConfigurationError or DataError for what cannot be run on these silos, before anything is."""
    _check_engine(config)
    find_device(config.engine.device, start=False)  # whoever checks may be forked yet
    for run in local_run(config, silos, out).with_baselines():
        run.check()


def local_run(config: Config, silos: data.Silos, folder: Path) -> LocalRun:
    """The run of a configuration on these silos."""
    return LocalRun(spec=spec_of(config), engine_settings=config.engine, folder=folder, silos=silos)


def check_empty(out: Path) -> None:
    """Raises ConfigurationError unless a run may begin in the folder."""
    if (out / RUN).exists():
        raise ConfigurationError(f"{out} already holds a run; `caveat resume {out}` continues it, --out names another")
    if not nothing_begun(out):
        raise ConfigurationError(f"{out} exists and is not a run; name a new folder with --out")


def keep_configuration(config: Config, folder: Path) -> None:
    """Write the whole configuration for users to read, and to run again; nothing decides by it."""
    write_bytes(folder / CONFIG, configuration.dump(config).encode(), lasting=True)


def carry_out_all(run: LocalRun, progress: Progress) -> Path:
    """Carry out the method itself, then the baselines beside it, with as many rounds of training as it took.

    The caller holds the lock of the folder.
    """
    carry_out(run, progress, run.method.name)
    rounds = read(run.folder / "summary.json", Summary).rounds_run
    for baseline in run.baselines(rounds):
        baseline.folder.mkdir(parents=True, exist_ok=True)
        carry_out(baseline, progress, baseline.method.name)
    return run.folder
