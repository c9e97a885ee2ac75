"""Small helpers to write SVG; colours come from the page's style sheet, so that themes apply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]
WIDTH = 480.0
"""The width of a drawing that takes half a page, in its own units."""


@dataclass(frozen=True)
class Chart:
    """A drawing as a page shows it."""

    title: str
    drawing: Markup
    caption: str = ""


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """One element; `class_` and the like lose the trailing underscore, inner ones become hyphens, None is left out."""
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    written = "".join(
        f' {name}="{escape(number(value) if isinstance(value, float) else value)}"' for name, value in pairs
    )
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def number(value: float) -> str:
    """A place or length in a drawing, to a hundredth of a unit."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def join(parts: Iterable[Markup | str]) -> Markup:
    return Markup("").join(parts)


def drawing(width: float, height: float, label: str, *children: Markup | str, class_: str = "") -> Markup:
    """An SVG of that size in its own units, which scales with the page; `label` is its alternative text."""
    box = f"0 0 {width:g} {height:g}"
    title = element("title", label)
    return element("svg", title, *children, viewBox=box, role="img", aria_label=label, class_=class_ or None)


def group(title: str, *children: Markup | str, class_: str = "", name: str = "") -> Markup:
    """Elements with a title, if it is not empty, and highlighted together by `name`, if that is not."""
    titled = [element("title", title)] if title else []
    return element("g", *titled, *children, class_=class_ or None, data_name=name or None)


def text(x: float, y: float, content: str, anchor: str = "start", class_: str = "") -> Markup:
    return element("text", content, x=float(x), y=float(y), text_anchor=anchor, class_=class_ or None)


def line(start: Point, end: Point, class_: str) -> Markup:
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=class_)


def rect(
    at: Point, width: float, height: float, class_: str, *children: Markup, fill_opacity: float | None = None
) -> Markup:
    """A rectangle with its upper left corner at a point."""
    size = {"x": at[0], "y": at[1], "width": width, "height": height}
    return element("rect", *children, **size, fill_opacity=fill_opacity, class_=class_)


def polyline(points: Sequence[Point], class_: str, dash: str | None = None) -> Markup:
    return element("polyline", points=listed_points(points), class_=class_, stroke_dasharray=dash)


def polygon(points: Sequence[Point], class_: str) -> Markup:
    return element("polygon", points=listed_points(points), class_=class_)


def listed_points(points: Iterable[Point]) -> str:
    """Points as attributes hold them."""
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)
