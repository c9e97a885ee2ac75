"""From a configuration, or from silos and a method in memory, to a run's folder."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from .. import config as configuration
from .. import data
from ..config import Config
from ..config.nearest import nearest_recipe
from ..core import (
    Answers,
    ConfigurationError,
    DataError,
    DataWarning,
    Payload,
    Prediction,
    RunError,
    SiloId,
    Site,
    State,
    Tensors,
)
from ..core.silo_info import FederationInfo
from ..data.pools import Array
from ..engines.executor import Executor
from ..engines.one_thread import one_thread
from ..engines.processes.pool import EmbeddedEngine
from ..files.atomic import write_bytes, write_json, write_record
from ..files.checkpoints import SiloStore
from ..files.kept_states import read_kept
from ..files.locks import locked, nothing_begun
from ..files.manifest import STATES, Manifest, manifest_of
from ..files.payloads import read_payload
from ..files.reading import read, read_plain
from ..files.run_folder import other_kind
from ..files.schema.gallery import Features, Gallery
from ..files.schema.record import as_json
from ..files.schema.small_files import KeptState, ModelFile
from ..files.schema.summary import Summary
from .base import BaseRun
from .begun import check_settings, keep_settings
from .execution import carry_out
from .features import features
from .gallery import gallery
from .progress import Progress, Silent
from .spec import spec_of

MODEL = "model/model.safetensors"
Asked = TypeVar("Asked", Prediction, Answers, Tensors)


@dataclass(frozen=True, kw_only=True)
class LocalRun(BaseRun):
    """A run on silos whose data are on this machine."""

    silos: data.Silos
    workers: int = 1

    @cached_property
    def info(self) -> FederationInfo:
        return FederationInfo.of(self.silos.by_name, self.silos.names, self.silos.shape, self.silos.classes)

    @cached_property
    def measured(self) -> list[SiloId]:
        return super().measured

    @cached_property
    def participants(self) -> Sequence[SiloId]:
        return super().participants

    def check(self) -> None:
        self.silos.check(self.spec.batch_size)
        super().check()

    def executor(self) -> Executor:
        return self.executor_of(self.silos.by_name, self.participants, SiloStore(self.folder / "state" / "silos"))

    def engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(self.executor(), self.workers)

    def prepare(self) -> None:
        silos = [*self.measured, *self.spec.newcomers]
        write_json(self.folder / "splits.json", data.splits_record(map(self.silos.named, silos)))

    def gallery(self) -> Gallery:
        return gallery(self.silos, self.measured, self.predictor)

    def features(self) -> Features | None:
        return features(self.silos, self.measured, lambda silo: self._asked(silo, self.method.features))

    @cached_property
    def manifest(self) -> Manifest:
        """What the files of the finished run have to hold."""
        return manifest_of(self.folder)

    def kept(self, silo: SiloId, t: int) -> KeptState | None:
        """Which state a silo has kept in the end."""
        if self.manifest.verified:
            return self._states.get(silo)
        return SiloStore(self.folder / "state" / "silos").adopt(silo, t)

    @cached_property
    def _states(self) -> dict[SiloId, KeptState]:
        return read_kept(self.folder / STATES)

    def predictor(self, silo: SiloId) -> Callable[[Tensor], Prediction]:
        """A function from inputs (N, ...), normalised as the silo's own, to the silo's Prediction of them."""
        return self._asked(silo, self.complete_method.predict)

    def answers(self, silo: SiloId) -> Callable[[Tensor], Answers]:
        """A function from such inputs to what each model that the silo has at hand says of them."""
        return self._asked(silo, self.complete_method.answer)

    def _asked(self, silo: SiloId, ask: Callable[[Payload, State, Site, Tensor], Asked]) -> Callable[[Tensor], Asked]:
        executor = self.executor()
        self.manifest.check(MODEL, "model/model.json", STATES)
        down = read_payload(self.folder / MODEL)
        t = read(self.folder / "model" / "model.json", ModelFile).t
        if silo not in executor.silos:
            raise ConfigurationError(f"no silo {silo!r} in {self.folder}; silos: {', '.join(executor.silos)}")
        with one_thread():
            state = executor.state(silo, self.kept(silo, t))
        site = executor.site(silo)

        def predict(x: Tensor) -> Asked:
            with one_thread():
                return ask(down, state, site, x)

        return predict


@dataclass(frozen=True)
class Run:
    """A finished run."""

    experiment: LocalRun

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.experiment.method.name}, {len(self.silos)} silos)"

    @property
    def folder(self) -> Path:
        return self.experiment.folder

    @property
    def silos(self) -> data.Silos:
        return self.experiment.silos

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds."""
        return as_json(read(self.folder / "summary.json", Summary))

    def predictor(self, silo: SiloId) -> Callable[[Tensor | Array | data.Inputs], Prediction]:
        """A function from inputs to the silo's `Prediction` of them: normalised tensors (N, ...) as in the
        silo's splits, arrays of raw images or features as the data source has them, or what `noted_inputs` has read.
        Of rows of a table, its `input_notes` say what is unlike training, and a warning counts them.
        """
        ask = self.experiment.predictor(silo)

        def predict(x: Tensor | Array | data.Inputs) -> Prediction:
            found = self._inputs(x, silo)
            return dataclasses.replace(ask(found.x), input_notes=found.notes)

        return predict

    def answers(self, silo: SiloId) -> Callable[[Tensor | Array | data.Inputs], Answers]:
        """A function from such inputs to the `Prediction` of each model that the silo can ask, by `Decision`."""
        ask = self.experiment.answers(silo)

        def answer(x: Tensor | Array | data.Inputs) -> Answers:
            found = self._inputs(x, silo)
            said = ask(found.x)
            return {model: dataclasses.replace(each, input_notes=found.notes) for model, each in said.items()}

        return answer

    def _inputs(self, x: Tensor | Array | data.Inputs, silo: SiloId) -> data.Inputs:
        found = self.silos.noted(x, silo)
        if found.told:
            warnings.warn(found.told, DataWarning, stacklevel=3)
        return found


def start(config: Config, out: Path, progress: Progress | None = None, silos: data.Silos | None = None) -> Path:
    """Run a configuration in a new folder `out`, and return it; `silos` are those it describes, if they were loaded
    before. All that can be checked is checked before anything is written: raises ConfigurationError or DataError;
    RunError once the run has begun, or if another process begins one there.
    """
    _check_engine(config)
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
        return _with_baselines(config, silos, out, progress or Silent())


def _check_engine(config: Config) -> None:
    if config.engine.name != "embedded":
        raise ConfigurationError(
            f"engine.name = {config.engine.name!r} is for runs that Flower starts: `caveat flower init` writes the app"
        )


def check(config: Config, silos: data.Silos, out: Path) -> None:
    """Raises ConfigurationError or DataError for what cannot be run on these silos, before anything is."""
    _check_engine(config)
    for name in (config.method.name, *config.beside):
        _local_run(config, silos, out, name).check()


def resume(
    folder: Path,
    progress: Progress | None = None,
    workers: int | None = None,
    silos: data.Silos | None = None,
    reset: Sequence[SiloId] = (),
) -> Path:
    """Continue an interrupted run, with its silos if they are loaded; a finished one is left as it is.

    Same bits as without the interruption, but for silos that are `reset`: they begin afresh, without the state that
    they lost. Raises ConfigurationError for settings that are not those that the run began with, DataError or RunError
    for a folder that is damaged, StateLost for a silo's state that is.
    """
    config = _kept_config(folder)
    with locked(folder / "state"):
        check_begun(folder)
        check_settings(config, folder)
        if silos is None or silos.image_format.exif_rotation != config.data.exif_rotation:
            silos = data.load(config.data, config.seed)
        check_same(folder, silos)
        keep_settings(config, folder)
        return _with_baselines(config, silos, folder, progress or Silent(), workers, tuple(reset))


def open_run(folder: Path) -> Run:
    """A finished run, to predict with. Raises ConfigurationError if it is none."""
    config = _kept_config(folder)
    if not (folder / "summary.json").exists():
        project = " --project DIR" if config.engine.name == "flower" else ""
        raise ConfigurationError(f"{folder} is not finished; `caveat resume {folder}{project}` continues it")
    if config.data.source == "silos":
        raise ConfigurationError(f"{folder}: the data are at the silos; each keeps what it takes to predict there")
    check_settings(config, folder)
    manifest_of(folder).check("settings.json", "splits.json")
    silos = data.load(config.data, config.seed)
    check_same(folder, silos)
    return Run(_local_run(config, silos, folder))


def check_begun(folder: Path) -> None:
    """Raises DataError where what a run wrote when it began is damaged."""
    try:
        manifest = manifest_of(folder)
    except DataError:
        if (folder / "summary.json").exists():
            raise
        return  # a damaged checkpoint: there may be an older one to go on from
    manifest.check("settings.json", "splits.json")


def check_same(folder: Path, silos: data.Silos) -> None:
    """Raises RunError if a run in the folder began with other data, DataError if what it began with is not readable."""
    splits = folder / "splits.json"
    if not splits.exists():
        return
    begun = read_plain(splits)  # of the silos that are measured
    if not isinstance(begun, dict) or not begun:
        raise DataError(f"{splits}: expected what the splits of the silos that are measured were")
    same = [silos.named(name) for name in begun if name in silos.by_name]
    if len(same) < len(begun) or begun != json.loads(json.dumps(data.splits_record(same))):
        raise RunError(f"{folder}: the data are not those that the run began with")


def check_configuration(folder: Path) -> None:
    """Raises ConfigurationError if a run's configuration is not the one that it began with."""
    if (folder / "config.toml").exists():
        check_settings(configuration.load(str(folder / "config.toml")), folder)


def load_config(folder: Path) -> Config:
    if not (folder / "config.toml").exists():
        if not folder.is_dir():
            raise ConfigurationError(f"{folder}: no such folder, expected that of a run")
        if about := other_kind(folder):
            raise ConfigurationError(f"{folder} {about}")
        if (folder / "call.json").exists():
            raise ConfigurationError(
                f"{folder} is of a run in Python, whose silos and method only that program knows: the same call of "
                "caveat.run continues it, and `caveat report` makes its page; runs of the command line can be loaded"
            )
        if (folder / "summary.json").exists() and folder.parent.name == "beside":
            raise ConfigurationError(f"{folder} is what ran beside {folder.parent.parent}, which is the run")
        raise ConfigurationError(f"{folder} is not a run: it has no config.toml")
    return configuration.load(str(folder / "config.toml"))


def _kept_config(folder: Path) -> Config:
    """The configuration of a run that is to be gone on with, by the rules of the version that began it."""
    config = load_config(folder)
    text = (folder / "config.toml").read_text(encoding="utf-8-sig")
    return dataclasses.replace(config, data=configuration.by_own_rules(config.data, text))


def _local_run(
    config: Config,
    silos: data.Silos,
    folder: Path,
    name: str | None = None,
    workers: int | None = None,
    reset: tuple[SiloId, ...] = (),
) -> LocalRun:
    """The run of the configured method, or of a baseline beside it."""
    return LocalRun(
        spec=spec_of(config, name), folder=folder, silos=silos, workers=workers or config.engine.workers, reset=reset,
        sync_seconds=config.engine.sync_seconds,
    )  # fmt: skip


def _with_baselines(
    config: Config,
    silos: data.Silos,
    out: Path,
    progress: Progress,
    workers: int | None = None,
    reset: tuple[SiloId, ...] = (),
) -> Path:
    """Carry out the method itself, then the baselines beside it, with as many rounds of training as it took.

    The caller holds the lock of the folder.
    """
    main = _local_run(config, silos, out, None, workers, reset)
    carry_out(main, progress, config.method.name)
    rounds = read(out / "summary.json", Summary).rounds_run
    for name in config.beside:
        same = dataclasses.replace(config, rounds=rounds)
        folder = out / "beside" / name
        folder.mkdir(parents=True, exist_ok=True)
        carry_out(_local_run(same, silos, folder, name, workers), progress, name)
    return out


def check_empty(out: Path) -> None:
    """Raises ConfigurationError unless a run may begin in the folder."""
    if (out / "config.toml").exists():
        raise ConfigurationError(f"{out} already holds a run; `caveat resume {out}` continues it, --out names another")
    if not nothing_begun(out):
        raise ConfigurationError(f"{out} exists and is not a run; name a new folder with --out")
