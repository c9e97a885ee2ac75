"""Whether confidence matches accuracy, silo by silo, and whether uncertainty tells errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

from ....core.text import percent
from ....files.run_folder import RunFolder
from ....files.schema.figures import Reliability
from ....files.schema.summary import SiloRecord
from ....uncertainty.distributions import binomial_tail, poisson_tail
from ...charts.diagrams import reliability_diagram, risk_curve, small_reliability_diagram
from ...charts.svg import Chart
from .guarantee import kept

_LEVEL = 0.05
"""A silo's ECE is above its chance band in so many of cases where confidence is right."""
_SURELY = 0.001
"""How rare an excess of errors in the highest bin has to be if confidence is right."""
_MATERIAL = 0.02
"""An ECE of all silos' inputs together below which more than chance is still little."""


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

    @property
    def verdict(self) -> str:
        if not self.judged:
            return ""
        return ("overconfident" if self.over else "underconfident") if self.off else "within chance"


@dataclass(frozen=True)
class SureErrors:
    """The errors among the predictions in the highest bin of confidence."""

    wrong: int
    inputs: int
    confidence: float
    """Their mean."""
    of: int
    """All errors."""

    @property
    def expected(self) -> float:
        """The number of errors that the confidence predicts."""
        return self.inputs * (1 - self.confidence)

    @property
    def too_many(self) -> bool:
        """Whether there are far more errors than predicted, and more than chance explains."""
        by_chance = poisson_tail(self.wrong, max(self.expected, 1e-9))
        return self.wrong >= 2 * self.expected and by_chance < _SURELY


@dataclass(frozen=True)
class Confidence:
    """How well a run's confidence matches its accuracy on the test split."""

    silos: Sequence[SiloConfidence]
    """Those of lowest accuracy first."""
    sure: SureErrors | None
    ece: float | None
    upper: float | None
    """Up to which chance explains it."""
    above_chance: bool
    """Whether the ECE of all silos' inputs together is."""

    @cached_property
    def judged(self) -> list[SiloConfidence]:
        return [one for one in self.silos if one.judged]

    @cached_property
    def off(self) -> list[SiloConfidence]:
        """The silos whose confidence is off by more than chance."""
        return [one for one in self.judged if one.off]

    @property
    def overconfident(self) -> bool:
        """Whether confidence exceeds accuracy over all silos' inputs."""
        weight = sum(one.inputs for one in self.silos)
        return sum((one.confidence - one.accuracy) * one.inputs for one in self.silos) > 0 if weight else False

    @property
    def many_off(self) -> bool:
        """Whether more silos are off than the 5 % that chance explains."""
        return bool(self.off) and binomial_tail(len(self.off), len(self.judged), _LEVEL) < _LEVEL

    @property
    def untrustworthy(self) -> bool:
        too_sure = self.sure is not None and self.sure.too_many
        return self.many_off or too_sure or (self.above_chance and (self.ece or 0.0) >= _MATERIAL)


def confidence(run: RunFolder) -> Confidence | None:
    """None for a run without predictions by confidence, or without chance bands to compare them with."""
    found = [each for silo in run.silos if (each := _of_silo(silo))]
    summary = run.summary
    if summary is None or not found or not any(each.judged for each in found):
        return None
    bins = reduce(add, (each.silo.reliability for each in found if each.silo.reliability))
    ordered = sorted(found, key=lambda each: (each.accuracy, -each.confidence))
    pooled = summary.pooled
    upper = pooled.ece_null.upper if pooled.ece_null else None
    return Confidence(ordered, _sure_errors(bins), pooled.ece, upper, pooled.ece_above_chance)


def _of_silo(silo: SiloRecord) -> SiloConfidence | None:
    bins = silo.reliability
    if bins is None or silo.test.accuracy is None or not (count := sum(bins.count)):
        return None
    return SiloConfidence(silo, silo.n_test or count, silo.test.accuracy, sum(bins.confidence) / count)


def _sure_errors(bins: Reliability) -> SureErrors | None:
    """The errors of the highest bin; None if it has none."""
    wrong = [count - correct for count, correct in zip(bins.count, bins.correct, strict=True)]
    if not wrong[-1]:
        return None
    return SureErrors(wrong[-1], bins.count[-1], bins.confidence[-1] / bins.count[-1], sum(wrong))


def reliability(run: RunFolder) -> tuple[Chart, list[Chart]] | None:
    """The pooled diagram, and one per silo; None if no silo has bins."""
    silos = [(silo, silo.reliability) for silo in run.silos if silo.reliability and sum(silo.reliability.count)]
    if not silos:
        return None
    # Additive bins: this is the diagram of all predictions together, not a mean of diagrams.
    pooled: Reliability = reduce(add, (bins for _, bins in silos))
    total = f"{sum(pooled.count):,} test predictions of {len(silos)} silos"
    caption = f"{total}, binned by confidence: a bin below the diagonal is overconfident, above it underconfident; "
    caption += "vertical bars are 95 % intervals, and the histogram counts the predictions in each bin."
    known = "" if run.summary is None or run.summary.pooled.ece is None else f", ECE {run.summary.pooled.ece:.3f}"
    title = f"All silos pooled{known}"
    figure = Chart(title, reliability_diagram(pooled, f"Reliability diagram of {total}{known}"), caption)
    if len(silos) == 1:
        return figure, []
    return figure, [_small(silo, bins) for silo, bins in silos]


def risk_coverage(run: RunFolder) -> Chart | None:
    """Errors among the answered inputs over the share that is answered; None without a curve."""
    summary = run.summary
    if summary is None or summary.risk_coverage is None or len(summary.risk_coverage.risk) < 2:
        return None
    curve, test = summary.risk_coverage, kept(summary)
    policy = (test.answered / test.inputs, test.wrong / test.answered) if test and test.answered else None
    decided = policy if policy and policy[0] < 1 else None
    limit = summary.guarantee.risk if summary.guarantee else None
    inputs = sum(silo.n_test or 0 for silo in run.silos)
    label = f"Share of errors over share of answered test inputs, {percent(curve.risk[-1])} when all are answered"
    caption = "Error rate (selective risk) on the least uncertain test inputs, pooled over silos, by how "
    caption += "many of them are answered, with 95 % intervals point by point. The dashed curve is an oracle, which "
    caption += "knows all errors: the nearer the curve is to it, the better uncertainty tells errors."
    if decided:
        caption += f" The diamond shows the run's decisions: {percent(decided[0])} answered, {percent(decided[1])} "
        caption += "of these wrong; it need not lie on the curve, because decisions may use another score or model."
    return Chart(
        "Errors against answers", risk_curve(curve.coverage, curve.risk, inputs, limit, decided, label), caption
    )


def _small(silo: SiloRecord, bins: Reliability) -> Chart:
    ece = "" if silo.test.ece is None else f"ECE {silo.test.ece:.3f}"
    flag = " \N{BLACK UP-POINTING TRIANGLE}" if silo.test.ece_above_chance else ""
    label = f"Reliability diagram of {silo.name}, {sum(bins.count):,} predictions, {ece}".rstrip(", ")
    return Chart(silo.name, small_reliability_diagram(bins, label), ece + flag)


def temperatures(run: RunFolder) -> str:
    """The temperatures in words; empty for a run without temperature scaling."""
    if run.summary is None:
        return ""
    spread = run.summary.temperature_spread
    factors = {name: f" (silos' typically within a factor of {math.exp(by):.3g})" for name, by in spread.items()}
    found = run.summary.temperature.items()
    return ", ".join(f"{value:.3g} for the {name} model{factors.get(name, '')}" for name, value in found)
