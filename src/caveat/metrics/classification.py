"""How well predictions tell classes, in the figures that clinicians and engineers ask for, from sums that merge.

Everything is computed from `class_sums`, so figures over several silos need no score of any input. Within a bin scores
are tied, as in scikit-learn, whose figures of the binned scores these are. Of the exact scores they can differ by no
more than the tolerance that comes with them, which follows from the same sums.

Of two classes one is positive, and figures are of it. Of several each is taken against the rest, and a figure is the
mean over classes of which there are inputs. What is undefined, since a class has no inputs, is absent.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from ..core import Tensors
from .operating import shares
from .ranking import auroc, average_precision, tie_tolerance

Counts = npt.NDArray[np.float64]


def classification(sums: Tensors, positive: int = 1) -> dict[str, float]:
    """Figures of predictions, from `class_sums` and, of two classes, the counts `called` of a threshold.

    `auroc`: the probability that an input of a class has a higher probability of it than one of others, ties half;
    `average_precision`: as scikit-learn's, without interpolation. Each with the most that binning can have changed it
    by: `auroc_tolerance`, `average_precision_tolerance`.
    `balanced_accuracy`: the mean over classes of the share of their inputs that is predicted right; `f1`: the harmonic
    mean of that share and of the share of a class's predictions that are right. Both are of the most probable class.
    `sensitivity` and `specificity`: of inputs of a class the share that is called so, and of others the share that is
    not: of two classes at the threshold, of several by the most probable class.

    Of two classes, those that compare them are absent without inputs of both. `positive` is the index of the positive
    one, and not looked at where there are several.
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
    """For each class that is ranked, the (B,) histograms of inputs of others and of its own, lowest log-odds first."""
    ranks = sums["ranks"].double().numpy()
    if len(ranks) == 1 and positive == 0:
        return [(ranks[0, 1, ::-1], ranks[0, 0, ::-1])]
    return [(others, own) for others, own in ranks]


def _one_against_rest(confusion: Counts, present: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Means over classes that are present, where these are two or more."""
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
    """The figures of one class, highest log-odds first."""
    found = average_precision(own[::-1], others[::-1])
    return {
        "auroc": auroc(others, own),
        "auroc_tolerance": tie_tolerance(others, own),
        "average_precision": found,
        "average_precision_tolerance": _precision_tolerance(own[::-1], others[::-1], found),
    }


def _precision_tolerance(own: Counts, others: Counts, found: float) -> float:
    """The most by which the average precision of the exact scores can differ from that of bins, highest first.

    In a bin with p inputs of the class and q others, after P and N: at best all p are tied ahead of the q, so that each
    is found at a precision of (P + p) / (P + p + N). At worst they come one by one after the q, the j-th at
    (P + j) / (P + j + N + q); these add up to p - (N + q) (H(P + p + N + q) - H(P + N + q)), with the harmonic numbers
    H(a) = digamma(a + 1) + const.
    """
    filled = own > 0
    p, q = own[filled], others[filled]
    right, wrong = own.cumsum()[filled], others.cumsum()[filled]
    best = p * right / (right + wrong - q)
    worst = p - wrong * (digamma(right + wrong + 1) - digamma(right - p + wrong + 1))
    return float(max(best.sum() / own.sum() - found, found - worst.sum() / own.sum(), 0.0))
