"""What a run says of test inputs, and the statistics that findings are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core import Prediction, SiloId
from ...uncertainty.distributions import ranks, student_quantile

LOGITS = "logit_variance"
"""The variance of logits under a posterior of the last layer."""
KEPT = ("total", "aleatoric", "epistemic", "vacuity", LOGITS)
"""The uncertainties that are looked at, where a prediction has them."""


@dataclass(frozen=True)
class Observation:
    """What one run's predictor says of the N test inputs of one silo."""

    probs: Tensor  # (N, C) float64
    y: Tensor  # (N,) int64, -1 for none
    uncertainty: Mapping[str, Tensor]  # (N,) float64 each, names of KEPT
    uncalibrated: Tensor | None = None  # (N, C) float64, probabilities before a temperature, if others than `probs`

    @classmethod
    def of(cls, prediction: Prediction, y: Tensor) -> Observation:
        kept = {name: prediction.uncertainty[name].double() for name in KEPT if name in prediction.uncertainty}
        return cls(prediction.probs.double(), y, kept, prediction.uncalibrated.double())

    @property
    def label(self) -> Tensor:
        """(N,) the most probable class."""
        return self.probs.argmax(-1)

    def means(self) -> dict[str, float]:
        """Accuracy on the inputs that have a label, and the mean of every uncertainty over all."""
        accuracy = int((self.label == self.y).sum()) / max(int((self.y >= 0).sum()), 1)
        return {"accuracy": accuracy} | {name: float(values.mean()) for name, values in self.uncertainty.items()}


Observed = Mapping[SiloId, Observation]
"""What one run says of every silo's test inputs."""


def mean_over_silos(run: Observed) -> dict[str, float]:
    """The silos' means, each silo with the same weight; of what every silo has."""
    means = [observation.means() for observation in run.values()]
    return {name: float(np.mean([mean[name] for mean in means])) for name in means[0] if all(name in m for m in means)}


def has(runs: Sequence[Observed], name: str) -> bool:
    """Whether every silo of every run has that uncertainty."""
    return all(name in observation.uncertainty for run in runs for observation in run.values())


def rank_correlation(a: Tensor, b: Tensor) -> float | None:
    """Spearman's, of (N,) and (N,); None where one of them is constant or not finite, which ranks nothing."""
    one, other = a.numpy(), b.numpy()
    if not (np.isfinite(one).all() and np.isfinite(other).all()) or min(np.ptp(one), np.ptp(other)) == 0:
        return None
    return float(np.asarray(np.corrcoef(ranks(one), ranks(other)))[1, 0])


def partial_correlation(ab: float, ac: float, bc: float) -> float:
    """The correlation of a and b beyond what c says of both, from the three correlations; 0 where a or b is c."""
    left = (1 - ac**2) * (1 - bc**2)
    return (ab - ac * bc) / math.sqrt(left) if left > 1e-12 else 0.0


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def rank_shares(values: Tensor) -> Tensor:
    """(N,) float64 in (0, 1): the shares of inputs below each one, ties broken by position."""
    return (values.argsort(stable=True).argsort().double() + 0.5) / len(values)


def ends(mean: float, half: float) -> dict[str, object]:
    """What a record has of a number and half the width of its interval: no end that is infinite."""
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
        """Half the width of Student's 95 % interval for the mean; infinite for fewer than two seeds."""
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
        same = f"{lowest:z.2f}" == f"{highest:z.2f}"
        return f"{self.mean:z.2f}" + ("" if same else f" ({lowest:z.2f} to {highest:z.2f} over seeds)")


@dataclass(frozen=True)
class Jackknifed:
    """A statistic of all seeds together, and the same statistic without each one of them.

    For what is of pairs of seeds, which share seeds and so are not independent: the jackknife counts a seed once
    (Arvesen, 1969), however many pairs it is in, so that the interval narrows as seeds are added.
    """

    mean: float
    without: tuple[float, ...]

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval, by Student's t with one degree fewer than there are seeds; infinite
        where leaving a seed out leaves no pair."""
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
    """The positions of all but one of so many, each left out in turn."""
    return [[i for i in range(count) if i != left] for left in range(count)]


def log_log_slope(n: Sequence[float], values: Sequence[float]) -> float:
    """The exponent b of the least-squares fit values = a n^b, all positive, on logarithms."""
    return float(np.polyfit(np.log(n), np.log(values), 1)[0])


def stacked(runs: Sequence[Observed], silo: SiloId) -> Tensor:
    """(S, N, C) class probabilities of S runs for the same test inputs."""
    return torch.stack([run[silo].probs for run in runs])
