"""Confidence and accuracy of a run: checks of their agreement, each with the number of inputs that it rests on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import NamedTuple

from ...core.text import decimal, percent, plural
from ...files import RunFolder
from ...files.schema import Metrics, Reliability, SiloRecord
from ...uncertainty.statistical_tests import binomial_tail, normal_tail, poisson_tail

LEVEL = 0.05
"""Significance level of all checks of confidence together; also the probability that a calibrated silo's ECE is above
its chance band."""
MATERIAL = 0.05
"""Pooled ECE less that of chance, or difference of confidence and accuracy, below which an error is small."""
_RESOLVED = 0.05
"""Maximum upper end of the chance band with which the ECE is judged: smaller calibration errors can go unnoticed."""
_SPREAD = 3.0
"""Minimum variance with which the number of correct predictions is about normal."""


@dataclass(frozen=True)
class SiloConfidence:
    """A silo's accuracy and mean confidence."""

    silo: SiloRecord
    inputs: int
    accuracy: float
    confidence: float

    @property
    def judged(self) -> bool:
        """Whether a chance band is known."""
        return self.silo.test.ece is not None and self.silo.test.ece_null is not None

    @property
    def off(self) -> bool:
        """Whether confidence and accuracy differ by more than chance explains."""
        return self.silo.test.ece_above_chance

    @property
    def over(self) -> bool:
        """Whether confidence exceeds accuracy."""
        return self.confidence > self.accuracy


@dataclass(frozen=True)
class SureErrors:
    """The errors among the predictions in the highest bin of confidence."""

    wrong: int
    inputs: int
    confidence: float
    """Their mean confidence."""
    above: float
    """The lower edge of the bin."""

    @property
    def expected(self) -> float:
        """The number of errors that the confidence predicts."""
        return self.inputs * (1 - self.confidence)

    @property
    def p(self) -> float:
        """Probability of at least as many errors if the confidence is right."""
        return poisson_tail(self.wrong, max(self.expected, 1e-9))

    @property
    def too_many(self) -> bool:
        """Whether there are at least twice as many errors as predicted."""
        return self.wrong >= 2 * self.expected


class Check(NamedTuple):
    """A comparison of confidence with accuracy: the finding, and its p-value if the confidence is right."""

    p: float
    over: bool
    """Whether confidence exceeds accuracy."""
    large: bool
    text: str
    size: float = 1.0
    """The ECE less that of chance (at silos: less its upper limit), or the difference of confidence and accuracy."""
    silos: bool = False
    """Whether silos are counted, rather than all inputs compared."""


@dataclass(frozen=True)
class Confidence:
    """Agreement of a run's confidence with its accuracy on the test split."""

    silos: Sequence[SiloConfidence]
    """In ascending order of accuracy."""
    bins: Reliability
    """The bins of all inputs."""
    pooled: Metrics

    @cached_property
    def judged(self) -> list[SiloConfidence]:
        return [one for one in self.silos if one.judged]

    @cached_property
    def off(self) -> list[SiloConfidence]:
        """The silos whose confidence is off by more than chance."""
        return [one for one in self.judged if one.off]

    @property
    def rates(self) -> tuple[int, float, float]:
        """The number of inputs, their mean confidence and their accuracy."""
        return _rates(self.bins, len(self.bins.count))

    @cached_property
    def tested(self) -> list[Check | None]:
        """All checks; None for each that the inputs do not allow."""
        return [self._sure(), self._silos(), self._whole(), self._mean(), self._below()]

    @cached_property
    def checks(self) -> list[Check]:
        """The checks, the most significant first; each p-value is corrected for the number of all (Bonferroni)."""
        return sorted(each._replace(p=min(1.0, len(self.tested) * each.p)) for each in self.tested if each)

    @property
    def kind(self) -> str:
        """ "bad" for large overconfidence, "open" for other errors; without errors, "good" if inputs suffice to find
        them and no check is nearly significant, otherwise "unknown"."""
        if self.p < LEVEL:
            return "bad" if self.over and any(each.large for each in self.found) else "open"
        return "good" if self.resolved and not self.near else "unknown"

    @property
    def p(self) -> float:
        """The smallest corrected p-value; 1 without any check."""
        return self.checks[0].p if self.checks else 1.0

    @property
    def near(self) -> bool:
        """Whether the most significant check would be significant without the correction for the number of checks."""
        return self.p < LEVEL * len(self.tested)

    @property
    def over(self) -> bool:
        """Whether a significant check finds large overconfidence or, without such a check, the most significant check
        finds any overconfidence."""
        return any(each.over and each.large and each.p < LEVEL for each in self.checks) or self.checks[0].over

    @property
    def found(self) -> list[Check]:
        """The significant checks in the direction of `over`."""
        return [each for each in self.checks if each.p < LEVEL and each.over == self.over]

    @property
    def resolved(self) -> bool:
        """Whether there are enough inputs to notice a calibration error that matters."""
        return self.pooled.ece_null is not None and self.pooled.ece_null.upper <= _RESOLVED

    def _sure(self) -> Check | None:
        """Compare the errors in the highest bin with the number that its confidence predicts."""
        if (sure := _sure_errors(self.bins)) is None:
            return None
        expected = f"{sure.expected:.1f}" if sure.expected < 10 else f"{sure.expected:.0f}"
        text = f"of the {plural(sure.inputs, 'prediction')} with confidence above {sure.above:.2f} (on average "
        text += f"{percent(sure.confidence)}), {sure.wrong:,} {'is' if sure.wrong == 1 else 'are'} wrong, where "
        text += f"{expected} were expected"
        return Check(sure.p, True, sure.too_many, text)

    def _silos(self) -> Check | None:
        """Compare the number of silos whose confidence is off with the 5 % that chance explains."""
        over = sum(one.over for one in self.off)
        off = max(over, len(self.off) - over)
        if not off or len(self.judged) < 2:
            return None
        how = "overconfident" if over == off else "underconfident"
        chance = f"by chance, {LEVEL * len(self.judged):.2g} are over- or underconfident"
        are = "is" if off == 1 else "are"
        text = f"{off} of {plural(len(self.judged), 'silo')} {are} {how} beyond chance ({chance})"
        beyond = [each.ece - each.ece_null.upper for one in self.off if (each := one.silo.test).ece and each.ece_null]
        size = sum(beyond) / len(beyond)
        p = binomial_tail(len(self.off), len(self.judged), LEVEL)
        return Check(p, over == off, size >= MATERIAL, text, size, silos=True)

    def _whole(self) -> Check | None:
        """Compare the ECE of all inputs with that of a calibrated model, which is about normal."""
        ece, band = self.pooled.ece, self.pooled.ece_null
        if ece is None or band is None or band.upper <= band.mean:
            return None
        p = normal_tail(1.645 * (ece - band.mean) / (band.upper - band.mean))
        _, confidence, accuracy = self.rates
        text = f"the ECE over all inputs is {decimal(ece)}, where chance explains up to {decimal(band.upper)}"
        return Check(p, confidence > accuracy, ece - band.mean >= MATERIAL, text, ece - band.mean)

    def _mean(self) -> Check | None:
        return _of_rates(self.bins, len(self.bins.count), f"the {self.rates[0]:,} predictions")

    def _below(self) -> Check | None:
        below = len(self.bins.count) - 1
        n = sum(self.bins.count[:below])
        if n == self.rates[0]:  # these are all predictions
            return None
        whose = f"the {n:,} predictions below the highest of {below + 1} bins of confidence ({below / (below + 1):.2f})"
        return _of_rates(self.bins, below, whose)


def _rates(bins: Reliability, end: int) -> tuple[int, float, float]:
    """Return the number of inputs in the first bins, their mean confidence and their accuracy."""
    n = sum(bins.count[:end])
    return n, sum(bins.confidence[:end]) / max(n, 1), sum(bins.correct[:end]) / max(n, 1)


def _of_rates(bins: Reliability, end: int, whose: str) -> Check | None:
    """Compare accuracy with mean confidence in the first bins; None for too few inputs."""
    n, confidence, accuracy = _rates(bins, end)
    means = [(c, total / c) for c, total in zip(bins.count[:end], bins.confidence[:end], strict=True) if c]
    variance = sum(c * mean * (1 - mean) for c, mean in means)
    if variance < _SPREAD:
        return None
    p = 2 * normal_tail(n * abs(confidence - accuracy) / math.sqrt(variance))
    text = f"{whose} are {percent(confidence)} sure on average and {percent(accuracy)} right"
    size = abs(confidence - accuracy)
    return Check(p, confidence > accuracy, size * n >= MATERIAL * sum(bins.count), text, size)


def silos_off(run: RunFolder) -> dict[str, str]:
    """Return the silos whose ECE is above chance and whose errors are more or fewer than their mean confidence
    predicts, beyond chance at 5 % over all silos, with the observed and the expected number."""
    told = dict[str, str]()
    for each in filter(None, map(_of_silo, run.silos)):
        wrong, expected = round((1 - each.accuracy) * each.inputs), max((1 - each.confidence) * each.inputs, 1e-9)
        p = poisson_tail(wrong, expected) if each.over else 1 - poisson_tail(wrong + 1, expected)
        if each.off and 2 * len(run.silos) * p < LEVEL:
            told[each.silo.name] = f"{wrong:,} errors, where {expected:.1f} were expected"
    return told


def confidence(run: RunFolder) -> Confidence | None:
    """Return the comparison of confidence and accuracy; None for a run without bins of confidence or chance bands."""
    found = [each for silo in run.silos if (each := _of_silo(silo))]
    summary = run.summary
    if summary is None or not found or not any(each.judged for each in found):
        return None
    bins = reduce(add, (each.silo.reliability for each in found if each.silo.reliability))
    ordered = sorted(found, key=lambda each: (each.accuracy, -each.confidence))
    return Confidence(ordered, bins, summary.pooled)


def _of_silo(silo: SiloRecord) -> SiloConfidence | None:
    bins = silo.reliability
    if bins is None or silo.test.accuracy is None or not (count := sum(bins.count)):
        return None
    return SiloConfidence(silo, silo.n_test or count, silo.test.accuracy, sum(bins.confidence) / count)


def _sure_errors(bins: Reliability) -> SureErrors | None:
    wrong, inputs = bins.count[-1] - bins.correct[-1], bins.count[-1]
    return SureErrors(wrong, inputs, bins.confidence[-1] / inputs, 1 - 1 / len(bins.count)) if wrong else None
