"""Predictions of runs on test inputs, and the statistics of findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core import Prediction, SiloId
from ...core.text import minus
from ...uncertainty.statistical_tests import ranks, student_quantile

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
        """(N,) the most probable class."""
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
    """Return whether every silo of every run has the uncertainty."""
    return all(name in observation.uncertainty for run in runs for observation in run.values())


def rank_correlation(a: Tensor, b: Tensor) -> float | None:
    """Return Spearman's correlation of (N,) and (N,); None if one of them is constant or not finite."""
    one, other = a.numpy(), b.numpy()
    if not (np.isfinite(one).all() and np.isfinite(other).all()) or min(np.ptp(one), np.ptp(other)) == 0:
        return None
    return float(np.asarray(np.corrcoef(ranks(one), ranks(other)))[1, 0])


def partial_correlation(ab: float, ac: float, bc: float) -> float:
    """Return the partial correlation of a and b given c, from the three correlations; 0 if a or b is c."""
    left = (1 - ac**2) * (1 - bc**2)
    return (ab - ac * bc) / math.sqrt(left) if left > 1e-12 else 0.0


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def ends(mean: float, half: float) -> dict[str, object]:
    """Return the ends of an interval for a record, with None if infinite."""
    return {"mean": mean, **({"low": mean - half, "high": mean + half} if math.isfinite(half) else {})}


@dataclass(frozen=True)
class Spread:
    """One number per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def half(self) -> float:
        """Half the width of Student's 95 % interval of the mean; infinite for fewer than two seeds."""
        count = len(self.values)
        if count < 2:
            return math.inf
        return student_quantile(0.975, count - 1) * float(np.std(self.values, ddof=1)) / math.sqrt(count)

    @property
    def interval(self) -> tuple[float, float]:
        return self.mean - self.half, self.mean + self.half

    @property
    def record(self) -> dict[str, object]:
        return ends(self.mean, self.half) | {"by_seed": list(self.values)}

    def __str__(self) -> str:
        lowest, highest = min(self.values), max(self.values)
        mean, low, high = (minus(f"{value:.2f}") for value in (self.mean, lowest, highest))
        return mean + ("" if low == high else f" ({low} to {high} over seeds)")


@dataclass(frozen=True)
class Jackknifed:
    """A statistic of all seeds, and the same statistic without each seed (jackknife). For statistics of pairs of seeds,
    which are dependent: the jackknife counts a seed once (Arvesen, 1969), however many pairs it is in."""

    mean: float
    without: tuple[float, ...]

    @property
    def half(self) -> float:
        """Half the width of Student's 95 % interval with a degree of freedom less than seeds; infinite below three."""
        count = len(self.without)
        if count < 3:
            return math.inf
        error = math.sqrt((count - 1) * float(np.var(self.without)))
        return student_quantile(0.975, count - 1) * error

    @property
    def interval(self) -> tuple[float, float]:
        return self.mean - self.half, self.mean + self.half

    @property
    def record(self) -> dict[str, object]:
        return ends(self.mean, self.half) | {"without_each_seed": list(self.without)}


def without_each(count: int) -> list[list[int]]:
    """Return the positions 0 to `count` - 1 without each one in turn."""
    return [[i for i in range(count) if i != left] for left in range(count)]


def log_log_slope(n: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent b of the log-log least-squares fit values = a n^b."""
    return float(np.polyfit(np.log(n), np.log(values), 1)[0])


def stacked(runs: Sequence[Observed], silo: SiloId) -> Tensor:
    """Return (S, N, C) class probabilities of S runs for the same test inputs."""
    return torch.stack([run[silo].probs for run in runs])
