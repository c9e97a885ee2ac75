"""Statistics over runs: means with intervals, differences with tests, and ranks.

Silos of one seed share a partition, initial weights and a model, so their metrics are not independent observations:
seeds are. Everything here is in closed form and draws no random numbers.

The interval of a method's mean describes retraining with other seeds on these silos and test inputs; silos are fixed.
If silos differ much more than seeds, an interval contains the mean over all possible silos less often than its level.
More seeds make this worse, because they narrow the interval for these silos only.

For a difference between two methods, seeds and test inputs are both random, because seeds share some or all inputs. A
test over seeds alone holds for these inputs only, and finds differences between methods that are equal on other inputs.
The mean difference therefore has the variance of a two-way random-effects design. The pairs of a comparison and the
contrasts of a table, which are fixed before the table is made, use the same estimate.

Metrics that are shares of n inputs are multiples of 1/n, so seeds can be equal by chance. With steps, the variance over
seeds is at least the variance of rounding to such steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..uncertainty.statistical_tests import holm, ranks, student_quantile, student_tail

Values = Mapping[int, Mapping[str, float]]
"""A value per seed and silo; NaN if a silo has none."""
Steps = Mapping[int, Mapping[str, float]]
"""The step of the value per seed and silo; 0 for none."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its confidence interval; NaN if unknown."""

    mean: float
    low: float
    high: float


def interval(values: Values, confidence: float = 0.95, steps: Steps | None = None) -> Interval:
    """Return the mean over seeds of the means over silos, with the interval of a bootstrap that resamples seeds and,
    within them, silos: Student's t times the bootstrap's standard error, which has a closed form.

    Let B be the variance of the seeds' means and W_s the variance of the K_s silos of seed s, both with Bessel's
    correction (which the plain bootstrap lacks). The square of the standard error is B / S + sum_s W_s / K_s / S^2, and
    the degrees of freedom are Satterthwaite's (1946). B includes W: counting W twice keeps the interval from collapsing
    if a few seeds agree by chance.

    Silos count as independent draws per seed; if seeds share silos, an interval for other silos would be wider.

    With one seed the interval is Student's over its silos and does not hold for other seeds; with one silo per seed,
    it is Student's over seeds. A single value has the interval NaN, NaN; without values the mean is NaN, too. If all
    values are equal and have no steps, the interval is a point. An infinite value makes the mean infinite and the ends
    NaN.
    """
    kept = {seed: sorted(silo for silo, value in silos.items() if value == value) for seed, silos in values.items()}
    figures = [_figures(silos) for silos in values.values()]
    return _interval(figures, confidence, _rounding(kept, steps))


def mean_ranks(methods: Mapping[str, Values], higher_is_better: bool) -> dict[str, float]:
    """Return each method's mean rank, 1 for the best, over the blocks of a seed and a silo in which all have a value;
    ties get their mean rank. NaN without such a block."""
    found = [
        {(seed, silo): value for seed, silos in values.items() for silo, value in silos.items() if value == value}
        for values in methods.values()
    ]
    blocks = sorted(set.intersection(*map(set, found))) if found else []
    if not blocks:
        return dict.fromkeys(methods, math.nan)
    table = np.array([[figures[block] for block in blocks] for figures in found])
    found_ranks = np.apply_along_axis(ranks, 0, -table if higher_is_better else table).mean(1)
    return dict(zip(methods, found_ranks.tolist(), strict=True))


def _figures(silos: Mapping[str, float]) -> Array:
    """Return a seed's values without NaN; sorted, so the result does not depend on the order of silos."""
    return np.array(sorted(value for value in silos.values() if not math.isnan(value)), dtype=np.float64)


def _rounding(kept: Mapping[int, Sequence[str]], steps: Steps | None) -> float:
    """Return the variance of a seed's mean over silos due to rounding, h^2 / 12 for a step of h; mean over seeds."""
    if steps is None:
        return 0.0
    found = [
        math.fsum(steps.get(seed, {}).get(silo, 0.0) ** 2 for silo in sorted(silos)) / 12 / len(silos) ** 2
        for seed, silos in kept.items()
        if silos
    ]
    return math.fsum(sorted(found)) / len(found) if found else 0.0


def _mean(values: Array) -> float:
    """Return the mean; NaN without a warning for infinities of both signs."""
    with np.errstate(invalid="ignore"):
        return float(values.mean())


def _interval(seeds: Sequence[Array], confidence: float, rounding: float = 0.0) -> Interval:
    # Sorted, so the result does not depend on the order of seeds.
    means = np.array(sorted(_mean(values) for values in seeds if len(values)), dtype=np.float64)
    if not len(means):
        return Interval(math.nan, math.nan, math.nan)
    mean, terms = _mean(means), _variances(seeds, means, rounding)
    if not terms:
        return Interval(mean, math.nan, math.nan)
    variance = sum(part for part, _ in terms)
    if variance == 0:
        return Interval(mean, mean, mean)
    # Shares are squared, because squares of variances underflow if values differ in their last digits only.
    freedom = 1 / sum((part / variance) ** 2 / degrees for part, degrees in terms)
    half = student_quantile((1 + confidence) / 2, freedom) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half)


def _variances(seeds: Sequence[Array], means: Array, rounding: float) -> list[tuple[float, int]]:
    """Return the independent parts of the mean's variance with their degrees of freedom."""
    if not np.isfinite(means).all():
        return []
    between = [(max(float(means.var(ddof=1)), rounding) / len(means), len(means) - 1)] if len(means) > 1 else []
    within = [
        (float(values.var(ddof=1)) / len(values) / len(means) ** 2, len(values) - 1)
        for values in seeds
        if len(values) > 1
    ]
    return between + sorted(within)


Whole = NDArray[np.int64]
Verdict = Literal["better", "worse", "equal", "not decided", ""]
LEVEL = 0.05
"""Family-wise error of the verdicts."""


@dataclass(frozen=True)
class SeedDifferences:
    """Differences between two methods with one seed."""

    inputs: Whole | None
    """(N,) ids of test inputs: an id is the same input with every seed. None if seeds are independent, for instance
    for values per silo that treat inputs as fixed."""
    silos: Whole
    """(N,) the number of the input's stratum: its silo, or a part of the silo's inputs."""
    values: Array
    """(N,) the first method's value minus the second's, such as 1 if only the first predicts the label. For a metric
    that is not a mean over inputs, each input's contribution to it (`caveat.metrics.contributions`)."""
    pooled: bool = False
    """Whether all inputs have equal weight, rather than all silos."""
    counts: Array | None = None
    """(N,) relative weights of the inputs, if neither inputs nor silos have equal weight."""
    steps: Array | float = 0.0
    """(N,) steps of the methods' values, such as 1 for correctness; 0 if they have none."""
    whole: float | None = None
    """The difference of the metric itself; None if it is the weighted mean of `values`."""

    @property
    def weights(self) -> Array:
        """(N,) the weights of the inputs, which sum to 1."""
        if self.counts is not None:
            shares: Array = self.counts / self.counts.sum()
            return shares
        if self.pooled:
            return np.full(len(self.values), 1 / len(self.values))
        counts = np.bincount(self.silos)
        return 1 / (counts[self.silos] * np.count_nonzero(counts))

    @property
    def mean(self) -> float:
        """The difference with this seed."""
        return float(self.weights @ self.values) if self.whole is None else self.whole

    @property
    def rounding(self) -> float:
        """The variance of the difference due to rounding both methods' means of a stratum to steps h: h^2 / 12 each."""
        counts = np.bincount(self.silos)
        steps = np.bincount(self.silos, self.weights * self.steps) / np.maximum(counts, 1)
        return 2 * float((steps**2).sum()) / 12


@dataclass(frozen=True)
class Difference:
    """A mean difference between two methods, with its standard error."""

    mean: float
    error: float
    """Its standard error; NaN if unknown, 0 if all seeds have the same difference."""
    freedom: float
    """Degrees of freedom: one less than the number of seeds, or fewer with few test inputs."""

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the differences that a test at this confidence does not reject; NaN without a test."""
        if math.isnan(self.p_different()):
            return math.nan, math.nan
        half = student_quantile((1 + confidence) / 2, self.freedom) * self.error
        return self.mean - half, self.mean + half

    def p_different(self) -> float:
        """Return the two-sided p-value of no difference; NaN if all seeds have the same difference other than 0."""
        if self.error == 0:
            return 1.0 if self.mean == 0 else math.nan
        return 2 * student_tail(abs(self.mean) / self.error, self.freedom)

    def p_equal(self, margin: float) -> float:
        """Return the p-value of a difference beyond the margin, by two one-sided tests (Schuirmann, 1987)."""
        if self.error == 0:
            return math.nan
        low = student_tail((self.mean + margin) / self.error, self.freedom)
        high = student_tail(-(self.mean - margin) / self.error, self.freedom)
        return max(low, high)


def estimate(seeds: Sequence[SeedDifferences]) -> Difference:
    """Return the mean over seeds of the differences, and its standard error with random seeds and inputs.

    The variance has two parts: the variance over seeds, and the covariance of seeds that share inputs. The latter is
    the sum of products of an input's deviations with different seeds (two-way clustering: Cameron, Gelbach & Miller,
    2011), unbiased after multiplication by S / (S - 1) and, at a silo of n inputs, n / (n - 1), and at least 0. The
    total is at least the variance of rounding. Deviations are from the mean of the seed's silo, because silos are
    fixed. Silos with a single input are treated as one silo, which is conservative (collapsed strata: Cochran, 1977).
    If seeds share nothing, this is a paired t test over seeds.

    The degrees of freedom are the number of seeds minus one or, if fewer, the degrees of freedom of inputs
    (Satterthwaite's, for inputs of equal variance). The error is NaN with fewer than two seeds, for differences that
    are not finite, and if only one silo has a single input.
    """
    means = np.array([seed.mean for seed in seeds])
    count, mean = len(seeds), _mean(means) if seeds else math.nan
    if count < 2 or not np.isfinite(means).all():
        return Difference(mean, math.nan, max(count - 1, 1))
    # Equal means may have a positive variance by rounding.
    by_seed = 0.0 if np.ptp(means) == 0 else float(means.var(ddof=1)) / count
    rounding = float(np.mean([seed.rounding for seed in seeds])) / count
    together, freedom = _together(seeds)
    return Difference(mean, math.sqrt(max(by_seed + together, rounding)), min(freedom, count - 1))


def _together(seeds: Sequence[SeedDifferences]) -> tuple[float, float]:
    """Return the covariance of seeds that share inputs, at least 0, and its degrees of freedom."""
    shared = [seed.inputs for seed in seeds if seed.inputs is not None]
    count = len(seeds)
    if len(shared) < count:
        return 0.0, math.inf
    deviations, freedoms = zip(*map(_deviations, seeds), strict=True)
    inputs = np.unique(np.concatenate(shared), return_inverse=True)[1].reshape(-1)
    off = np.concatenate(deviations) / count
    together = float((np.bincount(inputs, off) ** 2).sum() - (off**2).sum()) * count / (count - 1)
    return max(together, 0.0), min(freedoms)  # NaN stays NaN


def _deviations(seed: SeedDifferences) -> tuple[Array, float]:
    """Return (N,) weighted deviations of inputs from the mean of their silo, times sqrt(n / (n - 1)), and the degrees
    of freedom of their squares. NaN for both if only one silo has a single input."""
    counts = np.bincount(seed.silos)
    silos = np.where(counts[seed.silos] > 1, seed.silos, len(counts))
    sizes = np.bincount(silos)
    if 1 in sizes:
        return np.full(len(silos), math.nan), math.nan
    weights, filled = seed.weights, sizes > 0
    parts = weights * seed.values
    means = np.bincount(silos, parts) / np.maximum(sizes, 1)
    variances = np.bincount(silos, weights**2)[filled]
    freedom = float(variances.sum() ** 2 / (variances**2 / (sizes[filled] - 1)).sum())
    of_inputs = sizes[silos]
    return (parts - means[silos]) * np.sqrt(of_inputs / (of_inputs - 1)), freedom


def simultaneous(differences: Sequence[Difference], confidence: float = 1 - LEVEL) -> list[tuple[float, float, float]]:
    """Return for each difference the ends of its interval and its p-value, by Bonferroni's method, which holds under
    any dependence.

    With m differences that can be tested, an interval has level 1 - (1 - confidence) / m, so all hold simultaneously at
    the confidence, and a p-value is m times the p-value of the single test, at most 1. It is below 1 - confidence if
    the interval excludes 0. All numbers of other differences are NaN.
    """
    ps = [each.p_different() for each in differences]
    tested = max(sum(not math.isnan(p) for p in ps), 1)
    ends = [each.interval(1 - (1 - confidence) / tested) for each in differences]
    return [(*each, p if math.isnan(p) else min(1.0, tested * p)) for each, p in zip(ends, ps, strict=True)]


def verdicts(estimates: Sequence[Difference], margins: Sequence[float]) -> list[tuple[float, float, Verdict]]:
    """Return for each contrast the p-values of no difference and of no equality, Holm-corrected over all contrasts and
    both questions, and the verdict at 5 %: "better", "worse", "equal" (within the margin) or "not decided".

    A significant difference that is significantly within the margin is "equal".
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


def reported_intervals(estimates: Sequence[Difference], decided: Sequence[Verdict]) -> list[tuple[float, float]]:
    """Return the interval to print next to each verdict: at 95 % or, without a decision, corrected for all contrasts
    and both questions by Bonferroni's method. The latter contains 0, because Holm's method rejects what Bonferroni's
    does."""
    corrected = 1 - LEVEL / (2 * max(len(estimates), 1))
    return [
        each.interval(corrected if verdict == "not decided" else 1 - LEVEL)
        for each, verdict in zip(estimates, decided, strict=True)
    ]
