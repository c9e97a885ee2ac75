"""Conformal prediction sets: the smallest sets of classes that hold the true one with a guaranteed probability.

Split conformal prediction (Vovk, Gammerman & Shafer, 2005) with the least ambiguous sets (LAC; Sadinle, Lei &
Wasserman, JASA 2019): a class is in the set if its probability is large enough, which gives the smallest sets on
average for correct probabilities. Adaptive sets (APS, RAPS) cover hard inputs more evenly, but are larger, and need a
random number per input or cover too much. The score of a class is minus the logarithm of its probability, which orders
classes as LAC does and has fine bins for histograms.
"""

import math

import torch
from torch import Tensor

from .histograms import BINS, beside, bins, edges, finite_sample_quantile, histogram, quantile

SCORE = "surprise"
"""Name of the score: -log p of a class, in nats, with its own bins."""

SLACK = 1e-5
"""Maximum relative rounding error of a surprise."""


def surprise(probs: Tensor, y: Tensor) -> Tensor:
    """Return (N,) float64 nats: -log p of labels (N,) under probabilities (N, C); infinite for NaN."""
    return -probs.double().gather(1, y[:, None]).squeeze(1).nan_to_num(nan=0.0).log()


def surprise_histogram(probs: Tensor, y: Tensor) -> Tensor:
    """Return (4096,) float64 counts, which add up over silos."""
    return histogram(SCORE, surprise(probs, y))


def threshold(scores: Tensor, coverage: float) -> float:
    """Return the largest surprise of a class in a set, from the scores (n,) of one silo; infinite for too few of them.

    With some tolerance for rounding: equal inputs have equal sets, whatever the batch.
    """
    limit = finite_sample_quantile(scores, coverage)
    return limit + SLACK * (1 + limit)


def merged_threshold(counts: Tensor, coverage: float) -> float:
    """Return the same from the sum (4096,) of silos' histograms, conservative by at most the width of a bin."""
    return quantile(SCORE, counts, coverage)


def surprise_by_class(probs: Tensor, y: Tensor) -> Tensor:
    """Return (C, 4096) float64 counts of the surprises of labels (N,) of each class, which add up over silos."""
    classes = probs.shape[1]
    return torch.bincount(y * BINS + bins(SCORE, surprise(probs, y)), minlength=classes * BINS).double().view(-1, BINS)


def shifted_threshold(counts: Tensor, shares: Tensor, coverage: float) -> float:
    """Return the largest surprise of a class in a set for inputs with class shares (C,), from counts (C, 4096).

    The counted inputs may have other shares. The result is an upper edge of a bin, infinite for too few inputs of a
    frequent class.

    Weighted conformal prediction under label shift (Tibshirani et al., NeurIPS 2019; Podkopaev & Ramdas, UAI 2021): an
    input of class y weighs p(y) / (n_y + 1) if n_y are of that class, the ratio of its shares here and there, and each
    class keeps the weight of one more input, which is placed at infinity. So the threshold is the smallest t at which
    sum_y p(y) #{i of class y: score_i <= t} / (n_y + 1) is the coverage.

    If the classes' shares are p, and the scores of a class are exchangeable with those counted, a new score is at most
    t with a probability of at least `coverage`, whatever the numbers n_y are, since this holds class by class: the
    threshold's share of the n_y + 1 scores is, on average, no larger than the chance that a new one is within it.
    (Leave one of the n_y + 1 out in turn: the others' threshold is either that of all, or at most one of them higher.)
    """
    weights = shares.double().cpu() / (counts.sum(1).cpu() + 1)
    within = (weights @ counts.double().cpu()).cumsum(0) < coverage * (1 - 1e-12)
    reached = int(within.sum())
    return float(edges(SCORE)[1:][reached]) if reached < BINS else math.inf


def prediction_sets(probs: Tensor, label: Tensor, limit: Tensor | float) -> Tensor:
    """Return (N, C) bool: the classes whose surprise is at most `limit`, and always the predicted label (N,).

    The limit is one number, (N, 1) one for each input, or (C,) one for each class. All classes if a probability is NaN.
    """
    # An infinite limit is kept and sent as the largest number.
    limit = beside(torch.as_tensor(limit, dtype=torch.float64), probs)
    limit = limit.masked_fill(limit >= torch.finfo(torch.float64).max, math.inf)
    within = -probs.double().log() <= limit
    within |= ~probs.isfinite().all(-1, keepdim=True)
    return within | torch.nn.functional.one_hot(label, probs.shape[1]).bool()
