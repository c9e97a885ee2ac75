"""Trustworthiness of a run: the summary at the top of its page, calibration, and uncertainty of errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

from markupsafe import Markup

from ...core.text import count, decimal, percent, plural
from ...files import RunFolder
from ...files.schema import Reliability, SiloRecord, Summary
from ...uncertainty.statistical_tests import binomial_tail, poisson_tail
from ..diagrams import NAMED, Dot, Dumbbell, dumbbells, reliability_diagram, risk_curve, small_reliability_diagram
from ..svg import Chart, group, hollow, sample, swatch
from .familiarity import familiarity
from .guarantee import foreign, kept, worst_at
from .silos import wilson_of

_LEVEL = 0.05
"""Probability that a calibrated silo's ECE is above its chance band."""
_SURELY = 0.001
"""Significance level of an excess of errors in the highest bin."""
_MATERIAL = 0.02
"""Pooled ECE below which an excess over chance does not matter."""


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
        """Whether there are many more errors than predicted, and more than chance explains."""
        by_chance = poisson_tail(self.wrong, max(self.expected, 1e-9))
        return self.wrong >= 2 * self.expected and by_chance < _SURELY


@dataclass(frozen=True)
class Confidence:
    """Agreement of a run's confidence with its accuracy on the test split."""

    silos: Sequence[SiloConfidence]
    """In ascending order of accuracy."""
    sure: SureErrors | None
    ece: float | None
    upper: float | None
    """The upper end of its chance band."""
    above_chance: bool
    """Whether the pooled ECE is above its chance band."""

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
    """Return the comparison; None for a run without bins of confidence or chance bands."""
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
    wrong = [count - correct for count, correct in zip(bins.count, bins.correct, strict=True)]
    if not wrong[-1]:
        return None
    return SureErrors(wrong[-1], bins.count[-1], bins.confidence[-1] / bins.count[-1], sum(wrong))


def reliability(run: RunFolder) -> tuple[Chart, list[Chart]] | None:
    """Return the pooled diagram, and one per silo; None if no silo has bins."""
    silos = [(silo, silo.reliability) for silo in run.silos if silo.reliability and sum(silo.reliability.count)]
    if not silos:
        return None
    # Bins are additive: this is the diagram of all predictions, not a mean of diagrams.
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
    """Return the risk-coverage curve; None without one."""
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
    caption += "many of them are answered, with pointwise 95 % intervals. The dashed curve is an oracle, which "
    caption += "knows all errors: the closer the curve is to it, the better uncertainty detects errors."
    if decided:
        caption += f" The diamond shows the run's decisions: {percent(decided[0])} answered, {percent(decided[1])} "
        caption += "of these wrong; it may be off the curve, because decisions may use another score or model."
    return Chart(
        "Errors against answers", risk_curve(curve.coverage, curve.risk, inputs, limit, decided, label), caption
    )


def _small(silo: SiloRecord, bins: Reliability) -> Chart:
    ece = "" if silo.test.ece is None else f"ECE {silo.test.ece:.3f}"
    flag = " \N{BLACK UP-POINTING TRIANGLE}" if silo.test.ece_above_chance else ""
    label = f"Reliability diagram of {silo.name}, {sum(bins.count):,} predictions, {ece}".rstrip(", ")
    return Chart(silo.name, small_reliability_diagram(bins, label), ece + flag)


def temperatures(run: RunFolder) -> str:
    """Return the temperatures as text; empty for a run without temperature scaling."""
    if run.summary is None:
        return ""
    spread = run.summary.temperature_spread
    factors = {name: f" (silos' typically within a factor of {math.exp(by):.3g})" for name, by in spread.items()}
    found = run.summary.temperature.items()
    return ", ".join(f"{value:.3g} for the {name} model{factors.get(name, '')}" for name, value in found)


_TOLERATED = 0.05
"""Share of wrong answers to out-of-distribution inputs above which the page warns, if there is no guarantee."""
_LEFT = 0.9
"""Coverage at which the page states the gain from deferring the other inputs to a person."""
_SPARED = 0.005
"""Minimum gain in accuracy for this sentence."""
_SHARE_SPARED = 0.15
"""Minimum share of errors avoided for this sentence."""
_FEW_ERRORS = 0.05
"""Target error rate if deferring a tenth of the inputs gains too little."""
_MARKS = {"bad": "✗", "open": "▲", "good": "✓"}
"""Marks for the kinds of sentences, in the order of display."""
_TOLD = 5
"""Maximum number of silos in an alternative text."""


@dataclass(frozen=True)
class Statement:
    """A sentence of the first screen: `good`, `open` (use with care) or `bad`."""

    kind: str
    text: Markup

    @property
    def mark(self) -> str:
        return _MARKS[self.kind]


@dataclass(frozen=True)
class Trust:
    """The first screen: sentences, advice, and figure."""

    lines: Sequence[Statement]
    advice: Sequence[Markup]
    figure: Chart | None
    legend: Sequence[tuple[Markup, str]]


def trust(run: RunFolder) -> Trust | None:
    """Return the first screen; None for a run without test metrics."""
    if run.summary is None:
        return None
    found = confidence(run)
    lines = [_confidence_line(found)] if found else []
    lines += [each for each in (_foreign_line(run), _familiar_line(run)) if each]
    advice = [each for each in (_advice(run, found), _leaving(run)) if each]
    if not lines and not advice:
        return None
    lines.sort(key=lambda line: list(_MARKS).index(line.kind))
    return Trust(lines, advice, _figure(found) if found else None, _legend())


def _confidence_line(found: Confidence) -> Statement:
    if not found.untrustworthy:
        within, judged = len(found.judged) - len(found.off), len(found.judged)
        where = f"in {within} of {plural(judged, 'silo')}" if judged > 1 else "at its only silo"
        off = f", {decimal(found.ece)} over all inputs" if found.ece is not None else ""
        off += f", where chance explains {decimal(found.upper)}" if off and found.upper is not None else ""
        inputs = sum(one.inputs for one in found.silos)
        text = Markup("<b>Its confidence can be trusted</b>, based on {:,} test inputs: ECE within chance {}{}.")
        return Statement("good", text.format(inputs, where, off))
    if found.overconfident:
        sentence = [each for each in (_sure(found.sure), _off(found, "overconfident"), _whole(found)) if each]
        return Statement("bad", Markup("<b>Do not trust its confidence</b>: {}.").format("; ".join(sentence[:2])))
    sentence = [each for each in (_off(found, "underconfident"), _whole(found)) if each]
    return Statement("open", Markup("<b>It is underconfident</b>: {}.").format("; ".join(sentence)))


def _sure(sure: SureErrors | None) -> str:
    if sure is None or not sure.too_many:
        return ""
    expected = f"{sure.expected:.1f}" if sure.expected < 10 else f"{sure.expected:.0f}"
    return (
        f"{sure.wrong:,} of {plural(sure.of, 'error')} made at {percent(sure.confidence)} confidence on "
        f"average, where {expected} were expected"
    )


def _off(found: Confidence, how: str) -> str:
    off = [one for one in found.off if one.over == found.overconfident]
    return f"{len(off)} of {plural(len(found.judged), 'silo')} {how} beyond chance" if off else ""


def _whole(found: Confidence) -> str:
    return f"ECE {decimal(found.ece)} over all inputs, above chance" if found.above_chance else ""


def _foreign_line(run: RunFolder) -> Statement | None:
    if run.summary is None or not (found := foreign(run.summary)):
        return None
    allowed = run.summary.guarantee.risk if run.summary.guarantee else _TOLERATED
    texts = "; ".join(_wrongly(run.summary, name, each.wrong) for name, each in found.items())
    at = [most[1].wrong for name in found if (most := worst_at(run.summary, name))]
    if max([*at, *(each.wrong for each in found.values())]) <= allowed:
        return Statement("good", Markup("Inputs that silos do not know: {}.").format(texts))
    kind = "bad" if any(each.wrong > 0.5 for each in found.values()) else "open"
    return Statement(kind, Markup("<b>Not reliable on inputs that silos do not know</b>: {}.").format(texts))


def _wrongly(summary: Summary, stream: str, wrong: float) -> str:
    most = worst_at(summary, stream)
    at = f", most at {most[0]} with {percent(most[1].wrong)}" if most and most[1].wrong > wrong else ""
    return f"of {stream} {percent(wrong)} were answered wrongly{at}"


def _familiar_line(run: RunFolder) -> Statement | None:
    found = familiarity(run)
    if found is None:
        return None
    return Statement("open" if found.alarm else "good", Markup("{}").format(" ".join([found.sentence, *found.notes])))


def _advice(run: RunFolder, found: Confidence | None) -> Markup | None:
    """Return advice on settings if confidence is miscalibrated; None otherwise."""
    if found is None or not found.untrustworthy or run.summary is None:
        return None
    if not _tempered(run):
        return Markup(
            "Set <code>uncertainty.temperature_scaling = true</code> to calibrate confidence on validation data."
        )
    if run.summary.guarantee is not None:
        return Markup("Rely on the guarantee rather than on confidence: a temperature is fitted, but is not enough.")
    return Markup(
        "A temperature is fitted, but is not enough. <code>uncertainty.policy = &quot;guaranteed&quot;</code> "
        "answers only as many inputs as a guarantee about errors allows."
    )


def _tempered(run: RunFolder) -> bool:
    by_settings = run.section("uncertainty").get("temperature") is True
    return by_settings or bool(run.summary and run.summary.temperature)


def _leaving(run: RunFolder) -> Markup | None:
    """Return the gain from answering fewer inputs, if all are answered."""
    curve = run.summary.risk_coverage if run.summary else None
    test = kept(run.summary) if run.summary else None
    if curve is None or not curve.risk or (test and test.answered < test.inputs):
        return None
    points, errors = list(zip(curve.coverage, curve.risk, strict=True)), curve.risk[-1]
    coverage, risk = min(points, key=lambda point: abs(point[0] - _LEFT))
    if abs(coverage - _LEFT) <= 0.05 and errors - risk >= max(_SPARED, _SHARE_SPARED * errors):
        text = "If a person decides the least certain {}, {} of the others are wrong, compared with {} of all."
        return Markup(text).format(percent(1 - coverage, 0), percent(risk), percent(errors))
    most = max((point for point in points if point[1] <= _FEW_ERRORS), default=(0.0, 0.0))
    if errors > 2 * _FEW_ERRORS and most[0] >= 0.1:
        text = "Use at most the most certain {}: {} of these test inputs are wrong, compared with {} of all."
        return Markup(text).format(percent(most[0], 0), percent(most[1]), percent(errors))
    return None


def _figure(found: Confidence) -> Chart:
    rows = [_row(one) for one in found.silos]
    texts = "; ".join(row.note for row in rows[:_TOLD])
    rest = f"; lowest accuracy first, {len(rows) - _TOLD} more silos" if len(rows) > _TOLD else ""
    label = f"Accuracy against mean confidence of {plural(len(rows), 'silo')}. {texts}{rest}"
    caption = "Lowest accuracy first"
    if len(rows) <= NAMED:
        caption += "; the number counts a silo's test inputs, and the thin line is the accuracy's 95 % interval"
    caption += "."
    if found.judged:
        caption += " Beyond chance means an ECE that a calibrated silo exceeds in one of 20 cases."
    return Chart("Accuracy and confidence", dumbbells(rows, label, "inputs"), caption)


def _row(one: SiloConfidence) -> Dumbbell:
    low, high = wilson_of(one.silo) or (None, None)
    rates = f"accuracy {percent(one.accuracy)}, confidence {percent(one.confidence)}"
    note = f"{one.silo.name}: {rates}, {count(one.inputs)} inputs"
    note += f", {one.verdict}" if one.verdict else ""
    dot = Dot(one.accuracy, low, high)
    return Dumbbell(one.silo.name, count(one.inputs), dot, one.confidence, one.verdict, one.off, note)


def _legend() -> list[tuple[Markup, str]]:
    ring = sample(group("", hollow(0, (7, 7), 3.6)))
    return [(swatch(0), "accuracy"), (ring, "mean confidence")]
