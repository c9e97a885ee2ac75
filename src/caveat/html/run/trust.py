"""Trustworthiness of a run: the verdicts at the top of its page, calibration, and the uncertainty of errors."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import add
from statistics import fmean

from markupsafe import Markup

from ...core.text import decimal, equation, percent, percent_tick, plural, tick
from ...files import RunFolder
from ...files.schema import INSIDE, Reliability, Summary
from ...uncertainty.statistical_tests import score_interval
from ..diagrams import reliability_diagram, risk_curve
from ..svg import Axes, Chart, Line, draw, inner_ticks, key, line, plot, text, ticks, written
from ..templates import Statement, worst_first
from .advice import advice, not_learned
from .alarms import familiarity
from .classification import baseline, one_class
from .confidence import LEVEL, MATERIAL, Confidence, confidence
from .decisions import OWN, TOLERATED, Single, better_alone
from .domains import lowest_domain
from .guarantee import foreign, foreign_streams, in_words, kept, shares_of, worst_at
from .quadrants import KNOWN_TO
from .rerun_commands import data_first


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
    caption = f"{total}, in bins of confidence: one below the diagonal is overconfident, one above it underconfident. "
    caption += "Vertical bars are 95 % intervals; the histogram shows the number of predictions in each bin."
    known = "" if run.summary is None or run.summary.pooled.ece is None else f", ECE {run.summary.pooled.ece:.3f}"
    label = f"Reliability diagram of {total}{known}"
    return Chart(f"All silos pooled{known}", reliability_diagram(pooled, label), caption)


def right_and_wrong(run: RunFolder) -> tuple[Chart, list[tuple[Markup, str]]] | None:
    """Return the uncertainty of right, wrong and foreign predictions beside each other, and the legend; without foreign
    inputs the confidence of right and wrong predictions. None unless two of these kinds are in several bins."""
    tested = run.summary.tested if run.summary else {}
    entropies = tested[INSIDE].chosen.uncertainty if INSIDE in tested else {}
    found = None if entropies else pooled_bins(run)
    if entropies:
        parts = {name: list(each.count) for name, each in entropies.items()}
        for name, each in foreign_streams(run.summary).items():
            counts = [other.count for other in each.chosen.uncertainty.values()]
            parts[KNOWN_TO.get(name, name)] = [sum(column) for column in zip(*counts, strict=True)]
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
    if stop - start == 1:
        return None
    at_most = {name: list(accumulate(of[start:stop], initial=0.0)) for name, of in shares.items()}
    at = _farthest(list(at_most.values()))
    limit = edges[start + at]
    short = f"{limit:.2g}" if lowest else f"{limit:.2f}"
    where = f"up to {short}{' nats' * lowest}"
    notes = {name: f"{_at_least_one(of[at])} of {sum(parts[name]):,.0f} {where}" for name, of in at_most.items()}
    told = "; ".join(f"{name}: {note}" for name, note in notes.items())
    frame = Axes(46, 16, 418, 170, (edges[start], edges[stop]), (0, 1))
    lines = list[Markup]()
    for i, (name, of) in enumerate(at_most.items()):
        points = list(zip(edges[start : stop + 1], of, strict=True))
        lines.append(draw(frame, Line(points, i, f"{name}: {notes[name]}", "stream", marked=[points[at]])))
    x = frame.x(limit)
    lines.append(line((x, frame.top), (x, frame.bottom), "event"))
    lines.append(text(x, frame.top - 4, short, "middle", "note"))
    x_ticks, y_ticks = written(inner_ticks(frame.x_range, 6), tick), written(ticks(0, 1, 4), percent_tick)
    about = f"Distributions of {axis.partition(',')[0]}: {told}"
    drawn = plot(frame, about, x_ticks, y_ticks, axis, *lines)
    caption = f"Share of each kind of test inputs with at most this {axis.partition(' ')[0]} ({told}). The dotted "
    caption += "line is where the curves differ most; a larger difference is better."
    title = "Uncertainty of right, wrong and foreign" if entropies else "Confidence of right and wrong"
    return Chart(title, drawn, caption), [(key(i, "stream"), name) for i, name in enumerate(parts)]


def _farthest(lines: Sequence[Sequence[float]]) -> int:
    """Return the index at which the first line differs most from the mean of the others."""
    gaps = [abs(first - fmean(others)) for first, *others in zip(*lines, strict=True)]
    return gaps.index(max(gaps))


def _at_least_one(share: float) -> str:
    """Return a share in whole percent, but never 0 % for a larger share."""
    return "less than 1 %" if 0 < share < 0.005 else percent(share, 0)


def risk_coverage(run: RunFolder) -> Chart | None:
    """Return the risk-coverage curve; None for a run without it."""
    summary = run.summary
    if summary is None or summary.risk_coverage is None or len(summary.risk_coverage.risk) < 2:
        return None
    curve, test = summary.risk_coverage, kept(summary)
    limit = summary.guarantee.risk if summary.guarantee else None
    policy = None
    if test and test.risk is not None:  # the guarantee's shares, which have weights
        policy = (test.share, test.risk) if limit else (test.answered / test.inputs, test.wrong / test.answered)
    decided = policy if policy and policy[0] < 1 else None
    inputs = sum(silo.n_test or 0 for silo in run.silos)
    label = f"Share of errors by share of answered test inputs, {percent(curve.risk[-1])} if all are answered"
    start = min(bisect_left(curve.coverage, _FEWEST / inputs), len(curve.risk) - 2) if inputs else 0
    caption = "Share of errors if only the most certain test inputs of all silos are answered, with pointwise 95 % "
    caption += f"intervals.{f' The curve starts at {_FEWEST} answered inputs.' * (start > 0)} Dashed: an oracle that "
    caption += "knows all errors."
    if decided:
        weights = ", silos weighted as in calibration" if limit and test and test.weighted else ""
        caption += f" Diamond: the run's decisions, {percent(decided[0])} answered, {percent(decided[1])} of these "
        caption += f"wrong{weights}; decisions may use another score."
    drawn = risk_curve(curve.coverage[start:], curve.risk[start:], inputs, limit, decided, label)
    return Chart("Errors by share answered", drawn, caption)


_FEWEST = 20
"""Number of answered inputs at which the curve of errors starts."""


def temperatures(run: RunFolder) -> str:
    """Return the temperatures as text; empty for a run without temperature scaling."""
    if run.summary is None:
        return ""
    spread = run.summary.temperature_spread
    told = " (those of silos are typically within a factor of {:.3g} of this)"
    factors = {name: told.format(math.exp(by)) for name, by in spread.items()}
    found = run.summary.temperature.items()
    return ", ".join(f"{value:.3g} for the {name} model{factors.get(name, '')}" for name, value in found)


@dataclass(frozen=True)
class Trust:
    """The verdicts of the first screen, and advice."""

    lines: Sequence[Statement]
    advice: Sequence[Markup]


def trust(run: RunFolder) -> Trust | None:
    """Return the first screen; None for a run without test metrics."""
    if run.summary is None:
        return None
    only, based, familiar = one_class(run), baseline(run), familiarity(run)
    outside = _foreign_line(run, familiar is not None and familiar.able)
    found = None if only else confidence(run)
    lines = [Statement(*based)] if based else []
    lines += [_confidence_line(found, lowest_domain(run) is None)] if found else []
    lines += [each for each in (outside, _single_model(better_alone(run))) if each]
    lines += [Statement(familiar.kind, familiar.text)] if familiar else []
    steps = [not_learned(run, only)] if based and based[0] == "bad" else advice(run, found, outside, bool(familiar))
    steps = [*([check] if (check := data_first(run)) else []), *steps]
    if not lines and not steps:
        return None
    return Trust(worst_first(lines), steps)


def _confidence_line(found: Confidence, everywhere: bool) -> Statement:
    """Return the verdict on confidence; `everywhere` is whether no domain has a lower accuracy than the others."""
    texts, (n, confidence, accuracy) = "; ".join(each.text for each in found.found[:2]), found.rates
    if found.kind == "bad":
        return Statement(found.kind, Markup("<b>Do not trust its confidence</b>: {}.").format(texts))
    if found.p < LEVEL:
        how = "overconfident" if found.over else "underconfident"
        small = "slightly " * (everywhere and all(each.size < MATERIAL for each in found.found))
        level = f"{equation(found.p)}, corrected for {len(found.tested)} checks"
        rates = f"; all predictions are {percent(confidence)} sure on average and {percent(accuracy)} right"
        texts = f"{texts}; {level}" + rates * ("sure on average" not in texts)
        where = " in some silos" * all(each.silos for each in found.found)
        return Statement(found.kind, Markup("<b>It is {}{}{}</b>: {}.").format(small, how, where, texts))
    if found.near:
        how, first, checks = "high" if found.checks[0].over else "low", found.checks[0].text, len(found.tested)
        text = Markup("<b>No error of its confidence is shown</b>; it may be too {}: {} ")
        text += Markup("({}; corrected for the {} checks of confidence, {}).")
        return Statement(found.kind, text.format(how, first, equation(found.p / checks), checks, equation(found.p)))
    if not found.resolved:
        band = found.pooled.ece_null
        ece = f". The calibration error (ECE) is {decimal(found.pooled.ece)}, and chance alone explains up to "
        unnoticed = f"{ece}{decimal(band.upper)}" if band else ""
        text = Markup("<b>It is unknown whether its confidence is right</b>: {} are too few{}.")
        return Statement(found.kind, text.format(plural(n, "test input"), unnoticed))
    text = Markup("<b>No error of its confidence was found</b> in {:,} test inputs: they are predicted with {} ")
    text += Markup("confidence on average and {} accuracy; the expected calibration error (ECE) is {}{}.")
    chance = f", where chance explains up to {decimal(found.pooled.ece_null.upper)}" if found.pooled.ece_null else ""
    ece = decimal(found.pooled.ece)
    return Statement(found.kind, text.format(n, percent(confidence), percent(accuracy), ece, chance))


def _single_model(found: Single | None) -> Statement | None:
    """Return that one model is right more often on own inputs than the run's choice of models."""
    if found is None:
        return None
    which = "The silos' local models are" if found.local else "The global model is"
    text = Markup("<b>{} better on own inputs</b>: accuracy {}, compared with {} for the run's choice of models.")
    return Statement("open", text.format(which, percent(found.right), percent(found.chosen)))


def _foreign_line(run: RunFolder, alarmed: bool) -> Statement | None:
    """Return how many predictions of inputs that silos do not know are wrong, and how many raise an alarm."""
    if run.summary is None or not (found := foreign(run.summary)):
        return None
    allowed = run.summary.guarantee.risk if run.summary.guarantee else TOLERATED
    own = shares_of(run.summary).get(INSIDE)
    worse = [name for name in found if _worse(run.summary, name, allowed, own.wrong if own else 0.0)]
    how = "predicted" if run.summary.policy.name == OWN else "answered"
    names = sorted(found, key=lambda name: (name not in worse, -found[name].wrong))
    texts = [_wrongly(run.summary, name, found[name].wrong, how, alarmed) for name in names]
    most = max(each.wrong for each in found.values())
    kind = ("bad" if most > 0.5 else "open") if worse else "good" if most <= allowed else "unknown"
    which = in_words(worse[0]) if len(worse) == 1 else "that silos do not know"
    whose = ["" if worse == [name] else f"of inputs {in_words(name)}, " for name in names]
    said = "; ".join(f"{of}{text}" for of, text in zip(whose, texts, strict=True))
    head = Markup("<b>Not reliable on inputs {}</b>").format(which) if worse else f"Inputs {which}"
    beside = f" Of silos' own inputs, {percent(own.wrong)} were {how} wrongly." if own else ""
    return Statement(kind, Markup("{}: {}.{}").format(head, said, beside))


def _worse(summary: Summary, stream: str, allowed: float, own: float) -> bool:
    """Return whether more of a stream is answered wrongly than allowed and than of own inputs, beyond the uncertainty
    from few inputs; the difference from own inputs must be material."""
    wrong, inputs, limit = foreign(summary)[stream].wrong, summary.tested[stream].examples, max(allowed, own)
    return wrong > max(limit, own + MATERIAL) and (not inputs or score_interval(wrong, inputs)[0] > limit)


def _wrongly(summary: Summary, stream: str, wrong: float, how: str, alarmed: bool) -> str:
    most, alarms = worst_at(summary, stream), summary.tested[stream].chosen.pooled.alarms
    at = f" (most at {most[0]}, {percent(most[1].wrong)})" if most and most[1].wrong > wrong else ""
    raised = f", and {percent(alarms)} raised an alarm" if alarmed and alarms is not None else ""
    return f"{percent(wrong)} were {how} wrongly{at}{raised}"
