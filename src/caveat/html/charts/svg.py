"""Elements of SVG, and the marks, strokes and samples that tell series apart; style sheets give colours."""

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


_COLORS = 6
_DASHES = (None, "7 3", "2 3", "9 3 2 3")
_QUARTER = ((0.4, -1.2), (0.4, -0.4), (1.2, -0.4))
_CORNERS: Sequence[Sequence[Point]] = (
    (),  # a disc
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
    ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    # A cross: the corners of a quarter, turned three times.
    tuple((x * c - y * s, x * s + y * c) for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1)) for x, y in _QUARTER),
)
DIAMOND = 3


def color(series: int) -> str:
    """The class of a series, which colours it and what is in it."""
    return f"c{series % _COLORS}"


def dash(series: int) -> str | None:
    """The dashes of a series, so no series is told apart by colour alone."""
    return _DASHES[series % len(_DASHES)]


def marks(series: int, places: Iterable[Point], size: float = 3.2, class_: str = "fill") -> Markup:
    """Discs, squares, triangles, diamonds or crosses of one series, in one path: a page may have thousands."""
    corners = _CORNERS[series % len(_CORNERS)]
    drawn = (_polygon(corners, place, size) if corners else _disc(place, size) for place in places)
    return element("path", d="".join(drawn), class_=class_)


def _polygon(corners: Sequence[Point], at: Point, size: float) -> str:
    return f"M{listed_points((at[0] + x * size, at[1] + y * size) for x, y in corners)}Z"


def _disc(at: Point, radius: float) -> str:
    r, width = number(radius), number(2 * radius)
    return f"M{number(at[0] - radius)},{number(at[1])}a{r},{r} 0 1 0 {width},0a{r},{r} 0 1 0 -{width},0"


def hollow(series: int, at: Point, size: float) -> Markup:
    """The outline of a mark."""
    return marks(series, [at], size, "hollow")


def strokes(segments: Sequence[tuple[Point, Point]], class_: str = "whisker") -> Markup:
    """Straight strokes in one path; nothing for none."""
    drawn = "".join(f"M{listed_points([start])}L{listed_points([end])}" for start, end in segments)
    return element("path", d=drawn, class_=class_) if drawn else Markup()


def key(series: int | None, style: str = "") -> Markup:
    """A line's sample for a legend, with the mark of its series if it has one."""
    own = color(series) if series is not None else ""
    stroke = polyline([(1, 7), (33, 7)], "stroke", dash(series) if series is not None else None)
    mark = marks(series, [(17, 7)]) if series is not None else ""
    return sample(group("", stroke, mark, class_=f"line {style} {own}".strip()), 34)


def swatch(series: int) -> Markup:
    """The sample of a mark for a table or a legend."""
    return sample(group("", marks(series, [(7, 7)], 3.6), class_=color(series)))


def sample(drawn: Markup, width: int = 14) -> Markup:
    """A drawing in a box of height 14; a screen reader has the word next to it."""
    style = f"width:{width}px"
    return element("svg", drawn, viewBox=f"0 0 {width} 14", style=style, class_="sample", aria_hidden="true")
