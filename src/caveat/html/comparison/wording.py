"""Text for a comparison: formatted numbers, the leader and its lead, and whether budgets are equal.

Shares are formatted as percent without the sign, everything else with three decimals.
"""

import math
import shlex
from collections.abc import Iterable, Sequence
from statistics import fmean

from ...core.text import MINUS, equation, joined, listed, minus, percent, plural
from ...core.text import signed as with_sign
from ...core.text import tick as written_tick
from ...files import schema
from ...files.schema import Comparison, Measure, Setting
from ..diagrams import Dot

POPULATION = (
    "Intervals are for retraining with other seeds on these silos. Seeds share some or all test inputs, so "
    "results for other inputs or other silos may differ more."
)
"""The population of the intervals of means."""
SEEDS = 5
"""Minimum number of seeds for which plots only show intervals."""
FEW = 10
"""Number of errors over all seeds below which it is stated with a metric of error detection."""


def figure(measure: Measure, value: float | None) -> str:
    """Return the value as a number without unit; empty for None."""
    return "" if value is None else minus(f"{100 * value:.1f}" if measure.percent else f"{value:.3f}")


def with_unit(measure: Measure, value: float | None) -> str:
    return figure(measure, value) + (" %" if measure.percent and value is not None else "")


def signed(measure: Measure, value: float | None) -> str:
    """Return the value with a plus sign if it is positive."""
    return "" if value is None else with_sign(f"{100 * value:.1f}" if measure.percent else f"{value:.3f}")


def interval(measure: Measure, value: schema.IntervalRecord) -> str:
    """Return "94.0 to 96.2"; empty without bounds."""
    if value.low is None or value.high is None:
        return ""
    return f"{figure(measure, value.low)} to {figure(measure, value.high)}"


def few(value: schema.IntervalRecord) -> str:
    """Return the number of errors, or of correct answers if rarer, behind a silo's value; empty unless it is small."""
    if value.mean is None or value.rests_on is None or value.rests_on >= FEW:
        return ""
    return f"based on {value.rests_on} error{'s' * (value.rests_on != 1)}"


def interval_caption(values: Iterable[schema.IntervalRecord]) -> str:
    """Return the text after "mean over seeds": with all, some or no intervals."""
    known = [value.low is not None and value.high is not None for value in values if value.mean is not None]
    if all(known):
        return "with its 95 % interval"
    if not any(known):
        return "without an interval, because each value was measured only once"
    return (
        "with its 95 % interval, except for values measured once or from few errors, or if the interval spans the range"
    )


def bracketed(measure: Measure, value: schema.IntervalRecord) -> str:
    """Return "95.1 [94.0, 96.2]"; only the mean without bounds."""
    mean = figure(measure, value.mean)
    if value.mean is None or value.low is None or value.high is None:
        return mean
    return f"{mean} [{figure(measure, value.low)}, {figure(measure, value.high)}]"


def tick(measure: Measure, value: float) -> str:
    """Return the value on an axis whose name has the unit."""
    return written_tick(100 * value if measure.percent else value)


def dot(value: schema.IntervalRecord, note: str = "") -> Dot | None:
    """Return the value as plots show it; None without a mean."""
    return None if value.mean is None else Dot(value.mean, value.low, value.high, note)


def known(values: Iterable[schema.IntervalRecord]) -> list[float]:
    """Return all means and bounds that exist."""
    return [end for one in values for end in (one.mean, one.low, one.high) if end is not None]


def header(measure: Measure) -> str:
    return f"{measure.name}, %" if measure.percent else measure.name


def better(measure: Measure) -> str:
    """Return which direction is better; empty if neither is."""
    return {True: "higher is better", False: "lower is better", None: ""}[measure.higher]


def directed(name: str, measure: Measure) -> str:
    """Return a name of the metric with the direction that is better."""
    return f"{name} ({better(measure)})" if better(measure) else name


def per_seed(record: Comparison, row: schema.ComparedMethod, setting: Setting, measure: Measure) -> dict[int, float]:
    """Return the value of each finished run: the mean over its silos for a metric of silos."""
    found = {}
    for run in record.runs(row, setting, "done"):
        values = [value for silo in run.silos if (value := silo.figures.get(measure.name)) is not None]
        whole = run.figures.get(measure.name)
        if values or whole is not None:
            found[run.seed] = math.fsum(values) / len(values) if values else float(whole or 0.0)
    return found


def mean_of(runs: Sequence[schema.ComparedRun], name: str) -> float | None:
    """Return the mean cost of the finished runs; None if no run has it."""
    found = [getattr(run, name) for run in runs if run.status == "done" and getattr(run, name) is not None]
    return math.fsum(found) / len(found) if found else None


def not_done(runs: Sequence[schema.ComparedRun]) -> list[str]:
    """Return "1 failed, 2 to come"; empty if all are done."""
    counts = {text: sum(run.status == s for run in runs) for s, text in (("failed", "failed"), ("missing", "to come"))}
    return [f"{count} {text}" for text, count in counts.items() if count]


def setting_value(value: object) -> str:
    """Return a swept or tuned value as users write it, equal for a number and its text."""
    if isinstance(value, bool):
        return str(value).lower()
    number = as_number(value)
    return str(value) if number is None else f"{number:g}"


def as_number(value: object) -> float | None:
    """Return a number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


_LEVEL = 0.0005
"""Difference of accuracies below which two are equal after rounding."""


def unequal_budgets(record: Comparison, setting: Setting) -> str:
    """Return how many rounds each method trained; empty if the numbers are equal."""
    runs = {row.name: record.runs(row, setting, "done") for row in record.rows}
    rounds = {name: [run.rounds for run in each if run.rounds is not None] for name, each in runs.items()}
    taken = {name: (min(each), max(each)) for name, each in rounds.items() if each}
    if len(set(taken.values())) < 2:
        return ""
    by_rounds: dict[tuple[int, int], list[str]] = {}
    for name, of in sorted(taken.items(), key=lambda each: -each[1][1]):
        by_rounds.setdefault(of, []).append(name)
    texts = "; ".join(f"{joined(names)} {_range(of)} rounds" for of, names in by_rounds.items())
    return f"{texts}. {_at_common_round({name: runs[name] for name in taken})}"


def equal_by(record: Comparison, setting: Setting) -> str:
    """Return the option that gives all methods the maximum number of rounds."""
    runs = [run for row in record.rows for run in record.runs(row, setting, "done")]
    longest = max(runs, key=lambda run: run.rounds or 0, default=None)
    return f"--match-rounds {shlex.quote(longest.row)}" if longest else ""


def against(record: Comparison, setting: Setting, first: str, second: str) -> str:
    """ "After 16 rounds against 6, "; empty if both methods trained for the same number."""
    found = [
        sorted({run.rounds for run in record.runs(row, setting, "done") if run.rounds is not None})
        for name in (first, second)
        for row in record.rows
        if row.name == name
    ]
    if len(found) < 2 or not all(found) or found[0] == found[1]:
        return ""
    mine, its = (_range((each[0], each[-1])) for each in found)
    return f"After {mine} rounds against {its}, "


def _range(of: tuple[int, int]) -> str:
    return str(of[0]) if of[0] == of[1] else f"{of[0]} to {of[1]}"


def _at_common_round(runs: dict[str, list[schema.ComparedRun]]) -> str:
    """Return who leads on validation data at the last round for which all runs have metrics."""
    known = [{at for at, accuracy, _ in run.curve if accuracy is not None} for each in runs.values() for run in each]
    common = set.intersection(*known) if known else set()
    if not common:
        return "No round has validation metrics of all methods."
    last = max(common)
    found = {
        name: fmean(accuracy for run in each for at, accuracy, _ in run.curve if at == last and accuracy is not None)
        for name, each in runs.items()
    }
    (first, best), (second, other), *others = sorted(found.items(), key=lambda each: -each[1])
    where = f"At round {last}, the last common one,"
    behind = "".join(f", {name} {percent(accuracy)}" for name, accuracy in others)
    if best - other < _LEVEL:
        return f"{where} {first} and {second} are equal on validation data ({percent(best)}{behind})."
    return (
        f"{where} {first} leads on validation data by {100 * (best - other):.1f} points "
        f"({percent(best)}, {second} {percent(other)}{behind})."
    )


LEVEL = 0.05
"""Significance level after the correction for all pairs."""
_MOST_FAILED = 6
_MOST_OTHERS = 4


def ranked(rows: Sequence[schema.Result], measure: Measure) -> list[schema.Result]:
    """Return methods with a value, best first, or largest first if neither direction is better."""
    known = [row for row in rows if row.mean is not None]
    return sorted(known, key=lambda row: row.mean or 0.0, reverse=measure.higher is not False)


def verdict(record: Comparison, setting: Setting) -> str:
    """Return the verdict on the first metric under one setting: who leads, by how much, and with what significance."""
    measure = record.measures[0]
    results = record.results(setting, measure)
    order = ranked(results.rows, measure)
    if not order:
        return "No method has a result yet."
    if len(order) == 1:
        return f"Only {order[0].row} has a result: {measure.name} {_with_interval(measure, order[0])}."
    if measure.higher is None:
        return (
            f"{measure.name.capitalize()} ranges from {_with_interval(measure, order[-1])} with {order[-1].row} "
            f"to {_with_interval(measure, order[0])} with {order[0].row}."
        )
    first, second = order[:2]
    pair, others = _gap(results.pairs, first.row, second.row, measure), _others(order, results.pairs, measure)
    if pair is None or pair.mean is None:
        return (
            f"{first.row} has the best mean, {measure.name} {_with_interval(measure, first)}, then {second.row} with "
            f"{_with_interval(measure, second)}; the two were not tested in pairs.{others}"
        )
    after = against(record, setting, first.row, second.row)
    tested = _tested(pair, min(first.seeds, second.seeds), results.inputs_sampled)
    return f"{after}{_lead(first.row, second.row, pair, measure)} {tested}{others}"


def leaders(record: Comparison) -> str:
    """Count settings in which each method has the best mean; empty for one setting, or without a better direction."""
    measure = record.measures[0]
    orders = [ranked(record.results(setting, measure).rows, measure) for setting in record.columns]
    first = [order[0].row for order in orders if order]
    if len(first) < 2 or measure.higher is None:
        return ""
    counts = sorted(((first.count(row.name), row.name) for row in record.rows), key=lambda one: -one[0])
    led = [f"{name} in {count}" for count, name in counts if count]
    return f"Best mean {measure.name}: {', '.join(led)} of {len(first)} settings."


def state(record: Comparison) -> tuple[str, str]:
    """Return how many runs are done, and a warning about missing and failed ones, or ""."""
    done, failed, missing = (len(record.runs(status=status)) for status in ("done", "failed", "missing"))
    alarms = []
    if failed:
        runs = [
            f"{run.row}{f' on {run.column}' if run.column else ''} with seed {run.seed}"
            for run in record.runs(status="failed")
        ]
        alarms.append(f"{plural(failed, 'run')} failed: {listed(runs, _MOST_FAILED)}.")
    if missing:
        alarms.append(f"{plural(missing, 'run')} to come.")
    if alarms:
        alarms.append("Metrics are from the finished runs only.")
    return f"{done} of {plural(len(record.cells), 'run')} done", " ".join(alarms)


def _with_interval(measure: Measure, result: schema.IntervalRecord) -> str:
    bounds = interval(measure, result)
    return with_unit(measure, result.mean) + (f" (95 % interval {bounds})" if bounds else "")


def _gap(
    pairs: Sequence[schema.DifferenceRecord], first: str, second: str, measure: Measure
) -> schema.DifferenceRecord | None:
    """Return by how much `first` is better than `second`: positive is better for either direction of the metric."""
    for pair in pairs:
        if {pair.a, pair.b} == {first, second}:
            same = (pair.a == first) == bool(measure.higher)
            return pair if same else _turned(pair)
    return None


def _others(order: Sequence[schema.Result], pairs: Sequence[schema.DifferenceRecord], measure: Measure) -> str:
    """Return the methods behind the best two, and those of them that the best is significantly ahead of."""
    first, others = order[0].row, order[2:]
    if not others:
        return ""
    behind = listed([f"{each.row} with {with_unit(measure, each.mean)}" for each in others], _MOST_OTHERS)
    gaps = [(each.row, _gap(pairs, first, each.row, measure)) for each in others]
    tested = [(row, gap) for row, gap in gaps if gap is not None and gap.p_adjusted is not None]
    if not tested:
        return f" Behind these two: {behind}."
    found = [row for row, gap in tested if (gap.p_adjusted or 0.0) < LEVEL and (gap.mean or 0.0) > 0]
    over = (
        listed(found, _MOST_OTHERS) if 0 < len(found) < len(others) else "each of these" if found else "none of these"
    )
    return f" Behind these two: {behind}; {first} is significantly ahead of {over}."


def _turned(pair: schema.DifferenceRecord) -> schema.DifferenceRecord:
    mean, low, high = (None if value is None else -value for value in (pair.mean, pair.high, pair.low))
    return pair.model_copy(update={"a": pair.b, "b": pair.a, "mean": mean, "low": low, "high": high})


def _lead(first: str, second: str, gap: schema.DifferenceRecord, measure: Measure) -> str:
    if gap.mean is None:
        raise ValueError(f"no difference between {first} and {second} is known")
    unit = f" points of {measure.name}" if measure.percent else f" in {measure.name}"
    bounds = interval(measure, gap)
    if figure(measure, gap.mean) == figure(measure, 0.0):
        between = f" (simultaneous 95 % interval of their difference {bounds})" if bounds else ""
        return f"{first} and {second} are equal in {measure.name}{between}."
    size = f"{figure(measure, abs(gap.mean))}{unit}"
    if gap.mean < 0:
        # If runs failed, the means are over different seeds, and pairs may contradict them.
        return f"{first} has the better mean, but is behind {second} by {size} on their common seeds."
    between = f" (simultaneous 95 % interval {bounds})" if bounds else ""
    return f"{first} is ahead of {second} by {size}{between}."


def _tested(gap: schema.DifferenceRecord, seeds: int, inputs_sampled: bool) -> str:
    if gap.p_adjusted is None:
        if seeds < 2 or gap.mean is None or gap.low is not None:
            return "One seed allows no test." if seeds < 2 else "The difference was not tested."
        return "No test is possible: all seeds have the same difference, or a silo has a single test input."
    found = "significant" if gap.p_adjusted < LEVEL else "not significant"
    where = "" if inputs_sampled else " on these inputs"
    p = f"corrected {equation(gap.p_adjusted)}"
    return f"With {plural(seeds, 'seed')} the difference is {found}{where} ({p})."


def scope(results: schema.MeasureTable) -> str:
    """Return the population for intervals and p-values of pairs."""
    inputs = "other test inputs" if results.inputs_sampled else "these test inputs, which may favor either method,"
    return f"other seeds and {inputs} at these silos"


_OWN = "the predicting model"
_WHOSE = {"": "", "own": _OWN, "global": "the global model", "local": "local models"}


_SHARES = ("accuracy", "coverage")  # written in points


def contrast_sentences(record: Comparison) -> list[str]:
    """Return a sentence per contrast, for a terminal."""
    lines = []
    for each in record.contrasts:
        unit = " points" * (each.figure in _SHARES)
        by = f" {gap_of(each, each.mean)}{unit} ({gap_interval(each)})" if each.mean is not None else ""
        lines.append(f"{each.claim}: {contrast_name(each)}{by}: {contrast_verdict(each)}")
    return lines


def contrast_name(contrast: schema.ContrastRecord) -> str:
    """Return both methods, the setting, the metric unless it is accuracy, and the models."""
    model = _WHOSE.get(contrast.model, contrast.model)
    known = "" if contrast.known is None else f"{100 * contrast.known:g} % known"
    at = f"at {' and '.join(contrast.silos)}" if contrast.silos else ""
    b = contrast.b
    if contrast.b_model:
        b, model = f"{b}: {_WHOSE.get(contrast.b_model, contrast.b_model)}", ""
    a = f"{contrast.a}: {_WHOSE.get(contrast.model, contrast.model) or _OWN}" if contrast.b_model else contrast.a
    parts = contrast.column, contrast.figure.replace("accuracy", ""), model, known, at, "pooled" * contrast.pooled
    where = ", ".join(filter(None, parts))
    return f"{a} {MINUS} {b}" + (f" ({where})" if where else "")


def contrast_verdict(contrast: schema.ContrastRecord) -> str:
    """Return the verdict as text."""
    points = f"{100 * contrast.margin:g} point" + ("" if contrast.margin == 0.01 else "s")
    if contrast.verdict == "equal":
        return f"equal within {points if contrast.figure in _SHARES else f'{contrast.margin:g}'}"
    if contrast.verdict in ("better", "worse"):
        return f"{contrast.a} is {contrast.verdict}"
    return contrast.verdict or f"open: {plural(contrast.seeds, 'seed')} done"


def gap_of(contrast: schema.ContrastRecord, value: float | None) -> str:
    """Return a difference in a contrast's metric, or an end of its interval, shares in points; empty for None."""
    if value is None:
        return ""
    return with_sign(f"{100 * value:.1f}" if contrast.figure in _SHARES else f"{value:.3f}")


def gap_interval(contrast: schema.ContrastRecord) -> str:
    return "" if contrast.low is None else f"{gap_of(contrast, contrast.low)} to {gap_of(contrast, contrast.high)}"
