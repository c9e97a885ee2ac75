"""Figures of a user's own, of the predictions that a finished run's silos make on their own test splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from ..core import ConfigurationError, Prediction, Silo, SiloId
from ..core.errors import shown

Metric = Callable[[Prediction, Tensor], float]
"""From a prediction of N inputs and their labels (N,) to a number."""
LONGEST = 60
"""Characters of a metric's name."""


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
        raise ConfigurationError(f"metrics = {shown(metrics)}: expected a mapping from names to functions", "metrics")
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > LONGEST:
            raise ConfigurationError(
                f"metrics: name {shown(name)}, expected text of 1 to {LONGEST} characters", "metrics"
            )
        if not callable(metric):
            raise ConfigurationError(
                f"metrics[{name!r}] is a {type(metric).__name__}, expected a function of a Prediction and labels",
                "metrics",
            )


def _number(value: Any, name: str, silo: SiloId) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigurationError(
            f"metrics[{name!r}] gave a {type(value).__name__} at silo {silo!r}, expected a number", "metrics"
        ) from None
    if not math.isfinite(number):
        raise ConfigurationError(
            f"metrics[{name!r}] gave {number} at silo {silo!r}, expected a finite number", "metrics"
        )
    return number
