"""Counts as the shades of cells, and as tiny bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from ...core.text import cut
from .axes import Axes, plot
from .svg import Point, drawing, element, line, rect, text

_MOST_TITLES = 6000  # a title per cell is most of a heat map's size
_LONGEST = 18


def heat_map(names: Sequence[str], counts: Sequence[Sequence[int]], shared: int | None, label: str) -> Markup:
    """A row per name, a column per codeword, darker for more tokens on a log scale; a rule after the `shared` first."""
    columns = max(map(len, counts))
    width, row, top = max(4.0, min(12.0, 700 / columns)), 16, 20
    left = 6.5 * min(max(map(len, names)), _LONGEST) + 8
    most = math.log1p(max(max(use, default=0) for use in counts))
    titles = sum(map(len, counts)) <= _MOST_TITLES
    right, bottom = left + width * columns + 4, top + row * len(names)
    drawn: list[Markup] = []
    for i, (name, use) in enumerate(zip(names, counts, strict=True)):
        y = float(top + row * i)
        drawn.append(text(left - 6, y + 11, cut(name, _LONGEST), "end", "tick"))
        drawn.append(rect((left, y), width * len(use), row - 2, "track"))
        for j, count in enumerate(use):
            if count:
                title = f"{name}, {j}: {count}" if titles else ""
                shade = 0.08 + 0.92 * math.log1p(count) / most
                drawn.append(_cell((left + width * j, y), width, row - 2, shade, title))
    body = drawing(right, bottom + 2, label, *drawn, *_boundary(left, width, bottom, columns, shared), class_="heat")
    return element("div", body, style=f"min-width:{right * 0.8:.0f}px; max-width:{right * 1.3:.0f}px")


def _boundary(left: float, width: float, bottom: float, columns: int, shared: int | None) -> list[Markup]:
    if not shared or shared >= columns:
        return [text(left, 14, "shared" if shared else "codewords", "start", "note")]
    x = left + width * shared
    rule = line((x, 6), (x, bottom), "boundary")
    return [rule, text(x - 5, 14, "shared", "end", "note"), text(x + 5, 14, "own", "start", "note")]


def _cell(at: Point, width: float, height: float, shade: float, title: str) -> Markup:
    titled = [element("title", title)] if title else []
    return rect(at, width - 0.6, height, "cell", *titled, fill_opacity=shade)


def rank_plane(counts: Sequence[Sequence[int]], names: tuple[str, str], label: str) -> Markup:
    """How many inputs have which ranks of two scores, called `names`, darker for more.

    A row of `counts` is a band of ranks of the second score, the lowest first; a column one of the first score.
    """
    cells = len(counts)
    frame, side = Axes(46, 10, 300, 300, (0, cells), (0, cells)), 300 / cells
    most = max(max(row) for row in counts) or 1
    drawn = [
        _cell(frame.at((j, i + 1)), side, side - 0.6, count / most, f"{count} inputs")
        for i, row in enumerate(counts)
        for j, count in enumerate(row)
        if count
    ]
    ends = [text(frame.left, frame.bottom + 15, "lowest", "start", "tick")]
    ends.append(text(frame.right, frame.bottom + 15, "highest", "end", "tick"))
    axis = f"rank of {names[0]} (across), of {names[1]} (up)"
    return plot(frame, label, [], [(0, "low"), (cells, "high")], axis, *ends, *drawn, width=366)


def sparkline(counts: Sequence[int], names: Sequence[str]) -> Markup:
    """A tiny bar per class; the counts are its alternative text."""
    most, width = max([*counts, 1]), 64 / max(len(counts), 1)
    label = ", ".join(f"{name}: {count}" for name, count in zip(names, counts, strict=True))
    bars = [
        rect((width * i, 14 - 14 * c / most), max(width - 0.7, 0.4), 14 * c / most, "bar") for i, c in enumerate(counts)
    ]
    return drawing(64, 15, label, *bars, line((0, 14.5), (64, 14.5), "axis"), class_="spark")
