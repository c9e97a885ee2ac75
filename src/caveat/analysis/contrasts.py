"""Contrasts that decide: two methods of a table, said before it was made, with a margin within which they are equal.

Seeds train models anew and test inputs are drawn from a population, so that both are random; silos are those at hand.
Seeds share test inputs: an interval over seeds alone holds for these inputs, and finds differences among methods that
are alike on others. Here a mean difference has the variance of a two-way random effects design.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..uncertainty.distributions import student_quantile, student_tail
from .statistics import holm

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Verdict = Literal["better", "worse", "equal", "not decided", ""]
LEVEL = 0.05


@dataclass(frozen=True)
class SeedDifferences:
    """What one seed's test inputs say of a difference between two methods."""

    inputs: Whole
    """(N,) which input it is: the same number is the same input with every seed."""
    silos: Whole
    """(N,) the number of its silo, or of what part of a silo's inputs it is drawn from."""
    values: Floats
    """(N,) what the first method has more than the second, such as 1 for a label that it alone has right."""
    pooled: bool = False
    """Whether every input counts as much as any other, rather than every silo."""
    counts: Floats | None = None
    """(N,) what each input counts beside the others, where it is neither."""

    @property
    def weights(self) -> Floats:
        """(N,) what each input counts; they add up to 1."""
        if self.counts is not None:
            shares: Floats = self.counts / self.counts.sum()
            return shares
        if self.pooled:
            return np.full(len(self.values), 1 / len(self.values))
        counts = np.bincount(self.silos)
        return 1 / (counts[self.silos] * np.count_nonzero(counts))


@dataclass(frozen=True)
class ContrastEstimate:
    """A mean difference and what is known of it."""

    mean: float
    error: float
    """Its standard error."""
    freedom: int
    """Degrees of freedom: one less than seeds."""

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        half = student_quantile((1 + confidence) / 2, self.freedom) * self.error
        return self.mean - half, self.mean + half

    def p_different(self) -> float:
        """Of there being no difference, two-sided."""
        return 2 * student_tail(abs(self.mean) / self.error, self.freedom)

    def p_equal(self, margin: float) -> float:
        """Of a difference that is not within the margin: the larger of two one-sided tests (Schuirmann, 1987)."""
        low = student_tail((self.mean + margin) / self.error, self.freedom)
        high = student_tail(-(self.mean - margin) / self.error, self.freedom)
        return max(low, high)


def estimate(seeds: Sequence[SeedDifferences]) -> ContrastEstimate:
    """The mean over seeds of the weighted means over inputs, and its standard error where seeds and inputs are random.

    The variance over seeds has all that differs from seed to seed. What seeds have in common beside that is the
    covariance of their means, as far as they share inputs: the sum of products of the deviations that an input has with
    different seeds (as in two-way clustering: Cameron, Gelbach & Miller, 2011), which is unbiased times S / (S - 1).
    Below 0 it counts as 0, and the whole is no less than what counting inputs makes of it. A deviation is from the mean
    of its silo, since silos are those at hand.

    Student's t has one degree of freedom less than seeds: too few rather than too many, as inputs are far more. NaN
    with fewer than two seeds.
    """
    means = np.array([float(seed.weights @ seed.values) for seed in seeds])
    count, mean = len(seeds), float(means.mean()) if seeds else math.nan
    if count < 2:
        return ContrastEstimate(mean, math.nan, max(count - 1, 1))
    by_seed = float(means.var(ddof=1)) / count
    parts = np.concatenate([seed.weights * seed.values / count for seed in seeds])
    weights = np.concatenate([seed.weights / count for seed in seeds])
    inputs = np.unique(np.concatenate([seed.inputs for seed in seeds]), return_inverse=True)[1].reshape(-1)
    silos = np.concatenate([seed.silos for seed in seeds])
    of_silos = np.bincount(silos, parts) / np.maximum(np.bincount(silos, weights), np.finfo(float).tiny)
    off = parts - weights * of_silos[silos]
    together = float((np.bincount(inputs, off) ** 2).sum() - (off**2).sum()) * count / (count - 1)
    variance = max(by_seed + max(together, 0.0), _counted(seeds))
    return ContrastEstimate(mean, math.sqrt(variance), count - 1)


def _counted(seeds: Sequence[SeedDifferences]) -> float:
    """The variance that rounding two counts of inputs makes: seeds tie by chance, and have none of their own then."""
    return 2 * float(np.mean([(seed.weights**2).sum() / len(seed.values) for seed in seeds])) / 12 / len(seeds)


def verdicts(estimates: Sequence[ContrastEstimate], margins: Sequence[float]) -> list[tuple[float, float, Verdict]]:
    """Of each contrast the p-values of no difference and of no equality, as Holm corrects them over all contrasts of a
    table and both questions, and the verdict at 5 %: "better" or "worse" where there is a difference, "equal" where it
    is within the margin, else "not decided".

    A difference that is surely there and surely within the margin is called "equal": it is too small to matter.
    """
    different = [each.p_different() for each in estimates]
    equal = [each.p_equal(margin) for each, margin in zip(estimates, margins, strict=True)]
    corrected = holm([*different, *equal])
    found = zip(estimates, corrected[: len(different)], corrected[len(different) :], strict=True)
    return [(p, q, _verdict(each.mean, p, q)) for each, p, q in found]


def _verdict(mean: float, p_different: float, p_equal: float) -> Verdict:
    if p_equal < LEVEL:
        return "equal"
    if p_different < LEVEL:
        return "better" if mean > 0 else "worse"
    return "not decided"
