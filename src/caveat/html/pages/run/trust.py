"""What decides whether a run can be trusted, and what to do about it: the first sentences of its page."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ....core.text import count, decimal, percent, plural
from ....files.run_folder import RunFolder
from ....files.schema.summary import Summary
from ...charts.dots import NAMED, Dot, Dumbbell, dumbbells
from ...charts.svg import Chart, group, hollow, sample, swatch
from .calibration import Confidence, SiloConfidence, SureErrors, confidence
from .familiarity import familiarity
from .guarantee import foreign, kept, worst_at
from .silos import wilson_of

_TOLERATED = 0.05
"""Share of foreign inputs that may be answered wrongly before the page warns of it, where nothing is promised."""
_LEFT = 0.9
"""The share of inputs that is answered where the page says what it spares to leave the others to a person."""
_SPARED = 0.005
"""Least gain that is worth a sentence."""
_SHARE_SPARED = 0.15
"""Least share of all errors that it spares."""
_FEW_ERRORS = 0.05
"""The share of errors down to which inputs are left to a person where leaving a tenth spares too little."""
_MARKS = {"bad": "✗", "open": "▲", "good": "✓"}
"""Of kinds of sentences, in the order in which they stand."""
_TOLD = 5
"""Silos that an alternative text names."""


@dataclass(frozen=True)
class Statement:
    """A sentence of the first screen: `good`, `open` (with care) or `bad`."""

    kind: str
    text: Markup

    @property
    def mark(self) -> str:
        return _MARKS[self.kind]


@dataclass(frozen=True)
class Trust:
    """What the first screen says, its advice, and its figure."""

    lines: Sequence[Statement]
    advice: Sequence[Markup]
    figure: Chart | None
    legend: Sequence[tuple[Markup, str]]


def trust(run: RunFolder) -> Trust | None:
    """None for a run without test metrics."""
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
        where = f"in {within} of {plural(judged, 'silo')}" if judged > 1 else "at its one silo"
        off = f", {decimal(found.ece)} over all inputs" if found.ece is not None else ""
        off += f", where chance explains {decimal(found.upper)}" if off and found.upper is not None else ""
        inputs = sum(one.inputs for one in found.silos)
        text = Markup("<b>Its confidence can be trusted</b>, as far as {:,} test inputs show: ECE within chance {}{}.")
        return Statement("good", text.format(inputs, where, off))
    if found.overconfident:
        said = [each for each in (_sure(found.sure), _off(found, "overconfident"), _whole(found)) if each]
        return Statement("bad", Markup("<b>Do not trust its confidence</b>: {}.").format("; ".join(said[:2])))
    said = [each for each in (_off(found, "underconfident"), _whole(found)) if each]
    return Statement("open", Markup("<b>It is underconfident</b>: {}.").format("; ".join(said)))


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
    """A statement on answers to inputs that silos do not know."""
    if run.summary is None or not (found := foreign(run.summary)):
        return None
    allowed = run.summary.guarantee.risk if run.summary.guarantee else _TOLERATED
    told = "; ".join(_wrongly(run.summary, name, each.wrong) for name, each in found.items())
    at = [most[1].wrong for name in found if (most := worst_at(run.summary, name))]
    if max([*at, *(each.wrong for each in found.values())]) <= allowed:
        return Statement("good", Markup("Inputs that silos do not know: {}.").format(told))
    kind = "bad" if any(each.wrong > 0.5 for each in found.values()) else "open"
    return Statement(kind, Markup("<b>Not reliable on inputs that silos do not know</b>: {}.").format(told))


def _wrongly(summary: Summary, stream: str, wrong: float) -> str:
    """How much of a stream is answered wrongly, and at which silo most."""
    most = worst_at(summary, stream)
    at = f", most at {most[0]} with {percent(most[1].wrong)}" if most and most[1].wrong > wrong else ""
    return f"of {stream} {percent(wrong)} were answered wrongly{at}"


def _familiar_line(run: RunFolder) -> Statement | None:
    found = familiarity(run)
    if found is None:
        return None
    return Statement("open" if found.alarm else "good", Markup("{}").format(" ".join([found.sentence, *found.notes])))


def _advice(run: RunFolder, found: Confidence | None) -> Markup | None:
    """What to set if confidence is off."""
    if found is None or not found.untrustworthy or run.summary is None:
        return None
    if not _tempered(run):
        return Markup(
            "Set <code>uncertainty.temperature_scaling = true</code> to calibrate confidence on validation data."
        )
    if run.summary.guarantee is not None:
        return Markup("Rely on the guarantee rather than on confidence: a temperature is fitted, but does not suffice.")
    return Markup(
        "A temperature is fitted, but does not suffice. <code>uncertainty.policy = &quot;guaranteed&quot;</code> "
        "answers only as many inputs as a guarantee about errors allows."
    )


def _tempered(run: RunFolder) -> bool:
    by_settings = run.section("uncertainty").get("temperature") is True
    return by_settings or bool(run.summary and run.summary.temperature)


def _leaving(run: RunFolder) -> Markup | None:
    """What answering fewer inputs would gain, if all are answered."""
    curve = run.summary.risk_coverage if run.summary else None
    test = kept(run.summary) if run.summary else None
    if curve is None or not curve.risk or (test and test.answered < test.inputs):
        return None
    points, errors = list(zip(curve.coverage, curve.risk, strict=True)), curve.risk[-1]
    coverage, risk = min(points, key=lambda point: abs(point[0] - _LEFT))
    if abs(coverage - _LEFT) <= 0.05 and errors - risk >= max(_SPARED, _SHARE_SPARED * errors):
        text = "Leave the least certain {} to a person: {} of the others are wrong, compared with {} of all."
        return Markup(text).format(percent(1 - coverage, 0), percent(risk), percent(errors))
    most = max((point for point in points if point[1] <= _FEW_ERRORS), default=(0.0, 0.0))
    if errors > 2 * _FEW_ERRORS and most[0] >= 0.1:
        text = "Act on the most certain {} at most: {} of these test inputs are wrong, compared with {} of all."
        return Markup(text).format(percent(most[0], 0), percent(most[1]), percent(errors))
    return None


def _figure(found: Confidence) -> Chart:
    rows = [_row(one) for one in found.silos]
    told = "; ".join(row.note for row in rows[:_TOLD])
    rest = f"; lowest accuracy first, {len(rows) - _TOLD} more silos" if len(rows) > _TOLD else ""
    label = f"Accuracy against mean confidence of {plural(len(rows), 'silo')}. {told}{rest}"
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
