"""Metrics of predictions as sums that can be merged; a mean is taken once, at the end.

A silo sends sums, so that figures over several silos are exact and nobody sends a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from .core import Tensors
from .prediction import Decision, Prediction

BINS = 15
"""Equal-width bins of the top probability, for the expected calibration error."""


def measure(prediction: Prediction, y: Tensor) -> Tensors:
    """The additive sums of N predictions for labels `y` (N,), float64.

    nll in nats, brier over all classes (range 0 to 2), entropies in nats, and per bin of the top
    probability the count, the sum of top probabilities and the number of correct labels.
    """
    probs = prediction.probs.double()
    top, label = probs.max(-1)
    correct = (label == y).double()
    target = torch.nn.functional.one_hot(y, probs.shape[1])
    likelihood = probs[torch.arange(len(y)), y]
    bins = (top * BINS).long().clamp_max(BINS - 1)

    def per_bin(values: Tensor) -> Tensor:
        return torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, values)

    return {
        "examples": torch.tensor(len(y), dtype=torch.float64),
        "correct": correct.sum(),
        "nll": -likelihood.clamp_min(torch.finfo(torch.float64).tiny).log().sum(),
        "brier": (probs - target).square().sum(),
        "entropy": prediction.total.sum(),
        "aleatoric": prediction.aleatoric.sum(),
        "epistemic": prediction.epistemic.sum(),
        "bin_count": per_bin(torch.ones_like(top)),
        "bin_confidence": per_bin(top),
        "bin_correct": per_bin(correct),
        "decisions": torch.bincount(prediction.decision, minlength=len(Decision)).double(),
    }


def rank(prediction: Prediction, y: Tensor) -> dict[str, float]:
    """How well the total uncertainty ranks a silo's errors above its correct answers.

    `auroc_error` (higher is better; ties count half) and `augrc`, the area under the generalised
    risk-coverage curve (lower is better; Traub et al., NeurIPS 2024), by its closed form in AUROC and
    accuracy. Empty where all are right or all are wrong.
    """
    wrong = (prediction.label != y).numpy()
    error = float(wrong.mean())
    if error in (0.0, 1.0):
        return {}
    auroc = float(roc_auc_score(wrong, prediction.total.numpy()))
    return {"auroc_error": auroc, "augrc": (1 - auroc) * error * (1 - error) + error**2 / 2}


def merge(parts: Iterable[Tensors]) -> Tensors:
    """The sums of several silos together."""
    first, *rest = parts
    total = {name: tensor.clone() for name, tensor in first.items()}
    for part in rest:
        for name, tensor in part.items():
            total[name] += tensor
    return total


def figures(sums: Tensors) -> dict[str, Any]:
    """The figures that the sums stand for: means per example, and the calibration error."""
    n = float(sums["examples"])
    means = {name: float(sums[name]) / n for name in ("nll", "brier", "entropy", "aleatoric", "epistemic")}
    return {"accuracy": float(sums["correct"]) / n, **means, "ece": ece(sums)}


def ece(sums: Tensors) -> float:
    """Expected calibration error over equal-width bins (Guo et al., 2017)."""
    return float((sums["bin_confidence"] - sums["bin_correct"]).abs().sum() / sums["examples"])


def ece_null(sums: Tensors, draws: int = 2000) -> dict[str, float]:
    """The ECE that a perfectly calibrated model with the same confidences would show, for so few examples.

    Its mean and 95 % quantile over `draws` redrawn sets of labels, the confidences of a bin taken as equal.
    An ECE below `upper` is no evidence of miscalibration.
    """
    count, confidence = sums["bin_count"].numpy(), sums["bin_confidence"].numpy()
    share = np.divide(confidence, count, out=np.zeros_like(count), where=count > 0)
    correct = np.random.default_rng(0).binomial(count.astype(int), share.clip(0, 1), (draws, len(count)))
    null = np.abs(confidence - correct).sum(1) / count.sum()
    return {"mean": float(null.mean()), "upper": float(np.quantile(null, 0.95))}


def reliability(sums: Tensors) -> dict[str, list[float]]:
    """Per bin: how many, the sum of their top probabilities, and how many were right."""
    return {name: sums[f"bin_{name}"].tolist() for name in ("count", "confidence", "correct")}


def decisions(sums: Tensors) -> dict[str, float]:
    """The share of each decision."""
    shares = (sums["decisions"] / sums["examples"]).tolist()
    return {decision.name.lower(): shares[decision] for decision in Decision}
