"""Dot plots and dumbbells: named rows from top to bottom, with marks and intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...core.text import cut, percent_tick
from .axes import Axes, Ticks, ticks, written
from .svg import WIDTH, Point, color, drawing, group, hollow, line, marks, strokes, text

Groups = Sequence[tuple[str, Sequence[str]]]
"""Headings, empty for rows without one, each with the names of its rows."""
_LETTER = 6.9
"""How wide a letter of a name is, at most, in the units of a drawing."""
_LOWEST = 17.0
"""The height of a row that has room for a name."""
_HEAD = 24.0


@dataclass(frozen=True)
class Dot:
    """A value with the interval that it lies in, if there is one."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def known(self) -> list[float]:
        """The value and the ends of its interval."""
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
    """A line per row with its name if there is room, and headings with the marks that `series` gives."""
    drawn = []
    for head, y in rows.heads:
        own = series[head] if series else None
        mark = marks(own, [(4, y - 4)], 3.6) if own is not None else ""
        title = text(12 if series else 0, y, cut(head, 40), "start", "head")
        drawn.append(group("", mark, title, class_=color(own) if own is not None else ""))
    if rows.named:
        for name, y in rows.places:
            drawn.append(line((rows.frame.left, y), (rows.frame.right, y), "lane"))
            drawn.append(label(rows.frame.left - 9, y + 4, name, rows.most))
    return drawn


def label(x: float, y: float, name: str, most: int) -> Markup:
    """A name that ends at `x`, cut if it is too long, with the whole name as a title."""
    shown = text(x, y, cut(name, most), "end")
    return shown if len(name) <= most else group(name, shown)


def dot_plot(rows: Rows, about: str, ticks: Ticks, unit: str, *drawn: Markup, class_: str = "") -> Markup:
    """A drawing of rows with an axis below; `about` is its alternative text."""
    axis = [rows.frame.across(ticks), *([rows.frame.named(unit)] if unit else [])]
    bottom = rows.frame.bottom + (38 if unit else 22)
    return drawing(rows.width, bottom, about, *axis, *drawn, class_=f"dots {class_}".strip())


def dots(frame: Axes, series: int, found: Sequence[tuple[Dot, float]], size: float, class_: str = "fill") -> Markup:
    """Marks of one series at their heights, over their intervals, which are cut at the edges of the frame."""

    def x(value: float) -> float:
        return min(max(frame.x(value), frame.left), frame.right)

    spans = [((x(dot.low), y), (x(dot.high), y)) for dot, y in found if dot.low is not None and dot.high is not None]
    return strokes(spans) + marks(series, [(frame.x(dot.value), y) for dot, y in found], size, class_)


_BESIDE = 110.0
"""Room for words at the right."""
NAMED = 40
"""The most rows that have a name."""
_TALL, _LOW = 22.0, 17.0
"""Heights of rows that are few, and of those that have a name."""
_TALLEST = 560.0
"""Height of all rows that have no name."""


@dataclass(frozen=True)
class Dumbbell:
    """`first` is the measured value with its interval, `second` the predicted value."""

    name: str
    number: str
    first: Dot
    second: float
    words: str
    alarm: bool
    note: str


def dumbbells(rows: Sequence[Dumbbell], about: str, number: str) -> Markup:
    """Discs and rings joined by lines, in the order given; `number` names the numbers next to the names."""
    ends = [end for row in rows for end in (*row.first.known, row.second)]
    values = ticks(min(ends), 1.0)
    height = _TALL if len(rows) <= 14 else _LOW if len(rows) <= NAMED else max(2.5, _TALLEST / len(rows))
    shown, labels = len(rows) <= NAMED, [f"{row.name} {row.number}" for row in rows]
    places = lay_out(
        [("", labels)], height, (values[0], min(values[-1], 1.0)), top=18 if shown else 4, most=20,
        right=_BESIDE if shown else 10,
    )  # fmt: skip
    drawn = [_dumbbell(row, places.frame, y, height) for row, y in zip(rows, places.at, strict=True)]
    heads = [text(0, 10, f"silo, {number}", "start", "tick")] if shown else []
    return dot_plot(places, about, written(values, percent_tick), "", *named(places), *heads, *drawn, class_="bells")


def _dumbbell(row: Dumbbell, frame: Axes, y: float, height: float) -> Markup:
    x, right = frame.x, frame.right
    size = min(4.2, max(1.4, height / 3.6))
    between = strokes([((x(row.first.value), y), (x(row.second), y))], "between")
    low, high = row.first.low, row.first.high
    span = (
        strokes([((x(low), y), (x(high), y))], "whisker thin")
        if height >= _LOW and low is not None and high is not None
        else ""
    )
    said = [text(right + 10, y + 4, row.words, "start", "" if row.alarm else "tick")] if height >= _LOW else []
    ring = hollow(0, (x(row.second), y), size)
    disc = marks(0, [(x(row.first.value), y)], size)
    kind = ("over" if row.second > row.first.value else "under") if row.alarm else "c0"
    return group(row.note, span, between, ring, disc, *said, class_=f"bell {kind}", name=row.name)
