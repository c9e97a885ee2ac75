"""How well an uncertainty score ranks, and classification metrics (AUROC, sensitivity, F1, ...), from sums that merge.

Scores rank errors above correct answers, and unknown inputs above known ones. Everything is computed from the additive
histograms `score.NAME` and from `class_sums`, so metrics over several silos need no score of any input. Scores in the
same bin are tied, so no metric depends on the order of inputs, and metrics equal scikit-learn's for the binned scores.
Metrics of the exact scores differ by at most the reported tolerance, which follows from the same sums: half the share
of pairs in the same bin for an AUROC.

With two classes, metrics are about the positive one. With more, each class is compared with the rest, and a metric is
the mean over classes with inputs. Undefined metrics, for classes without inputs, are absent. The threshold is chosen on
the histograms of calibration inputs, `ranks` of `class_sums`, and lies between two of their bins, so its results for
other inputs also follow from histograms.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import digamma

from ..core import Tensors
from ..uncertainty import histograms
from .sums import edges

Counts = npt.NDArray[np.float64]
POINTS = 100
"""Maximum number of points of a curve."""


def errors(sums: Tensors, score: str = "total") -> dict[str, float]:
    """Return how well a score separates wrong answers from correct ones, and the gain of answering only the most
    certain.

    `auroc_error`: the probability that a wrong answer has a higher score than a correct one, ties half. `fpr95_error`:
    as `fpr95` of `ood_detection`, with wrong answers to be flagged. Both, and `auroc_error_tolerance`, are absent
    unless there are both wrong and correct answers. `aurc`: the mean selective risk (share of wrong answers among those
    given) over the n coverages 1/n ... 1, its expectation if a tie is broken at random. `eaurc`: `aurc` minus its value
    for a score that ranks all wrong answers last (Geifman et al., ICLR 2019, without their approximation). `augrc`: the
    area under the generalized risk, the share of inputs that are answered and wrong, over coverage (Traub et al.,
    NeurIPS 2024, arXiv 2407.01032); for an error rate of e, the best value is e^2 / 2, and chance gives e / 2.
    `coverage_at_1`, `coverage_at_5`: the largest share of inputs that a threshold can answer at a selective risk of at
    most 1 % or 5 %; 0 if none can. `risk_at_80`: the selective risk of the strictest threshold that answers 80 % or
    more. A threshold answers whole bins, without interpolation.

    Empty without examples. Raises ValueError for a score that was not measured.
    """
    if "crps" in sums:
        return {}  # a quantity has no wrong answers
    correct, wrong = _occupied(sums, score)
    n = correct.sum() + wrong.sum()
    if not n:
        return {}
    found: dict[str, float] = {}
    if correct.any() and wrong.any():
        found = {
            "auroc_error": auroc(correct, wrong),
            "auroc_error_tolerance": tie_tolerance(correct, wrong),
            "fpr95_error": _fpr95(correct, wrong),
        }
    aurc = _aurc(correct, wrong)
    best = _aurc(*(np.array(each) for each in ([correct.sum(), 0], [0, wrong.sum()])))
    coverage, risk = _curve(correct, wrong)
    return found | {
        "aurc": aurc,
        "eaurc": max(aurc - best, 0.0),  # `best` may be larger by rounding
        "augrc": float((correct + wrong) @ (wrong.cumsum() - wrong / 2)) / n**2,
        "coverage_at_1": float(coverage[risk <= 0.01].max(initial=0)),
        "coverage_at_5": float(coverage[risk <= 0.05].max(initial=0)),
        "risk_at_80": float(risk[np.argmax(coverage >= 0.8)]),
    }


def ood_detection(inside_sums: Tensors, outside_sums: Tensors, score: str) -> dict[str, float]:
    """Return how well a score separates outside inputs (positive: they should be flagged) from inside inputs.

    `auroc`: the probability that an outside input has a higher score than an inside one, ties half; and
    `auroc_tolerance`. `fpr95`: the smallest share of inside inputs flagged by a threshold "flag this score and higher"
    that flags 95 % or more of the outside inputs, without interpolation. `aupr_out`: average precision for outside
    inputs (no interpolation, as in scikit-learn); `aupr_in`: for inside inputs, the most certain first. They depend on
    `share_out`, the share of outside inputs: chance gives `share_out` and 1 - `share_out`.

    Empty unless there are inputs of both kinds. Raises ValueError for a score that was not measured.
    """
    known, unknown = _histograms(inside_sums, score).sum(0), _histograms(outside_sums, score).sum(0)
    if not known.any() or not unknown.any():
        return {}
    return {
        "auroc": auroc(known, unknown),
        "auroc_tolerance": tie_tolerance(known, unknown),
        "fpr95": _fpr95(known, unknown),
        "aupr_out": average_precision(unknown[::-1], known[::-1]),
        "aupr_in": average_precision(known, unknown),
        "share_out": float(unknown.sum() / (known.sum() + unknown.sum())),
    }


def risk_coverage(sums: Tensors, score: str, classes: int | None = None) -> dict[str, list[float]]:
    """Return the selective risk over coverage, for plots: at most 100 points; empty lists without examples. Points are
    the first thresholds at or above each percent of coverage; the last has a coverage of 1. `max_uncertainty` are the
    thresholds of a score of predictions with `classes` classes: inputs with at most this score count as answered."""
    correct, wrong = _occupied(sums, score)
    if not len(correct):
        return {"coverage": [], "risk": [], "max_uncertainty": []}
    coverage, risk = _curve(correct, wrong)
    chosen = np.unique(np.searchsorted(coverage, np.arange(1, POINTS + 1) / POINTS))
    counts = _histograms(sums, score)
    upper = histograms.edges(score, classes)[:: histograms.BINS // counts.shape[1]][1:].numpy()
    limits = np.minimum(upper[counts.any(0)], upper[-2])[chosen]  # the last edge is infinite
    return {"coverage": coverage[chosen].tolist(), "risk": risk[chosen].tolist(), "max_uncertainty": limits.tolist()}


def _histograms(sums: Tensors, score: str) -> Counts:
    """Return (2, B): the histograms of the correct and the wrong answers."""
    if f"score.{score}" not in sums:
        known = sorted(name.removeprefix("score.") for name in sums if name.startswith("score."))
        raise ValueError(f"score {score!r} was not measured; there are: {', '.join(known)}")
    return sums[f"score.{score}"].numpy()


def _occupied(sums: Tensors, score: str) -> Counts:
    """Return (2, B): the same histograms without empty bins, the most certain first."""
    counts = _histograms(sums, score)
    return counts[:, counts.any(0)]


def _curve(correct: Counts, wrong: Counts) -> tuple[Counts, Counts]:
    """Return coverage and selective risk of the thresholds above one of (B,) occupied bins."""
    answered = (correct + wrong).cumsum()
    return answered / answered[-1], wrong.cumsum() / answered


def auroc(negative: Counts, positive: Counts) -> float:
    """Return the probability that a positive input scores higher than a negative one, ties half, from (B,) bins."""
    below = negative.cumsum() - negative / 2
    return float(positive @ below / (positive.sum() * negative.sum()))


def tie_tolerance(negative: Counts, positive: Counts) -> float:
    """Return the maximum difference from the AUROC of the exact scores: half the share of pairs in the same bin."""
    return float(positive @ negative / (positive.sum() * negative.sum())) / 2


def _fpr95(negative: Counts, positive: Counts) -> float:
    found = positive[::-1].cumsum() / positive.sum()
    flagged = negative[::-1].cumsum() / negative.sum()
    return float(flagged[np.argmax(found >= 0.95)])


def average_precision(positive: Counts, negative: Counts) -> float:
    """Return the average precision, from bins in the order in which they are predicted positive."""
    filled = (positive + negative) > 0
    positive, negative = positive[filled], negative[filled]
    precision = positive.cumsum() / (positive + negative).cumsum()
    return float(positive @ precision / positive.sum())


def _aurc(correct: Counts, wrong: Counts) -> float:
    """Return the area under the risk-coverage curve, from (B,) bins, the most certain first.

    In a bin of m inputs, q of them wrong, after a inputs with w wrong, the j-th input brings the expected risk to (w +
    j q / m) / (a + j) if the order in the bin is random. With j / (a + j) = 1 - a / (a + j), these add up to q + (w - a
    q / m) (H(a + m) - H(a)) over j = 1 ... m, with the harmonic numbers H(a) = digamma(a + 1) + const.
    """
    m = correct + wrong
    wrong, m = wrong[m > 0], m[m > 0]
    end = m.cumsum()
    harmonic = digamma(end + 1) - digamma(end - m + 1)
    before = wrong.cumsum() - wrong
    return float((wrong + (before - (end - m) * wrong / m) * harmonic).sum() / end[-1])


def classification(sums: Tensors, positive: int = 1) -> dict[str, float]:
    """Return metrics of predictions, from `class_sums` and, for two classes, the counts `called` at a threshold.

    `auroc`: the probability that an input of a class gets a higher probability for it than an input of another class,
    ties half; `average_precision`: as in scikit-learn, without interpolation. Each has the maximum effect of binning:
    `auroc_tolerance`, `average_precision_tolerance`. `balanced_accuracy`: the mean recall over classes; `f1`: the
    harmonic mean of recall and precision. Both use the most probable class. `sensitivity` and `specificity`: the
    fraction of a class's inputs that are predicted as this class, and of other inputs that are not; for two classes at
    the threshold, for more by the most probable class.

    For two classes, metrics that compare them are absent without inputs of both. `positive` is the index of the
    positive class, and ignored for more than two.
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
    found at a precision of (P + p) / (P + p + N). At worst they come one by one after the q, the j-th at (P + j) / (P +
    j + N + q); these add up to p - (N + q) (H(P + p + N + q) - H(P + N + q)), with the harmonic numbers H(a) =
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
    """A threshold, and the number of inputs that it was chosen on."""

    cut: int
    """The lowest bin that is predicted positive."""
    threshold: float
    """The probability of the positive class above which an input is predicted positive."""
    positives: int
    """Number of calibration inputs of either class that it was chosen on."""
    negatives: int

    @property
    def enough(self) -> bool:
        """Whether a silo has enough inputs for its own threshold."""
        return min(self.positives, self.negatives) >= ENOUGH


def operating_point(negative: Counts, positive: Counts, sensitivity: float | None = None) -> OperatingPoint | None:
    """Return the threshold for (B,) histograms of calibration inputs of either class, lowest log-odds of the positive
    class first.

    Without a `sensitivity`, it maximizes Youden's J, sensitivity plus specificity minus 1; if tied, it is the middle of
    the longest tied range. With one, it is the highest threshold that a new positive input, exchangeable with the P of
    calibration, reaches with at least this probability: the bin of the k-th lowest of them, k = floor((P + 1) (1 -
    sensitivity)), as in split conformal prediction. None if k = 0, because P is too small, and if a class has no
    inputs.
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
    """Return `called` (2, 2): how many inputs of either class (rows, the negative first) are predicted negative and
    positive. From their (B,) histograms. The counts of silos with different thresholds can be merged."""
    counts = [[each[: point.cut].sum(), each[point.cut :].sum()] for each in (negative, positive)]
    return {"called": torch.tensor(np.array(counts), dtype=torch.float64)}


def shares(sums: Tensors) -> dict[str, float]:
    """Return `sensitivity` and `specificity` at the threshold, if they are defined."""
    if "called" not in sums:
        return {}
    negative, positive = sums["called"].tolist()
    found = {"sensitivity": (positive[1], sum(positive)), "specificity": (negative[0], sum(negative))}
    return {name: right / total for name, (right, total) in found.items() if total}
