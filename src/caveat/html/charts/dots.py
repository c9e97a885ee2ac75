"""Dot plots: named rows from top to bottom, with marks and the intervals that their figures lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...core.text import cut
from .axes import Axes, Ticks
from .marks import colour, marks, strokes
from .svg import WIDTH, Point, drawing, group, line, text

Groups = Sequence[tuple[str, Sequence[str]]]
"""Headings, empty for rows without one, each with the names of its rows."""
_LETTER = 6.9
"""How wide a letter of a name is, at most, in the units of a drawing."""
_LOWEST = 17.0
"""The height of a row that has room for a name."""
_HEAD = 24.0


@dataclass(frozen=True)
class Dot:
    """A figure with the interval that it lies in, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def known(self) -> list[float]:
        """The figure and the ends of its interval."""
        return [end for end in (self.value, self.low, self.high) if end is not None]


@dataclass(frozen=True)
class Rows:
    """Where rows are, and the frame that holds them."""

    frame: Axes
    width: float
    """The width of the whole drawing."""
    height: float
    at: Sequence[float]
    """The middles of the rows of `names`."""
    names: Sequence[str]
    heads: Sequence[tuple[str, float]]
    """Headings and where their text stands."""
    most: int
    """Letters of a name that are shown."""

    @property
    def named(self) -> bool:
        """Whether there is room for names."""
        return self.height >= _LOWEST

    @property
    def places(self) -> list[tuple[str, float]]:
        """Names with the middles of their rows."""
        return list(zip(self.names, self.at, strict=True))


def lay_out(
    groups: Groups, height: float, shown: Point, top: float = 4, right: float = 10, most: int = 18, width: float = WIDTH
) -> Rows:
    """Rows of a height in a drawing of a width, with room at the right and for names of at most so many letters."""
    names = [name for _, members in groups for name in members]
    left = _LETTER * min(max(map(len, names)), most) + 14 if height >= _LOWEST else 12.0
    y, at, heads = top, list[float](), list[tuple[str, float]]()
    for head, members in groups:
        if head:
            heads.append((head, y + 17))
            y += _HEAD
        at += [y + height * (i + 0.5) for i in range(len(members))]
        y += height * len(members)
    frame = Axes(left, top, width - left - right, y - top, shown, (0, 1))
    return Rows(frame, width, height, at, names, heads, most)


def named(rows: Rows, series: Mapping[str, int] | None = None) -> list[Markup]:
    """A line per row with its name, where there is room for one, and headings, with the marks that `series` gives."""
    drawn = []
    for head, y in rows.heads:
        own = series[head] if series else None
        mark = marks(own, [(4, y - 4)], 3.6) if own is not None else ""
        title = text(12 if series else 0, y, cut(head, 40), "start", "head")
        drawn.append(group("", mark, title, class_=colour(own) if own is not None else ""))
    if rows.named:
        for name, y in rows.places:
            drawn.append(line((rows.frame.left, y), (rows.frame.right, y), "lane"))
            drawn.append(label(rows.frame.left - 9, y + 4, name, rows.most))
    return drawn


def label(x: float, y: float, name: str, most: int) -> Markup:
    """A name that ends at `x`, cut where it is too long, with all of it as a title."""
    shown = text(x, y, cut(name, most), "end")
    return shown if len(name) <= most else group(name, shown)


def dot_plot(rows: Rows, about: str, ticks: Ticks, unit: str, *drawn: Markup, class_: str = "") -> Markup:
    """A drawing of rows with an axis across, under it what is drawn in them; `about` is its alternative text."""
    axis = [rows.frame.across(ticks), *([rows.frame.named(unit)] if unit else [])]
    bottom = rows.frame.bottom + (38 if unit else 22)
    return drawing(rows.width, bottom, about, *axis, *drawn, class_=f"dots {class_}".strip())


def dots(frame: Axes, series: int, found: Sequence[tuple[Dot, float]], size: float, class_: str = "fill") -> Markup:
    """Marks of one series at their heights, over their intervals, which are cut at the edges of the frame."""

    def x(value: float) -> float:
        return min(max(frame.x(value), frame.left), frame.right)

    spans = [((x(dot.low), y), (x(dot.high), y)) for dot, y in found if dot.low is not None and dot.high is not None]
    return strokes(spans) + marks(series, [(frame.x(dot.value), y) for dot, y in found], size, class_)
