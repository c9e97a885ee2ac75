"""Experiment trackers: callbacks that log a run's metrics and settings with TensorBoard, MLflow or Weights & Biases."""

import hashlib
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .core import ConfigurationError
from .core.errors import one_of, short_repr
from .runs.callbacks import Callback, Scalar

OF_SUMMARY = ("mean", "worst", "pooled")
"""Parts of a summary whose metrics are logged, in addition to those of every silo."""


class Tracker(Callback):
    """Base class of trackers. The tracking tool is opened after the first round, so that the run's processes are forked
    before the tool starts threads."""

    name: ClassVar[str]
    package: ClassVar[str]
    """The import name of the package that the tracker needs."""

    def __init__(self, place: str | Path | None = None) -> None:
        """Raises ConfigurationError if the tracker's package is not installed, for an invalid `place`, and for a folder
        that cannot be written to."""
        if place is not None and (not isinstance(place, str | Path) or not str(place)):
            raise ConfigurationError(f"{self.name}: place = {short_repr(place)}, expected a folder or an address")
        if find_spec(self.package) is None:
            raise ConfigurationError(
                f"the tracker {self.name} needs a package that is not installed: pip install 'caveat[{self.name}]'"
            )
        self.place = place
        _check_writable(self.name, self.local)
        self._title, self._folder, self._settings, self._opened = "", "", dict[str, Scalar](), False

    @property
    def local(self) -> Path | None:
        """The folder to which the tracker writes; None for a server, or if the tool chooses the folder."""
        return None if self.place is None else Path(self.place)

    def begin(self, title: str, rounds: int) -> None:
        self._title, self._opened = title, False

    def settings(self, folder: str, values: Mapping[str, Scalar]) -> None:
        self._folder, self._settings = folder, dict(values)

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        self._open_once()
        self.log(number, {f"round/{name}": value for name, value in metrics.items()})

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._open_once()
        self.log(summary["rounds_run"], dict(numbers_of(summary)))

    def end(self) -> None:
        if self._opened:
            self.close()
            self._opened = False

    def open(self, title: str, key: str, folder: str, settings: Mapping[str, Scalar]) -> None:
        """Open the tool for the run in a folder. `key` identifies the run, also after it is resumed."""
        raise NotImplementedError

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log metrics of a round."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the tool after the run."""

    def _open_once(self) -> None:
        if not self._opened:
            key = hashlib.sha256(str(Path(self._folder).resolve()).encode()).hexdigest()[:12]
            self.open(self._title, key, self._folder, self._settings)
            self._opened = True


def _check_writable(name: str, folder: Path | None) -> None:
    """Raise ConfigurationError for a folder that cannot be created or written to."""
    if folder is None:
        return
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise ConfigurationError(f"{name}: place = {short_repr(str(folder))}: {there} is a file, expected a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{name}: place = {short_repr(str(folder))}: {there} cannot be written to")


def numbers_of(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the metrics on test splits by name, such as `mean/accuracy` or `silo/NAME/accuracy`."""
    for part in OF_SUMMARY:
        yield from _numbers(part, summary.get(part) or {})
    for silo in summary.get("silos", ()):
        yield from _numbers(f"silo/{silo['name']}", silo.get("test") or {})


def _numbers(place: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{place}/{name}", float(value)


TENSORBOARD_FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Writes event files to `PLACE/RUN-TITLE-KEY`, which `tensorboard --logdir PLACE` shows. `place` is a folder, by
    default "tensorboard". Nothing is sent over the network."""

    name: ClassVar = "tensorboard"
    package: ClassVar = "tensorboard"

    @property
    def local(self) -> Path:
        return Path(self.place or TENSORBOARD_FOLDER)

    def open(self, title: str, key: str, folder: str, settings: Mapping[str, Scalar]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = self.local / f"{Path(folder).name}-{title}-{key}"
        self._writer: Any = SummaryWriter(str(place))
        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._writer.add_text("settings", f"| key | value |\n| --- | --- |\n{rows}", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


MLFLOW_FOLDER = "mlflow"
EXPERIMENT = "caveat"
TAG = "caveat.run"
"""The tag that identifies a run when it is resumed."""
OTHER = re.compile(r"[^\w\-. /]")
"""Characters that are not allowed in names of metrics."""
MANY = 100
"""MLflow's limit on the number of settings per call."""


class MLflow(Tracker):
    """Writes runs of the experiment "caveat" to a tracking store.

    `place` is the address of the store, or a folder in which the store is `PLACE/mlflow.db`. By default, it is the
    address in MLFLOW_TRACKING_URI, or else the folder "mlflow". A resumed run continues in the store.
    `mlflow ui --backend-store-uri sqlite:///mlflow/mlflow.db` shows the runs.
    """

    name: ClassVar = "mlflow"
    package: ClassVar = "mlflow"

    @property
    def local(self) -> Path | None:
        given = address_of(self.place)
        return None if "://" in given else Path(given)

    def open(self, title: str, key: str, folder: str, settings: Mapping[str, Scalar]) -> None:
        from mlflow import MlflowClient

        store = store_of(self.place)
        client: Any = MlflowClient(store.uri)
        self._client = client
        experiment = client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT, store.artifacts)
        tag = f"{key}-{title}"
        found = client.search_runs([number], f"tags.`{TAG}` = '{tag}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            return
        self._run = client.create_run(number, run_name=f"{Path(folder).name} {title}", tags={TAG: tag}).info.run_id
        from mlflow.entities import Param

        params = [Param(name, str(value)) for name, value in settings.items()]
        for first in range(0, len(params), MANY):
            client.log_batch(self._run, params=params[first : first + MANY])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(OTHER.sub("_", name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Store(NamedTuple):
    """The address of a tracking store, and the folder for artifacts of a new experiment."""

    uri: str
    artifacts: str | None = None


def address_of(place: str | Path | None) -> str:
    """Return the address or folder of a tracking store."""
    return str(place) if place is not None else os.environ.get("MLFLOW_TRACKING_URI", MLFLOW_FOLDER)


def store_of(place: str | Path | None) -> Store:
    """Return the tracking store at an address or, if `place` has no "://", a database in this folder."""
    given = address_of(place)
    if "://" in given:
        return Store(given)
    folder = Path(given).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return Store(f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri())


PROJECT = "caveat"


class WandB(Tracker):
    """Writes runs of the project "caveat" to the folder "wandb" in `place`, by default in WANDB_DIR or else in the
    current folder. Nothing is sent unless WANDB_MODE is "online"; `wandb sync` uploads a run later."""

    name: ClassVar = "wandb"
    package: ClassVar = "wandb"

    def open(self, title: str, key: str, folder: str, settings: Mapping[str, Scalar]) -> None:
        import wandb

        if self.place is not None:
            Path(self.place).mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=f"{Path(folder).name} {title}", id=f"{key}-{title}",
            dir=None if self.place is None else str(self.place), config=dict(settings), mode=mode, settings=quiet,
            resume="allow" if mode == "online" else None, reinit="create_new",
        )  # fmt: skip

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


__all__ = ["TRACKERS", "MLflow", "TensorBoard", "WandB", "tracker_of"]

TRACKERS: dict[str, type[Tracker]] = {each.name: each for each in (TensorBoard, MLflow, WandB)}
"""All trackers by their names on the command line."""


def tracker_of(text: str) -> Tracker:
    """Return the tracker for "NAME" or "NAME:PLACE". Raises ConfigurationError if it is unknown or not installed."""
    name, separator, place = text.partition(":")
    if name not in TRACKERS:
        raise ConfigurationError(f"--tracker {text}: unknown tracker{one_of(name, list(TRACKERS))}")
    if separator and not place:
        raise ConfigurationError(f"--tracker {text}: expected a folder or an address after the colon")
    return TRACKERS[name](place or None)
