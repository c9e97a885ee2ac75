"""Figures of a user's own: those that silos measured, and those of a finished run's predictions on test splits."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from .. import metrics
from ..core import ConfigurationError, Payload, Prediction, Silo, SiloId
from ..core.errors import short_repr
from ..files.schema.figures import OwnMetricRecord
from ..files.schema.record import Figure
from ..metrics.classification import classification
from ..metrics.custom_metrics import LONGEST, OwnMetric, is_name, number_of
from ..metrics.sums import class_sums

Metric = Callable[[Prediction, Tensor], float]
"""From a prediction of N inputs and their labels (N,) to a number."""
OWN = "own"
"""The group in which a silo's payload has what metrics say of its test split."""


def own_records(metrics: Iterable[OwnMetric], test: Mapping[SiloId, Payload]) -> dict[str, OwnMetricRecord]:
    """By name, what metrics come to over the silos at which they are defined, each of which counts once."""
    found = {}
    for own in metrics:
        values = [float(sums[own.name]) for payload in test.values() if own.name in (sums := payload.get(OWN, {}))]
        ends = {} if not values else {
            "mean": math.fsum(values) / len(values), "worst": (min if own.higher_is_better else max)(values)
        }  # fmt: skip
        found[own.name] = OwnMetricRecord(higher_is_better=own.higher_is_better, silos=len(values), **ends)
    return found


def own_of_silo(payload: Payload) -> dict[str, Figure]:
    """By name, what metrics say of a silo's test split."""
    return {name: float(value) for name, value in payload.get(OWN, {}).items()}


def own_figures(
    metrics: Mapping[str, Metric], silos: Iterable[Silo], predictor: Callable[[SiloId], Callable[[Tensor], Prediction]]
) -> dict[str, Any]:
    """ "silos": by silo and name the figures of its test split; "mean": by name their mean over silos.

    Raises ConfigurationError for names that are none, what is no function, and what comes to no finite number.
    """
    _check(metrics)
    found: dict[SiloId, dict[str, float]] = {}
    for silo in silos:
        prediction = predictor(silo.name)(silo.test.x)
        found[silo.name] = {
            name: _number(metric(prediction, silo.test.y), name, silo.name) for name, metric in metrics.items()
        }
    means = {name: math.fsum(each[name] for each in found.values()) / len(found) for name in metrics}
    return {"silos": found, "mean": means}


def _check(metrics: object) -> None:
    if not isinstance(metrics, Mapping) or not metrics:
        raise ConfigurationError(
            f"metrics = {short_repr(metrics)}: expected a mapping from names to functions", "metrics"
        )
    for name, metric in metrics.items():
        if not is_name(name):
            raise ConfigurationError(
                f"metrics: name {short_repr(name)}, expected text of 1 to {LONGEST} characters", "metrics"
            )
        if not callable(metric):
            raise ConfigurationError(
                f"metrics[{name!r}] is a {type(metric).__name__}, expected a function of a Prediction and labels",
                "metrics",
            )


def _number(value: Any, name: str, silo: SiloId) -> float:
    number = number_of(value, f"metrics[{name!r}]", "metrics", f" at silo {silo!r}")
    if not math.isfinite(number):
        raise ConfigurationError(
            f"metrics[{name!r}] gave {number} at silo {silo!r}, expected a finite number", "metrics"
        )
    return number


def evaluated(prediction: Prediction, y: Tensor, positive: int = 1) -> dict[str, Any]:
    """Figures by name, and "confusion" (C, C), rows are labels, where there are no more classes than that is kept of.

    `positive` is the number of the class that sensitivity is of, where there are two.
    """
    sums = metrics.measure(prediction, y)
    found: dict[str, Any] = {"examples": len(y), **metrics.figures(sums), **metrics.errors(sums)}
    if null := metrics.ece_null(sums):
        found["ece_null"] = null
    if classes := class_sums(prediction, y):
        found |= classification(classes, positive)
        found["confusion"] = classes["confusion"].long().tolist()
    return found
