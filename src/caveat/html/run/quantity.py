"""The page of a run that predicts a quantity or a time: the first screen, and what the page shows."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup

from ...core.text import equation, initial, joined, listed, percent, plural, significant
from ...files import RunFolder, natural
from ...uncertainty.statistical_tests import detected
from ..commands import code
from ..templates import Statement, worst_first
from .advice import alone_step, predicting
from .classification import ALONE, gap_to, over_silos
from .incidents import failures, varied
from .overview import headline
from .quantity_plots import pictures, probabilities, side_by_side, survival
from .quantity_silos import (
    JudgedValues,
    alike,
    is_time,
    judged,
    mean_error,
    quantity_table,
    ranked,
    reached,
    too_wide,
    uneven,
    verdict_table,
)  # fmt: skip
from .rerun_commands import twice
from .rounds import cost_table, curves, overtrained
from .silo_baselines import MOST_NAMED
from .subgroups import subgroup_table

SHOWN = 12
"""Maximum number of silos with a picture."""
USELESS = 0.5
"""Share of the lower quantile without inputs below which lower bounds are called useless."""


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
            f"bounds hold for the earlier of event and censoring. Their mean is {mean.interval_low:.4g}"
        )
        if summary.target.declared:
            said.append(f"{held}.")
        else:
            usual = reached(summary.target.edges, summary.target.shares, 1 - level)
            useless = " The bounds are of no use here."
            quantile = f"{held}; the {percent(1 - level)} quantile of the Kaplan-Meier curve is {usual:.4g}."
            said.append(quantile + useless * (mean.interval_low < USELESS * usual))
    if events:
        said.append(
            f"The test of D-calibration has {events:.0f} events. At a level of 5 %, and with a probability of 80 %, it "
            f"detects deviations of the shares of ten bins of {percent(detected(events))} or more (root mean square)."
        )
    return said


def sentence(run: RunFolder) -> str:
    """Return the result in a sentence."""
    mean, declared = run.mean, bool(run.summary and run.summary.target and run.summary.target.declared)
    if mean.integrated_brier is not None:
        pairs = "" if mean.c_index is None else f"{run.title} orders {percent(mean.c_index)} of pairs correctly; "
        known, curve = mean.reference_integrated_brier, "uniform times" if declared else "the Kaplan-Meier curve"
        beside = "" if known is None else f", that of {curve} {known:.3g}"
        return (
            f"{pairs}its integrated Brier score is {mean.integrated_brier:.3g}{beside} (means over "
            f"{plural(len(run.silos), 'silo')})."
        )
    if mean.mae is None:
        return ""
    guess = "the middle of the declared range" if declared else "the median of all training targets"
    alone = run.comparable[ALONE].mean.mae if ALONE in run.comparable else None
    others = {guess: mean.reference_mae, "training alone": alone}
    told = [f"{name} is off by {significant(error)}" for name, error in others.items() if error is not None]
    over, inputs, ends = plural(len(run.silos), "silo"), sum(silo.n_test or 0 for silo in run.silos), mean_error(run)
    about = f"mean absolute error, mean over {over}"
    about += f" with {inputs:,} {run.split} inputs" * bool(inputs)
    about += f"; 95 % interval over inputs {significant(ends[0])} to {significant(ends[1])}" if ends else ""
    text = Markup("<b>{}</b> is off by <b>{}</b> on average ({}){}. {}")
    rest = f"; {joined(told)}" if told else ""
    return text.format(run.title, significant(mean.mae), about, rest, _scale(run))


def _scale(run: RunFolder) -> str:
    """Return the usual values of the target, or its unit if these are unknown."""
    target, name = run.summary.target if run.summary else None, run.section("data").get("target") or "the target"
    if target is None or target.standardized or not target.edges:
        return f"Errors are in the unit of {name}."
    if target.declared:
        return f"The declared range of {name} is {significant(target.edges[0])} to {significant(target.edges[-1])}."
    low, median, high = (significant(reached(target.edges, target.shares, level)) for level in (0.1, 0.5, 0.9))
    return f"Of training values of {name}, 80 % are {low} to {high} (median {median})."


def verdicts(run: RunFolder) -> list[Statement]:
    """Return whether the run is better than without inputs and than training alone, and whether intervals contain
    enough inputs, the worst first."""
    name, called = _judged(run)
    own, known = getattr(run.mean, name), getattr(run.mean, f"reference_{name}")
    lines, silos = [], judged(run)
    if own is not None and known is not None:
        behind, gain = _no_gain(run), over_silos(_gains(run))
        chance = own < known and gain is not None and gain.low is not None and not gain.clear
        text = f"{called} is {significant(own)}, without inputs {significant(known)} (means over silos)"
        if gain and gain.low is not None:
            text = "{} differs by {} (mean over silos, 95 % interval {} to {})"
            text = text.format(called, *alike(gain.known, own))
        at = f"; no gain at {listed(behind, MOST_NAMED)}" if behind and own < known else ""
        shown = [each.silo.name for each in silos if each.gain and each.gain.clear and each.gain.value < 0]
        at += f"; shown to be better at {listed(shown, MOST_NAMED)}" if chance and shown else ""
        worse = any(each.gain and each.gain.clear and each.gain.value > 0 for each in silos)
        kind = "bad" if own >= known else "open" if worse else "unknown" if behind or chance else "good"
        head = "No better" if own >= known else "Not shown to be better over silos" if chance else "Better"
        lines.append(Statement(kind, Markup("<b>{} than without inputs</b>: {}{}.").format(head, text, at)))
    alone = run.comparable.get(ALONE)
    if alone and (gap := gap_to(run, alone, name)):
        side, clear = "lower" if gap.value < 0 else "higher", gap.clear
        text = f"{initial(called)} is {significant(abs(gap.value))} {side} than with training alone."
        if gap.low is not None:
            text = "{} minus that of training alone is {} (95 % interval over silos {} to {}), {}more than chance over "
            text = text.format(initial(called), *alike(gap.known, own), "" if clear else "no ") + "silos explains."
        lines.append(Statement("good" if clear and gap.value < 0 else "bad" if clear else "unknown", text))
    lines += [_intervals(run, silos, silos[0].wanted)] if silos and silos[0].wanted else []
    for_all = f", corrected for {len(silos):,} silos" * (len(silos) > 1)
    skewed = [f"too {each.skew} at silo {each.silo.name!r} ({each.beyond}{for_all})" for each in silos if each.skew]
    tested = None if is_time(run) else uneven(run.silos)
    if tested and not (skewed and tested[0] >= 0.05):  # if the test of direction finds an error, it decides
        lines.append(_distributions(*tested))
    if skewed:
        lines.append(Statement("open", f"Predictions are {listed(skewed, MOST_NAMED)}."))
    return worst_first(lines)


def _intervals(run: RunFolder, silos: Sequence[JudgedValues], wanted: float) -> Statement:
    """Return whether intervals contain as many test inputs as guaranteed, how many are missing, and their width."""
    few = [f"{each.silo.name} ({each.covered}, {each.short:.1f} points short)" for each in silos if each.missed]
    share = run.mean.interval_coverage
    text = f"Intervals contain {percent(share)} of test inputs, mean over silos (guaranteed: {percent(wanted)})"
    text += f", too few beyond chance at {listed(few, MOST_NAMED)}" if few else ""
    kind = "bad" if few else "unknown" if share is not None and share < wanted else "good"
    if not few and (many := too_wide(silos)):
        kind = "open"
        text += (
            ". They are too wide: they contain {:,} of {:,} inputs, more than chance explains ({}, one-sided".format(
                *many
            )
        )
        text += f"; {calibration_inputs(silos)})"
    width, usual = run.mean.interval_width, _usual_width(run, wanted)
    if width and usual:
        wide = width > _LITTLE * usual
        kind = "unknown" if wide and kind == "good" else kind
        how = "no narrower" if width >= usual else "hardly narrower" if wide else "narrower"
        text += f". They are {how} than an interval without inputs: {significant(width)} on average, compared with "
        text += f"{significant(usual)} for the central {percent(wanted)} of training targets"
    return Statement(kind, f"{text}.")


def _distributions(p: float, most: str, inputs: float, freedom: int) -> Statement:
    """Return whether predicted distributions are calibrated, from the p-value of a test; `most` is the silo with the
    most uneven distribution. "good" only if the test is clearly not significant, and detects deviations that matter."""
    kind = "open" if p < 0.05 else "good" if p >= _UNCLEAR and detected(inputs, freedom) <= _RESOLVED else "unknown"
    head = {
        "open": "Predicted distributions are not calibrated",
        "good": "No error of the predicted distributions was found",
        "unknown": "No error of the predicted distributions is shown",
    }[kind]
    text = Markup("<b>{}</b> (chi-squared test of the bars of calibration below, {}; most uneven at silo {!r}). ")
    return Statement(kind, text.format(head, equation(p), most) + "Intervals are calibrated separately.")


_UNCLEAR, _RESOLVED = 0.25, 0.2
"""Minimum p-value without a hint at an error, and the largest deviation of shares that may go unnoticed."""
_LITTLE = 0.8
"""Width of intervals, relative to the one without inputs, above which they are called hardly narrower."""


def _usual_width(run: RunFolder, level: float) -> float | None:
    """Return the width of the central interval of all training targets; None if it is unknown."""
    target = run.summary.target if run.summary else None
    if target is None or target.standardized or target.declared or not target.edges:
        return None
    low, high = (reached(target.edges, target.shares, end) for end in ((1 - level) / 2, (1 + level) / 2))
    return high - low


def _judged(run: RunFolder) -> tuple[str, str]:
    """Return the key and the name of the metric that decides; lower is better."""
    return ("integrated_brier", "integrated Brier score") if is_time(run) else ("mae", "mean absolute error")


def _no_gain(run: RunFolder) -> list[str]:
    """Return the silos at which predictions without inputs are at least as good."""
    name, _ = _judged(run)
    pairs = [(silo.name, getattr(silo.test, name), getattr(silo.test, f"reference_{name}")) for silo in run.silos]
    return [silo for silo, own, known in pairs if own is not None and known is not None and own >= known]


def _gains(run: RunFolder) -> list[float]:
    """Return the metric of each silo minus that of predictions without inputs."""
    name, _ = _judged(run)
    pairs = [(getattr(silo.test, name), getattr(silo.test, f"reference_{name}")) for silo in run.silos]
    return [own - known for own, known in pairs if own is not None and known is not None]


def next_steps(run: RunFolder, fewer: Sequence[Markup], maybe: Sequence[Markup]) -> list[Markup]:
    """Return what to do now, the most important first; `fewer` is the advice to train for fewer rounds, `maybe` the
    advice to try this."""
    name, _ = _judged(run)
    own, known, alone = getattr(run.mean, name), getattr(run.mean, f"reference_{name}"), run.comparable.get(ALONE)
    if not run.summary or own is None or known is None:
        return []
    if own >= known:
        how = "Train with" if fewer or maybe else "Train for more <code>rounds</code> or with"
        text = f"Do not use this model: it is no better than predictions without inputs. {how} another "
        return [Markup(f"{text}<code>training.lr</code>, and check the targets."), *fewer]
    gap = gap_to(run, alone, name) if alone else None
    worse = bool(gap and gap.clear and gap.value > 0)
    steps = [step for step in [alone_step(run, worse, gap, error=True)] if step]
    if worse and steps:
        return [*steps, *fewer]
    steps = [*fewer, *steps]
    behind, silos = _no_gain(run), judged(run)
    if behind:
        text = "Test it on more inputs of {} before use there: no gain over predictions without inputs is shown there."
        steps.append(Markup(text).format(listed(behind, MOST_NAMED)))
    if few := [each.silo.name for each in silos if each.missed]:
        text = "Do not rely on intervals at {} before you calibrate them on more inputs there "
        text += "(<code>data.split.calibration</code>)."
        steps.append(Markup(text).format(listed(few, MOST_NAMED)))
    width, usual = run.mean.interval_width, _usual_width(run, silos[0].wanted) if silos and silos[0].wanted else None
    if wide := bool(width and usual and width >= usual):
        text = "Do not act on a single prediction: intervals are no narrower than those without inputs (below)."
        more = " They rest on {} and contain more test inputs than requested: try more calibration inputs "
        more = Markup(f"{more}(<code>data.split.calibration</code>).").format(calibration_inputs(silos))
        steps.insert(0, Markup(text) + (more if too_wide(silos) else ""))
    for skew, side in (("low", "higher"), ("high", "lower")):
        if off := [f"silo {each.silo.name!r}{off_by(run, each)}" for each in silos if each.skew == skew]:
            text = "Expect {} values than predicted at {}."
            steps.append(Markup(text).format(side, listed(off, MOST_NAMED)))
    shown = [each.silo.name for each in silos if each.gain and each.gain.clear and each.gain.value < 0]
    where = [*shown, *(silo.name for silo in run.silos if silo.name not in behind)]
    names = sorted(set(where), key=natural)
    if not wide:
        return [*steps, predicting(run, names)] if names else steps
    rank = ranked(run)
    if ordered := [name for name in names if name in rank]:
        low, high = (f"{end(rank[name] for name in ordered):.2f}" for end in (min, max))
        check = f": the rank correlation with observed values is {low}{f' to {high}' * (low != high)}"
        if (gaps := mean_gaps(run)) and gaps[0] >= gaps[1]:
            text = ". Do not use the mean of predictions to forecast a silo's mean: it is off by {}, the median of "
            check += (
                text.format(significant(gaps[0])) + f"training targets by {significant(gaps[1])} (means over silos)"
            )
        steps.append(predicting(run, ordered, check, "Only to rank a silo's inputs, "))
    return [*steps, *([] if fewer else maybe or [Markup("Try more <code>rounds</code>{}.").format(twice(run))])]


def mean_gaps(run: RunFolder) -> tuple[float, float] | None:
    """Return the mean differences, over silos, of mean predictions and of the median of all training targets from mean
    observed values; None if they are unknown."""
    target = run.summary.target if run.summary else None
    shown = [each for each in run.gallery.observed if each.observed] if run.gallery else []
    if target is None or target.standardized or not target.edges or not shown:
        return None
    guess = reached(target.edges, target.shares, 0.5)
    own = fmean(abs(fmean(each.value) - fmean(each.observed)) for each in shown)
    return own, fmean(abs(guess - fmean(each.observed)) for each in shown)


def off_by(run: RunFolder, silo: JudgedValues) -> str:
    """Return by how much predictions of a silo are too low or too high; empty if means do not show this."""
    shown = run.gallery.observed if run.gallery else ()
    each = next((each for each in shown if each.silo == silo.silo.name and each.observed), None)
    if each is None or ((gap := fmean(each.observed) - fmean(each.value)) > 0) != (silo.skew == "low"):
        return ""
    ends = f"observed {significant(fmean(each.observed))}, predicted {significant(fmean(each.value))}"
    return f" (by {significant(abs(gap))} on average over {plural(len(each.observed), 'test input')}: {ends})"


def calibration_inputs(silos: Sequence[JudgedValues]) -> str:
    """Return the numbers of calibration inputs of silos, in words."""
    ends = sorted(each.silo.n_calibration or 0 for each in silos)
    least, per = f"{ends[0]:,} to " * (ends[0] < ends[-1]), " per silo" * (len(ends) > 1)
    return f"{least}{ends[-1]:,} calibration inputs{per}"


def _stop_earlier(run: RunFolder) -> tuple[list[Markup], list[Markup]]:
    """Return the advice to train for fewer rounds, if the error on validation inputs has risen since beyond chance over
    silos; and the advice to try fewer rounds, if chance can explain the rise."""
    metric, called = _judged(run)
    found = overtrained(run, metric)
    if found is None or run.summary is None:
        return [], []
    at, least, last, gap = found
    clear = bool(gap and gap.clear)
    again = varied(run, "shorter", "--set", f"rounds={at}")
    head, shown = "Fewer <code>rounds</code> may be as good: try them", "no more than chance explains"
    if clear:
        head, shown = "Train for fewer <code>rounds</code>", "more than chance explains"
    text = "{}{} (or set <code>evaluation.early_stopping_patience</code>): validation {} was lowest after round {:,} "
    by, told = Markup(" with {}").format(code(again)) if again else "", ""
    if gap and gap.low is not None:
        told = "; difference {}, 95 % interval over silos {} to {}, {}".format(*alike(gap.known, last), shown)
    values = called, at, significant(least), significant(last), told
    step = Markup(f"{text}({{}}; after the last round, {{}}{{}}).").format(Markup(head), by, *values)
    return ([step], []) if clear else ([], [step])


def quantity_parts(run: RunFolder) -> dict[str, Any]:
    """Return the parts of the page by name."""
    observed, (fewer, maybe) = run.gallery.observed if run.gallery else [], _stop_earlier(run)
    steps = next_steps(run, fewer, maybe)
    return {
        "sentence": sentence(run),
        "steps": steps,
        "lines": verdicts(run),
        "silo_table": quantity_table(run) if is_time(run) else verdict_table(run),
        "subgroups": subgroup_table(run),
        "metrics": None if is_time(run) else quantity_table(run),
        "observed": bool(observed),
        "charts": side_by_side(
            {
                "predicted and observed values": pictures(observed[:SHOWN]),
                "survival": [survival(each) for each in (run.gallery.survival if run.gallery else [])[:SHOWN]],
                "calibration": probabilities(run.silos[:SHOWN]),
            }
        ),
        "about": [*about_times(run), *(each for each in maybe if each not in steps)],
        "promise": run.summary.guarantee.statement if run.summary and run.summary.guarantee else "",
        "cost_table": cost_table(run),
        "facts": headline(run),
        "failures": failures(run),
        "training_curves": curves(run, _judged(run)[0]),
        "warnings": run.summary.warnings if run.summary else (),
    }
