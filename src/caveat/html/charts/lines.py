"""Lines over an axis, each told from the others by colour, dash and mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .axes import Axes, Ticks, inner_ticks
from .marks import colour, dash, marks
from .svg import Point, group, polygon, polyline


@dataclass(frozen=True)
class Line:
    """A line through points (x, y); a mean over series has none of its own."""

    points: Sequence[Point]
    series: int | None
    """Its colour, dash and mark; None for a line that has none of them."""
    note: str
    """What its title says."""
    style: str = ""
    """Classes of the style sheet."""
    name: str = ""
    """By which it is highlighted; empty if it never is."""
    marked: Sequence[Point] | None = None
    """Where its marks stand: in the middle and at the end, if None."""


def draw(frame: Axes, one: Line, *more: Markup) -> Markup:
    """The line with its marks and, under its title, what more belongs to it."""
    points, series = list(map(frame.at, one.points)), one.series
    drawn = [polyline(points, "stroke", dash(series) if series is not None else None), *more]
    if series is not None:
        marked = one.marked if one.marked is not None else [one.points[len(one.points) // 2], one.points[-1]]
        drawn.append(marks(series, dict.fromkeys(map(frame.at, marked))))
    # Without this wide invisible stroke one has to hit 1.4 units with the pointer to see the title.
    drawn.append(polyline(points, "reach"))
    own = colour(series) if series is not None else ""
    return group(one.note, *drawn, class_=" ".join(filter(None, ("line", one.style, own))), name=one.name)


def band(frame: Axes, low: Sequence[Point], high: Sequence[Point], series: int, name: str) -> Markup:
    """The area between two lines, in the colour of a series."""
    edge = [frame.at(point) for point in [*high, *low[::-1]]]
    return group("", polygon(edge, "band"), class_=colour(series), name=name)


def round_frame(rounds: Sequence[float], y_range: Point, height: float = 220, top: float = 10) -> Axes:
    """The frame of a chart over rounds."""
    return Axes(46, top, 418, height, (min(rounds), max(rounds)), y_range)


def round_ticks(frame: Axes) -> Ticks:
    """Whole numbers."""
    return [(at, f"{at:g}") for at in inner_ticks(frame.x_range, 6) if at == int(at)]
