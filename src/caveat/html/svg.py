"""Elements of SVG, marks and colors of series, and the axes and lines of plots."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]
WIDTH = 480.0
"""Width of a drawing of half a page, in its units."""


@dataclass(frozen=True)
class Chart:
    """A drawing with its title and caption."""

    title: str
    drawing: Markup
    caption: str = ""


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """Return an element; names lose a trailing underscore, other underscores become hyphens, None is left out."""
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    written = "".join(f' {name}="{escape(number(v) if isinstance(v, float) else v)}"' for name, v in pairs)
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def number(value: float) -> str:
    """Return a coordinate or length in a drawing, to a hundredth of a unit."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def join(parts: Iterable[Markup | str]) -> Markup:
    return Markup("").join(parts)


def drawing(width: float, height: float, label: str, *children: Markup | str, class_: str = "") -> Markup:
    """Return an SVG of that size in its own units, which scales with the page; `label` is its alternative text."""
    box = f"0 0 {width:g} {height:g}"
    title = element("title", label)
    return element("svg", title, *children, viewBox=box, role="img", aria_label=label, class_=class_ or None)


def group(title: str, *children: Markup | str, class_: str = "", name: str = "") -> Markup:
    """Group elements with a title and a name for highlighting, if not empty."""
    titled = [element("title", title)] if title else []
    return element("g", *titled, *children, class_=class_ or None, data_name=name or None)


def text(x: float, y: float, content: str, anchor: str = "start", class_: str = "") -> Markup:
    return element("text", content, x=float(x), y=float(y), text_anchor=anchor, class_=class_ or None)


def line(start: Point, end: Point, class_: str) -> Markup:
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=class_)


def rect(
    at: Point, width: float, height: float, class_: str, *children: Markup, fill_opacity: float | None = None
) -> Markup:
    """Return a rectangle with its upper left corner at a point."""
    size = {"x": at[0], "y": at[1], "width": width, "height": height}
    return element("rect", *children, **size, fill_opacity=fill_opacity, class_=class_)


def polyline(points: Sequence[Point], class_: str, dash: str | None = None) -> Markup:
    return element("polyline", points=listed_points(points), class_=class_, stroke_dasharray=dash)


def polygon(points: Sequence[Point], class_: str) -> Markup:
    return element("polygon", points=listed_points(points), class_=class_)


def listed_points(points: Iterable[Point]) -> str:
    """Format points for an attribute."""
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
    """Return the class of a series, which colors it and its children."""
    return f"c{series % _COLORS}"


def dash(series: int) -> str | None:
    """Return the dashes of a series, so that no series is distinguished by color alone."""
    return _DASHES[series % len(_DASHES)]


def marks(series: int, places: Iterable[Point], size: float = 3.2, class_: str = "fill") -> Markup:
    """Draw the marks of a series in one path, because pages may have thousands of marks."""
    corners = _CORNERS[series % len(_CORNERS)]
    drawn = (_polygon(corners, place, size) if corners else _disc(place, size) for place in places)
    return element("path", d="".join(drawn), class_=class_)


def _polygon(corners: Sequence[Point], at: Point, size: float) -> str:
    return f"M{listed_points((at[0] + x * size, at[1] + y * size) for x, y in corners)}Z"


def _disc(at: Point, radius: float) -> str:
    r, width = number(radius), number(2 * radius)
    return f"M{number(at[0] - radius)},{number(at[1])}a{r},{r} 0 1 0 {width},0a{r},{r} 0 1 0 -{width},0"


def hollow(series: int, at: Point, size: float) -> Markup:
    """Return the outline of a mark."""
    return marks(series, [at], size, "hollow")


def strokes(segments: Sequence[tuple[Point, Point]], class_: str = "whisker") -> Markup:
    """Draw straight strokes in one path; nothing without segments."""
    drawn = "".join(f"M{listed_points([start])}L{listed_points([end])}" for start, end in segments)
    return element("path", d=drawn, class_=class_) if drawn else Markup()


def key(series: int | None, style: str = "") -> Markup:
    """Return a line's sample for a legend, with the mark of its series, if any."""
    own = color(series) if series is not None else ""
    stroke = polyline([(1, 7), (33, 7)], "stroke", dash(series) if series is not None else None)
    mark = marks(series, [(17, 7)]) if series is not None else ""
    return sample(group("", stroke, mark, class_=f"line {style} {own}".strip()), 34)


def swatch(series: int) -> Markup:
    """Return the sample of a mark for a table or a legend."""
    return sample(group("", marks(series, [(7, 7)], 3.6), class_=color(series)))


def sample(drawn: Markup, width: int = 14) -> Markup:
    """Return a drawing in a box of height 14; screen readers use the text next to it."""
    style = f"width:{width}px"
    return element("svg", drawn, viewBox=f"0 0 {width} 14", style=style, class_="sample", aria_hidden="true")


Ticks = Sequence[tuple[float, str]]
"""Values on an axis with their labels."""
Write = Callable[[float], str]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return about `about` round numbers; the first and the last enclose the range from `low` to `high`."""
    span = max(high - low, 1e-9)
    power = 10 ** math.floor(math.log10(span / about))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if span / (factor * power) <= about)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def inner_ticks(shown: Point, about: int = 5) -> list[float]:
    """Return about `about` round numbers within the range, at least three if possible."""
    found: list[float] = []
    for finer in range(about, 3 * about):
        found = [value for value in ticks(*shown, finer) if shown[0] <= value <= shown[1]]
        if len(found) >= 3:
            break
    return found


def limits(values: Sequence[float], share: bool = False) -> Point | None:
    """Return a range of `values` with a margin, within [0, 1] for shares and above 0 for non-negative values."""
    if not values:
        return None
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.01
    least = max(0.0, low - room) if low >= 0 else low - room
    return least, min(1.0, high + room) if share and high <= 1 else high + room


def written(values: Sequence[float], write: Write) -> Ticks:
    return [(value, write(value)) for value in values]


@dataclass(frozen=True)
class Axes:
    """The rectangle of a plot in a drawing, and its ranges of data."""

    left: float
    top: float
    width: float
    height: float
    x_range: Point
    y_range: Point

    def x(self, value: float) -> float:
        return self.left + self.width * _share(value, self.x_range)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - _share(value, self.y_range))

    def at(self, point: Point) -> Point:
        return self.x(point[0]), self.y(point[1])

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def axes(self, x_ticks: Ticks, y_ticks: Ticks) -> Markup:
        """Draw horizontal grid lines and the numbers along both axes."""
        grid = [line((self.left, self.y(v)), (self.right, self.y(v)), "grid") for v, _ in y_ticks]
        beside = [text(self.left - 6, self.y(v) + 3.5, label, "end", "tick") for v, label in y_ticks]
        return join([*grid, self._below(x_ticks), *beside])

    def across(self, x_ticks: Ticks) -> Markup:
        """Draw vertical grid lines and the numbers below."""
        grid = [line((self.x(v), self.top), (self.x(v), self.bottom), "grid") for v, _ in x_ticks]
        return join([*grid, self._below(x_ticks)])

    def _below(self, x_ticks: Ticks) -> Markup:
        base = line((self.left, self.bottom), (self.right, self.bottom), "axis")
        return join([base, *(text(self.x(v), self.bottom + 15, label, "middle", "tick") for v, label in x_ticks)])

    def named(self, name: str) -> Markup:
        """Return the name of the numbers below the plot."""
        return text(self.right, self.bottom + 31, name, "end", "tick")


def _share(value: float, limits: Point) -> float:
    low, high = limits
    return 0.5 if high == low else (value - low) / (high - low)


def plot(
    frame: Axes, label: str, x_ticks: Ticks, y_ticks: Ticks, name: str, *drawn: Markup, width: float = WIDTH
) -> Markup:
    """Return a drawing with both axes around the given elements; `label` is its alternative text."""
    body = [frame.axes(x_ticks, y_ticks), frame.named(name), *drawn]
    return drawing(width, frame.bottom + 38, label, *body, class_="chart")


@dataclass(frozen=True)
class Line:
    """A line through points (x, y), for a series or for a mean over series."""

    points: Sequence[Point]
    series: int | None
    """Determines color, dash and mark; None for a plain line."""
    note: str
    """The title of the line."""
    style: str = ""
    """CSS classes of the line."""
    name: str = ""
    """The name for highlighting; empty for none."""
    marked: Sequence[Point] | None = None
    """Positions of marks; None for the middle and the end."""


def draw(frame: Axes, one: Line, *more: Markup) -> Markup:
    """Return the line with its marks and, under its title, the elements that belong to it."""
    points, series = list(map(frame.at, one.points)), one.series
    drawn = [polyline(points, "stroke", dash(series) if series is not None else None), *more]
    if series is not None:
        marked = one.marked if one.marked is not None else [one.points[len(one.points) // 2], one.points[-1]]
        drawn.append(marks(series, dict.fromkeys(map(frame.at, marked))))
    # A wide invisible stroke, so that the title also shows close to the line, which is only 1.4 units wide.
    drawn.append(polyline(points, "reach"))
    own = color(series) if series is not None else ""
    return group(one.note, *drawn, class_=" ".join(filter(None, ("line", one.style, own))), name=one.name)


def band(frame: Axes, low: Sequence[Point], high: Sequence[Point], series: int, name: str) -> Markup:
    """Return the area between two lines, in the color of a series."""
    edge = [frame.at(point) for point in [*high, *low[::-1]]]
    return group("", polygon(edge, "band"), class_=color(series), name=name)


def round_frame(rounds: Sequence[float], y_range: Point, height: float = 220, top: float = 10) -> Axes:
    """Return the frame of a chart over rounds."""
    return Axes(46, top, 418, height, (min(rounds), max(rounds)), y_range)


def round_ticks(frame: Axes) -> Ticks:
    """Return ticks at whole numbers."""
    return [(at, f"{at:g}") for at in inner_ticks(frame.x_range, 6) if at == int(at)]
