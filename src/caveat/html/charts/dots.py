"""Dot plots: a row per silo, by domain, with a mark per method and the interval that its figure lies in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .charts import shorten
from .svg import Axes, colour, drawing, element, join, line, marker, text, ticks

WIDTH = 480
_NAMED = 40
"""Silos whose rows have room for a name."""
_NAME = 14
"""Characters of it."""
_TALLEST = 640
"""How high rows without names are together."""


@dataclass(frozen=True)
class Dot:
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Rows:
    """The silos from top to bottom, in groups; `names` of one group need no heading."""

    groups: Sequence[tuple[str, Sequence[str]]]
    series: Mapping[str, int]
    """By silo: its colour and mark."""

    @property
    def silos(self) -> list[str]:
        return [name for _, names in self.groups for name in names]

    @property
    def headed(self) -> bool:
        return 1 < len(self.groups) < len(self.silos)

    @property
    def named(self) -> bool:
        return len(self.silos) <= _NAMED


@dataclass(frozen=True)
class Series:
    """A method's dots by silo and their mean; `beside` counts the methods beside the page's own, which has none."""

    name: str
    dots: Mapping[str, Dot]
    mean: float | None
    beside: int | None = None


@dataclass(frozen=True)
class DotLayout:
    """Where the rows of a plot are."""

    rows: Rows
    left: float
    height: float
    at: Mapping[str, float]
    """By silo: the middle of its row."""
    heads: Sequence[tuple[str, int, float]]
    """Group, its mark, and where its heading is."""
    bottom: float

    @property
    def width(self) -> float:
        return WIDTH - self.left - 10


def layout(rows: Rows, methods: int = 1) -> DotLayout:
    """Rows with room for so many methods' dots."""
    longest = max(len(shorten(name, _NAME)) for name in rows.silos)
    left = 6.9 * longest + 14 if rows.named else 12.0
    height = 15.0 + 5.0 * methods if rows.named else max(2.5, _TALLEST / len(rows.silos))
    y, at, heads = 4.0, dict[str, float](), list[tuple[str, int, float]]()
    for group, names in rows.groups:
        if rows.headed:
            heads.append((group, rows.series[names[0]], y + 14))
            y += 22
        for name in names:
            at[name] = y + height / 2
            y += height
        y += 6 if rows.headed else 0
    return DotLayout(rows, left, height, at, heads, y)


def dot_plot(
    rows: Rows, series: Sequence[Series], write: Callable[[float], str], label: str, top: float | None
) -> Markup:
    """Marks of `series`, the page's own method first; `top` is the largest value that there can be."""
    place = layout(rows, len(series))
    marks = ticks(*_range(series, top), 5)
    frame = Axes(place.left, 0, place.width, place.bottom, (marks[0], marks[-1]), (0, 1))
    return drawing(
        WIDTH,
        place.bottom + 22,
        label,
        *(line((frame.x(t), 4), (frame.x(t), place.bottom), "grid") for t in marks),
        *(text(frame.x(t), place.bottom + 15, write(t), "middle", "tick") for t in marks),
        *names(place),
        *(_mean(frame, one) for one in reversed(series)),
        *(_row(frame, place, series, name) for name in rows.silos),
        class_="dots",
    )


def _range(series: Sequence[Series], top: float | None) -> tuple[float, float]:
    dots = [dot for one in series for dot in one.dots.values()]
    ends = [end for dot in dots for end in (dot.value, dot.low, dot.high) if end is not None]
    low, high = min(ends), max(ends)
    return (low, top) if top is not None else (min(0.0, low), high)


def names(place: DotLayout) -> list[Markup]:
    """Headings of groups with their mark, and the silos' names where there is room."""
    drawn = []
    for group, series, y in place.heads:
        head = text(12, y, shorten(group, 40), "start", "head")
        drawn.append(element("g", marker(series, 4, y - 4, "fill", 3.6), head, class_=colour(series)))
    for name, y in place.at.items() if place.rows.named else ():
        drawn.append(line((place.left, y), (WIDTH - 10, y), "lane"))
        drawn.append(text(place.left - 9, y + 4, shorten(name, _NAME), "end", "tick"))
    return drawn


def _mean(frame: Axes, one: Series) -> Markup:
    if one.mean is None:
        return Markup()
    x = frame.x(one.mean)
    kind = "mean" if one.beside is None else f"beside b{one.beside % 3}"
    rule = element("polyline", points=f"{x:.2f},2 {x:.2f},{frame.bottom:.2f}", class_="stroke")
    return element("g", element("title", f"mean of {one.name}"), rule, class_=f"line {kind}")


def _row(frame: Axes, place: DotLayout, series: Sequence[Series], name: str) -> Markup:
    found = [(i, one, one.dots[name]) for i, one in enumerate(series) if name in one.dots]
    mark, drawn = place.rows.series[name], list[Markup]()
    for i, one, dot in reversed(found):  # the page's own method on top
        if place.rows.named:
            drawn.append(_dot(frame, place.at[name] + 5.5 * (i - (len(series) - 1) / 2), dot, one.beside, mark, 4.0))
        elif one.beside is None:
            drawn.append(_dot(frame, place.at[name], dot, None, mark, min(3.2, max(1.4, place.height / 3))))
    title = f"{name}: " + "; ".join(f"{one.name} {dot.note}" for _, one, dot in found)
    return element("g", element("title", title), *drawn, class_=colour(mark), data_silo=name) if drawn else Markup()


def _dot(frame: Axes, y: float, dot: Dot, beside: int | None, mark: int, size: float) -> Markup:
    x, reach = frame.x(dot.value), list[Markup]()
    if dot.low is not None and dot.high is not None:
        reach.append(line((frame.x(dot.low), y), (frame.x(dot.high), y), "spread"))
    if beside is None:
        return join([*reach, marker(mark, x, y, "fill", size)])
    return element("g", *reach, hollow(beside, x, y), class_="other")


def hollow(beside: int, x: float, y: float) -> Markup:
    """The mark of a method beside the page's own."""
    return marker((0, 3, 1)[beside % 3], x, y, "hollow", 2.9)
