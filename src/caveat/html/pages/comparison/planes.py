"""Pictures with two axes: figures over rounds, and one figure against another or against what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from ....files.schema.comparison import ComparedRun
from ...charts.axes import Axes, Line, Write, band, draw, inner_ticks, limits, plot, round_frame, round_ticks, written
from ...charts.dots import Dot
from ...charts.svg import Point, colour, group, marks, strokes, text

_MOST_POINTS = 150
"""Rounds that a curve shows at most."""


@dataclass(frozen=True)
class Course:
    """How a method's figure went: the mean over seeds at each round, with the least and the most of any seed."""

    name: str
    series: int
    mean: Sequence[Point]
    low: Sequence[Point]
    high: Sequence[Point]


def course(name: str, series: int, runs: Sequence[ComparedRun], which: Literal[1, 2]) -> Course | None:
    """A method's figures over the rounds that all `runs` have, 150 at most; `which`: 1 is accuracy, 2 entropy."""
    curves = [[(row[0], row[which]) for row in run.curve] for run in runs]
    found = [known for curve in curves if (known := {at: value for at, value in curve if value is not None})]
    shared = sorted(set.intersection(*map(set, found))) if found else []
    if not shared:
        return None
    step = math.ceil(len(shared) / _MOST_POINTS)
    # From the end, so that the last round is always there.
    values = {at: [one[at] for one in found] for at in shared[::-1][::step][::-1]}
    means = [(at, math.fsum(row) / len(row)) for at, row in values.items()]
    low, high = ([(at, of(row)) for at, row in values.items()] for of in (min, max))
    return Course(name, series, means, low, high)


def course_chart(courses: Sequence[Course], about: str, write: Write) -> Markup:
    """Lines over rounds, each with the band of its seeds."""
    values = [value for one in courses for _, value in (*one.low, *one.high)]
    frame = round_frame([at for one in courses for at, _ in one.mean], limits(values) or (0.0, 1.0), 230)
    bands = [band(frame, one.low, one.high, one.series, one.name) for one in courses]
    lines = [draw(frame, Line(one.mean, one.series, one.name, name=one.name)) for one in courses]
    y_ticks = written(inner_ticks(frame.y_range), write)
    return plot(frame, about, round_ticks(frame), y_ticks, "round", *bands, *lines)


@dataclass(frozen=True)
class Place:
    """A method in a plane of two figures."""

    name: str
    series: int
    x: Dot
    y: Dot
    note: str


def plane(places: Sequence[Place], names: tuple[str, str], write: tuple[Write, Write], about: str) -> Markup | None:
    """A mark per method, with both intervals; None without any."""
    x_range = limits([end for place in places for end in place.x.known])
    y_range = limits([end for place in places for end in place.y.known])
    if x_range is None or y_range is None:
        return None
    frame = Axes(50, 24, 256, 190, x_range, y_range)
    x_ticks, y_ticks = written(inner_ticks(x_range, 4), write[0]), written(inner_ticks(y_range, 4), write[1])
    drawn = [text(2, 12, names[1], "start", "tick"), *(_place(frame, place) for place in places)]
    return plot(frame, about, x_ticks, y_ticks, names[0], *drawn, width=320)


def _place(frame: Axes, place: Place) -> Markup:
    x, y = place.x, place.y
    ends = []
    if x.low is not None and x.high is not None:
        ends.append((frame.at((x.low, y.value)), frame.at((x.high, y.value))))
    if y.low is not None and y.high is not None:
        ends.append((frame.at((x.value, y.low)), frame.at((x.value, y.high))))
    mark = marks(place.series, [frame.at((x.value, y.value))], 4.6)
    return group(place.note, strokes(ends, "whisker thin"), mark, class_=colour(place.series), name=place.name)
