"""What predictions of labelled inputs come to, by the figures that a run has of its test splits."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import metrics
from ..core import Prediction
from ..metrics.classification import classification
from ..metrics.sums import class_sums


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
