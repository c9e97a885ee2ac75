"""Calibration: whether predictions with a probability of p are correct in a fraction p of cases."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core import Tensors

BINS = 15
"""Number of equal-width bins of a probability, for expected calibration errors."""


def calibration_sums(probs: Tensor, y: Tensor) -> Tensors:
    """Return additive sums of (N, C) float64 class probabilities, for labels (N,) that are classes of the model.

    Per bin of the top probability (`bin_...`, (15,)) and, for every class, per bin of its own probability
    (`class_bin_...`, (C, 15)): the count, the sum of the probabilities, and how often the class was correct.
    """
    top, label = probs.max(-1, keepdim=True)
    each = y[:, None] == torch.arange(probs.shape[1], device=y.device)
    names = ("count", "confidence", "correct")
    pooled = zip(names, _binned(top, label == y[:, None]), strict=True)
    by_class = zip(names, _binned(probs, each), strict=True)
    return {f"bin_{name}": t[0] for name, t in pooled} | {f"class_bin_{name}": t for name, t in by_class}


def _binned(probs: Tensor, correct: Tensor) -> list[Tensor]:
    """Return (K, 15) counts and sums of (N, K) probabilities, and how often they belong to the correct class."""
    columns = probs.shape[1]
    bins = (probs * BINS).long().clamp_max(BINS - 1) + BINS * torch.arange(columns, device=probs.device)
    weights, none = (torch.ones_like(probs), probs, correct.double()), probs.new_zeros(columns * BINS)
    if not len(probs):
        return [none.long().view(columns, BINS)] * len(weights)  # without inputs the type is int64
    # Not bincount, which is not reproducible on GPUs with weights.
    return [none.index_add(0, bins.flatten(), each.flatten()).view(columns, BINS) for each in weights]


def ece(sums: Tensors) -> float:
    """Return the expected calibration error over equal-width bins (Guo et al., 2017). It is defined if `known` > 0."""
    return float((sums["bin_confidence"] - sums["bin_correct"]).abs().sum() / sums["known"])


def ece_classwise(sums: Tensors) -> float:
    """Return the classwise calibration error: the ECE of each class's own probability, averaged over all classes. Kull
    et al., NeurIPS 2019, Eq. 3. It is defined if `known` > 0."""
    gaps = (sums["class_bin_confidence"] - sums["class_bin_correct"]).abs().sum(-1)
    return float(gaps.mean() / sums["known"])


def ece_null(sums: Tensors, draws: int = 2000) -> dict[str, float]:
    """Return the ECE that a perfectly calibrated model with the same confidences shows on this number of examples.

    `mean` and the 95 % quantile `upper` are over `draws` redrawn sets of labels, with equal confidences within a bin.
    An ECE below `upper` is not evidence of miscalibration. The result is empty if no label is a class of the model.
    """
    count, confidence = sums["bin_count"].numpy(), sums["bin_confidence"].numpy()
    if not count.any():
        return {}
    null = _drawn(count, confidence, draws)
    return {"mean": float(null.mean()), "upper": float(np.quantile(null, 0.95))}


class EceTest(NamedTuple):
    """An ECE compared with the ECE of a perfectly calibrated model with the same confidences."""

    excess: float
    """Difference between the ECE and the mean ECE of such a model, which is above 0 by chance."""
    deviation: float
    """Standard deviation of the ECE of such a model."""
    p: float
    """Probability that the ECE of such a model is at least as large."""


def ece_test(
    count: Sequence[float], confidence: Sequence[float], correct: Sequence[float], draws: int = 9999
) -> EceTest:
    """Test an ECE with `draws` redrawn sets of labels, from the result of `reliability`; p is at least 1 / 10,000."""
    n, sums = np.array(count, dtype=np.float64), np.array(confidence, dtype=np.float64)
    null = _drawn(n, sums, draws)
    found = float(np.abs(sums - np.array(correct)).sum() / n.sum())
    as_large = int((null >= found - 1e-12).sum())  # equal values may differ by rounding
    return EceTest(found - float(null.mean()), float(null.std()), (1 + as_large) / (1 + draws))


def _drawn(count: npt.NDArray[np.float64], confidence: npt.NDArray[np.float64], draws: int) -> npt.NDArray[np.float64]:
    """Return (draws,) ECEs of calibrated models, with these numbers of inputs and sums of confidences per bin."""
    share = np.divide(confidence, count, out=np.zeros_like(count), where=count > 0)
    correct = np.random.default_rng(0).binomial(count.astype(int), share.clip(0, 1), (draws, len(count)))
    return np.asarray(np.abs(confidence - correct).sum(1) / count.sum(), dtype=np.float64)


def reliability(sums: Tensors) -> dict[str, list[float]]:
    """Return per bin of the top probability: the count, the sum of the probabilities, and how often the class was
    correct."""
    return {name: sums[f"bin_{name}"].tolist() for name in ("count", "confidence", "correct")}
