"""The frame of a plot: the ranges that it shows, the numbers along its sides, and lines in it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .svg import WIDTH, Point, color, dash, drawing, group, join, line, marks, polygon, polyline, text

Ticks = Sequence[tuple[float, str]]
"""Values on an axis and how they are written."""
Write = Callable[[float], str]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About `about` round numbers; the first and the last enclose the range from `low` to `high`."""
    span = max(high - low, 1e-9)
    power = 10 ** math.floor(math.log10(span / about))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if span / (factor * power) <= about)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def inner_ticks(shown: Point, about: int = 5) -> list[float]:
    """About `about` round numbers within the range, and at least three if there are."""
    found: list[float] = []
    for finer in range(about, 3 * about):
        found = [value for value in ticks(*shown, finer) if shown[0] <= value <= shown[1]]
        if len(found) >= 3:
            break
    return found


def limits(values: Sequence[float], share: bool = False) -> Point | None:
    """A range of `values` with a margin, within [0, 1] for shares and above 0 for non-negative values."""
    if not values:
        return None
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.01
    least = max(0.0, low - room) if low >= 0 else low - room
    return least, min(1.0, high + room) if share and high <= 1 else high + room


def written(values: Sequence[float], write: Write) -> Ticks:
    return [(value, write(value)) for value in values]


@dataclass(frozen=True)
class Axes:
    """A plot's rectangle in the drawing, and the ranges of data that it shows."""

    left: float
    top: float
    width: float
    height: float
    x_range: Point
    y_range: Point

    def x(self, value: float) -> float:
        return self.left + self.width * _share(value, self.x_range)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - _share(value, self.y_range))

    def at(self, point: Point) -> Point:
        return self.x(point[0]), self.y(point[1])

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def axes(self, x_ticks: Ticks, y_ticks: Ticks) -> Markup:
        """Horizontal grid lines and the numbers along both axes."""
        grid = [line((self.left, self.y(v)), (self.right, self.y(v)), "grid") for v, _ in y_ticks]
        beside = [text(self.left - 6, self.y(v) + 3.5, label, "end", "tick") for v, label in y_ticks]
        return join([*grid, self._below(x_ticks), *beside])

    def across(self, x_ticks: Ticks) -> Markup:
        """Vertical grid lines and the numbers below."""
        grid = [line((self.x(v), self.top), (self.x(v), self.bottom), "grid") for v, _ in x_ticks]
        return join([*grid, self._below(x_ticks)])

    def _below(self, x_ticks: Ticks) -> Markup:
        base = line((self.left, self.bottom), (self.right, self.bottom), "axis")
        return join([base, *(text(self.x(v), self.bottom + 15, label, "middle", "tick") for v, label in x_ticks)])

    def named(self, name: str) -> Markup:
        """The name of the numbers below."""
        return text(self.right, self.bottom + 31, name, "end", "tick")


def _share(value: float, limits: Point) -> float:
    low, high = limits
    return 0.5 if high == low else (value - low) / (high - low)


def plot(
    frame: Axes, label: str, x_ticks: Ticks, y_ticks: Ticks, name: str, *drawn: Markup, width: float = WIDTH
) -> Markup:
    """A drawing with both axes and, within them, what is drawn; `label` is its alternative text."""
    body = [frame.axes(x_ticks, y_ticks), frame.named(name), *drawn]
    return drawing(width, frame.bottom + 38, label, *body, class_="chart")


@dataclass(frozen=True)
class Line:
    """A line through points (x, y); the mean over series has no series of its own."""

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
    """The line with its marks and, under its title, the elements that belong to it."""
    points, series = list(map(frame.at, one.points)), one.series
    drawn = [polyline(points, "stroke", dash(series) if series is not None else None), *more]
    if series is not None:
        marked = one.marked if one.marked is not None else [one.points[len(one.points) // 2], one.points[-1]]
        drawn.append(marks(series, dict.fromkeys(map(frame.at, marked))))
    # Without this wide invisible stroke one has to hit 1.4 units with the pointer to see the title.
    drawn.append(polyline(points, "reach"))
    own = color(series) if series is not None else ""
    return group(one.note, *drawn, class_=" ".join(filter(None, ("line", one.style, own))), name=one.name)


def band(frame: Axes, low: Sequence[Point], high: Sequence[Point], series: int, name: str) -> Markup:
    """The area between two lines, in the colour of a series."""
    edge = [frame.at(point) for point in [*high, *low[::-1]]]
    return group("", polygon(edge, "band"), class_=color(series), name=name)


def round_frame(rounds: Sequence[float], y_range: Point, height: float = 220, top: float = 10) -> Axes:
    """The frame of a chart over rounds."""
    return Axes(46, top, 418, height, (min(rounds), max(rounds)), y_range)


def round_ticks(frame: Axes) -> Ticks:
    """Whole numbers."""
    return [(at, f"{at:g}") for at in inner_ticks(frame.x_range, 6) if at == int(at)]
