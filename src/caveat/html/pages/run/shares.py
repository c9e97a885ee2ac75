"""Shares of decisions as stacked bars: who answered, and an empty end for what nobody answered.

The two colours differ in brightness as much as in hue, and are the same in the light and the dark theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from markupsafe import Markup

from ...charts.svg import drawing, element, text
from ...text import percent
from .streams import KINDS

_WIDTH, _BAR, _ROW = 480, 24, 58
_FITS = 0.11  # smallest share whose label fits into its part of a bar


def share_bars(rows: Mapping[str, Mapping[str, float]], label: str) -> Markup:
    """A labelled bar per row, under its name."""
    drawn: list[Markup] = []
    for i, (name, shares) in enumerate(rows.items()):
        y = _ROW * i
        drawn += [text(0, y + 18, name), *parts(shares, (0, y + 25), (_WIDTH, _BAR), labels=True)]
    return drawing(_WIDTH, _ROW * len(rows), label, *drawn, class_="shares")


def share_bar(shares: Mapping[str, float], label: str) -> Markup:
    """A bar for a table's cell; its numbers are its alternative text."""
    return drawing(120, 12, label, *parts(shares, (0, 0), (120, 12), labels=False), class_="stack")


def swatch(kind: str) -> Markup:
    """A decision's colour for a legend; says nothing to a screen reader, the word beside it does."""
    box = _box(kind, 1, 1, 20, 12)
    return element("svg", box, viewBox="0 0 22 14", class_="swatch", aria_hidden="true")


def told(shares: Mapping[str, float]) -> str:
    """The shares in words."""
    return ", ".join(f"{kind} {percent(shares[kind])}" for kind in KINDS if shares.get(kind, 0.0) > 0)


def parts(
    shares: Mapping[str, float], at: tuple[float, float], size: tuple[float, float], labels: bool
) -> list[Markup]:
    """The parts of one bar at (x, y) of (width, height)."""
    known = [(kind, shares[kind]) for kind in KINDS if shares.get(kind, 0.0) > 0]
    starts: Sequence[float] = [0.0, *accumulate(share for _, share in known)]
    drawn: list[Markup] = []
    for (kind, share), start in zip(known, starts, strict=False):
        x, width = at[0] + size[0] * start, size[0] * share
        drawn.append(_box(kind, x, at[1], width, size[1], element("title", f"{kind} {percent(share)}")))
        if labels and share >= _FITS:
            middle = at[1] + size[1] / 2 + 5
            drawn.append(text(x + width / 2, middle, percent(share, 0), "middle", f"on-{kind}"))
    return drawn


def _box(kind: str, x: float, y: float, width: float, height: float, *children: Markup) -> Markup:
    # Inset by half a stroke, so that the outline of an empty part stays inside, and a gap parts neighbours.
    inset = 0.7
    return element(
        "rect",
        *children,
        x=float(x + inset),
        y=float(y + inset),
        width=float(max(width - 2 * inset, 0.3)),
        height=float(height - 2 * inset),
        class_=f"share {kind}",
    )
