"""Runs on silos whose data are on this machine, and what they answer when they are finished."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .. import data
from ..core import Answers, ConfigurationError, DataWarning, Prediction, SiloId, horizon
from ..core.silo import FederationInfo, positive_class
from ..data.pools import Array
from ..data.silos import Population
from ..data.splits import NAMES
from ..engines.executor import Executor
from ..engines.process_pool import SingleMachineEngine
from ..engines.vectorization import Stacking
from ..engines.worker_process import Rebuild
from ..files.checkpoints import SiloStore
from ..files.reading import read
from ..files.run_folder import read_rows
from ..files.schema import Features, Gallery
from ..files.schema.record import as_json
from ..files.schema.run import RunFile
from ..files.schema.summary import Summary
from ..files.writing import write_json
from ..methods.plugins import named
from .answering import AnsweringRun, KeptRun
from .fingerprints import data_fingerprint
from .frozen_features import SilosBehind, check_unchanging
from .gallery import features, gallery
from .inputs import check_ids, keep_preparation
from .run_metrics import Metric, evaluated, own_figures

ROUNDS = "rounds.jsonl"


@dataclass(frozen=True, kw_only=True)
class LocalRun(AnsweringRun):
    """A run on silos whose data are on this machine."""

    silos: data.Silos
    sets: tuple[str, ...] = ()
    """What the user who continues the run gave for keys that change no result, such as "data.source=PLACE"."""

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
    def preparation(self) -> data.Preparation:
        return self.silos.preparation

    @property
    def can_be_extended(self) -> bool:
        # Where other rounds of training follow, as with UEFL and ensembles, there is no going on with more of them.
        steps = self.complete_method.schedule()
        return self.spec.data is not None and horizon(steps) == getattr(self.method, "rounds", None)

    def baselines(self, rounds: int | None = None) -> list[LocalRun]:
        """The runs of the methods beside it, with so many rounds of training if they are given."""
        return [
            dataclasses.replace(
                self, spec=self.spec.baseline(method, rounds), folder=self.folder / "baselines" / method.name, reset=(),
                given=None,
            )
            for method in self.spec.baselines
        ]  # fmt: skip

    def with_baselines(self) -> list[LocalRun]:
        """The run, and those of the methods beside it."""
        return [self, *self.baselines()]

    def check(self) -> None:
        self.silos.check(self.spec.batch_size)
        super().check()
        if self.frozen_encoder is not None:
            check_unchanging(self.silos[0])
        if not self.silos.dtype.is_floating_point:
            self._check_ids()

    def _check_ids(self) -> None:
        """Raises DataError for ids of tokens in memory that the model has no row for; of a population, the first
        silo's.
        """
        module, population = self.spec.first_module(self.info), isinstance(self.silos.silos, Population)
        for silo in self.silos[:1] if population else self.silos:
            for name, part in ({name: getattr(silo, name) for name in NAMES} | {**silo.streams}).items():
                if isinstance(part.x, Tensor) and len(part.x):
                    check_ids(module, part.x, f"silo {silo.name!r}, {name}")

    def executor(self) -> Executor:
        silos = self.silos.by_name
        if self.frozen_encoder is not None:
            silos = SilosBehind(silos, self.frozen_encoder, self.predicts_on)
        return self.executor_of(silos, self.participants, SiloStore(self.folder / "state" / "silos"))

    def engine(self) -> SingleMachineEngine:
        return SingleMachineEngine(self.executor(), self.workers, self.devices, self.rebuild, Stacking(self.vectorized))

    @property
    def rebuild(self) -> Rebuild | None:
        """What workers that cannot be forked need to make the run again; None for silos that no file says."""
        if self.spec.data is None:
            return None
        about = {"folder": str(self.folder.absolute()), "rounds": getattr(self.method, "rounds", None)}
        return {"by": "caveat.runs.spawn_worker", **about, "sets": list(self.sets), "plugins": named()}

    def description(self) -> RunFile:
        found = data_fingerprint(self.silos, self._told_splits)
        return super().description().model_copy(update={"data": found})

    @property
    def _told_splits(self) -> list[SiloId]:
        """The silos of whose splits a file of their own tells."""
        return [*self.measured, *self.spec.newcomers]

    def prepare(self) -> None:
        super().prepare()
        splits = data.splits_record(map(self.silos.named, self._told_splits))
        write_json(self.folder / "splits.json", splits)
        keep_preparation(self.folder, self.preparation)

    def gallery(self) -> Gallery:
        return gallery(self.silos, self.measured, self.predictor)

    def features(self) -> Features | None:
        return features(self.silos, self.measured, lambda silo: self._asked(silo, self.complete_method.features))


@dataclass(frozen=True)
class Run:
    """A finished run."""

    experiment: LocalRun | KeptRun

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.experiment.method.name}, {len(self.preparation.names)} silos)"

    @property
    def folder(self) -> Path:
        return self.experiment.folder

    @property
    def preparation(self) -> data.Preparation:
        """What it takes to read new inputs for predictions, and to show them; no data of the silos."""
        return self.experiment.preparation

    @property
    def silos(self) -> data.Silos:
        """The silos with their data. A run that was loaded reads them when they are first asked for, from where its
        configuration says. Raises DataError where they cannot be read, RunError if they are others than then.
        """
        return self.experiment.silos

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds."""
        return as_json(read(self.folder / "summary.json", Summary))

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rows of `rounds.jsonl`: the figures of every silo after every round that was evaluated, in order.

        `pandas.DataFrame(run.rounds)` has them as a table.
        """
        self.experiment.manifest.check(ROUNDS)
        rows, _, _ = read_rows(self.folder / ROUNDS)
        return [as_json(row) for row in rows]

    def module(self, silo: SiloId) -> nn.Module:
        """A silo's network as a module of its own, a copy with its weights, in evaluation mode, for inputs as the
        silo's splits have them: `state_dict` and all else are torch's.

        It gives the network's own output, which for most methods is logits (N, C): no temperature, no familiarity and
        no decision is in it. Of a silo with a model of its own beside the federation's it is its own. Raises
        ConfigurationError for an ensemble, and for a method that says nothing of its network.
        """
        return self.experiment.module(silo)

    def evaluate(self, x: Tensor | Array | data.Inputs, y: Any, silo: SiloId) -> dict[str, Any]:
        """What the silo's predictions of inputs with labels y (N,) come to: accuracy, log-likelihood, calibration
        error, AUROC and all else that `summary.json` has of a test split; "confusion" (C, C), rows are labels.

        Labels are numbers of classes from 0, or their names. Nothing is written.
        """
        found = self.preparation.noted(x, silo)
        labels = data.labels_of(y, self.preparation.classes, "y")
        if len(labels) != len(found.x):
            raise ConfigurationError(f"{len(labels)} labels for {len(found.x)} inputs", "y")
        positive = positive_class(self.experiment.positive, self.preparation.classes)
        return evaluated(self.predictor(silo)(found), labels, positive)

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
        found = self.preparation.noted(x, silo)
        if found.told:
            warnings.warn(found.told, DataWarning, stacklevel=3)
        return found

    def compute(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Figures of one's own on the test splits of the silos that are measured, from functions of a `Prediction` and
        labels (N,), by name: "silos", per silo and name, and "mean", per name the mean over silos.

        They are computed now and written nowhere, from `silos`. Raises ConfigurationError for what comes to no finite
        number, and what `silos` raises where the data are not there.
        """
        silos = map(self.silos.named, self.experiment.measured)
        return own_figures(metrics, silos, self.experiment.predictor)
