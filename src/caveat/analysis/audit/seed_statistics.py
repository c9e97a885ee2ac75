"""Statistics over the seeds of an audit: correlations, slopes, intervals and the jackknife."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...core.text import minus
from ...uncertainty.statistical_tests import ranks, student_quantile


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
    """Return the mean of the values that are not None; None without such values."""
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
    """A statistic of all seeds, and the same statistic without each seed (jackknife). It is for pairs of seeds, which
    are dependent: the jackknife counts a seed once (Arvesen, 1969), however many pairs it is in."""

    mean: float
    without: tuple[float, ...]

    @property
    def half(self) -> float:
        """Half the width of Student's 95 % interval with seeds - 1 degrees of freedom; infinite below three seeds."""
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
