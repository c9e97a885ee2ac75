"""Text for a comparison: formatted numbers, parts of captions, and contrasts.

Shares are written in percent without the sign, everything else with three decimals.
"""

import math
from collections.abc import Iterable, Sequence

from ...core.text import MINUS, minus, plural
from ...core.text import signed as with_sign
from ...core.text import tick as written_tick
from ...files import schema
from ...files.schema import Comparison, Measure, Setting
from ..diagrams import Dot
from .budgets import trained

POPULATION = (
    "Intervals of means describe retraining with other seeds on these silos. Seeds share some or all test inputs, so "
    "results for other inputs or other silos may differ more."
)
"""The population of the intervals of means."""
SEEDS = 5
"""Minimum number of seeds with which plots show only intervals, not the values of seeds."""
FEW = 10
"""Number of errors over all seeds below which a metric of error detection is shown with this number."""


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
    """Return the number of errors, or of correct answers if these are fewer, of a silo; empty unless it is small."""
    if value.mean is None or value.rests_on is None or value.rests_on >= FEW:
        return ""
    return f"based on {value.rests_on} error{'s' * (value.rests_on != 1)}"


def interval_caption(values: Iterable[schema.IntervalRecord]) -> str:
    """Return the text after "mean over seeds": with all, some or no intervals."""
    known = [value.low is not None and value.high is not None for value in values if value.mean is not None]
    if all(known):
        return "with its 95 % interval"
    if not any(known):
        return "without an interval, because there are too few seeds"
    return "with its 95 % interval, except for values measured once or from few errors"


def bracketed(measure: Measure, value: schema.IntervalRecord) -> str:
    """Return "95.1 [94.0, 96.2]"; or only the mean if bounds are unknown."""
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
    return f"{measure.title}, %" if measure.percent else measure.title


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


LEVEL = 0.05
"""Significance level after the correction for all pairs."""


def ranked(rows: Sequence[schema.Result], measure: Measure) -> list[schema.Result]:
    """Return methods with a value, best first, or largest first if neither direction is better."""
    known = [row for row in rows if row.mean is not None]
    return sorted(known, key=lambda row: row.mean or 0.0, reverse=measure.higher is not False)


def scope(results: schema.MeasureTable) -> str:
    """Return to what intervals and p-values of pairs apply."""
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
        lines.append(f"{each.claim}: {contrast_name(each)}{by}: {contrast_verdict(record, each)}")
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


def contrast_verdict(record: Comparison, contrast: schema.ContrastRecord) -> str:
    """Return the verdict as text, and whether the two methods trained for different numbers of rounds."""
    setting = next((each for each in record.columns if each.name == contrast.column), Setting())
    taken = trained(record, setting)
    differ = "; rounds differ" * (len({taken[name] for name in (contrast.a, contrast.b) if name in taken}) > 1)
    points = f"{100 * contrast.margin:g} point" + ("" if contrast.margin == 0.01 else "s")
    if contrast.verdict == "equal":
        return f"equal within {points if contrast.figure in _SHARES else f'{contrast.margin:g}'}{differ}"
    if contrast.verdict in ("better", "worse"):
        return f"{contrast.a} is {contrast.verdict}{differ}"
    return contrast.verdict or f"open: {plural(contrast.seeds, 'seed')} done"


def gap_of(contrast: schema.ContrastRecord, value: float | None) -> str:
    """Return a difference in a contrast's metric, or an end of its interval, shares in points; empty for None."""
    if value is None:
        return ""
    return with_sign(f"{100 * value:.1f}" if contrast.figure in _SHARES else f"{value:.3f}")


def gap_interval(contrast: schema.ContrastRecord) -> str:
    return "" if contrast.low is None else f"{gap_of(contrast, contrast.low)} to {gap_of(contrast, contrast.high)}"
