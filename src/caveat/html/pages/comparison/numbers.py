"""How figures are written: shares as percent without the sign, everything else to three decimals."""

from __future__ import annotations

import math

from ....files.schema.comparison import ComparedRun, IntervalRecord, Measure

MINUS = "\N{MINUS SIGN}"
_SPACE = "\N{NO-BREAK SPACE}"


def figure(measure: Measure, value: float | None) -> str:
    """As a number alone; empty for None."""
    if value is None:
        return ""
    written = f"{100 * value:.1f}" if measure.percent else f"{value:.3f}"
    return written.replace("-", MINUS) if float(written) else written.lstrip("-")


def with_unit(measure: Measure, value: float | None) -> str:
    return figure(measure, value) + (" %" if measure.percent and value is not None else "")


def signed(measure: Measure, value: float | None) -> str:
    """With a plus where it is more than nothing."""
    written = figure(measure, value)
    return f"+{written}" if value is not None and value > 0 and float(written) else written


def interval(measure: Measure, value: IntervalRecord) -> str:
    """94.0 to 96.2; empty without bounds."""
    if value.low is None or value.high is None:
        return ""
    return f"{figure(measure, value.low)} to {figure(measure, value.high)}"


def bracketed(measure: Measure, value: IntervalRecord) -> str:
    """95.1 [94.0, 96.2]; the mean alone without bounds."""
    mean = figure(measure, value.mean)
    if value.mean is None or value.low is None or value.high is None:
        return mean
    return f"{mean} [{figure(measure, value.low)}, {figure(measure, value.high)}]"


def header(measure: Measure) -> str:
    return f"{measure.name}, %" if measure.percent else measure.name


def better(measure: Measure) -> str:
    """Which direction is; empty where neither is."""
    return {True: "higher is better", False: "lower is better", None: ""}[measure.higher]


def probability(p: float | None) -> str:
    """0.042, or < 0.001; empty for None."""
    if p is None:
        return ""
    return f"<{_SPACE}0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def equation(p: float) -> str:
    """p = 0.042, or p < 0.001, on one line."""
    written = probability(p)
    return f"p{_SPACE}{written}" if p < 0.001 else f"p{_SPACE}={_SPACE}{written}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def megabytes(count: float | None) -> str:
    """1 MB is 1,000,000 B; two digits at least."""
    if count is None:
        return ""
    value = count / 1e6
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def mean_of(runs: list[ComparedRun], name: str) -> float | None:
    """The mean of what the finished runs cost; None if none says."""
    found = [getattr(run, name) for run in runs if run.status == "done" and getattr(run, name) is not None]
    return math.fsum(found) / len(found) if found else None


def setting_value(value: object) -> str:
    """A swept or tuned value as one would write it, the same for a number and for its text."""
    if isinstance(value, bool):
        return str(value).lower()
    number = as_number(value)
    return str(value) if number is None else f"{number:g}"


def as_number(value: object) -> float | None:
    """None for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def plural(count: int, name: str) -> str:
    return f"{count:,} {name}" + ("" if count == 1 else "s")
