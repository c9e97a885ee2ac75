"""The page and the table of a run that predicts a quantity or a time: errors, intervals, predicted against observed."""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ...core.text import initial, listed, percent, plural, significant
from ...files import RunFolder
from ...files.schema import Metrics, ObservedInputs, SiloRecord, SurvivalCurves
from ...uncertainty.statistical_tests import beta_binomial_tail, detected, normal_tail
from .. import svg
from ..diagrams import histogram_bars
from ..svg import Chart
from ..templates import Cell, Statement, Table, column, table, words, worst_first
from .advice import alone_step, predicting
from .classification import ALONE, gap_to
from .guarantee import QUANTITY, TIME, subgroup_table
from .incidents import failures
from .overview import headline
from .rounds import cost_table, curves

SHOWN = 12
"""Maximum number of silos with a picture."""
BRIEF = ("crps", "c_index", "integrated_brier")
"""The metrics of other methods in the terminal, whose lines are short."""
USELESS = 0.5
"""Lower bounds are useless below this share of the lower quantile without inputs."""


def quantity_table(run: RunFolder, brief: bool = False) -> Table | None:
    """Return a table of the errors and intervals of each silo, beside those without inputs and other methods' errors;
    None without metrics. A `brief` table has fewer columns of the latter."""
    silos = run.silos
    if not silos:
        return None
    tests, mean, times = [silo.test for silo in silos], run.mean, is_time(run)
    figures = [each for each in (TIME if times else QUANTITY) if not brief or each[1] != "c_index_uno"]
    between = "\n" if brief else " "
    others = [each for each in figures if each[1] in BRIEF or not brief]

    def numbers(name: str, of: Sequence[Metrics], last: Metrics) -> list[str]:
        return [significant(getattr(each, name)) for each in (*of, last)]

    columns = [words("silo", [*(silo.name for silo in silos), "mean"])]
    if times:
        columns.append(column("events", numbers("events", tests, Metrics()), "inputs whose event was observed"))
    own = f"{run.title} " * bool(run.comparable and not brief)
    columns += [column(f"{own}{head}", numbers(name, tests, mean), help) for head, name, help in figures]
    for title, other in run.comparable.items():
        theirs = {silo.name: silo.test for silo in other.silos}
        found = [theirs.get(silo.name, Metrics()) for silo in silos]
        columns += [
            column(f"{title}{between}{head}", numbers(name, found, other.mean), help) for head, name, help in others
        ]
    target = run.summary.target if run.summary else None
    declared, standardized = bool(target and target.declared), bool(target and target.standardized)
    without = "uniform" if declared else "Kaplan-Meier" if times else "no inputs"
    columns += [
        column(f"{without}{between}{head}", numbers(f"reference_{name}", tests, mean))
        for head, name, _ in others
        if hasattr(mean, f"reference_{name}")
    ]
    if times and not brief:
        values = [significant(test.d_calibration) for test in (*tests, run.summary.pooled if run.summary else mean)]
        columns.append(column("D-calibration p", values, "test that predicted probabilities are uniform; last: pooled"))
    wanted = run.summary.intervals.coverage if run.summary and run.summary.intervals else None
    covered = [_coverage(silo, wanted, len(silos)) for silo in silos]
    columns.append(column("coverage", [*covered, percent(mean.interval_coverage)], "inputs within their interval"))
    widths = ["infinite" if each.interval_coverage is not None and each.interval_width is None and not times else
              significant(each.interval_width) for each in (*tests, mean)]  # fmt: skip
    columns.append(column("width", widths, "mean width of intervals, infinite if one of them is"))
    columns.append(column(f"lower{between}bound", numbers("interval_low", tests, mean), "mean lower bound of times"))
    if any((silo.decisions or {}).get("abstain") for silo in silos):
        shares = [percent(1 - (silo.decisions or {}).get("abstain", 0.0)) for silo in silos]
        columns.append(column("answered", [*shares, percent(mean.coverage)]))
    known = "Kaplan-Meier: the survival curve" if times else "No inputs: the distribution"
    known = (
        "Uniform: all of the declared data.range alike."
        if declared
        else f"{known} of all training targets{', standardized at each silo' * standardized}."
    )
    split = f"Metrics on {run.split} inputs, in the unit of the target. {known}"
    promise = f" Intervals contain {percent(wanted)} or more, on average over calibration samples."
    promise = promise if wanted and not times else ""
    return table(columns, split + promise, [silo.name for silo in silos], footer=1)


def is_time(run: RunFolder) -> bool:
    """Return whether the run predicts a time to an event."""
    return bool(run.summary and run.summary.target and run.summary.target.event)


def about_times(run: RunFolder) -> list[str]:
    """Return sentences about the lower bounds and the test of calibration of a run that predicts times."""
    summary, mean = run.summary, run.mean
    if summary is None or summary.target is None or not is_time(run):
        return []
    said, events = [], sum(silo.test.events or 0.0 for silo in run.silos)
    if summary.intervals is not None and mean.interval_low is not None:
        level = summary.intervals.coverage
        held = (
            f"Times are at least their lower bounds for {percent(level)} of inputs or more, whatever the censoring: "
            f"bounds hold for the earlier of event and censoring. The mean bound is {mean.interval_low:.4g}"
        )
        if summary.target.declared:
            said.append(f"{held}.")
        else:
            usual = _reached(summary.target.edges, summary.target.shares, 1 - level)
            useless = " The bounds are useless here."
            quantile = f"{held}; the {percent(1 - level)} quantile of the Kaplan-Meier curve is {usual:.4g}."
            said.append(quantile + useless * (mean.interval_low < USELESS * usual))
    if events:
        said.append(
            f"D-calibration has {events:.0f} events: with a probability of 80 % it detects (at 5 %) deviations of the "
            f"shares of ten bins of {percent(detected(events))} (root mean square) or more, and no smaller ones."
        )
    return said


def _reached(edges: Sequence[float], shares: Sequence[float], level: float) -> float:
    """Return the quantile of a distribution over bars."""
    below = 0.0
    for left, right, share in zip(edges, edges[1:], shares, strict=False):
        if below + share >= level:
            return left + (right - left) * (level - below) / share
        below += share
    return edges[-1]


def _coverage(silo: SiloRecord, wanted: float | None, silos: int) -> Cell:
    """Return the coverage, flagged if it is too low beyond chance at 5 % over all silos. Chance includes that of the
    calibration inputs, as for false alarms."""
    found, inputs, n = silo.test.interval_coverage, silo.n_test or 0, silo.n_calibration or 0
    if found is None or wanted is None or not inputs:
        return Cell(percent(found))
    outside = math.floor((1 - wanted) * (n + 1) + 1e-9)
    missed = round((1 - found) * inputs)
    few = outside > 0 and beta_binomial_tail(missed, inputs, outside, n + 1 - outside) < 0.05 / silos
    return Cell(percent(found), f"fewer than chance explains, given {wanted:.0%} and {inputs} inputs" if few else "")


def picture(found: ObservedInputs) -> Chart:
    """Return predicted medians with their intervals, clipped to the frame, against observed values."""
    ends = [value for value in (*found.observed, *found.value) if value is not None]
    low, high = min(ends), max(ends)
    room = 0.04 * (high - low or 1.0)
    shown = low - room, high + room
    frame = svg.Axes(56, 24, 388, 300, shown, shown)
    bars = [
        ((x, shown[0] if a is None else max(a, shown[0])), (x, shown[1] if b is None else min(b, shown[1])))
        for x, a, b in zip(found.observed, found.low, found.high, strict=False)
    ]
    points = list(zip(found.observed, found.value, strict=True))
    ticks = svg.written(svg.inner_ticks(frame.x_range), lambda value: f"{value:g}")
    drawn = [
        svg.line(frame.at((low, low)), frame.at((high, high)), "diagonal"),
        svg.text(2, 12, "predicted", "start", "tick"),
        svg.group(
            "",
            svg.strokes([(frame.at(a), frame.at(b)) for a, b in bars], "whisker thin"),
            svg.marks(0, map(frame.at, points), 2.4),
            class_=svg.color(0),
        ),
    ]
    label = f"Predicted against observed values at {found.silo}"
    drawing: Markup = svg.plot(frame, label, ticks, ticks, "observed", *drawn)
    return Chart(found.silo, drawing)


def survival(found: SurvivalCurves) -> Chart:
    """Return the mean predicted survival of test inputs beside their Kaplan-Meier curve."""
    frame = svg.Axes(56, 10, 388, 220, (0.0, found.times[-1]), (0.0, 1.0))
    x_ticks = svg.written(svg.inner_ticks(frame.x_range), lambda value: f"{value:g}")
    y_ticks = svg.written(svg.ticks(0.0, 1.0), lambda share: percent(share, 0))
    steps = [(t, each) for k, t in enumerate(found.times) for each in found.observed[max(k - 1, 0) : k + 1]]
    curves = (("predicted mean", list(zip(found.times, found.predicted, strict=True))), ("Kaplan-Meier", steps))
    drawn = [svg.draw(frame, svg.Line(points, k, name, "stream")) for k, (name, points) in enumerate(curves)]
    label = f"Survival at {found.silo}: predicted (disc) and observed"
    return Chart(found.silo, svg.plot(frame, label, x_ticks, y_ticks, "time", *drawn))


def probabilities(silo: SiloRecord) -> Chart:
    """Return the histogram of predicted probabilities of smaller values than those observed (PIT)."""
    total = sum(silo.pit) or 1.0
    shares = [count / total for count in silo.pit]
    ends = svg.ticks(0.0, max(*shares, 2 / len(shares)), 4)
    frame = svg.Axes(46, 10, 418, 170, (0.0, 1.0), (0.0, ends[-1]))
    titles = [f"{count:.4g} of {total:.0f} inputs" for count in silo.pit]
    x_ticks = svg.written(svg.ticks(0.0, 1.0), lambda share: percent(share, 0))
    y_ticks = svg.written(ends, lambda share: percent(share, 0))
    uniform = svg.line(frame.at((0.0, 1 / len(shares))), frame.at((1.0, 1 / len(shares))), "event")
    label = f"Predicted probabilities of smaller values at {silo.name}"
    drawn = histogram_bars(frame, shares, titles)
    return Chart(silo.name, svg.plot(frame, label, x_ticks, y_ticks, "probability", *drawn, uniform))


def sentence(run: RunFolder) -> str:
    """Return the result in a sentence."""
    mean, declared = run.mean, bool(run.summary and run.summary.target and run.summary.target.declared)
    if mean.integrated_brier is not None:
        pairs = "" if mean.c_index is None else f"{run.title} orders {percent(mean.c_index)} of pairs right; "
        known, curve = mean.reference_integrated_brier, "uniform times" if declared else "the Kaplan-Meier curve"
        beside = "" if known is None else f", that of {curve} {known:.3g}"
        return (
            f"{pairs}its integrated Brier score is {mean.integrated_brier:.3g}{beside} (means over "
            f"{plural(len(run.silos), 'silo')})."
        )
    if mean.mae is None:
        return ""
    said = f"{run.title} is off by {mean.mae:.3g} on average"
    if mean.reference_mae:
        guess = "middle of the declared range" if declared else "median of all training targets"
        said += f"; the {guess} by {mean.reference_mae:.3g}"
    return f"{said} (mean absolute error, mean over {len(run.silos)} silos)."


def verdicts(run: RunFolder) -> list[Statement]:
    """Return whether the run is better than without inputs and than training alone, and whether intervals cover, the
    worst first."""
    name, called = _judged(run)
    own, known = getattr(run.mean, name), getattr(run.mean, f"reference_{name}")
    lines = []
    if own is not None and known is not None:
        behind, text = (
            _no_gain(run),
            f"{called} {significant(own)}, without inputs {significant(known)}, means over silos",
        )
        at = f"; no gain at {listed(behind, _MOST_NAMED)}" if behind and own < known else ""
        kind = "bad" if own >= known else "open" if behind else "good"
        head = "Better than without inputs" if own < known else "No better than without inputs"
        lines.append(Statement(kind, Markup("<b>{}</b>: {}{}.").format(head, text, at)))
    alone = run.comparable.get(ALONE)
    if alone and (gap := gap_to(run, alone, name)):
        side, clear = "lower" if gap.value < 0 else "higher", gap.clear
        chance = f", {'' if clear else 'no '}more than chance over silos explains" if gap.low is not None else ""
        text = f"{initial(called)} is {significant(abs(gap.value))} {side} than with training alone{chance}."
        lines.append(Statement("good" if clear and gap.value < 0 else "bad" if clear else "open", text))
    if wanted := run.summary.intervals.coverage if run.summary and run.summary.intervals and not is_time(run) else None:
        few = [silo.name for silo in run.silos if _coverage(silo, wanted, len(run.silos)).flag]
        text = f"Intervals contain {percent(run.mean.interval_coverage)} of test inputs (guaranteed: {percent(wanted)})"
        at = f", too few beyond chance at {listed(few, _MOST_NAMED)}" if few else ""
        width, usual = run.mean.interval_width, _usual_width(run, wanted)
        wide = width is not None and usual is not None and width > _LITTLE * usual
        at += (
            f"; their mean width is {significant(width)}, without inputs {significant(usual)}"
            if width and usual
            else ""
        )
        at += ", so they are little narrower" * wide
        lines.append(Statement("bad" if few else "open" if wide else "good", f"{text}{at}."))
    if skewed := [said for silo in run.silos if (said := _skewed(silo, len(run.silos)))]:
        lines.append(Statement("open", f"Predictions are {listed(skewed, _MOST_NAMED)}, beyond chance."))
    return worst_first(lines)


_MOST_NAMED = 4
_LITTLE = 0.8
"""Width of intervals, relative to those without inputs, above which they are little narrower."""


def _usual_width(run: RunFolder, level: float) -> float | None:
    """Return the width of the central interval of all training targets; None if it is unknown."""
    target = run.summary.target if run.summary else None
    if target is None or target.standardized or target.declared or not target.edges:
        return None
    low, high = (_reached(target.edges, target.shares, end) for end in ((1 - level) / 2, (1 + level) / 2))
    return high - low


def _skewed(silo: SiloRecord, silos: int) -> str:
    """Return whether a silo's predictions are too low or too high, beyond chance at 5 % over all silos: the mean of n
    uniform probabilities has a standard deviation of sqrt(1 / (12 n))."""
    n, bins = sum(silo.pit), len(silo.pit)
    if not n:
        return ""
    above = sum(count * (k + 0.5) / bins for k, count in enumerate(silo.pit)) / n - 0.5
    if 2 * silos * normal_tail(abs(above) * math.sqrt(12 * n)) >= 0.05:
        return ""
    return f"too {'low' if above > 0 else 'high'} (silo {silo.name}, mean PIT {above + 0.5:.2f} instead of 0.50)"


def _judged(run: RunFolder) -> tuple[str, str]:
    """Return the key and the name of the metric that decides, lower is better."""
    return ("integrated_brier", "integrated Brier score") if is_time(run) else ("mae", "mean absolute error")


def _no_gain(run: RunFolder) -> list[str]:
    """Return the silos at which predictions without inputs are as good."""
    name, _ = _judged(run)
    pairs = [(silo.name, getattr(silo.test, name), getattr(silo.test, f"reference_{name}")) for silo in run.silos]
    return [silo for silo, own, known in pairs if own is not None and known is not None and own >= known]


def next_steps(run: RunFolder) -> list[Markup]:
    """Return what to do now, the most important first."""
    name, _ = _judged(run)
    own, known, alone = getattr(run.mean, name), getattr(run.mean, f"reference_{name}"), run.comparable.get(ALONE)
    if not run.summary or own is None or known is None:
        return []
    if own >= known:
        text = "Do not use this model: it is no better than predictions without inputs. Train for more "
        return [Markup(f"{text}<code>rounds</code> or with another <code>training.lr</code>, and check the targets.")]
    gap = gap_to(run, alone, name) if alone else None
    worse = bool(gap and gap.clear and gap.value > 0)
    steps = [step for step in [alone_step(run, worse, gap, error=True)] if step]
    if worse and steps:
        return steps
    behind = _no_gain(run)
    if behind:
        text = "Test it on more inputs of {} before use there."
        steps.append(Markup(text).format(listed(behind, _MOST_NAMED)))
    where = [silo.name for silo in run.silos if silo.name not in behind]
    return [*steps, predicting(run, where[0])] if where else steps


def quantity_parts(run: RunFolder) -> dict[str, Any]:
    """Return the parts of the page by name."""
    observed = run.gallery.observed if run.gallery else []
    return {
        "sentence": sentence(run),
        "steps": next_steps(run),
        "lines": verdicts(run),
        "silo_table": quantity_table(run),
        "subgroups": subgroup_table(run),
        "pictures": [picture(each) for each in observed[:SHOWN]],
        "curves": [survival(each) for each in (run.gallery.survival if run.gallery else [])[:SHOWN]],
        "probabilities": [probabilities(silo) for silo in run.silos[:SHOWN] if silo.pit],
        "about": about_times(run),
        "promise": run.summary.guarantee.statement if run.summary and run.summary.guarantee else "",
        "cost_table": cost_table(run),
        "facts": headline(run),
        "failures": failures(run),
        "training_curves": curves(run, _judged(run)[0]),
        "warnings": run.summary.warnings if run.summary else (),
    }
