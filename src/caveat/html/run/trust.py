"""Trustworthiness of a run: the summary at the top of its page, calibration, and uncertainty of errors."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from markupsafe import Markup

from ...core.text import decimal, listed, percent, plural
from ...files import RunFolder
from ...files.schema import INSIDE, NOBODY, Reliability, Summary
from ...uncertainty.statistical_tests import score_interval, wilson
from ..diagrams import reliability_diagram, risk_curve
from ..svg import Chart, key
from ..templates import MARKS, Statement
from .classification import ALONE, OneClass, baseline, behind_alone, one_class, without_gain
from .confidence import LEVEL, UNCLEAR, Confidence, confidence
from .decisions import CHOSEN
from .familiarity import familiarity, promised
from .guarantee import foreign, foreign_streams, in_words, kept, shares_of, worst_at
from .uncertainty import histogram_chart


def pooled_bins(run: RunFolder) -> tuple[Reliability, int] | None:
    """Return the bins of all silos' test inputs, which are additive, and the number of silos; None without any."""
    found = [silo.reliability for silo in run.silos if silo.reliability and sum(silo.reliability.count)]
    return (reduce(add, found), len(found)) if found else None


def reliability(run: RunFolder) -> Chart | None:
    """Return the diagram of all predictions; None if no silo has bins."""
    if (found := pooled_bins(run)) is None:
        return None
    pooled, silos = found
    total = f"{sum(pooled.count):,} test predictions of {plural(silos, 'silo')}"
    caption = f"{total}, binned by confidence: a bin below the diagonal is overconfident, above it underconfident; "
    caption += "vertical bars are 95 % intervals, and the histogram counts the predictions in each bin."
    known = "" if run.summary is None or run.summary.pooled.ece is None else f", ECE {run.summary.pooled.ece:.3f}"
    label = f"Reliability diagram of {total}{known}"
    return Chart(f"All silos pooled{known}", reliability_diagram(pooled, label), caption)


def right_and_wrong(run: RunFolder) -> tuple[Chart, list[tuple[Markup, str]]] | None:
    """Return the uncertainty of right, wrong and foreign predictions beside each other, and the legend; without foreign
    inputs the confidence of right and wrong ones. None unless there are two of these kinds."""
    tested = run.summary.tested if run.summary else {}
    entropies = tested[INSIDE].chosen.uncertainty if INSIDE in tested else {}
    found = None if entropies else pooled_bins(run)
    if entropies:
        parts = {name: list(each.count) for name, each in entropies.items()}
        for name, each in foreign_streams(run.summary).items():
            counts = [other.count for other in each.chosen.uncertainty.values()]
            parts[f"foreign ({name})"] = [sum(column) for column in zip(*counts, strict=True)]
        first = entropies["right"]
        edges, axis, lowest = [*first.start, first.start[-1] + first.step], "uncertainty (entropy), nats", True
    elif found is not None:
        count, right = found[0].count, found[0].correct
        parts = {"right": [*right], "wrong": [c - r for c, r in zip(count, right, strict=True)]}
        edges, axis, lowest = [i / len(count) for i in range(len(count) + 1)], "confidence", False
    else:
        return None
    parts = {name: counts for name, counts in parts.items() if sum(counts)}
    if len(parts) < 2:
        return None
    shares = {name: [n / sum(counts) for n in counts] for name, counts in parts.items()}
    filled = [i for counts in parts.values() for i, n in enumerate(counts) if n]
    start, stop = min(filled), max(filled) + 1
    surest, end = ("the lowest bin", start) if lowest else ("the highest bin", stop - 1)
    notes = {name: f"{sum(counts):,.0f}, {percent(shares[name][end], 0)} of them in {surest}"
             for name, counts in parts.items()}  # fmt: skip
    told = "; ".join(f"{name} {note}" for name, note in notes.items())
    edges, shares = edges[start : stop + 1], {name: each[start:stop] for name, each in shares.items()}
    drawn = histogram_chart(edges, shares, notes, f"{axis.capitalize()} of predictions: {told}", axis)
    caption = f"Share of each kind of test inputs by the {axis.split(',')[0]} of their prediction: {told}. The less "
    caption += "the others overlap with right ones, the better uncertainty detects them."
    title = "Uncertainty of right, wrong and foreign" if entropies else "Confidence of right and wrong"
    return Chart(title, drawn, caption), [(key(i, "stream"), name) for i, name in enumerate(parts)]


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
_ENOUGH = 100
"""Minimum number of test inputs behind advice on the most certain or on the answered ones."""
_FEW_ERRORS = 0.05
"""Target error rate if deferring a tenth of the inputs gains too little."""


@dataclass(frozen=True)
class Trust:
    """The verdicts of the first screen, and advice."""

    lines: Sequence[Statement]
    advice: Sequence[Markup]


def trust(run: RunFolder) -> Trust | None:
    """Return the first screen; None for a run without test metrics."""
    if run.summary is None:
        return None
    only, based, outside = one_class(run), baseline(run), _foreign_line(run)
    found = None if only else confidence(run)
    lines = [Statement(*based)] if based else []
    lines += [_confidence_line(found)] if found else []
    lines += [each for each in (outside, _familiar_line(run)) if each]
    advice = [_not_learned(only)] if based and based[0] == "bad" else _advice(run, found, outside)
    if not lines and not advice:
        return None
    lines.sort(key=lambda line: list(MARKS).index(line.kind))
    return Trust(lines, advice)


def _confidence_line(found: Confidence) -> Statement:
    texts = "; ".join(each.text for each in found.found[:2])
    if found.kind == "bad":
        return Statement("bad", Markup("<b>Do not trust its confidence</b>: {}{}.").format(texts, _worst(found)))
    if found.p < LEVEL:
        how = "overconfident" if found.over else "underconfident"
        little = "" if any(each.large for each in found.found) else "slightly "
        return Statement("open", Markup("<b>It is {}{}</b>: {}.").format(little, how, texts))
    n, confidence, accuracy = found.rates
    if found.p < UNCLEAR:
        text = Markup(
            "<b>Its confidence may be off</b>: {}; a calibrated model has such a result in at most {} of cases."
        )
        return Statement("open", text.format(found.checks[0].text, percent(found.p, 0)))
    if not found.resolved:
        band = found.pooled.ece_null
        unnoticed = f": a calibration error of {decimal(band.upper)} would go unnoticed" if band else ""
        text = Markup("<b>Cannot say whether its confidence is right</b>: {} are too few{}.")
        return Statement("open", text.format(plural(n, "test input"), unnoticed))
    text = Markup(
        "<b>No error of its confidence was found</b> in {:,} test inputs: {} sure on average, {} right; {}{}."
    )
    return Statement("good", text.format(n, percent(confidence), percent(accuracy), _ece_text(found), _within(found)))


def _worst(found: Confidence) -> str:
    """Return the silo whose confidence is furthest from its accuracy, beyond chance; empty without one."""
    if len(found.silos) < 2 or not found.off:
        return ""
    worst = max(found.off, key=lambda one: abs(one.confidence - one.accuracy))
    return f"; worst at {worst.silo.name}, {percent(worst.confidence)} sure and {percent(worst.accuracy)} right"


def _ece_text(found: Confidence) -> str:
    band = found.pooled.ece_null
    chance = f", where chance explains {decimal(band.upper)}" if band else ""
    return f"ECE {decimal(found.pooled.ece)}{chance}"


def _within(found: Confidence) -> str:
    """Return at how many silos the ECE is within chance, and how many have too few inputs for that."""
    if len(found.judged) < 2:
        return ""
    enough = [one for one in found.judged if one.resolved or one.off]
    if not enough:
        return "; each silo alone has too few inputs"
    few = len(found.judged) - len(enough)
    unknown = f"; {few:,} {'has' if few == 1 else 'have'} too few inputs" if few else ""
    return f", and within chance at {sum(not one.off for one in enough):,} of {plural(len(enough), 'silo')}{unknown}"


def _foreign_line(run: RunFolder) -> Statement | None:
    if run.summary is None or not (found := foreign(run.summary)):
        return None
    allowed = run.summary.guarantee.risk if run.summary.guarantee else _TOLERATED
    own = shares_of(run.summary).get(INSIDE)
    worse = [name for name in found if _worse(run.summary, name, max(allowed, own.wrong if own else 0.0))]
    beside = f" Of their own inputs {percent(own.wrong)} were." if own else ""
    if not worse:
        texts = "; ".join(_wrongly(run.summary, name, each.wrong) for name, each in found.items())
        kind = "good" if max(each.wrong for each in found.values()) <= allowed else "open"
        return Statement(kind, Markup("Inputs that silos do not know: {}.{}").format(texts, beside))
    texts = "; ".join(_wrongly(run.summary, name, found[name].wrong) for name in worse)
    kind = "bad" if any(found[name].wrong > 0.5 for name in worse) else "open"
    text = Markup("<b>Not reliable on inputs that silos do not know</b>: {}.{}")
    return Statement(kind, text.format(texts, beside))


def _worse(summary: Summary, stream: str, limit: float) -> bool:
    """Return whether more answers to a stream are wrong than the limit, beyond the uncertainty from few inputs."""
    wrong, inputs = foreign(summary)[stream].wrong, summary.tested[stream].examples
    return wrong > limit and (not inputs or score_interval(wrong, inputs)[0] > limit)


def _wrongly(summary: Summary, stream: str, wrong: float) -> str:
    most = worst_at(summary, stream)
    at = f", most at {most[0]} with {percent(most[1].wrong)}" if most and most[1].wrong > wrong else ""
    return f"of {in_words(stream)} {percent(wrong)} were answered wrongly{at}"


def _familiar_line(run: RunFolder) -> Statement | None:
    found = familiarity(run)
    if found is None:
        return None
    return Statement("open" if found.alarm else "good", Markup("{}").format(" ".join([found.sentence, *found.notes])))


_MOST_STEPS = 4


def _not_learned(only: OneClass | None) -> Markup:
    """Return what to do with a model that is no better than the most frequent class, or predicts a single class."""
    if only:
        text = "Do not use it at any silo: it predicts class {} {}. Train for more <code>rounds</code> "
        text += "or with another <code>training.lr</code>, or use training alone (method <code>{}</code>)."
        return Markup(text).format(only.name, only.always, ALONE)
    text = "Do not use this model: it is right no more often than the most frequent class. Train for more "
    text += "<code>rounds</code> or with another <code>training.lr</code>, and check the labels."
    return Markup(text)


def _advice(run: RunFolder, found: Confidence | None, outside: Statement | None) -> list[Markup]:
    """Return what to do now with a model that has learned, the most important first."""
    behind = behind_alone(run)
    alone = alone_step(run, behind)
    if alone and behind:
        return [alone]
    instead = _global_instead(run)
    foreign_step = _not_foreign(run, outside)
    steps = [*_where_not(run), instead, _calibrating(run, found), foreign_step]
    steps += [None if instead else _leaving(run), alone]
    no_gain = {name for names in without_gain(run) for name in names}
    if where := [silo.name for silo in run.silos if silo.name not in no_gain]:
        check = ", and have a person decide those with an alarm" if familiarity(run) and not foreign_step else ""
        steps.insert(-1, predicting(run, where[0], check))
    return [each for each in steps if each][:_MOST_STEPS]


def predicting(run: RunFolder, silo: str, check: str = "") -> Markup:
    """Return how to predict new inputs of a silo."""
    command = shlex.join(["caveat", "predict", run.given or run.path.name, "FILE", "--silo", silo])
    return Markup("Predict new inputs with <code>{}</code>{}.").format(command, check)


_MOST_NAMED = 4
_NOT_AT = "Do not use it at {}, where the most frequent class is right more often, beyond chance."


def refusal(run: RunFolder, silo: str) -> str:
    """Return why a silo's model should not be used; empty if the test metrics give no reason."""
    based = baseline(run)
    if based and based[0] == "bad":
        return str(_not_learned(one_class(run)).striptags())
    return _NOT_AT.format(silo) if silo in without_gain(run)[0] else ""


def _where_not(run: RunFolder) -> list[Markup]:
    """Return where not to use it, and where test inputs do not show whether it is of use."""
    worse, unknown = without_gain(run)
    steps = [Markup(_NOT_AT).format(listed(worse, _MOST_NAMED))] if worse else []
    text = "Test it on more inputs of {} before use there: these show no gain over the most frequent class."
    return [*steps, Markup(text).format(listed(unknown, _MOST_NAMED))] if unknown else steps


def _not_foreign(run: RunFolder, line: Statement | None) -> Markup | None:
    """Return how to avoid wrong answers to foreign inputs, if there are too many by the verdict on them."""
    if line is None or line.kind == "good" or run.summary is None:
        return None
    if run.summary.policy.name != "guaranteed" and not promised(run):
        return Markup(
            "Do not use it on inputs that its silos do not know: <code>uncertainty.false_alarm_rate</code> above 0 "
            "raises alarms on them."
        )
    return Markup("Do not use it on inputs that its silos do not know, and have a person decide those with an alarm.")


def alone_step(run: RunFolder, behind: bool) -> Markup | None:
    """Return how to find out whether the federation helps, or that it does not; None for a difference that chance
    explains, or if this cannot be tested here."""
    if run.method == ALONE or run.federated or len(run.silos) < 2:
        return None
    if ALONE not in run.comparable:
        return Markup("Find out whom the federation helps: add <code>baselines = [&quot;{}&quot;]</code>.").format(
            ALONE
        )
    text = Markup("Use training alone instead (method <code>{}</code>), which is better than this federation.")
    return text.format(ALONE) if behind else None


def _global_instead(run: RunFolder) -> Markup | None:
    """Return advice to answer all inputs with the global model, if this is as accurate as the run's answers and, beyond
    chance, more accurate than the run's predictions of all inputs and than a guarantee of the run."""
    models, test = (run.summary.models, kept(run.summary)) if run.summary else ({}, None)
    alone, chosen = (models[name].pooled.accuracy if name in models else None for name in ("global", CHOSEN))
    if run.summary is None or test is None or test.answered < _ENOUGH or alone is None or chosen is None:
        return None
    if models["global"].silos not in (None, len(run.silos)):
        return None
    if alone < 1 - (test.risk or 0.0) or alone <= wilson(round(chosen * test.inputs), test.inputs)[1]:
        return None
    promise = run.summary.guarantee
    if promise and wilson(round((1 - alone) * test.inputs), test.inputs)[1] > promise.risk:
        return None
    text = f"Answer all inputs with the global model: {percent(alone)} of all silos' test inputs "
    text += f"are right without abstaining, and {percent(1 - test.wrong / test.answered)} of the run's answers"
    worst = models["global"].worst.accuracy
    text += f"; at least {percent(worst)} at each silo" if worst is not None and len(run.silos) > 1 else ""
    text += "".join(
        f"; of {name} {percent(stream.models['global'].pooled.accuracy)}"
        for name, stream in foreign_streams(run.summary).items() if name != NOBODY and "global" in stream.models
    )  # fmt: skip
    text += ". These answers have no guarantee" if promise else ""
    return Markup("{}.").format(text)


def _calibrating(run: RunFolder, found: Confidence | None) -> Markup | None:
    """Return advice on settings if confidence is miscalibrated; None otherwise."""
    if found is None or found.kind != "bad" or run.summary is None:
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
    """Return what to leave to a person: abstentions, or the inputs whose deferral spares many errors."""
    curve = run.summary.risk_coverage if run.summary else None
    test = kept(run.summary) if run.summary else None
    if test and 0 < test.answered < test.inputs:
        return Markup("Have a person decide the inputs that it abstains from, here {}.").format(percent(1 - test.share))
    if curve is None or not curve.risk:
        return None
    points, errors = list(zip(curve.coverage, curve.risk, strict=True)), curve.risk[-1]
    inputs = sum(silo.n_test or 0 for silo in run.silos)
    coverage, risk = min(points, key=lambda point: abs(point[0] - _LEFT))
    if abs(coverage - _LEFT) <= 0.05 and errors - risk >= max(_SPARED, _SHARE_SPARED * errors):
        of = _wrong_of(coverage, risk, inputs)
        text = "Have a person decide the least certain {}: of the others {}, compared with {} of all."
        return Markup(text).format(percent(1 - coverage, 0), of, percent(errors))
    coverage, risk = max((point for point in points if point[1] <= _FEW_ERRORS), default=(0.0, 0.0))
    if errors > 2 * _FEW_ERRORS and coverage * inputs >= _ENOUGH:
        of = _wrong_of(coverage, risk, inputs)
        text = "Use at most the most certain {} of all silos' inputs: of these {}, compared with {} of all."
        return Markup(text).format(percent(coverage, 0), of, percent(errors))
    return None


def _wrong_of(coverage: float, risk: float, inputs: int) -> str:
    """Return the errors among a share of the test inputs, with their number and 95 % interval."""
    of = round(coverage * inputs)
    wrong = round(risk * of)
    if not of:
        return f"{percent(risk)} are wrong"
    low, high = wilson(wrong, of)
    return f"{wrong:,} of {of:,} are wrong ({percent(low)} to {percent(high)}, 95 % interval)"
