"""From a comparison to its pictures; one that there is nothing for is None or left out."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Literal

from ....core.text import duration, megabytes
from ....core.text import tick as plain_tick
from ....files.schema import ComparedRun, Comparison, IntervalRecord, Measure, Setting, domains_of
from ...charts.axes import Write
from ...charts.svg import Chart, Point
from .numbers import (
    SEEDS,
    better,
    directed,
    dot,
    figure,
    header,
    intervals_said,
    mean_of,
    per_seed,
    setting_value,
    tick,
)
from .plots import MethodRow, Place, course, course_chart, forest, method_limits, method_plot, plane, silo_plot
from .verdict import LEVEL, ranked

_MOST_PAIRS = 15
"""Pairs that one figure shows before it is divided."""
_FAR = 2.0
"""Settings share an axis unless it is so many times as long as the longest of their own."""


def headline(record: Comparison, measure: Measure) -> tuple[list[Chart], str]:
    """A dot plot per setting, best first, on one scale if that leaves enough of each to see; and words below."""
    rows = {setting.name: _rows(record, setting, measure) for setting in record.columns}
    own = {name: found for name, each in rows.items() if (found := method_limits(each, measure)) is not None}
    shared = _shared(list(own.values()))
    charts = []
    for name, each in rows.items() if own else ():
        of = f"{measure.name.capitalize()} of {len(each)} methods{f' on {name}' if name else ''}"
        shown = shared or own.get(name, (0.0, 1.0))
        charts.append(Chart(name, method_plot(each, measure, shown, f"{of}, with 95 % intervals")))
    intervals = intervals_said(row.value for each in rows.values() for row in each)
    said = f"Mean over silos and seeds, {intervals}; {better(measure) or 'neither direction is better'}."
    if any(row.seeds for each in rows.values() for row in each):
        said += " A small dot is one seed; few seeds are shown one by one."
    if any(row.paper is not None for each in rows.values() for row in each):
        said += " A hollow diamond is the paper's result."
    return charts, said + (" Every setting has its own scale." if len(rows) > 1 and shared is None else "")


def _shared(ranges: Sequence[Point]) -> Point | None:
    """One range for all; None if the settings lie too far apart for it."""
    if not ranges:
        return None
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    return (low, high) if high - low <= _FAR * max(high - low for low, high in ranges) else None


def _rows(record: Comparison, setting: Setting, measure: Measure) -> list[MethodRow]:
    rows = []
    for row in record.rows:
        failed, missing = (record.runs(row, setting, status) for status in ("failed", "missing"))
        absent = "failed" if failed else "to come" if missing else "no result"
        result, printed = record.result(row, setting, measure), record.printed(row, setting, measure)
        seeds = per_seed(record, row, setting, measure) if len(record.seeds) < SEEDS else {}
        rows.append(MethodRow(row.name, record.series[row.name], result, printed, absent, seeds))
    order = [result.row for result in ranked(record.results(setting, measure).rows, measure)]
    return sorted(rows, key=lambda row: order.index(row.name) if row.name in order else len(order))


def differences(record: Comparison, setting: Setting, measure: Measure) -> list[Chart]:
    """Every pair; if there are many, those of the leading method first and the others in a second figure."""
    results = record.results(setting, measure)
    pairs = list(results.pairs)
    parts = [pairs]
    if len(pairs) > _MOST_PAIRS and (order := ranked(results.rows, measure)):
        leads = [order[0].row in (pair.a, pair.b) for pair in pairs]
        parts = [[pair for pair, lead in zip(pairs, leads, strict=True) if lead is which] for which in (True, False)]
    corrected = f"all {len(pairs)} pairs" if len(pairs) > 1 else "the one pair"
    caption = f"On the seeds and silos that both have, with 95 % intervals. Holm's correction is over {corrected}; "
    caption += f"below {LEVEL:g} a mark is coloured and its p dark."
    about = f"Differences in {measure.name} between methods, pairs: {{}}, with 95 % intervals"
    return [Chart(header(measure), forest(part, measure, about.format(len(part))), caption) for part in parts if part]


def silos(record: Comparison, setting: Setting, measure: Measure) -> Chart | None:
    """A mark per silo and method, silos by domain."""
    places = record.places(setting, "silos")
    domains = domains_of(record.runs(setting=setting))
    order = {name: i for i, name in enumerate(dict.fromkeys(domains.get(place, "") for place in places))}
    grouped = groupby(sorted(places, key=lambda place: order[domains.get(place, "")]), lambda p: domains.get(p, ""))
    methods = {row.name: record.result(row, setting, measure).silos for row in record.rows}
    methods = {name: found for name, found in methods.items() if found}
    about = f"{measure.name.capitalize()} of {len(places)} silos with each of {len(methods)} methods"
    drawn = silo_plot([(d, list(members)) for d, members in grouped], methods, measure, record.series, about)
    intervals = intervals_said(value for found in methods.values() for value in found.values())
    cut = ", cut at the edge of the picture" if intervals.startswith("with its") else ""
    return None if drawn is None else Chart(header(measure), drawn, f"Silo by silo: mean over seeds, {intervals}{cut}.")


def curves(record: Comparison, setting: Setting) -> list[Chart]:
    """Accuracy and entropy on validation data over rounds, means over the seeds that finished."""
    kinds: tuple[tuple[Literal[1, 2], str, Write], ...] = (
        (1, "Accuracy on validation data, %", lambda value: plain_tick(100 * value)),
        (2, "Entropy on validation data, nats", plain_tick),
    )
    figures = []
    for which, title, write in kinds:
        rows = ((row.name, record.runs(row, setting, "done")) for row in record.rows)
        courses = [found for name, runs in rows if (found := course(name, record.series[name], runs, which))]
        if courses:
            caption = "Mean over seeds; the band reaches from the lowest seed to the highest."
            figures.append(Chart(title, course_chart(courses, f"{title}, of {len(courses)} methods", write), caption))
    return figures


def trade_offs(record: Comparison, setting: Setting) -> list[Chart]:
    """The first measure against every other, and against time and bytes."""
    first = record.measures[0]
    against: list[tuple[str, str, Write, list[IntervalRecord]]] = [
        (directed(header(m), m), m.name, partial(tick, m), [record.result(row, setting, m) for row in record.rows])
        for m in record.measures[1:]
    ]
    megabytes_of = ("MB of a run, up and down", ["bytes_up", "bytes_down"], 1e6)
    for name, keys, unit in (("seconds of a run", ["seconds"], 1.0), megabytes_of):
        costs = [_cost(record.runs(row, setting, "done"), keys, unit) for row in record.rows]
        against.append((name, name, setting_value, [IntervalRecord(mean=value) for value in costs]))
    figures = []
    for axis, name, write, values in against:
        title = f"{first.name.capitalize()} against {name}"
        places = _places(record, setting, first, name, values)
        axes = (axis, directed(header(first), first))
        if (drawn := plane(places, axes, (write, partial(tick, first)), title)) is not None:
            figures.append(Chart(title, drawn))
    return figures


def _places(
    record: Comparison, setting: Setting, first: Measure, name: str, values: Sequence[IntervalRecord]
) -> list[Place]:
    """The methods that have both figures."""
    places = []
    for row, value in zip(record.rows, values, strict=True):
        x, y = dot(value), dot(record.result(row, setting, first))
        if x and y:
            note = f"{row.name}: {figure(first, y.value)} {first.name}, {x.value:.4g} {name}"
            places.append(Place(row.name, record.series[row.name], x, y, note))
    return places


def _cost(runs: Sequence[ComparedRun], keys: Sequence[str], unit: float) -> float | None:
    """The sum of what a run cost on average; None if any of it is not known."""
    known = [cost for key in keys if (cost := mean_of(runs, key)) is not None]
    return sum(known) / unit if len(known) == len(keys) else None


def facts(record: Comparison) -> list[tuple[str, str]]:
    """The size and the cost of the comparison."""
    silos_of = {len(run.silos) for run in record.runs(status="done") if run.silos}
    seconds = [run.seconds for run in record.cells if run.seconds is not None]
    sent = [(run.bytes_up or 0) + (run.bytes_down or 0) for run in record.cells]
    found = [
        ("methods", str(len(record.rows))),
        ("settings", str(len(record.columns)) if len(record.columns) > 1 else ""),
        ("seeds", str(len(record.seeds))),
        ("silos", " or ".join(map(str, sorted(silos_of)))),
        ("runs", str(len(record.cells))),
        ("time of all runs", duration(sum(seconds)) if seconds else ""),
        ("MB moved in all", megabytes(sum(sent)) if any(sent) else ""),
    ]
    return [(name, value) for name, value in found if value]
