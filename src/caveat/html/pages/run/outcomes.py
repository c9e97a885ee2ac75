"""What became of each stream of test inputs: right, wrong or abstained from, as stacked bars."""

from __future__ import annotations

from markupsafe import Markup

from ....core.text import percent
from ....files.run_folder import RunFolder
from ....files.schema.figures import INSIDE
from ...charts.svg import WIDTH, Chart, Point, drawing, element, rect, sample, text
from .kept import Shares, shares_of

_BAR, _ROW = 22, 52
_FITS = 0.12
"""Smallest share whose label fits into its part of a bar."""
_KINDS = {
    "right": "right",
    "wrong": "wrong",
    "foreign": "wrong, of inputs that silos do not know",
    "abstain": "abstained",
}


def outcome_bars(run: RunFolder) -> tuple[Chart, list[tuple[Markup, str]]] | None:
    """The bars and their legend; None where all inputs are of one stream and all are answered."""
    found = shares_of(run.summary) if run.summary else {}
    if not found or (len(found) == 1 and all(each.answered == 1 for each in found.values())):
        return None
    parts = {name: _parts(name, each) for name, each in found.items()}
    said = "; ".join(f"{name}: {_told(each)}" for name, each in parts.items())
    drawn: list[Markup] = []
    for i, (name, each) in enumerate(parts.items()):
        y = _ROW * i
        drawn += [text(0, y + 16, name), *_bar(each, y + 22)]
    caption = "Shares of all silos' test inputs together."
    if any("foreign" in each for each in parts.values()):
        caption += " Light red are answers to inputs that silos do not know, which are wrong: no promise covers them."
    bars = drawing(WIDTH, _ROW * len(parts) - 4, f"What became of test inputs. {said}", *drawn, class_="outcomes")
    shown = [kind for kind in _KINDS if any(kind in each for each in parts.values())]
    return Chart("Right, wrong, abstained", bars, caption), [(_swatch(kind), _KINDS[kind]) for kind in shown]


def _parts(name: str, shares: Shares) -> dict[str, float]:
    """The shares above zero, in the order of `_KINDS`."""
    wrong = "wrong" if name in (INSIDE, "mix") else "foreign"
    found = {"right": shares.right, wrong: shares.wrong, "abstain": 1 - shares.answered}
    return {kind: share for kind, share in found.items() if share > 1e-9}


def _told(parts: dict[str, float]) -> str:
    words = {"foreign": "wrong", "abstain": "abstained"}
    return ", ".join(f"{words.get(kind, kind)} {percent(share)}" for kind, share in parts.items())


def _bar(parts: dict[str, float], y: float) -> list[Markup]:
    drawn, x = [], 0.0
    for kind, share in parts.items():
        width = WIDTH * share
        title = element("title", f"{_KINDS[kind]} {percent(share)}")
        drawn.append(_box(kind, (x, y), width, _BAR, title))
        if share >= _FITS:
            drawn.append(text(x + width / 2, y + 15.5, percent(share), "middle", f"in-{kind}"))
        x += width
    return drawn


def _swatch(kind: str) -> Markup:
    return sample(_box(kind, (1, 1), 20, 12), 22)


def _box(kind: str, at: Point, width: float, height: float, *title: Markup) -> Markup:
    return rect((at[0] + 0.7, at[1] + 0.7), max(width - 1.4, 0.3), height - 1.4, f"outcome {kind}", *title)
