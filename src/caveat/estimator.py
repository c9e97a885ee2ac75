"""A federation as a classifier of scikit-learn: groups are silos."""

from __future__ import annotations

import dataclasses
import io
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from .api import load, run
from .core import CaveatError, ConfigurationError, Data, Method, Prediction, Silo
from .core.devices import find_device
from .core.errors import short_repr
from .data import Silos, from_arrays
from .methods import METHODS
from .nn.models import ModelSettings
from .runs.local import Run
from .wrappers.uncertainty import Uncertainty

FEWEST = 6
"""Rows that a silo needs: two to train on, and one at least of each other split."""
LONE = "silo"
"""The name of the only silo where no groups are given."""
ANSWER = [
    ("label", object), ("decision", object), ("silo", object), ("familiarity", float), ("total", float),
    ("aleatoric", float), ("epistemic", float),
]  # fmt: skip
"""The columns of `decide`."""


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier of rows of numbers that trains as a federation does: every group of rows is a silo.

    Parameters: `method`, a name of `caveat.METHODS` or a method such as `caveat.UEFL()`; `rounds` of training, which
    replace the method's own; `model`, settings of a model or a module of one's own, a perceptron by default;
    `uncertainty`, how predictions are calibrated and decided upon; `random_state`, the seed; `workers`, processes;
    `device`, where to compute ("cpu", "cuda", "mps", "auto").
    Columns are brought to mean 0 and deviation 1 by sums over the silos' training splits. Batches are no larger than
    the smallest training split. A fitted classifier can be pickled. It takes its run along: models, and what silos
    keep to judge new rows by, which are numbers of their calibration rows; no training rows.

    Attributes after `fit`: `classes_`, `silos_` (the groups, sorted), `run_` (the `caveat.Run`), `n_features_in_`.
    """

    def __init__(
        self,
        method: str | Method = "fedavg",
        *,
        rounds: int = 20,
        model: ModelSettings | nn.Module | Callable[..., nn.Module] | None = None,
        uncertainty: Uncertainty | None = None,
        random_state: int = 0,
        workers: int = 1,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.rounds = rounds
        self.model = model
        self.uncertainty = uncertainty
        self.random_state = random_state
        self.workers = workers
        self.device = device

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedClassifier:
        """Train on rows X (N, D) with labels y (N,); `groups` (N,) names each row's silo, by default one for all.

        Raises ValueError for what cannot be trained on, naming the silo.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"one class, {self.classes_[0]!r}, expected two or more")
        names = np.full(len(X), LONE) if groups is None else _names(groups, len(X))
        self.silos_ = sorted(set(names.tolist()))
        for name in self.silos_:
            if (count := int((names == name).sum())) < FEWEST:
                raise ValueError(f"silo {name!r}: n_samples = {count}, expected at least {FEWEST}")
        try:
            arrays = {name: (X[names == name], labels[names == name]) for name in self.silos_}
            self.run_ = self._trained(arrays)
        except CaveatError as error:
            raise ValueError(str(error)) from error
        return self

    def predict(self, X: Any, groups: Any = None) -> Any:
        """(N,) the most probable class of each row, as `predict_proba` has it, abstained from or not."""
        found = self._asked(X, groups)
        return self.classes_[found.probs.argmax(1)]

    def predict_proba(self, X: Any, groups: Any = None) -> Any:
        """(N, C) class probabilities by the silos that `groups` (N,) names.

        Without groups, where there are several silos, the one answers at which a row's p-value is largest: at most the
        promised share of rows like those of any silo is still called unfamiliar.
        """
        return self._asked(X, groups).probs.numpy()

    def decide(self, X: Any, groups: Any = None) -> Any:
        """(N,) a structured array, which `pandas.DataFrame` takes: the `label`, the `decision` (global, local or
        abstain), which `silo` was asked, the p-value `familiarity`, and uncertainties in nats, `total`, `aleatoric`,
        `epistemic`.
        """
        found, by = self._answers(X, groups)
        table = np.empty(len(found), dtype=ANSWER)
        table["label"] = self.classes_[found.probs.argmax(1)]
        table["decision"] = np.array(["global", "local", "abstain"], dtype=object)[found.decision]
        table["silo"] = by
        table["familiarity"] = np.nan if found.familiarity is None else found.familiarity
        for name in ("total", "aleatoric", "epistemic"):
            table[name] = found.uncertainty[name]
        return table

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"run_": _packed(self.run_.folder)} if "run_" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "run_" in state:
            own = self.model if callable(self.model) else None
            self.run_ = _unpacked(state["run_"], own, self._device_here())

    def _trained(self, arrays: Mapping[str, tuple[Any, Any]]) -> Run:
        silos = from_arrays(arrays, classes=list(map(str, range(len(self.classes_)))), seed=int(self.random_state))
        silos = self._standardized(silos)
        method = self._method()
        training = getattr(method, "training", None)
        if training is not None:
            smallest = min(len(silo.train) for silo in silos)
            training = dataclasses.replace(training, batch_size=min(training.batch_size, smallest))
        return run(
            silos, method, rounds=self.rounds, training=training, model=self.model, uncertainty=self.uncertainty,
            seed=self.random_state, workers=self.workers, device=self.device, every=max(int(self.rounds), 1),
        )  # fmt: skip

    def _device_here(self) -> str:
        """The device where this machine has it, else the CPU: a pickled classifier predicts on any machine."""
        try:
            find_device(self.device, start=False)
        except ConfigurationError:
            return "cpu"
        return self.device

    def _method(self) -> Method:
        if isinstance(self.method, Method):
            return self.method
        if self.method not in METHODS:
            raise ValueError(f"method = {short_repr(self.method)}: expected a method or one of {', '.join(METHODS)}")
        return METHODS[self.method]()

    def _standardized(self, silos: Silos) -> Silos:
        """The silos with columns of mean 0 and deviation 1, by sums over training splits; keeps which."""
        rows = sum(len(silo.train) for silo in silos)
        mean = torch.stack([silo.train.x.double().sum(0) for silo in silos]).sum(0) / rows
        square = torch.stack([(silo.train.x.double() - mean).square().sum(0) for silo in silos]).sum(0) / rows
        self.mean_, self.scale_ = mean.numpy(), torch.where(square > 0, square.sqrt(), 1.0).numpy()
        return dataclasses.replace(silos, silos=tuple(map(self._scaled, silos)))

    def _scaled(self, silo: Silo) -> Silo:
        splits = ("train", "validation", "calibration", "test")
        scaled: dict[str, Any] = {name: self._scaled_part(getattr(silo, name)) for name in splits}
        return dataclasses.replace(silo, **scaled)

    def _scaled_part(self, data: Data) -> Data:
        return Data(self._inputs(data.x.numpy()), data.y)

    def _inputs(self, X: Any) -> Tensor:
        return torch.from_numpy(((X - self.mean_) / self.scale_).astype("float32"))

    def _asked(self, X: Any, groups: Any) -> Prediction:
        return self._answers(X, groups)[0]

    def _answers(self, X: Any, groups: Any) -> tuple[Prediction, Any]:
        """What is said of rows, and the silo (N,) that said it of each."""
        check_is_fitted(self)
        x = self._inputs(validate_data(self, X, reset=False, dtype=np.float64))
        if groups is None:
            return self._most_familiar(x)
        by = _names(groups, len(x))
        if unknown := sorted(set(by.tolist()) - set(self.silos_)):
            raise ValueError(f"group {unknown[0]!r}: no such silo; silos: {', '.join(self.silos_)}")
        first, *others = sorted(set(by.tolist()))
        found = self.run_.predictor(first)(x)
        for name in others:
            found = self.run_.predictor(name)(x).where(torch.from_numpy(by == name), found)
        return found, by

    def _most_familiar(self, x: Tensor) -> tuple[Prediction, Any]:
        """Each row's answer by the silo to which it is most familiar, the first one of equals."""
        first, *others = self.silos_
        found, by = self.run_.predictor(first)(x), np.full(len(x), first, dtype=object)
        for name in others:
            said = self.run_.predictor(name)(x)
            if said.familiarity is None or found.familiarity is None:
                raise ValueError("which silo is to answer? Name it in groups, or train with uncertainty.familiarity")
            better = said.familiarity > found.familiarity
            found, by[better.numpy()] = said.where(better, found), name
        return found, by


def _names(groups: Any, rows: int) -> Any:
    """(N,) names of silos."""
    names = column_or_1d(check_array(groups, ensure_2d=False, dtype=None)).astype(str)
    if len(names) != rows:
        raise ValueError(f"groups: {len(names)} values for {rows} rows")
    return names


def _packed(folder: Path) -> bytes:
    """The files of a run's folder in one."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return packed.getvalue()


def _unpacked(packed: bytes, model: Any, device: str) -> Run:
    """The run whose files were packed, in a folder that goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="caveat-"))
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(folder)  # takes no path out of the folder
    opened = load(folder, model=model, device=device)
    weakref.finalize(opened, rmtree, folder, ignore_errors=True)
    return opened
