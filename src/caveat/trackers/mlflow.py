"""MLflow."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..runs.progress import Scalar
from .base import Tracker

PLACE = "mlflow"
EXPERIMENT = "caveat"
TAG = "caveat.run"
"""By which a run that goes on is found again."""
OTHER = re.compile(r"[^\w\-. /]")
"""Characters that no name of a metric may have."""
MANY = 100
"""How many settings MLflow takes at once."""


class MLflow(Tracker):
    """Writes runs of the experiment "caveat" to a tracking store: `place`, an address or a folder for a store of its
    own (`PLACE/mlflow.db`); else what MLFLOW_TRACKING_URI says; else the folder "mlflow". A run that goes on is gone on
    with there. `mlflow ui --backend-store-uri sqlite:///mlflow/mlflow.db` shows it.
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
    """A tracking store, and where it keeps artifacts if it does not know itself."""

    uri: str
    artifacts: str | None = None


def address_of(place: str | Path | None) -> str:
    """The address or folder of a tracking store."""
    return str(place) if place is not None else os.environ.get("MLFLOW_TRACKING_URI", PLACE)


def store_of(place: str | Path | None) -> Store:
    """A tracking store by its address, or a database in a folder if there is no "://" in `place`."""
    given = address_of(place)
    if "://" in given:
        return Store(given)
    folder = Path(given).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return Store(f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri())
