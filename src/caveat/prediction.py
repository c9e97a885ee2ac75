"""Predictions: what every method returns, always."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor


class Decision(IntEnum):
    """What to do with a prediction."""

    GLOBAL = 0
    """Trust the federation's model, which gave it."""
    LOCAL = 1
    """Trust the silo's own model, which gave it."""
    ABSTAIN = 2
    """Trust neither."""


def entropy(probs: Tensor) -> Tensor:
    """Shannon entropy in nats over the last axis: (..., C) to (...)."""
    terms: Tensor = torch.special.entr(probs)
    return terms.sum(-1)


@dataclass(frozen=True)
class Prediction:
    """Class probabilities for N inputs, how unsure they are and why, and what to do with them.

    Uncertainties are in nats and higher always means less certain: `total` is the entropy of the mean
    prediction, `aleatoric` the mean entropy of the sampled predictions (the data are ambiguous), and
    `epistemic` their difference, the mutual information (the input is unfamiliar).
    """

    probs: Tensor  # (N, C) float64, rows sum to one
    uncertainty: dict[str, Tensor]  # (N,) float64 each: total, aleatoric, epistemic, ...
    decision: Tensor  # (N,) int64 of Decision
    log_evidence: Tensor | None = None  # (N,) float64 where the method has one; rank by it
    sets: Tensor | None = None  # (N, C) bool, after conformal calibration

    @classmethod
    def from_samples(cls, samples: Tensor, decision: Decision | Tensor = Decision.GLOBAL) -> Prediction:
        """From (S, N, C) sampled class probabilities; one sample has no epistemic uncertainty."""
        samples = samples.double()
        probs = samples.mean(0)
        total, aleatoric = entropy(probs), entropy(samples).mean(0)
        if not isinstance(decision, Tensor):
            decision = torch.full(probs.shape[:1], int(decision))
        # Rounding may put the mean entropy an ulp above the entropy of the mean.
        epistemic = (total - aleatoric).clamp_min(0)
        return cls(probs, {"total": total, "aleatoric": total - epistemic, "epistemic": epistemic}, decision)

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def label(self) -> Tensor:
        """(N,) the most probable class."""
        return self.probs.argmax(-1)

    @property
    def total(self) -> Tensor:
        return self.uncertainty["total"]

    @property
    def aleatoric(self) -> Tensor:
        return self.uncertainty["aleatoric"]

    @property
    def epistemic(self) -> Tensor:
        return self.uncertainty["epistemic"]
