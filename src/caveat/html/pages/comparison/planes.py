"""Pictures with two axes: figures over rounds, and one figure against another or against what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from ....files.schema.comparison import ComparedRun, IntervalRecord
from ...charts.svg import Axes, Point, colour, dash, drawing, element, line, polyline, text, ticks
from .plots import inner_ticks, limits, marks, values_of

_MOST_POINTS = 150
"""Rounds that a curve shows at most."""


@dataclass(frozen=True)
class Course:
    """How a method's figure went: the mean over seeds at each round, with the least and the most of any seed."""

    name: str
    series: int
    rounds: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def course(name: str, series: int, runs: Sequence[ComparedRun], which: Literal[1, 2]) -> Course | None:
    """Of the rounds that all `runs` have, at most 150; `which` is 1 for accuracy, 2 for entropy."""
    curves = [[(row[0], row[which]) for row in run.curve] for run in runs]
    found = [known for curve in curves if (known := {at: value for at, value in curve if value is not None})]
    shared = sorted(set.intersection(*map(set, found))) if found else []
    if not shared:
        return None
    step = math.ceil(len(shared) / _MOST_POINTS)
    # From the end, so that the last round is always there.
    rounds = shared[::-1][::step][::-1]
    values = [[one[at] for one in found] for at in rounds]
    means = [math.fsum(row) / len(row) for row in values]
    return Course(name, series, rounds, means, list(map(min, values)), list(map(max, values)))


def course_chart(courses: Sequence[Course], about: str, write: Callable[[float], str]) -> Markup:
    """Lines over rounds, each with the band of its seeds."""
    rounds = [at for one in courses for at in one.rounds]
    found = limits([value for one in courses for value in (*one.low, *one.high)])
    y_range = found if found is not None else (0.0, 1.0)
    frame = Axes(46, 10, 418, 230, (min(rounds), max(rounds)), y_range)
    x_ticks = [t for t in ticks(min(rounds), max(rounds), 6) if t == int(t) and min(rounds) <= t <= max(rounds)]
    y_ticks = inner_ticks(y_range)
    return drawing(
        480,
        frame.bottom + 38,
        about,
        frame.axes([(t, f"{t:g}") for t in x_ticks], [(t, write(t)) for t in y_ticks]),
        text(frame.right, frame.bottom + 31, "round", "end", "tick"),
        *(_band(frame, one) for one in courses),
        *(_course(frame, one) for one in courses),
        class_="chart",
    )


def _band(frame: Axes, one: Course) -> Markup:
    above = [(frame.x(at), frame.y(value)) for at, value in zip(one.rounds, one.high, strict=True)]
    below = [(frame.x(at), frame.y(value)) for at, value in zip(one.rounds, one.low, strict=True)]
    edge = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*above, *below[::-1]])
    return element("g", element("polygon", points=edge, class_="band"), class_=colour(one.series), data_row=one.name)


def _course(frame: Axes, one: Course) -> Markup:
    points = [(frame.x(at), frame.y(value)) for at, value in zip(one.rounds, one.mean, strict=True)]
    ends = dict.fromkeys([points[len(points) // 2], points[-1]])
    drawn = [
        element("title", one.name),
        polyline(points, class_="stroke", stroke_dasharray=dash(one.series)),
        *(marks(one.series, [place], 3.2) for place in ends),
        # Without this wide invisible stroke one has to hit 1.4 units with the pointer to see the title.
        polyline(points, class_="reach"),
    ]
    return element("g", *drawn, class_=f"line {colour(one.series)}", data_row=one.name)


@dataclass(frozen=True)
class Place:
    """A method in a plane of two figures."""

    name: str
    series: int
    x: IntervalRecord
    y: IntervalRecord
    note: str


def plane(
    places: Sequence[Place],
    names: tuple[str, str],
    write: tuple[Callable[[float], str], Callable[[float], str]],
    about: str,
) -> Markup | None:
    """A mark per method, with both intervals; None without two figures of any."""
    known = [place for place in places if place.x.mean is not None and place.y.mean is not None]
    x_range = limits(values_of(place.x for place in known))
    y_range = limits(values_of(place.y for place in known))
    if x_range is None or y_range is None:
        return None
    frame = Axes(50, 24, 256, 190, x_range, y_range)
    x_ticks = inner_ticks(x_range, 4)
    y_ticks = inner_ticks(y_range, 4)
    return drawing(
        320,
        frame.bottom + 38,
        about,
        frame.axes([(t, write[0](t)) for t in x_ticks], [(t, write[1](t)) for t in y_ticks]),
        text(frame.right, frame.bottom + 31, names[0], "end", "tick"),
        text(2, 12, names[1], "start", "tick"),
        *(_place(frame, place) for place in known),
        class_="plane",
    )


def _place(frame: Axes, place: Place) -> Markup:
    if place.x.mean is None or place.y.mean is None:
        raise ValueError(f"{place.name} has no place on a plane without a figure on each axis")
    x, y = frame.x(place.x.mean), frame.y(place.y.mean)
    drawn = [element("title", place.note)]
    drawn += [_stroke((frame.x(low), y), (frame.x(high), y)) for low, high in _bounds(place.x)]
    drawn += [_stroke((x, frame.y(low)), (x, frame.y(high))) for low, high in _bounds(place.y)]
    drawn.append(marks(place.series, [(x, y)], 4.6))
    return element("g", *drawn, class_=colour(place.series), data_row=place.name)


def _stroke(start: Point, end: Point) -> Markup:
    return line(start, end, "whisker thin")


def _bounds(value: IntervalRecord) -> list[Point]:
    return [] if value.low is None or value.high is None else [(value.low, value.high)]
