"""Runs on silos whose data are on this machine, and what they answer when they are finished."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from .. import data
from ..core import (
    Answers,
    ConfigurationError,
    DataWarning,
    Payload,
    Prediction,
    SiloId,
    Site,
    State,
    Tensors,
    horizon,
)
from ..core.silo_info import FederationInfo
from ..data.pools import Array
from ..engines.executor import Executor
from ..engines.one_thread import one_thread
from ..engines.processes.pool import EmbeddedEngine
from ..files.atomic import write_json
from ..files.checkpoints import SiloStore
from ..files.kept_states import read_kept
from ..files.manifest import STATES, Manifest, manifest_of
from ..files.payloads import read_payload
from ..files.reading import read
from ..files.schema.gallery import Features, Gallery
from ..files.schema.record import as_json
from ..files.schema.small_files import KeptState, ModelFile
from ..files.schema.summary import Summary
from .base import BaseRun
from .begun import SETTINGS, keep_data
from .behind import check_unchanging, rows_of
from .features import features
from .gallery import gallery
from .own_metrics import Metric, own_figures
from .warm import MODEL

Asked = TypeVar("Asked", Prediction, Answers, Tensors)


@dataclass(frozen=True, kw_only=True)
class LocalRun(BaseRun):
    """A run on silos whose data are on this machine."""

    silos: data.Silos
    workers: int = 1

    @cached_property
    def info(self) -> FederationInfo:
        return FederationInfo.of(
            self.silos.by_name, self.silos.names, self.silos.shape, self.silos.classes, self.silos.dtype,
            self.silos.positive,
        )  # fmt: skip

    @cached_property
    def measured(self) -> list[SiloId]:
        return super().measured

    @cached_property
    def participants(self) -> Sequence[SiloId]:
        return super().participants

    @property
    def can_be_extended(self) -> bool:
        # Where other rounds of training follow, as with UEFL and ensembles, there is no going on with more of them.
        steps = self.complete_method.schedule()
        return (self.folder / SETTINGS).exists() and horizon(steps) == getattr(self.method, "rounds", None)

    def check(self) -> None:
        self.silos.check(self.spec.batch_size)
        super().check()
        if self.frozen_encoder is not None:
            check_unchanging(self.silos[0])

    def executor(self) -> Executor:
        return self.executor_of(self.silos.by_name, self.participants, SiloStore(self.folder / "state" / "silos"))

    def engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(self.executor(), self.workers)

    def prepare(self) -> None:
        super().prepare()
        silos = [*self.measured, *self.spec.newcomers]
        write_json(self.folder / "splits.json", data.splits_record(map(self.silos.named, silos)))
        keep_data(self.folder, self.silos, silos)

    def gallery(self) -> Gallery:
        return gallery(self.silos, self.measured, self.predictor)

    def features(self) -> Features | None:
        return features(self.silos, self.measured, lambda silo: self._asked(silo, self.complete_method.features))

    @property
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

        encoder = self.frozen_encoder

        def predict(x: Tensor) -> Asked:
            with one_thread():
                return ask(down, state, site, x if encoder is None else rows_of(encoder, x, keep=False))

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

    def measure(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Figures of one's own on the test splits of the silos that are measured, from functions of a `Prediction` and
        labels (N,), by name: "silos", per silo and name, and "mean", per name the mean over silos.

        They are computed now and written nowhere. Raises ConfigurationError for what comes to no finite number.
        """
        silos = map(self.silos.named, self.experiment.measured)
        return own_figures(metrics, silos, self.experiment.predictor)
