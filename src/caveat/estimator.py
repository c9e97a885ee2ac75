"""A scikit-learn classifier and a regressor that train a federation, in which each group of rows is a silo."""

from __future__ import annotations

import dataclasses
import io
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from .api import load, run
from .core import CaveatError, ConfigurationError, Data, Method, Prediction, Reason, Silo
from .core.devices import find_device
from .core.errors import short_repr
from .core.prediction import P_VALUES
from .data import Silos, from_arrays, from_frames
from .data.tables.frames import Columns, is_frame, is_numeric
from .methods import METHODS
from .methods.plugins import advice
from .nn.models import ModelSettings
from .runs.finished_run import Run
from .wrappers.uncertainty_settings import Uncertainty

FEWEST = 6
"""Minimum number of rows of a silo, with which each split has at least one row."""
LONE = "silo"
"""Name of the only silo if no groups are given."""
TARGET = "label of the row"
"""Name of the column of labels that is added to tables."""
ANSWER = [
    ("label", object), ("decision", object), ("reason", object), ("silo", object), ("familiarity", float),
    ("nearness", float), ("sureness", float), ("typicality", float), ("total", float), ("aleatoric", float),
    ("epistemic", float),
]  # fmt: skip
"""Columns of the result of `FederatedClassifier.decide`."""
VALUES = [
    ("value", float),
    ("low", float),
    ("high", float),
    ("spread", float),
    *(each for each in ANSWER if each[0] not in ("label", "total", "aleatoric", "epistemic")),
]
"""Columns of the result of `FederatedRegressor.decide`."""


class _FederatedEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base class of estimators in which every group of rows is a silo."""

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

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return valid rows and targets, and store whether the rows are a table."""
        self.table_ = not is_numeric(X) if is_frame(X) else _has_nan(X)
        if self.table_:
            validate_data(self, X, skip_check_array=True)
            y = column_or_1d(y, warn=True)
            check_consistent_length(X, y)
            return X, y
        found: tuple[Any, Any] = validate_data(self, X, y, dtype=np.float64)
        return found

    def _fit(self, X: Any, targets: Any, groups: Any, **keys: Any) -> None:
        """Train on rows with targets (N,); `keys` describe the targets. Raises ValueError for unsuitable data."""
        names = np.full(len(X), LONE) if groups is None else _names(groups, len(X))
        self.silos_ = sorted(set(names.tolist()))
        for name in self.silos_:
            if (count := int((names == name).sum())) < FEWEST:
                raise ValueError(f"silo {name!r}: n_samples = {count}, expected at least {FEWEST}")
        try:
            rows = {name: np.flatnonzero(names == name) for name in self.silos_}
            self.run_ = self._trained(self._silos(X, targets, rows, keys))
        except CaveatError as error:
            raise ValueError(str(error)) from error

    def _decided(self, found: Prediction, by: Any, columns: Sequence[tuple[str, type]]) -> Any:
        """Return a structured array (N,) with decisions, reasons and p-values."""
        table = np.empty(len(found), dtype=list(columns))
        table["decision"] = np.array(["global", "local", "abstain"], dtype=object)[found.decision]
        table["silo"] = by
        table["reason"] = np.array([reason.name.lower() for reason in Reason], dtype=object)[found.reason]
        for name in P_VALUES:
            table[name] = found.p_values.get(name, np.nan)
        return table

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"run_": _packed(self.run_.folder)} if "run_" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "run_" in state:
            own = self.model if callable(self.model) else None
            # The temporary folder is deleted with the run.
            folder = Path(tempfile.mkdtemp(prefix="caveat-"))
            with zipfile.ZipFile(io.BytesIO(state["run_"])) as archive:
                archive.extractall(folder)  # extractall never writes outside of the folder
            opened = load(folder, model=own, device=self._device_here())
            weakref.finalize(opened, rmtree, folder, ignore_errors=True)
            self.run_ = opened

    def _silos(self, X: Any, targets: Any, rows: Mapping[str, Any], keys: Mapping[str, Any]) -> Silos:
        seed = int(self.random_state)
        if self.table_:
            frames = {name: Columns.of(X, each).plus(TARGET, targets[each]) for name, each in rows.items()}
            return from_frames(frames, target=TARGET, seed=seed, **keys)
        arrays = {name: (X[each], targets[each]) for name, each in rows.items()}
        return self._standardized(from_arrays(arrays, seed=seed, **keys))

    def _trained(self, silos: Silos) -> Run:
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
        """Return the device if it is available, else the CPU, so that a pickled estimator predicts on any machine."""
        try:
            find_device(self.device, start=False)
        except ConfigurationError:
            return "cpu"
        return self.device

    def _method(self) -> Method:
        if isinstance(self.method, Method):
            return self.method
        if self.method not in METHODS:
            expected = f"expected a method or one of {', '.join(METHODS)}"
            raise ValueError(f"method = {short_repr(self.method)}: {expected}; {advice(str(self.method))}")
        return METHODS[self.method]()

    def _standardized(self, silos: Silos) -> Silos:
        """Return the silos with standardized columns, and store their means and scales."""
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
        """Return the prediction for rows, and for each row the silo (N,) that answered."""
        check_is_fitted(self)
        x = self._prepared(X)
        if groups is None:
            return self._most_typical(x)
        by = _names(groups, len(x))
        if unknown := sorted(set(by.tolist()) - set(self.silos_)):
            raise ValueError(f"group {unknown[0]!r}: no such silo (available: {', '.join(self.silos_)})")
        first, *others = sorted(set(by.tolist()))
        found = self.run_.predictor(first)(x)
        for name in others:
            found = self.run_.predictor(name)(x).where(torch.from_numpy(by == name), found)
        return found, by

    def _prepared(self, X: Any) -> Any:
        """Return rows in the form that predictors take, which is model inputs, or columns that each silo encodes."""
        known = list(getattr(self, "feature_names_in_", ()))
        if is_frame(X) and known and set(known) <= set(X.columns):
            X = X[known]
        if not self.table_:
            return self._inputs(validate_data(self, X, reset=False, dtype=np.float64))
        validate_data(self, X, reset=False, skip_check_array=True)
        return Columns.of(X)

    def _most_typical(self, x: Any) -> tuple[Prediction, Any]:
        """Return for each row the prediction of the silo with the largest typicality, and the silo (N,). For equal
        typicality, the first silo is chosen."""
        first, *others = self.silos_
        found, by = self.run_.predictor(first)(x), np.full(len(x), first, dtype=object)
        for name in others:
            other = self.run_.predictor(name)(x)
            if other.typicality is None or found.typicality is None:
                raise ValueError(
                    "without groups, a silo is chosen by familiarity, which is off: pass groups, or fit with "
                    "uncertainty.familiarity"
                )
            better = other.typicality > found.typicality
            found, by[better.numpy()] = other.where(better, found), name
        return found, by


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Federated classifier in which every group of rows is a silo.

    Columns of numbers are standardized with sums over the silos' training splits. Rows with missing values, and data
    frames with text, categories or dates, are prepared as in `caveat.data.from_frames`, at each silo with its own
    training split. Frames to predict may have their columns in another order. Batches are not larger than the smallest
    training split. A fitted classifier can be pickled. The pickle contains the models, calibration scores and features
    of training rows (of at most 2,000 rows per silo, for the alarm "novel"), but not the rows themselves.

    Parameters
    ----------
    method
        A name in `caveat.METHODS`, or a method such as `caveat.UEFL()`.
    rounds
        Number of training rounds, which replaces that of the method.
    model
        Settings of a model, or a custom module; by default a perceptron.
    uncertainty
        Calibration of predictions and decisions.
    random_state
        The random seed.
    workers, device
        Number of worker processes, and the device ("cpu", "cuda", "mps" or "auto").

    Attributes
    ----------
    classes_, silos_, n_features_in_
        The classes, the sorted names of the groups, and the number of columns.
    run_
        The finished run, a `caveat.Run`.
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedClassifier:
        """Train on rows X (N, D) with labels y (N,); `groups` (N,) names the silo of each row. By default, all rows
        belong to one silo. Raises ValueError, which names the silo, for unsuitable data."""
        X, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[0]!r}, expected two or more")
        self._fit(X, labels, groups, classes=list(map(str, range(len(self.classes_)))))
        return self

    def predict(self, X: Any, groups: Any = None) -> Any:
        """Return (N,) the most probable class of each row, even if the decision is to abstain."""
        found = self._asked(X, groups)
        return self.classes_[found.probs.argmax(1)]

    def predict_proba(self, X: Any, groups: Any = None) -> Any:
        """Return (N, C) class probabilities from the silos that `groups` (N,) names.

        Without groups, the silo with the largest typicality for a row answers. The guaranteed false alarm rate then
        still holds for rows that are like those of one of the silos.
        """
        return self._asked(X, groups).probs.numpy()

    def decide(self, X: Any, groups: Any = None) -> Any:
        """Return a structured array (N,), which `pandas.DataFrame` accepts.

        Its fields are `label`, `decision` (global, local or abstain), `reason` (the reason not to rely on the label, or
        "none"), `silo` (the silo that answered), the p-values `familiarity`, `nearness`, `sureness` and `typicality`,
        and the uncertainties `total`, `aleatoric` and `epistemic` in nats.
        """
        found, by = self._answers(X, groups)
        table = self._decided(found, by, ANSWER)
        table["label"] = self.classes_[found.probs.argmax(1)]
        for name in ("total", "aleatoric", "epistemic"):
            table[name] = found.uncertainty[name]
        return table


class FederatedRegressor(RegressorMixin, _FederatedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Federated regressor in which every group of rows is a silo.

    It predicts the distribution of a quantity, its median, and intervals with a guaranteed coverage at each silo.
    Parameters, attributes and the preparation of rows are the same as in `FederatedClassifier`, but there is no
    attribute `classes_`.
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedRegressor:
        """Train on rows X (N, D) with numbers y (N,); `groups` (N,) names the silo of each row. By default, all rows
        belong to one silo. Raises ValueError, which names the silo, for unsuitable data."""
        X, y = self._checked(X, y)
        self._fit(X, np.asarray(y, np.float64), groups, predict="quantity")
        return self

    def predict(self, X: Any, groups: Any = None) -> Any:
        """Return (N,) the median of each row's distribution, even if the decision is to abstain."""
        return self._asked(X, groups).value.numpy()

    def predict_quantiles(self, X: Any, levels: Sequence[float], groups: Any = None) -> Any:
        """Return (N, L) quantiles at levels (L,)."""
        found = self._asked(X, groups)
        return np.stack([found.quantile(float(level)).numpy() for level in levels], 1)

    def predict_interval(self, X: Any, groups: Any = None) -> Any:
        """Return (N, 2) intervals with coverage `uncertainty.interval`. They are infinite at silos with too few
        calibration rows. Return None if the run has no intervals.

        Without `groups`, return for each row the smallest interval that contains the intervals of all silos, because a
        silo's interval is not valid for rows of other silos.
        """
        by = self.silos_ if groups is None else [None]
        found = [self._asked(X, groups if name is None else [name] * len(X)).interval for name in by]
        intervals = [each.numpy() for each in found if each is not None]
        if not intervals:
            return None
        low, high = np.stack(intervals, -1).transpose(1, 0, 2)
        return np.stack([low.min(1), high.max(1)], 1)

    def decide(self, X: Any, groups: Any = None) -> Any:
        """Return a structured array (N,), which `pandas.DataFrame` accepts.

        Its fields are `value` (the median), `low` and `high` (the ends of the interval), `spread` (the standard
        deviation), and those of `FederatedClassifier.decide` except for the label and the uncertainties.
        """
        found, by = self._answers(X, groups)
        table = self._decided(found, by, VALUES)
        table["value"], table["spread"] = found.value, found.score("spread")
        if found.interval is not None:
            table["low"], table["high"] = found.interval.unbind(1)
        return table


def _has_nan(X: Any) -> bool:
    return isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind == "f" and bool(np.isnan(X).any())


def _names(groups: Any, rows: int) -> Any:
    """Return (N,) names of silos. Raises ValueError unless there is one per row."""
    names = column_or_1d(check_array(groups, ensure_2d=False, dtype=None)).astype(str)
    if len(names) != rows:
        raise ValueError(f"groups: {len(names)} values for {rows} rows")
    return names


def _packed(folder: Path) -> bytes:
    """Return the files of a run's folder as a zip archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return packed.getvalue()
