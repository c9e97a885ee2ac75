"""Shares of decisions as stacked bars: who answered, and an empty end for what nobody answered.

The two colours differ in brightness as much as in hue, and are the same in the light and the dark theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from markupsafe import Markup

from ....core.text import percent
from ...charts.svg import WIDTH, Point, drawing, element, rect, sample, text
from .streams import KINDS

_BAR, _ROW = 24, 58
_FITS = 0.11  # smallest share whose label fits into its part of a bar


def share_bars(rows: Mapping[str, Mapping[str, float]], label: str) -> Markup:
    """A labelled bar per row, under its name."""
    drawn: list[Markup] = []
    for i, (name, shares) in enumerate(rows.items()):
        y = _ROW * i
        drawn += [text(0, y + 18, name), *parts(shares, (0, y + 25), (WIDTH, _BAR)), *_labels(shares, y + 42)]
    return drawing(WIDTH, _ROW * len(rows), label, *drawn, class_="shares")


def share_bar(shares: Mapping[str, float], label: str) -> Markup:
    """A bar for a table's cell; its numbers are its alternative text."""
    return drawing(120, 12, label, *parts(shares, (0, 0), (120, 12)), class_="stack")


def swatch(kind: str) -> Markup:
    """A decision's colour for a legend."""
    return sample(_box(kind, (1, 1), 20, 12), 22)


def told(shares: Mapping[str, float]) -> str:
    """The shares in words."""
    return ", ".join(f"{kind} {percent(shares[kind])}" for kind in KINDS if shares.get(kind, 0.0) > 0)


def parts(shares: Mapping[str, float], at: Point, size: Point) -> list[Markup]:
    """The parts of one bar at (x, y) of (width, height)."""
    return [
        _box(
            kind,
            (at[0] + size[0] * start, at[1]),
            size[0] * share,
            size[1],
            element("title", f"{kind} {percent(share)}"),
        )
        for kind, start, share in _spans(shares)
    ]


def _labels(shares: Mapping[str, float], y: float) -> list[Markup]:
    """The shares of a bar that is as wide as a drawing."""
    return [
        text(WIDTH * (start + share / 2), y, percent(share, 0), "middle", f"on-{kind}")
        for kind, start, share in _spans(shares)
        if share >= _FITS
    ]


def _spans(shares: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Decision, where its part of a bar of width 1 begins, and how wide it is."""
    known = [(kind, shares[kind]) for kind in KINDS if shares.get(kind, 0.0) > 0]
    starts: Sequence[float] = [0.0, *accumulate(share for _, share in known)]
    return [(kind, start, share) for (kind, share), start in zip(known, starts, strict=False)]


def _box(kind: str, at: Point, width: float, height: float, *title: Markup) -> Markup:
    # Inset by half a stroke, so that the outline of an empty part stays inside, and a gap parts neighbours.
    inset = 0.7
    inside = max(width - 2 * inset, 0.3), height - 2 * inset
    return rect((at[0] + inset, at[1] + inset), *inside, f"share {kind}", *title)
