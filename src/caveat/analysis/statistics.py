"""Statistics over runs: means with intervals, differences, ranks, and contrasts that were fixed beforehand.

Silos of one seed share a partition, initial weights and a model, so their metrics are not independent observations:
seeds are. Everything here is in closed form and draws no random numbers.

Intervals and tests are about models trained again, with other seeds, on these silos. Seeds share much or all of their
test inputs, so nothing but a contrast knows what other inputs would change; and silos are those at hand. If silos
differ by ten times as much as seeds do, an interval holds the mean of all possible silos in 70 to 79 % of cases with 3
seeds and in 45 to 51 % with 10 (5 to 20 silos): more seeds say more of these silos, and no more of others.

Metrics that count inputs come in steps, of 1/n for n inputs: seeds may agree to the last digit by chance. `Steps` says
how large they are; the variance over seeds is then taken to be at least the variance that rounding to such steps makes.

A contrast compares two methods of a table and is fixed before the table is made, with a margin within which the methods
are equal. Seeds train models anew and test inputs are drawn from a population, so both are random. An interval over
seeds alone holds for these inputs, and finds differences between methods that are alike on others. The mean difference
of a contrast therefore has the variance of a two-way random effects design.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..uncertainty.distributions import ranks, student_quantile, student_tail

Values = Mapping[int, Mapping[str, float]]
"""Per seed and silo, one figure; NaN where a silo has none."""
Steps = Mapping[int, Mapping[str, float]]
"""Per seed and silo, the step in which the figure comes, 0 for none."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its confidence interval; NaN where there is too little to say."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """The mean of paired differences, its interval, and the p-value of there being none."""

    p: float


def interval(values: Values, confidence: float = 0.95, steps: Steps | None = None) -> Interval:
    """Mean over seeds of the means over silos, with the interval of a bootstrap that resamples seeds and, within them,
    silos: Student's t times its standard error. That has a closed form, so nothing is drawn.

    With B the variance of the seeds' means and W_s that of the K_s silos of seed s, all with Bessel's correction at
    their own level (which the plain bootstrap lacks, and with few seeds badly needs), the standard error's square is
    B / S + sum_s W_s / K_s / S^2, and the degrees of freedom are Satterthwaite's (1946). W is in B already: what is
    counted twice keeps the interval from collapsing where a few seeds happen to agree.

    Coverage of nominal 95 %, measured with normal effects of seeds and of silos within them (5, 9, 20 silos; effects of
    seeds from none to far above those of silos): 88-99 % with 2 seeds, 93-99 % with 3, 95-99 % with 5 or more; about
    the same for exponential effects of silos. The percentile bootstrap's is 52-96 % with 2 seeds, 74-97 % with 3. Silos
    count as drawn anew with every seed: an interval for other silos than these if seeds share them would be wider.

    With one seed the interval is Student's over its silos, and says nothing of other seeds; with one silo per seed,
    Student's over seeds. A single figure has no interval: NaN, NaN; no figure at all no mean either. Where all figures
    are equal, and come in no steps, the interval is a point. An infinite figure makes the mean infinite and the ends
    NaN.
    """
    kept = {seed: sorted(silo for silo, value in silos.items() if value == value) for seed, silos in values.items()}
    figures = [_figures(silos) for silos in values.values()]
    return _interval(figures, confidence, _rounding(kept, steps))


def paired(a: Values, b: Values, confidence: float = 0.95, steps: Steps | None = None) -> Difference:
    """The mean of a - b on the seeds and silos that have a figure in both, with p and interval of a paired t test.

    Differences come first, so that what a silo or a seed does to both methods cancels. The test is two-sided, over the
    seeds' mean differences, and the interval is of those that it would not reject: the two never disagree. Seeds are
    its unit since silos of a seed share a model: a test over silos finds differences in any two runs. With one seed
    the interval is Student's over its silos, and p is NaN.

    Where seeds give equal differences, t has nothing to compare them with: without `steps` p and interval are NaN,
    unless all are zero (p = 1). With them, the variance is at least that of two figures rounded to such steps. Without
    that floor seeds tie by chance: among 6 methods that are all alike, on 31 test inputs and with 2 seeds, some pair
    has p < 0.05 after Holm's correction in two of three cases; with it in none, and in 5 % at most with 3 to 10 seeds.

    What few seeds mean: to be found at p < 0.05 in four cases of five, a difference has to be 3.3 standard deviations
    of the seeds' mean differences with 3 seeds, 1.7 with 5 and 1.0 with 10, before any correction for many pairs.
    That no difference was found among 3 seeds is no evidence that there is none.
    """
    shared = {seed: _in_both(a[seed], b[seed]) for seed in a if seed in b}
    both = [
        np.array(sorted(a[seed][k] - b[seed][k] for k in silos), dtype=np.float64) for seed, silos in shared.items()
    ]
    means = _means(both)
    if len(means) < 2 or not np.isfinite(means).all():
        return Difference(**vars(_interval(both, confidence)), p=math.nan)
    mean, spread = _mean(means), float(means.var(ddof=1))
    # Equal means, which are sorted here, may have a variance above 0 by rounding.
    variance = max(0.0 if means[0] == means[-1] else spread, 2 * _rounding(shared, steps))
    if variance == 0:
        return Difference(mean, 0.0, 0.0, 1.0) if mean == 0 else Difference(mean, math.nan, math.nan, math.nan)
    error, freedom = math.sqrt(variance / len(means)), len(means) - 1
    half = student_quantile((1 + confidence) / 2, freedom) * error
    return Difference(mean, mean - half, mean + half, 2 * student_tail(abs(mean) / error, freedom))


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's method (1979), in the order given: the chance of any false finding
    among them is at most the threshold, however they depend on each other. NaN stays NaN and does not count.
    """
    order = sorted((i for i, p in enumerate(ps) if not math.isnan(p)), key=lambda i: ps[i])
    corrected, largest = [math.nan] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * ps[i]))
        corrected[i] = largest
    return corrected


def mean_ranks(methods: Mapping[str, Values], higher_is_better: bool) -> dict[str, float]:
    """Each method's mean rank, 1 for the best, over the blocks of a seed and a silo in which all of them have a figure;
    ties share the mean of their ranks. NaN if there is no such block.
    """
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
    """A seed's figures without NaN; sorted, so that the order of silos changes no bit."""
    return np.array(sorted(value for value in silos.values() if not math.isnan(value)), dtype=np.float64)


def _in_both(a: Mapping[str, float], b: Mapping[str, float]) -> list[str]:
    """The silos that have both figures; two infinities differ by NaN, which is kept."""
    return [silo for silo in a if silo in b and not math.isnan(a[silo]) and not math.isnan(b[silo])]


def _rounding(kept: Mapping[int, Sequence[str]], steps: Steps | None) -> float:
    """The variance of a seed's mean over silos that rounding to steps makes: h^2 / 12 for a step of h, as of a number
    that may lie anywhere within it; mean over seeds."""
    if steps is None:
        return 0.0
    found = [
        math.fsum(steps.get(seed, {}).get(silo, 0.0) ** 2 for silo in sorted(silos)) / 12 / len(silos) ** 2
        for seed, silos in kept.items()
        if silos
    ]
    return math.fsum(sorted(found)) / len(found) if found else 0.0


def _means(seeds: Sequence[Array]) -> Array:
    """The seeds' means, without the seeds that have nothing; sorted, so that the order of seeds changes no bit."""
    return np.array(sorted(_mean(values) for values in seeds if len(values)), dtype=np.float64)


def _mean(values: Array) -> float:
    """The mean; NaN, without a warning, of infinities of both signs."""
    with np.errstate(invalid="ignore"):
        return float(values.mean())


def _interval(seeds: Sequence[Array], confidence: float, rounding: float = 0.0) -> Interval:
    """`interval` of the figures of each seed."""
    means = _means(seeds)
    if not len(means):
        return Interval(math.nan, math.nan, math.nan)
    mean, terms = _mean(means), _variances(seeds, means, rounding)
    if not terms:
        return Interval(mean, math.nan, math.nan)
    variance = sum(part for part, _ in terms)
    if variance == 0:
        return Interval(mean, mean, mean)
    # Shares instead of squares of variances, which underflow where figures differ in their last digits only.
    freedom = 1 / sum((part / variance) ** 2 / degrees for part, degrees in terms)
    half = student_quantile((1 + confidence) / 2, freedom) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half)


def _variances(seeds: Sequence[Array], means: Array, rounding: float) -> list[tuple[float, int]]:
    """The independent parts of the mean's variance, and the degrees of freedom of each."""
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
CONTRAST_LEVEL = 0.05


@dataclass(frozen=True)
class SeedDifferences:
    """What one seed's test inputs say of a difference between two methods."""

    inputs: Whole
    """(N,) which input it is: the same number is the same input with every seed."""
    silos: Whole
    """(N,) the number of its silo, or of what part of a silo's inputs it is drawn from."""
    values: Array
    """(N,) what the first method has more than the second, such as 1 for a label that it alone has right."""
    pooled: bool = False
    """Whether every input counts as much as any other, rather than every silo."""
    counts: Array | None = None
    """(N,) what each input counts beside the others, where it is neither."""

    @property
    def weights(self) -> Array:
        """(N,) what each input counts; they add up to 1."""
        if self.counts is not None:
            shares: Array = self.counts / self.counts.sum()
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
    if p_equal < CONTRAST_LEVEL:
        return "equal"
    if p_different < CONTRAST_LEVEL:
        return "better" if mean > 0 else "worse"
    return "not decided"
