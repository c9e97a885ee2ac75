"""Classification metrics (AUROC, sensitivity, F1, ...) from `class_sums`, which merge over silos.

Probabilities in the same bin are tied, and metrics of the exact probabilities differ by at most the reported tolerance,
as in `caveat.metrics.ranking`.

With two classes, metrics are about the positive one. With more classes, each class is compared with the rest, and a
metric is the mean over classes with inputs. Undefined metrics, for classes without inputs, are absent. The threshold is
chosen from the histograms of calibration inputs (`ranks` in `class_sums`) and lies between two bins, so the metrics at
this threshold can also be computed from the histograms of other inputs.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import digamma

from ..core import Tensors
from .ranking import Counts, auroc, average_precision, tie_tolerance
from .sums import edges


def classification(sums: Tensors, positive: int = 1) -> dict[str, float]:
    """Return metrics of predictions, from `class_sums` and, for two classes, the counts `called` at a threshold.

    `auroc`: the probability that an input of a class gets a higher probability for it than an input of another class
    (ties count half); `average_precision`: as in scikit-learn, without interpolation. The maximum effects of binning
    are `auroc_tolerance` and `average_precision_tolerance`. `balanced_accuracy`: the mean recall over classes; `f1`:
    the harmonic mean of recall and precision. Both use the most probable class. `sensitivity` and `specificity`: the
    fraction of a class's inputs that are predicted as this class, and of other inputs that are not; for two classes at
    the threshold, for more classes by the most probable class.

    For two classes, metrics that compare them are absent without inputs of both. `positive` is the index of the
    positive class; it is ignored for more than two classes.
    """
    found = dict[str, float]()
    confusion = sums["confusion"].numpy()
    each = [_ranked(*pair) for pair in by_class(sums, positive) if pair[0].any() and pair[1].any()]
    if each:
        found |= {name: float(np.mean([figures[name] for figures in each])) for name in each[0]}
    own = confusion.sum(1)
    present = own > 0
    if present.sum() > 1:
        found["balanced_accuracy"] = float(np.mean(np.diag(confusion)[present] / own[present]))
    two = len(confusion) == 2
    counted_f1 = np.arange(2) == positive if two else np.ones(len(own), dtype=bool)
    if (chosen := present & counted_f1).any():
        f1 = 2 * np.diag(confusion) / np.maximum(own + confusion.sum(0), 1)
        found["f1"] = float(f1[chosen].mean())
    return found | (shares(sums) if two else _one_against_rest(confusion, present))


def by_class(sums: Tensors, positive: int = 1) -> list[tuple[Counts, Counts]]:
    """Return per ranked class the (B,) histograms of inputs of other classes and of this one, lowest log-odds first."""
    ranks = sums["ranks"].double().numpy()
    if len(ranks) == 1 and positive == 0:
        return [(ranks[0, 1, ::-1], ranks[0, 0, ::-1])]
    return [(others, own) for others, own in ranks]


def _one_against_rest(confusion: Counts, present: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return means over classes with inputs, if there are at least two."""
    if present.sum() < 2:
        return {}
    own, right = confusion.sum(1), np.diag(confusion)
    others = own.sum() - own
    falsely = confusion.sum(0) - right
    return {
        "sensitivity": float((right / np.maximum(own, 1))[present].mean()),
        "specificity": float((1 - falsely / np.maximum(others, 1))[present].mean()),
    }


def _ranked(others: Counts, own: Counts) -> dict[str, float]:
    """Return the metrics of one class, highest log-odds first."""
    found = average_precision(own[::-1], others[::-1])
    return {
        "auroc": auroc(others, own),
        "auroc_tolerance": tie_tolerance(others, own),
        "average_precision": found,
        "average_precision_tolerance": _precision_tolerance(own[::-1], others[::-1], found),
    }


def _precision_tolerance(own: Counts, others: Counts, found: float) -> float:
    """Return the maximum difference between the average precision of the exact and of the binned scores, highest first.

    In a bin with p inputs of the class and q others, after P and N: at best all p are tied ahead of the q, so each is
    found at a precision of (P + p) / (P + p + N). At worst all p come one by one after the q, the j-th at (P + j) / (P
    + j + N + q); these add up to p - (N + q) (H(P + p + N + q) - H(P + N + q)), with the harmonic numbers H(a) =
    digamma(a + 1) + const.
    """
    filled = own > 0
    p, q = own[filled], others[filled]
    right, wrong = own.cumsum()[filled], others.cumsum()[filled]
    best = p * right / (right + wrong - q)
    worst = p - wrong * (digamma(right + wrong + 1) - digamma(right - p + wrong + 1))
    return float(max(best.sum() / own.sum() - found, found - worst.sum() / own.sum(), 0.0))


ENOUGH = 50
"""Minimum number of calibration inputs of either class for a silo to have its own threshold."""


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold, and the numbers of inputs on which it was chosen."""

    cut: int
    """The lowest bin that is predicted positive."""
    threshold: float
    """The probability of the positive class above which an input is predicted positive."""
    positives: int
    """Number of positive calibration inputs on which it was chosen; `negatives` is that of negative ones."""
    negatives: int

    @property
    def enough(self) -> bool:
        """Whether a silo has enough inputs for its own threshold."""
        return min(self.positives, self.negatives) >= ENOUGH


def operating_point(negative: Counts, positive: Counts, sensitivity: float | None = None) -> OperatingPoint | None:
    """Return the threshold for (B,) histograms of calibration inputs of either class, lowest log-odds of the positive
    class first.

    Without a `sensitivity`, it maximizes Youden's J, sensitivity plus specificity minus 1; if tied, it is the middle of
    the longest tied range. With one, it is the highest threshold that a new positive input, exchangeable with the P
    positive calibration inputs, reaches with at least this probability: the bin of the k-th lowest of these, k =
    floor((P + 1) (1 - sensitivity)), as in split conformal prediction. None if k = 0, because P is too small, or if a
    class has no inputs.
    """
    if not (positive.any() and negative.any()):
        return None
    if sensitivity is None:
        # J is compared in integers, so rounding has no effect.
        below = [np.concatenate([[0.0], each.cumsum()]) for each in (negative, positive)]
        gained = below[0] * positive.sum() - below[1] * negative.sum()
        best = np.flatnonzero(gained == gained.max())
        stretch = max(np.split(best, np.flatnonzero(np.diff(best) > 1) + 1), key=len)
        cut = int(stretch[len(stretch) // 2])
    else:
        k = math.floor((positive.sum() + 1) * (1 - sensitivity) + 1e-9)
        if not k:
            return None
        cut = int((positive.cumsum() < k).sum())
    # The lower edge of the bin: 0 for the lowest one, 1 beyond the highest.
    threshold = float(edges(2)[cut].sigmoid())
    return OperatingPoint(cut, threshold, int(positive.sum()), int(negative.sum()))


def called(point: OperatingPoint, negative: Counts, positive: Counts) -> Tensors:
    """Return `called` (2, 2), from (B,) histograms: how many inputs of either class (rows, the negative first) are
    predicted negative and positive. The counts of silos with different thresholds can be merged."""
    counts = [[each[: point.cut].sum(), each[point.cut :].sum()] for each in (negative, positive)]
    return {"called": torch.tensor(np.array(counts), dtype=torch.float64)}


def shares(sums: Tensors) -> dict[str, float]:
    """Return `sensitivity` and `specificity` at the threshold, if they are defined."""
    if "called" not in sums:
        return {}
    negative, positive = sums["called"].tolist()
    found = {"sensitivity": (positive[1], sum(positive)), "specificity": (negative[0], sum(negative))}
    return {name: right / total for name, (right, total) in found.items() if total}
