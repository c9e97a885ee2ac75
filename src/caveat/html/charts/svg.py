"""Small helpers to write SVG; colours come from the page's style sheet, so that themes apply."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]
COLOURS = 6
_DASHES = (None, "7 3", "2 3", "9 3 2 3")
_SHAPES = 5


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """One element; `class_` and the like lose the trailing underscore, inner ones become hyphens, None is left out."""
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    written = "".join(f' {name}="{escape(_value(value))}"' for name, value in pairs)
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def join(parts: Iterable[Markup | str]) -> Markup:
    return Markup("").join(parts)


def drawing(width: float, height: float, label: str, *children: Markup | str, class_: str = "") -> Markup:
    """An SVG of that size in its own units, which scales with the page; `label` is its alternative text."""
    box = f"0 0 {width:g} {height:g}"
    title = element("title", label)
    return element("svg", title, *children, viewBox=box, role="img", aria_label=label, class_=class_ or None)


def text(x: float, y: float, content: str, anchor: str = "start", class_: str = "") -> Markup:
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_ or None)


def line(start: Point, end: Point, class_: str) -> Markup:
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=class_)


def polyline(points: Sequence[Point], **attributes: object) -> Markup:
    return element("polyline", points=" ".join(f"{_value(x)},{_value(y)}" for x, y in points), **attributes)


def colour(index: int) -> str:
    return f"c{index % COLOURS}"


def dash(index: int) -> str | None:
    """The line of a series, so that none is told apart by colour alone."""
    return _DASHES[index % len(_DASHES)]


_CROSS: Sequence[Point] = (
    (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4),
    (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4),
)  # fmt: skip


def marker(index: int, x: float, y: float, class_: str, size: float = 3.2) -> Markup:
    """The mark of a series: disc, square, triangle, diamond or cross."""
    shape = index % _SHAPES
    if shape == 0:
        return element("circle", cx=x, cy=y, r=size, class_=class_)
    if shape == 1:
        return element("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, class_=class_)
    corners: Sequence[Point] = {
        2: [(0, -1.3), (1.2, 0.9), (-1.2, 0.9)],
        3: [(0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)],
        4: _CROSS,
    }[shape]
    points = " ".join(f"{_value(x + dx * size)},{_value(y + dy * size)}" for dx, dy in corners)
    return element("polygon", points=points, class_=class_)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about so many; the first and last enclose the range."""
    span = max(high - low, 1e-9)
    power = 10 ** math.floor(math.log10(span / about))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if span / (factor * power) <= about)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


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

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def axes(self, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]]) -> Markup:
        """Horizontal grid lines and the numbers along both axes."""
        grid = [line((self.left, self.y(v)), (self.right, self.y(v)), "grid") for v, _ in y_ticks]
        below = [text(self.x(v), self.bottom + 15, label, "middle", "tick") for v, label in x_ticks]
        beside = [text(self.left - 6, self.y(v) + 3.5, label, "end", "tick") for v, label in y_ticks]
        base = line((self.left, self.bottom), (self.right, self.bottom), "axis")
        return join([*grid, base, *below, *beside])


def _share(value: float, limits: Point) -> float:
    low, high = limits
    return 0.5 if high == low else (value - low) / (high - low)


def _value(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
