"""From a configuration to a run's folder, and from the folder to the run again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import config as configuration
from .. import data
from ..config import Config
from ..config.nearest import nearest_recipe
from ..core import ConfigurationError, SiloId
from ..core.devices import CPU, find_device, find_devices
from ..files.locks import locked, nothing_begun
from ..files.reading import manifest_of, read
from ..files.run_folder import other_kind
from ..files.schema.small_files import SiloKeeps
from ..files.schema.summary import Summary
from ..files.writing import write_bytes, write_record
from ..methods.plugins import named
from ..metrics.own import check_known as check_metrics
from .answering import KeptRun
from .begun import check_begun, check_same, check_settings, keep_settings
from .execution import carry_out
from .extension import extend, longer, remark
from .local import LocalRun, Run
from .own_code import check_known
from .prepared import PREPARATION, kept_preparation
from .progress import Progress, Silent
from .spec import RunSpec, spec_of


def start(config: Config, out: Path, progress: Progress | None = None, silos: data.Silos | None = None) -> Path:
    """Run a configuration in a new folder `out`, and return it; `silos` are those it describes, if they were loaded
    before. All that can be checked is checked before anything is written: raises ConfigurationError or DataError;
    RunError once the run has begun, or if another process begins one there.
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
        write_bytes(out / "config.toml", configuration.dump(config).encode(), lasting=True)
        keep_settings(config, out)
        if (recipe := nearest_recipe(config)) is not None:
            write_record(out / "origin.json", recipe)
        return _with_baselines(config, silos, out, progress or Silent(), devices)


def _check_engine(config: Config) -> None:
    if config.engine.name != "embedded":
        raise ConfigurationError(
            f"engine.name = {config.engine.name!r} is for runs that Flower starts: `caveat flower init` writes the app"
        )


def check(config: Config, silos: data.Silos, out: Path) -> None:
    """Raises ConfigurationError or DataError for what cannot be run on these silos, before anything is."""
    _check_engine(config)
    find_device(config.engine.device, start=False)  # whoever checks may be forked yet
    for name in (config.method.name, *config.beside):
        local_run(config, silos, out, name).check()


def check_code(config: Config, silos: data.Silos, folder: Path) -> None:
    """Raises RunError if code of one's own makes other models than when the run in a folder, or one beside it, began.

    DataError where what it made then is damaged or gone.
    """
    for name in (config.method.name, *config.beside):
        local_run(config, silos, folder if name == config.method.name else folder / "beside" / name, name).check_code()


def resume(
    folder: Path,
    progress: Progress | None = None,
    workers: int | None = None,
    silos: data.Silos | None = None,
    reset: Sequence[SiloId] = (),
    rounds: int | None = None,
    device: str | None = None,
) -> Path:
    """Continue an interrupted run, with its silos if they are loaded; a finished one is left as it is, unless it is to
    go on to more `rounds` of training. `device` is one to go on with in place of the configuration's.

    Same bits as without the interruption, but for silos that are `reset`: they begin afresh, without the state that
    they lost. Raises ConfigurationError for settings that are not those that the run began with, DataError or RunError
    for a folder that is damaged, StateLost for a silo's state that is.
    """
    config = load_config(folder)
    devices = find_devices(device or config.engine.device, workers or config.engine.workers)
    if rounds is not None or not (folder / "summary.json").exists():
        check_known(config)
        check_metrics(config.evaluation.metrics)
    with locked(folder / "state"):
        check_begun(folder)
        if rounds is None:
            check_settings(config, folder)
        if silos is None:
            silos = data.load(config.data, config.seed)
        check_same(folder, silos)
        if rounds is not None:
            config = longer(config, folder, rounds, len(silos))
            check(config, silos, folder)
            check_code(config, silos, folder)
            extend(config, folder, len(silos))
        keep_settings(config, folder)
        progress = progress or Silent()
        if rounds is not None and (said := remark(config, folder)):
            progress.note(said)
        return _with_baselines(config, silos, folder, progress, devices, workers, tuple(reset))


def open_run(folder: Path, device: str = "cpu") -> Run:
    """A finished run, to predict with on a device; its data are read where they are asked for. Raises
    ConfigurationError if it is none, or if there is no such device.
    """
    config = load_config(folder)
    if not (folder / "summary.json").exists():
        if instead := other_kind(folder):
            raise ConfigurationError(f"{folder} {instead}")
        project = " --project DIR" if config.engine.name == "flower" else ""
        raise ConfigurationError(f"{folder} is not finished; `caveat resume {folder}{project}` continues it")
    if config.data.source == "silos":
        raise ConfigurationError(f"{folder}: the data are at the silos; each keeps what it takes to predict there")
    check_settings(config, folder)
    manifest_of(folder).check("settings.json", "splits.json", PREPARATION)
    return opened(folder, spec_of(config), lambda: _same_silos(config, folder), device)


def opened(folder: Path, spec: RunSpec, read_silos: Callable[[], data.Silos], device: str = "cpu") -> Run:
    """The run in a folder, by what it has kept of what prepares inputs."""
    prepares, devices = kept_preparation(folder), (find_device(device),)
    run = KeptRun(spec=spec, folder=folder, prepares=prepares, read_silos=read_silos, devices=devices)
    run.check_code()
    return Run(run)


def _same_silos(config: Config, folder: Path) -> data.Silos:
    """The data of a finished run, read anew. Raises RunError if they are others."""
    silos = data.load(config.data, config.seed)
    check_same(folder, silos)
    return silos


def load_config(folder: Path) -> Config:
    if not (folder / "config.toml").exists():
        if not folder.is_dir():
            raise ConfigurationError(f"{folder}: no such folder, expected that of a run")
        if about := other_kind(folder):
            raise ConfigurationError(f"{folder} {about}")
        if (folder / "join.json").exists():
            raise ConfigurationError(
                f"{folder} is of silos that joined a finished federation; the same `caveat join` continues it, and "
                "`caveat predict` and caveat.load open it once it is finished"
            )
        if (folder / "call.json").exists():
            raise ConfigurationError(
                f"{folder} is of a run in Python, whose silos only that program has: the same call of caveat.run "
                "continues it; once it is finished, `caveat predict` and caveat.load open it"
            )
        if (folder / "summary.json").exists() and folder.parent.name == "beside":
            raise ConfigurationError(f"{folder} is what ran beside {folder.parent.parent}, which is the run")
        raise ConfigurationError(f"{folder} is not a run: it has no config.toml")
    return configuration.load_kept(folder / "config.toml")


def config_in(folder: Path) -> Config:
    """The configuration that a run's folder, or what a silo keeps of a federation, holds."""
    if (folder / "silo.json").exists():
        text = str(json.loads(read(folder / "silo.json", SiloKeeps).terms).get("config"))
        return configuration.loads(text, str(folder / "silo.json"))
    return load_config(folder)


def local_run(
    config: Config,
    silos: data.Silos,
    folder: Path,
    name: str | None = None,
    devices: tuple[torch.device, ...] = (CPU,),
    workers: int | None = None,
    reset: tuple[SiloId, ...] = (),
) -> LocalRun:
    """The run of the configured method, or of a baseline beside it."""
    return LocalRun(
        spec=spec_of(config, name), folder=folder, silos=silos, workers=workers or config.engine.workers, reset=reset,
        sync_seconds=config.engine.sync_seconds, devices=devices, rebuild=_rebuild(config, folder, name),
        stacked=config.engine.stacked, checkpoints=config.engine.kept_checkpoints,
    )  # fmt: skip


def _rebuild(config: Config, folder: Path, name: str | None) -> dict[str, Any]:
    """What a worker needs to make a run again in a process that begins anew, see `runs.anew`."""
    beside = folder.parent.name == "beside"
    whole = folder.parent.parent if beside else folder
    about = {"folder": str(whole.absolute()), "method": name if beside else None, "rounds": config.rounds}
    return {"by": "caveat.runs.anew", **about, "plugins": named()}


def _with_baselines(
    config: Config,
    silos: data.Silos,
    out: Path,
    progress: Progress,
    devices: tuple[torch.device, ...],
    workers: int | None = None,
    reset: tuple[SiloId, ...] = (),
) -> Path:
    """Carry out the method itself, then the baselines beside it, with as many rounds of training as it took.

    The caller holds the lock of the folder.
    """
    main = local_run(config, silos, out, None, devices, workers, reset)
    carry_out(main, progress, config.method.name)
    rounds = read(out / "summary.json", Summary).rounds_run
    for name in config.beside:
        same = dataclasses.replace(config, rounds=rounds)
        folder = out / "beside" / name
        folder.mkdir(parents=True, exist_ok=True)
        keep_settings(config, folder)
        check_settings(config, folder, out / "config.toml")
        check_begun(folder)
        carry_out(local_run(same, silos, folder, name, devices, workers), progress, name)
    return out


def check_empty(out: Path) -> None:
    """Raises ConfigurationError unless a run may begin in the folder."""
    if (out / "config.toml").exists():
        raise ConfigurationError(f"{out} already holds a run; `caveat resume {out}` continues it, --out names another")
    if not nothing_begun(out):
        raise ConfigurationError(f"{out} exists and is not a run; name a new folder with --out")
