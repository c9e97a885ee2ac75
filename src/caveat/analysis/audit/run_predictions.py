"""Predictions of an audit's runs on test inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core import Prediction, SiloId

LOGITS = "logit_variance"
"""The variance of logits under a posterior of the last layer."""
KEPT = ("total", "aleatoric", "epistemic", "vacuity", LOGITS)
"""The uncertainties that an audit uses, if predictions have them."""


@dataclass(frozen=True)
class Observation:
    """Predictions of one run for the N test inputs of one silo."""

    probs: Tensor  # (N, C) float64
    y: Tensor  # (N,) int64, -1 for none
    uncertainty: Mapping[str, Tensor]  # (N,) float64 each, names of KEPT
    uncalibrated: Tensor | None = None  # (N, C) float64, uncalibrated probabilities, if they differ from `probs`

    @classmethod
    def of(cls, prediction: Prediction, y: Tensor) -> Observation:
        kept = {name: prediction.uncertainty[name].double() for name in KEPT if name in prediction.uncertainty}
        return cls(prediction.probs.double(), y, kept, prediction.uncalibrated.double())

    @property
    def label(self) -> Tensor:
        """The most probable class (N,)."""
        return self.probs.argmax(-1)

    def means(self) -> dict[str, float]:
        """Return the accuracy on labelled inputs, and the mean of every uncertainty over all inputs."""
        accuracy = int((self.label == self.y).sum()) / max(int((self.y >= 0).sum()), 1)
        return {"accuracy": accuracy} | {name: float(values.mean()) for name, values in self.uncertainty.items()}


Observed = Mapping[SiloId, Observation]
"""The predictions of one run by silo."""


def mean_over_silos(run: Observed) -> dict[str, float]:
    """Return means over silos with equal weights, of the values that every silo has."""
    means = [observation.means() for observation in run.values()]
    return {name: float(np.mean([mean[name] for mean in means])) for name in means[0] if all(name in m for m in means)}


def has(runs: Sequence[Observed], name: str) -> bool:
    """Return whether every silo of every run has the uncertainty `name`."""
    return all(name in observation.uncertainty for run in runs for observation in run.values())


def stacked(runs: Sequence[Observed], silo: SiloId) -> Tensor:
    """Return (S, N, C) class probabilities of S runs for the same test inputs."""
    return torch.stack([run[silo].probs for run in runs])
