"""How figures of a measure are written: shares as percent without the sign, everything else to three decimals."""

import math
from collections.abc import Iterable, Sequence

from ....core.text import minus
from ....core.text import signed as with_sign
from ....core.text import tick as written_tick
from ....files.schema import ComparedMethod, ComparedRun, Comparison, IntervalRecord, Measure, Setting
from ...charts.dots import Dot

POPULATION = (
    "Intervals and p-values are about training again, with other seeds, on these silos. Seeds share some or all test "
    "inputs, so other inputs, and other silos, may differ by more."
)
"""Whom the statistics are about."""
SEEDS = 5
"""Seeds from which on intervals stand for them."""
FEW = 10
"""Errors, of all seeds, below which a figure that tells them from right answers says on how few it rests."""


def figure(measure: Measure, value: float | None) -> str:
    """The value as a number alone; empty for None."""
    return "" if value is None else minus(f"{100 * value:.1f}" if measure.percent else f"{value:.3f}")


def with_unit(measure: Measure, value: float | None) -> str:
    return figure(measure, value) + (" %" if measure.percent and value is not None else "")


def signed(measure: Measure, value: float | None) -> str:
    """The value with a plus if it is positive."""
    return "" if value is None else with_sign(f"{100 * value:.1f}" if measure.percent else f"{value:.3f}")


def interval(measure: Measure, value: IntervalRecord) -> str:
    """94.0 to 96.2; empty without bounds."""
    if value.low is None or value.high is None:
        return ""
    return f"{figure(measure, value.low)} to {figure(measure, value.high)}"


def few(value: IntervalRecord) -> str:
    """The number of errors, or of correct answers if rarer, behind a silo's value; empty unless it is small."""
    if value.mean is None or value.rests_on is None or value.rests_on >= FEW:
        return ""
    return f"rests on {value.rests_on} error{'s' * (value.rests_on != 1)}"


def intervals_said(values: Iterable[IntervalRecord]) -> str:
    """The words after "mean over seeds": with intervals, with some, or without any."""
    known = [value.low is not None and value.high is not None for value in values if value.mean is not None]
    if all(known):
        return "with its 95 % interval"
    if not any(known):
        return "without an interval, because each value was measured only once"
    return (
        "with its 95 % interval, except for values measured once or from few errors, or if the interval spans the range"
    )


def bracketed(measure: Measure, value: IntervalRecord) -> str:
    """95.1 [94.0, 96.2]; the mean alone without bounds."""
    mean = figure(measure, value.mean)
    if value.mean is None or value.low is None or value.high is None:
        return mean
    return f"{mean} [{figure(measure, value.low)}, {figure(measure, value.high)}]"


def tick(measure: Measure, value: float) -> str:
    """The value on an axis whose name has the unit."""
    return written_tick(100 * value if measure.percent else value)


def dot(value: IntervalRecord, note: str = "") -> Dot | None:
    """The value as plots show it; None without a mean."""
    return None if value.mean is None else Dot(value.mean, value.low, value.high, note)


def known(values: Iterable[IntervalRecord]) -> list[float]:
    """All means and bounds that exist."""
    return [end for one in values for end in (one.mean, one.low, one.high) if end is not None]


def header(measure: Measure) -> str:
    return f"{measure.name}, %" if measure.percent else measure.name


def better(measure: Measure) -> str:
    """Which direction is better; empty if neither is."""
    return {True: "higher is better", False: "lower is better", None: ""}[measure.higher]


def directed(name: str, measure: Measure) -> str:
    """A name of the measure with the direction that is better."""
    return f"{name} ({better(measure)})" if better(measure) else name


def per_seed(record: Comparison, row: ComparedMethod, setting: Setting, measure: Measure) -> dict[int, float]:
    """The value of each finished run: the mean over its silos if the measure is one of silos."""
    found = {}
    for run in record.runs(row, setting, "done"):
        values = [value for silo in run.silos if (value := silo.figures.get(measure.name)) is not None]
        whole = run.figures.get(measure.name)
        if values or whole is not None:
            found[run.seed] = math.fsum(values) / len(values) if values else float(whole or 0.0)
    return found


def mean_of(runs: Sequence[ComparedRun], name: str) -> float | None:
    """The mean cost of the finished runs; None if no run has it."""
    found = [getattr(run, name) for run in runs if run.status == "done" and getattr(run, name) is not None]
    return math.fsum(found) / len(found) if found else None


def not_done(runs: Sequence[ComparedRun]) -> list[str]:
    """1 failed, 2 to come; empty if all are done."""
    counts = {said: sum(run.status == s for run in runs) for s, said in (("failed", "failed"), ("missing", "to come"))}
    return [f"{count} {said}" for said, count in counts.items() if count]


def setting_value(value: object) -> str:
    """A swept or tuned value as a user writes it, the same for a number and for its text."""
    if isinstance(value, bool):
        return str(value).lower()
    number = as_number(value)
    return str(value) if number is None else f"{number:g}"


def as_number(value: object) -> float | None:
    """None for anything that is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
