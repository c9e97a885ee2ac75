"""The threshold from which on an input is called positive, where there are two classes, and what comes of it.

It is chosen by the histograms of calibration inputs, `ranks` of `class_sums`, and lies between two of their bins, so
that whatever it makes of other inputs follows from histograms of these as well.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..core import Tensors
from .sums import edges

Counts = npt.NDArray[np.float64]
ENOUGH = 50
"""Calibration inputs of either class with which a silo has a threshold of its own."""


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold, and what it was chosen by."""

    cut: int
    """The lowest bin that is called positive."""
    threshold: float
    """The probability of the positive class above which an input is called positive."""
    positives: int
    """Calibration inputs of either class that it was chosen by."""
    negatives: int

    @property
    def enough(self) -> bool:
        """Whether it rests on so many inputs that it needs no others."""
        return min(self.positives, self.negatives) >= ENOUGH


def operating_point(negative: Counts, positive: Counts, sensitivity: float | None = None) -> OperatingPoint | None:
    """The threshold by (B,) histograms of calibration inputs of either class, lowest log-odds of the positive first.

    Without a `sensitivity` it is where Youden's J, sensitivity plus specificity less 1, is largest; of several such
    places the middle of the longest stretch of them. With one it is the highest threshold that a new positive input,
    exchangeable with the P of calibration, reaches with at least this probability: the bin of the k-th lowest of them,
    k = floor((P + 1) (1 - sensitivity)), as in split conformal prediction. None where k = 0, P being too small, and
    where there are no inputs of one class.
    """
    if not (positive.any() and negative.any()):
        return None
    if sensitivity is None:
        cut = _youden(negative, positive)
    else:
        k = math.floor((positive.sum() + 1) * (1 - sensitivity) + 1e-9)
        if not k:
            return None
        cut = int((positive.cumsum() < k).sum())
    # The lower edge of the bin: 0 for the lowest one, 1 beyond the highest.
    threshold = float(edges(2)[cut].sigmoid())
    return OperatingPoint(cut, threshold, int(positive.sum()), int(negative.sum()))


def _youden(negative: Counts, positive: Counts) -> int:
    """The cut in 0 to B; J is compared in whole numbers, so that no rounding decides."""
    below = [np.concatenate([[0.0], each.cumsum()]) for each in (negative, positive)]
    gained = below[0] * positive.sum() - below[1] * negative.sum()
    best = np.flatnonzero(gained == gained.max())
    stretch = max(np.split(best, np.flatnonzero(np.diff(best) > 1) + 1), key=len)
    return int(stretch[len(stretch) // 2])


def called(point: OperatingPoint, negative: Counts, positive: Counts) -> Tensors:
    """`called` (2, 2): of inputs of either class, the negative first, how many are called negative and how many
    positive, by their (B,) histograms. It merges, whatever thresholds silos have.
    """
    counts = [[each[: point.cut].sum(), each[point.cut :].sum()] for each in (negative, positive)]
    return {"called": torch.tensor(np.array(counts), dtype=torch.float64)}


def shares(sums: Tensors) -> dict[str, float]:
    """`sensitivity` and `specificity` of what is called positive, as far as they are there and defined."""
    if "called" not in sums:
        return {}
    negative, positive = sums["called"].tolist()
    found = {"sensitivity": (positive[1], sum(positive)), "specificity": (negative[0], sum(negative))}
    return {name: right / total for name, (right, total) in found.items() if total}
