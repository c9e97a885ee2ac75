"""From a comparison to its pictures; one that there is nothing for is None or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal

from ....files.schema.comparison import Comparison, IntervalRecord, Measure, Setting, domains_of
from ...charts.svg import Point
from ..run.figures import Chart
from .dots import Dot, dot_limits, dot_plot, forest, silo_plot
from .numbers import better, duration, figure, header, mean_of, megabytes, setting_value
from .planes import Place, course, course_chart, plane
from .verdict import LEVEL, ranked

_MOST_PAIRS = 15
"""Pairs that one figure shows before it is divided."""
_FAR = 2.0
"""Settings share an axis unless it is so many times as long as the longest of their own."""


def headline(record: Comparison, measure: Measure) -> list[Chart]:
    """A dot plot per setting, best first, on one scale where that leaves enough of each to see."""
    dots = {setting.name: _dots(record, setting, measure) for setting in record.columns}
    own = {name: found for name, each in dots.items() if (found := dot_limits(each, measure)) is not None}
    shared = _shared(list(own.values()))
    figures = []
    for name, each in dots.items():
        about = (
            f"{measure.name.capitalize()} of {len(each)} methods{f' on {name}' if name else ''}, with 95 % intervals"
        )
        drawn = dot_plot(each, measure, shared or own.get(name, (0.0, 1.0)), about)
        figures.append(Chart(name, drawn, ""))
    return figures if own else []


def _shared(ranges: Sequence[Point]) -> Point | None:
    """One range for all; None if the settings lie too far apart for it."""
    if not ranges:
        return None
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    return (low, high) if high - low <= _FAR * max(high - low for low, high in ranges) else None


def scales(record: Comparison, measure: Measure) -> str:
    """The words below the headline picture."""
    dots = [_dots(record, setting, measure) for setting in record.columns]
    shared = _shared([found for each in dots if (found := dot_limits(each, measure)) is not None])
    said = f"Mean over silos and seeds, with its 95 % interval; {better(measure) or 'neither direction is better'}."
    if any(dot.paper is not None for each in dots for dot in each):
        said += " A hollow diamond is the paper's figure."
    return said + (" Every setting has a scale of its own." if len(dots) > 1 and shared is None else "")


def _dots(record: Comparison, setting: Setting, measure: Measure) -> list[Dot]:
    dots = []
    for row in record.rows:
        result = record.result(row, setting, measure)
        failed = record.runs(row, setting, "failed")
        absent = "failed" if failed else "to come" if record.runs(row, setting, "missing") else "no figure"
        printed = record.printed(row, setting, measure)
        dots.append(Dot(row.name, record.series[row.name], result, printed, absent if result.mean is None else ""))
    order = [result.row for result in ranked(record.results(setting, measure).rows, measure)]
    return sorted(dots, key=lambda dot: order.index(dot.name) if dot.name in order else len(order))


def differences(record: Comparison, setting: Setting, measure: Measure) -> list[Chart]:
    """Every pair; where these are many, those of the leading method first and the others in a second figure."""
    results = record.results(setting, measure)
    pairs = list(results.pairs)
    parts = [pairs]
    if len(pairs) > _MOST_PAIRS and (order := ranked(results.rows, measure)):
        leads = [order[0].row in (pair.a, pair.b) for pair in pairs]
        parts = [[pair for pair, lead in zip(pairs, leads, strict=True) if lead is which] for which in (True, False)]
    caption = (
        f"On the seeds and silos that both have, with 95 % intervals. Holm's correction is for all {len(pairs)} pairs; "
        f"below {LEVEL:g} a mark is in colour and its p dark."
    )
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
    return None if drawn is None else Chart(header(measure), drawn, "")


def curves(record: Comparison, setting: Setting) -> list[Chart]:
    """Accuracy and entropy on validation data over rounds, means over the seeds that finished."""
    kinds: tuple[tuple[Literal[1, 2], str, Callable[[float], str]], ...] = (
        (1, "Accuracy on validation data, %", lambda value: f"{100 * value:g}"),
        (2, "Entropy on validation data, nats", lambda value: f"{value:g}"),
    )
    figures = []
    for which, title, write in kinds:
        rows = ((row.name, record.runs(row, setting, "done")) for row in record.rows)
        courses = [found for name, runs in rows if (found := course(name, record.series[name], runs, which))]
        if courses:
            caption = "Mean over seeds; the band goes from the lowest seed to the highest."
            figures.append(Chart(title, course_chart(courses, f"{title}, of {len(courses)} methods", write), caption))
    return figures


def trade_offs(record: Comparison, setting: Setting) -> list[Chart]:
    """The first measure against every other, and against time and bytes."""
    first = record.measures[0]
    costs: tuple[tuple[str, Callable[[str], float | None]], ...] = (
        ("seconds of a run", lambda row: _cost(record, setting, row, "seconds", 1)),
        ("MB of a run, up and down", lambda row: _cost(record, setting, row, "bytes", 1e6)),
    )
    against: list[tuple[str, str, Callable[[float], str], list[IntervalRecord]]] = [
        (_named(m), m.name, _writer(m), [record.result(row, setting, m) for row in record.rows])
        for m in record.measures[1:]
    ]
    for name, cost in costs:
        against.append((name, name, setting_value, [IntervalRecord(mean=cost(row.name)) for row in record.rows]))
    figures = []
    for axis, name, write, values in against:
        drawn = plane(
            _places(record, setting, first, name, values),
            (axis, _named(first)),
            (write, _writer(first)),
            f"{first.name.capitalize()} against {name}",
        )
        if drawn is not None:
            figures.append(Chart(f"{first.name.capitalize()} against {name}", drawn, ""))
    return figures


def _places(
    record: Comparison, setting: Setting, first: Measure, name: str, values: Sequence[IntervalRecord]
) -> list[Place]:
    places = []
    for row, x in zip(record.rows, values, strict=True):
        y = record.result(row, setting, first)
        note = (
            f"{row.name}: {figure(first, y.mean)} {first.name}, {x.mean:.4g} {name}" if x.mean is not None else row.name
        )
        places.append(Place(row.name, record.series[row.name], x, y, note))
    return places


def _cost(record: Comparison, setting: Setting, row: str, what: str, unit: float) -> float | None:
    runs = [run for run in record.runs(setting=setting, status="done") if run.row == row]
    if what == "seconds":
        return mean_of(runs, "seconds")
    up, down = mean_of(runs, "bytes_up"), mean_of(runs, "bytes_down")
    return None if up is None or down is None else (up + down) / unit


def _named(measure: Measure) -> str:
    return f"{header(measure)} ({better(measure)})" if better(measure) else header(measure)


def _writer(measure: Measure) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:g}") if measure.percent else (lambda value: f"{value:g}")


def facts(record: Comparison) -> list[tuple[str, str]]:
    """What was compared, in numbers."""
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
