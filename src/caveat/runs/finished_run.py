"""Finished runs, which are loaded from their folders to predict."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .. import config as configuration
from .. import data
from ..core import Answers, ConfigurationError, DataError, DataWarning, Prediction, ResultWarning, SiloId
from ..core.devices import PartedInputs, find_device
from ..core.silo import positive_class
from ..data.raw_samples import Array
from ..files import RUN, RunFolder, decoded, manifest_of, other_kind, read, read_rows, record_of
from ..files.schema import RunFile, SiloKeeps, Summary, as_json
from ..html.run.advice import refusal
from ..nn.custom_model import Make
from .answering import KeptRun
from .continuing_checks import check_files, check_same_data
from .fixed_size_batches import Predicted, in_parts
from .local_run import LocalRun
from .run_metrics import Metric, evaluated, own_figures
from .spec import RunSpec
from .spec_file import run_file, spec_in
from .stored_preparation import PREPARATION, kept_preparation
from .user_code import allow, codes_of

ROUNDS, JOINED = "rounds.jsonl", "join.json"


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
        """The preparation of new inputs for predictions and plots, without data of the silos."""
        return self.experiment.preparation

    @property
    def silos(self) -> data.Silos:
        """The silos with their data. A loaded run reads them on first access from the configured source. Raises
        DataError if they cannot be read, RunError if they have changed."""
        return self.experiment.silos

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of `summary.json`."""
        return as_json(read(self.folder / "summary.json", Summary))

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rows of `rounds.jsonl`: the metrics of every silo after every evaluated round, in order.
        `pandas.DataFrame(run.rounds)` is a table of them."""
        self.experiment.manifest.check(ROUNDS)
        rows, _, _ = read_rows(self.folder / ROUNDS)
        return [as_json(row) for row in rows]

    def module(self, silo: SiloId) -> nn.Module:
        """Return a copy of a silo's network in evaluation mode, for inputs as in the silo's splits.

        Its output, logits (N, C) for most methods, has no temperature, familiarity or decision. A silo with a
        personalized model returns that model, even if a policy such as `blend` also asks the global one. Raises
        ConfigurationError for an ensemble, and for a method that does not implement `loaded`.
        """
        return self.experiment.module(silo)

    def evaluate(self, x: Tensor | Array | data.Inputs, y: Any, silo: SiloId) -> dict[str, Any]:
        """Evaluate the silo's predictions for inputs with labels y (N,): accuracy, log-likelihood, calibration error,
        AUROC and all other metrics that `summary.json` has for a test split; the rows of "confusion" (C, C) are labels.

        Labels are class indices or names, or numbers if the target is a quantity. Writes no files.
        """
        found = self.preparation.noted(x, silo)
        labels = data.truth_of(y, self.preparation, "y")
        if len(labels) != len(found.x):
            raise ConfigurationError(f"{len(labels)} labels for {len(found.x)} inputs, expected one per input", "y")
        positive = positive_class(self.experiment.positive, self.preparation.classes)
        return evaluated(self.predictor(silo)(found), labels, positive)

    def predictor(self, silo: SiloId) -> Callable[..., Prediction]:
        """Return a function from inputs to the silo's `Prediction`. Inputs are normalized tensors (N, ...) as in the
        silo's splits, arrays of raw images or features as in the data source, or the result of `noted_inputs`. For
        table rows, `input_notes` describes what differs from the training data, `unlike_columns` lists the columns
        that differ in all rows together, and warnings report both. A ResultWarning says if the run's test metrics
        advise against using this model. Tensors are predicted in one batch, like splits; other inputs in parts of one
        size, so that a prediction does not depend on the other inputs.
        """
        found = RunFolder(self.folder, summary=record_of(self.folder / "summary.json", Summary))
        if why := refusal(found, silo):
            warnings.warn(f"{silo}: {why}", ResultWarning, stacklevel=2)
        ask = self.experiment.predictor(silo)

        def predict(x: Tensor | Array | data.Inputs, subgroups: Any = None) -> Prediction:
            found = self._inputs(x, silo, subgroups)
            return _about(_asking(ask, x)(found.x, found.subgroup), found)

        return predict

    def answers(self, silo: SiloId) -> Callable[..., Answers]:
        """Return a function from inputs (see `predictor`) to the `Prediction` of each available model by `Decision`."""
        ask = self.experiment.answers(silo)

        def answer(x: Tensor | Array | data.Inputs, subgroups: Any = None) -> Answers:
            found = self._inputs(x, silo, subgroups)
            given = _asking(ask, x)(found.x, found.subgroup)
            return {m: _about(each, found) for m, each in given.items()}

        return answer

    def _inputs(self, x: Tensor | Array | data.Inputs, silo: SiloId, subgroups: Any = None) -> data.Inputs:
        found = self.preparation.noted(x, silo, subgroups)
        for line in found.lines:
            warnings.warn(line, DataWarning, stacklevel=3)
        if self.preparation.subgroups is not None:
            lacking = len(found.x) if found.subgroup is None else int((found.subgroup < 0).sum())
            if lacking:
                told = f"have no subgroup ({self.preparation.subgroups.column}), so the guarantees of all inputs apply"
                warnings.warn(f"{lacking} of {len(found.x)} inputs {told} to them", DataWarning, stacklevel=3)
        return found

    def compute(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Compute custom metrics on the test splits of evaluated silos, from functions of a `Prediction` and labels
        (N,).

        `metrics` maps names to functions. Returns "silos", values by silo and name, and "mean", means over silos by
        name; nothing is written. Raises ConfigurationError for a result that is not a finite number, and the errors of
        `silos`.
        """
        silos = map(self.silos.named, self.experiment.measured)
        return own_figures(metrics, silos, self.experiment.predictor)


def _asking(ask: Callable[..., Predicted], x: Any) -> Callable[..., Predicted]:
    """Return the function that predicts inputs x: tensors at once, as in evaluations, and other inputs in parts."""
    return ask if isinstance(x, Tensor | PartedInputs) else partial(in_parts, ask)


def _about(prediction: Prediction, inputs: data.Inputs) -> Prediction:
    """Return the prediction with the notes on raw inputs; it abstains from inputs with unusable values."""
    told = prediction if inputs.why is None else prediction.refusing(inputs.why)
    return dataclasses.replace(told, input_notes=inputs.notes, unlike_columns=inputs.unlike_columns)


def open_run(folder: Path, device: str = "cpu") -> Run:
    """Open a finished run, to predict on a device; its data are read on access. Raises ConfigurationError if the run is
    not finished, or its method or the device is unknown; DataError for a damaged file."""
    check_files(folder, RUN)
    record = run_file(folder)
    if not (folder / "summary.json").exists():
        raise ConfigurationError(_unfinished(folder, record))
    if not record.in_python and record.spec["data"]["source"] == "on_site":
        raise ConfigurationError(f"{folder}: the data are at the silos; predict with the copy that each silo stores")
    manifest_of(folder).check(RUN, "splits.json", PREPARATION)
    spec = spec_in(folder, record)
    run = KeptRun(
        spec=spec, folder=folder, prepares=kept_preparation(folder), read_silos=_reader(folder, spec),
        devices=(find_device(device),),
    )  # fmt: skip
    run.check_code()
    return Run(run)


def _unfinished(folder: Path, record: RunFile) -> str:
    if instead := other_kind(folder):
        return f"{folder} {instead}"
    if record.in_python:
        what = "caveat.join" if (folder / JOINED).exists() else "caveat.run"
        return f"{folder} is not finished; continue with the same call of {what}"
    project = " --project DIR" if record.federated else ""
    return f"{folder} is not finished; continue with `caveat resume {folder}{project}`"


def _reader(folder: Path, spec: RunSpec) -> Callable[[], data.Silos]:
    """Return a function that reads the data of a finished run, and raises RunError if they have changed."""

    def read_silos() -> data.Silos:
        if spec.data is None:
            program = "the program that made this run has the data: call caveat.run again"
            if (folder / JOINED).exists():
                program = "the program that joined its silos has the data: call caveat.join again"
            raise DataError(f"only {program}")
        silos = spec.read_silos()
        check_same_data(folder, silos)
        return silos

    return read_silos


def codes_in(folder: Path) -> list[str]:
    """Return the names of custom code in a run's folder, or in a silo's stored copy."""
    if (folder / "silo.json").exists():
        terms = decoded(read(folder / "silo.json", SiloKeeps).terms, str(folder / "silo.json"))
        return codes_of(configuration.loads(str(terms.get("config")), str(folder / "silo.json")))
    return run_file(folder).codes


def allow_code(folders: Sequence[Path], model: Make | str | Sequence[str] | None) -> None:
    """Allow the custom code that folders name: `model` is the code itself, its name, or several names. Code that a
    folder names is only imported if the user names it, too. Raises ConfigurationError for other code."""
    named = [model] if isinstance(model, str) else model if isinstance(model, Sequence) else []
    given = model if callable(model) and not named else None
    allow([code for folder in folders for code in codes_in(folder)], named, given)
