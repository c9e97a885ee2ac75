"""What tells classes from each other, as sums that merge: who was taken for whom, and histograms of probabilities.

A class is ranked by the log-odds of its probability p, ln(p / (1 - p)), against all others. The bins of these never
depend on data. They are finest at log-odds of -ln(C - 1), what a model of C classes gives that cannot tell them apart,
and widen in proportion to the distance from there.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from ..core import Prediction, Tensors
from ..uncertainty.histograms import beside

MOST_CLASSES = 100
"""Models of more classes have none of these sums: their size grows with the classes, and the table with the square."""
BINS_OF_TWO, BINS_OF_MORE, BINS_IN_ALL = 8192, 4096, 131_072
"""Bins of the one histogram that ranks two classes, of one of several, and at most of all of these together."""


def bins_of(classes: int) -> int:
    """How many bins a histogram has: 8,192 for two classes, 4,096 for up to 32, then fewer, 1,310 for 100."""
    return BINS_OF_TWO if classes == 2 else min(BINS_OF_MORE, BINS_IN_ALL // classes)


@cache
def edges(classes: int) -> Tensor:
    """(B + 1,) float64: the edges of the bins of log-odds, ascending.

    A bin holds its upper edge and not its lower one; the outermost edges are infinite. For two classes they are
    symmetric about 0, where bins are 2.9e-6 wide, and elsewhere .29 % of their distance from 0, up to 60. For several
    a quarter of them is below -ln(C - 1), where next to all inputs are of other classes, and which precision hardly
    depends on; above bins are .3 % of their distance from there (with up to 32 classes), and 3e-5 wide next to it.
    """
    count = bins_of(classes)
    below, unit, farthest = (count // 2, 1e-3, 60.0) if classes == 2 else (count // 4, 1e-2, 45.0)
    whole = math.asinh(farthest / unit)
    steps = torch.arange(count + 1, dtype=torch.float64) - below
    steps = torch.where(steps < 0, steps * (whole / below), steps * (whole / (count - below)))
    found = unit * torch.sinh(steps) - math.log(classes - 1)
    found[0], found[-1] = -math.inf, math.inf
    return found


def class_sums(prediction: Prediction, y: Tensor) -> Tensors:
    """The additive sums of N predictions for labels `y` (N,); empty for more than 100 classes.

    `confusion` (C, C) float64: how often a class (row) was taken for another (column), the most probable one. `ranks`
    (R, 2, B) int32: per class, for inputs of other classes and for its own, the histogram of its log-odds; of two
    classes only the second has one (R = 1), since the other's is its mirror image. Inputs whose label is no class of
    the model (-1) count nowhere.
    """
    known = y >= 0
    probs, label, y = prediction.probs.double()[known], prediction.label[known], y[known]
    classes = probs.shape[1]
    if classes > MOST_CLASSES:
        return {}
    confusion = torch.bincount(y * classes + label, minlength=classes**2).view(classes, classes)
    return {"confusion": confusion.double(), "ranks": _ranks(probs, y)}


def _ranks(probs: Tensor, y: Tensor) -> Tensor:
    classes = probs.shape[1]
    ranked = torch.arange(1 if classes == 2 else 0, classes, device=y.device)
    # Of two classes the other's probability has digits of what is missing to 1 that the difference has lost.
    against = probs[:, :1] if classes == 2 else 1 - probs
    odds = probs[:, ranked].log() - against.clamp_min(0).log()
    count = bins_of(classes)
    bins = torch.bucketize(odds.contiguous(), beside(edges(classes)[1:-1], odds))
    cell = (2 * torch.arange(len(ranked), device=y.device) + (y[:, None] == ranked).long()) * count + bins
    return torch.bincount(cell.flatten(), minlength=2 * count * len(ranked)).view(len(ranked), 2, count).int()
