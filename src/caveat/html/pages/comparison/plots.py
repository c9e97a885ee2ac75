"""What the pictures of a comparison are made of: axes across, marks that are many in one path, samples of marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from ....files.schema.comparison import IntervalRecord, Measure
from ...charts.svg import Axes, Point, colour, element, join, line, text, ticks
from .numbers import figure, header

_CORNERS: Sequence[Sequence[Point]] = (
    (),  # a disc
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
    ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    ((-1.2, -0.4), (-0.4, -0.4), (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4),
     (1.2, 0.4), (0.4, 0.4), (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4)),
)  # fmt: skip
_LETTER = 7.0
"""How wide a letter of a label is, at most, in the units of a drawing."""


def values_of(intervals: Iterable[IntervalRecord]) -> list[float]:
    """Means and bounds, those that there are."""
    return [value for one in intervals for value in (one.mean, one.low, one.high) if value is not None]


def limits(values: Sequence[float], measure: Measure | None = None) -> Point | None:
    """A range that holds `values` with some room, and stays within what shares and non-negative figures can be."""
    if not values:
        return None
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.01
    least = max(0.0, low - room) if low >= 0 else low - room
    shares = measure is not None and measure.percent and high <= 1
    return least, min(1.0, high + room) if shares else high + room


def label_width(names: Iterable[str], most: int = 22) -> float:
    return _LETTER * min(max(map(len, names), default=0), most) + 10


def label(x: float, y: float, name: str, most: int = 22) -> Markup:
    """A name that ends at `x`, cut where it is too long, with all of it as a title."""
    cut = cut_inside(name, most)
    return text(x, y, cut, "end") if cut == name else element("g", element("title", name), text(x, y, cut, "end"))


def cut_inside(name: str, most: int) -> str:
    """A name without its middle where it is too long: names of variants begin alike. It goes on with a whole word."""
    if len(name) <= most:
        return name
    part, space, words = name[-(most // 2) :].partition(" ")
    end = words if space else part
    return f"{name[: most - len(end) - 1]}\N{HORIZONTAL ELLIPSIS}{end}"


def inner_ticks(shown: Point, about: int = 5) -> list[float]:
    """Round numbers within the range, about so many but at least three where there are."""
    found: list[float] = []
    for finer in range(about, 3 * about):
        found = [value for value in ticks(*shown, finer) if shown[0] <= value <= shown[1]]
        if len(found) >= 3:
            break
    return found


def across(frame: Axes, measure: Measure, name: str = "") -> Markup:
    """Vertical grid lines and numbers below, then what they are."""
    places = inner_ticks(frame.x_range)
    scale = Measure(name=measure.name, percent=measure.percent)
    digits = _short([figure(scale, value) for value in places])
    grid = [line((frame.x(v), frame.top), (frame.x(v), frame.bottom), "grid") for v in places]
    below = [
        text(frame.x(v), frame.bottom + 15, written, "middle", "tick")
        for v, written in zip(places, digits, strict=True)
    ]
    base = line((frame.left, frame.bottom), (frame.right, frame.bottom), "axis")
    return join([*grid, base, *below, text(frame.right, frame.bottom + 31, name or header(measure), "end", "tick")])


def _short(numbers: Sequence[str]) -> list[str]:
    """Without zeros at the end that all of them have."""
    while all("." in number for number in numbers) and numbers and all(number[-1] in "0." for number in numbers):
        numbers = [number[:-1] for number in numbers]
    return list(numbers)


def whisker(frame: Axes, value: IntervalRecord, y: float) -> Markup | str:
    """The interval as a line across; nothing without bounds."""
    if value.low is None or value.high is None:
        return ""
    return line((frame.x(value.low), y), (frame.x(value.high), y), "whisker")


def swatch(series: int) -> Markup:
    """The mark of a series for a table or a legend; says nothing to a screen reader, the word beside it does."""
    mark = element("g", marks(series, [(7, 7)], 3.6), class_=colour(series))
    return element("svg", mark, viewBox="0 0 14 14", class_="swatch mark", aria_hidden="true")


def hollow(x: float, y: float) -> Markup:
    """A paper's figure."""
    return element("polygon", points=_points(_CORNERS[3], x, y, 4.4), class_="printed")


def paper_swatch() -> Markup:
    return element("svg", hollow(7, 7), viewBox="0 0 14 14", class_="swatch mark", aria_hidden="true")


def marks(series: int, places: Sequence[Point], size: float) -> Markup:
    """Marks of one series, as a single path: a page of many silos has thousands."""
    corners = _CORNERS[series % len(_CORNERS)]
    drawn = (_disc(x, y, size) if not corners else f"M{_points(corners, x, y, size)}Z" for x, y in places)
    return element("path", d="".join(drawn), class_="fill")


def whiskers(frame: Axes, spans: Sequence[tuple[IntervalRecord, float]]) -> Markup | str:
    """Many intervals, each at its height, as a single path; cut at the edges of the frame."""

    def x(value: float) -> str:
        return short(min(max(frame.x(value), frame.left), frame.right))

    drawn = [
        f"M{x(one.low)} {short(y)}H{x(one.high)}" for one, y in spans if one.low is not None and one.high is not None
    ]
    return element("path", d="".join(drawn), class_="whisker thin") if drawn else ""


def _disc(x: float, y: float, radius: float) -> str:
    r = short(radius)
    return f"M{short(x - radius)} {short(y)}a{r} {r} 0 1 0 {short(2 * radius)} 0a{r} {r} 0 1 0 {short(-2 * radius)} 0"


def _points(corners: Sequence[Point], x: float, y: float, size: float) -> str:
    return " ".join(f"{short(x + dx * size)},{short(y + dy * size)}" for dx, dy in corners)


def short(value: float) -> str:
    """A place in a drawing, to a tenth of a unit."""
    return f"{value:.1f}".removesuffix(".0")
