"""Conformal prediction sets: the smallest sets of classes that contain the true class with a guaranteed probability.

Split conformal prediction (Vovk, Gammerman & Shafer, 2005) with the least ambiguous sets (LAC; Sadinle, Lei &
Wasserman, JASA 2019): a class is in the set if its probability is large enough, which gives the smallest sets on
average for correct probabilities. Adaptive sets (APS, RAPS) cover easy and hard inputs more evenly, but are larger, and
need a random number per input or cover too much. The score of a class is the negative logarithm of its probability,
which has the same order as in LAC and fine bins in histograms.
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
    """Return (4096,) float64 counts of the surprises of labels (N,), which add up over silos."""
    return histogram(SCORE, surprise(probs, y))


def threshold(scores: Tensor, coverage: float) -> float:
    """Return the largest surprise of a class in a set, from the scores (n,) of one silo; infinite for too few scores.
    It includes a tolerance for rounding, so equal inputs have equal sets in any batch."""
    limit = finite_sample_quantile(scores, coverage)
    return limit + SLACK * (1 + abs(limit))


def merged_threshold(counts: Tensor, coverage: float) -> float:
    """Return the threshold from the sum (4096,) of silos' histograms, conservative by at most the width of a bin."""
    return quantile(SCORE, counts, coverage)


def surprise_by_class(probs: Tensor, y: Tensor) -> Tensor:
    """Return (C, 4096) float64 counts of the surprises of labels (N,) of each class, which add up over silos."""
    classes = probs.shape[1]
    return torch.bincount(y * BINS + bins(SCORE, surprise(probs, y)), minlength=classes * BINS).double().view(-1, BINS)


def shifted_threshold(counts: Tensor, shares: Tensor, coverage: float) -> float:
    """Return the largest surprise of a class in a set, for inputs with class frequencies `shares` (C,), from counts (C,
    4096).

    The counted inputs may have other frequencies. The result is an upper edge of a bin, infinite for too few inputs of
    a frequent class.

    Weighted conformal prediction under label shift (Tibshirani et al., NeurIPS 2019; Podkopaev & Ramdas, UAI 2021):
    each of the n_y inputs of class y has weight p(y) / (n_y + 1), and each class has one more input with that weight at
    infinity. So the threshold is the smallest t for which sum_y p(y) #{i of class y: score_i <= t} / (n_y + 1) reaches
    the coverage.

    If the class frequencies are p, and the scores of a class are exchangeable with the counted ones, a new score is at
    most t with a probability of at least `coverage`, for any n_y, because this holds class by class: on average, the
    fraction of the n_y + 1 scores within the threshold is at most the probability that a new score is within it. (Leave
    out each of the n_y + 1 scores in turn: the threshold of the others is the same, or at most one of them higher.)
    """
    weights = shares.double().cpu() / (counts.sum(1).cpu() + 1)
    within = (weights @ counts.double().cpu()).cumsum(0) < coverage * (1 - 1e-12)
    reached = int(within.sum())
    return float(edges(SCORE)[1:][reached]) if reached < BINS else math.inf


def prediction_sets(probs: Tensor, label: Tensor, limit: Tensor | float) -> Tensor:
    """Return (N, C) bool: the classes whose surprise is at most `limit`, and the predicted label (N,) in any case.

    The limit is one number, (N, 1) one per input, or (C,) one per class. If a probability is NaN, the set has all
    classes.
    """
    # An infinite limit is stored and sent as the largest number.
    limit = beside(torch.as_tensor(limit, dtype=torch.float64), probs)
    limit = limit.masked_fill(limit >= torch.finfo(torch.float64).max, math.inf)
    within = -probs.double().log() <= limit
    within |= ~probs.isfinite().all(-1, keepdim=True)
    return within | torch.nn.functional.one_hot(label, probs.shape[1]).bool()
