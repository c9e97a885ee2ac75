"""How well an uncertainty score ranks errors above correct answers, and unknown inputs above known ones.

Everything is computed from the additive histograms `score.NAME`, so metrics over several silos need no score of any
input. Scores in the same bin are tied, so no metric depends on the order of inputs, and metrics equal scikit-learn's
for the binned scores. Metrics of the exact scores differ by at most the reported tolerance, which follows from the same
sums: half the share of pairs in the same bin for an AUROC.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from ..core import Tensors
from ..uncertainty import histograms

Counts = npt.NDArray[np.float64]
POINTS = 100
"""Maximum number of points of a curve."""


def errors(sums: Tensors, score: str = "total") -> dict[str, float]:
    """Return how well a score separates wrong answers from correct ones, and the gain of answering only the most
    certain inputs.

    `auroc_error`: the probability that a wrong answer has a higher score than a correct one (ties count half).
    `fpr95_error`: as `fpr95` of `ood_detection`, where wrong answers are to be flagged. Both, and
    `auroc_error_tolerance`, are absent unless there are both wrong and correct answers. `aurc`: the mean selective risk
    (share of wrong answers among those given) over the n coverages 1/n ... 1, its expectation if a tie is broken at
    random. `eaurc`: `aurc` minus its value for a score that ranks all wrong answers last (Geifman et al., ICLR 2019,
    without their approximation). `augrc`: the area under the generalized risk, the share of inputs that are answered
    and wrong, over coverage (Traub et al., NeurIPS 2024, arXiv 2407.01032); for an error rate of e, the best value is
    e^2 / 2, and chance gives e / 2. `coverage_at_1`, `coverage_at_5`: the largest share of inputs that a threshold can
    answer at a selective risk of at most 1 % or 5 %; 0 if no threshold can. `risk_at_80`: the selective risk of the
    strictest threshold that answers 80 % or more. A threshold answers whole bins, without interpolation.

    The result is empty without examples. Raises ValueError for a score that was not measured.
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

    `auroc`: the probability that an outside input has a higher score than an inside one (ties count half); and
    `auroc_tolerance`. `fpr95`: the smallest share of inside inputs flagged by a threshold "flag this score and higher"
    that flags 95 % or more of the outside inputs, without interpolation. `aupr_out`: average precision for outside
    inputs (no interpolation, as in scikit-learn); `aupr_in`: for inside inputs, the most certain first. Both depend on
    `share_out`, the share of outside inputs: chance gives `share_out` and 1 - `share_out`.

    The result is empty unless there are inputs of both kinds. Raises ValueError for a score that was not measured.
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
        raise ValueError(f"score {score!r} was not measured; measured scores: {', '.join(known)}")
    return sums[f"score.{score}"].numpy()


def _occupied(sums: Tensors, score: str) -> Counts:
    """Return (2, B): the histograms of `_histograms` without empty bins, the most certain first."""
    counts = _histograms(sums, score)
    return counts[:, counts.any(0)]


def _curve(correct: Counts, wrong: Counts) -> tuple[Counts, Counts]:
    """Return coverage and selective risk of the thresholds above one of (B,) occupied bins."""
    answered = (correct + wrong).cumsum()
    return answered / answered[-1], wrong.cumsum() / answered


def auroc(negative: Counts, positive: Counts) -> float:
    """Return the probability that a positive input scores above a negative one (ties count half), from (B,) bins."""
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
