"""A row per silo with two figures that should agree, the line between them, and words beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...core.text import percent_tick
from .axes import Axes, ticks, written
from .dots import Dot, dot_plot, lay_out, named
from .marks import hollow, marks, strokes
from .svg import group, text

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
    """`first` is what is, with its interval; `second` what is said of it."""

    name: str
    number: str
    first: Dot
    second: float
    words: str
    alarm: bool
    note: str


def dumbbells(rows: Sequence[Dumbbell], about: str, number: str) -> Markup:
    """Discs and rings joined by lines, in the order given; `number` is what the numbers beside the names are."""
    ends = [end for row in rows for end in (*row.first.known, row.second)]
    values = ticks(min(ends), 1.0)
    height = _TALL if len(rows) <= 14 else _LOW if len(rows) <= NAMED else max(2.5, _TALLEST / len(rows))
    shown, labels = len(rows) <= NAMED, [f"{row.name} {row.number}" for row in rows]
    places = lay_out(
        [("", labels)], height, (values[0], min(values[-1], 1.0)), top=18 if shown else 4, most=20,
        right=_BESIDE if shown else 10,
    )  # fmt: skip
    drawn = [_row(row, places.frame, y, height) for row, y in zip(rows, places.at, strict=True)]
    heads = [text(0, 10, f"silo, {number}", "start", "tick")] if shown else []
    return dot_plot(places, about, written(values, percent_tick), "", *named(places), *heads, *drawn, class_="bells")


def _row(row: Dumbbell, frame: Axes, y: float, height: float) -> Markup:
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
