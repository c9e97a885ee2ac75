"""Conformal prediction sets: as few classes as hold the true one with a promised probability.

Split conformal prediction (Vovk, Gammerman & Shafer, 2005) with the least ambiguous sets (LAC; Sadinle, Lei &
Wasserman, JASA 2019): a class is in the set if its probability is large enough, which gives the smallest sets on
average for probabilities that are right. Adaptive sets (APS, RAPS) cover hard inputs more evenly, but are larger, and
need a random number per input or cover too much. A class is compared by minus the logarithm of its probability, which
orders classes as LAC does and has fine bins where histograms are added up.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .histograms import histogram, quantile
from .quantiles import finite_sample_quantile

SCORE = "surprise"
"""What the score is called: -log p of a class, in nats, binned as such."""

SLACK = 1e-5
"""Rounding errors of a surprise, at most, beside what it is."""


def surprise(probs: Tensor, y: Tensor) -> Tensor:
    """(N,) float64 nats: -log p of labels (N,) under probabilities (N, C); infinite where one is no number."""
    return -probs.double().gather(1, y[:, None]).squeeze(1).nan_to_num(nan=0.0).log()


def surprise_histogram(probs: Tensor, y: Tensor) -> Tensor:
    """(4096,) float64 counts, which add up over silos."""
    return histogram(SCORE, surprise(probs, y))


def threshold(scores: Tensor, coverage: float) -> float:
    """The largest surprise of a class in a set, from the scores (n,) of one silo; infinite for too few of them.

    With some room for rounding: equal inputs have equal sets, in whatever company they are asked.
    """
    limit = finite_sample_quantile(scores, coverage)
    return limit + SLACK * (1 + limit)


def merged_threshold(counts: Tensor, coverage: float) -> float:
    """The same from the sum (4096,) of silos' histograms, up to the width of a bin on the safe side."""
    return quantile(SCORE, counts, coverage)


def prediction_sets(probs: Tensor, label: Tensor, limit: float) -> Tensor:
    """(N, C) bool: the classes whose surprise is at most `limit`, and always the predicted label (N,).

    All classes where a probability is no number.
    """
    # An infinite limit is kept and sent as the largest number there is.
    within = -probs.double().log() <= (math.inf if limit >= torch.finfo(torch.float64).max else limit)
    within |= ~probs.isfinite().all(-1, keepdim=True)
    return within | torch.nn.functional.one_hot(label, probs.shape[1]).bool()
