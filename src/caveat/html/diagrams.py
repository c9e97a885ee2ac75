"""Dot plots, dumbbells, heat maps, sparklines, reliability diagrams and risk-coverage curves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from markupsafe import Markup

from ..core.text import cut, percent, percent_tick, plural, tick
from ..files.schema import Reliability
from ..uncertainty.statistical_tests import score_interval, wilson
from . import svg
from .svg import Point

Groups = Sequence[tuple[str, Sequence[str]]]
"""Headings (empty if there is none), each with the names of its rows."""
_LETTER = 6.9
"""Maximum width of a letter, in the units of a drawing."""
_LOWEST = 17.0
"""Minimum height of a row with a name."""
_HEAD = 24.0


@dataclass(frozen=True)
class Dot:
    """A value with its interval, if any."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def known(self) -> list[float]:
        """The value and the ends of its interval."""
        return [end for end in (self.value, self.low, self.high) if end is not None]

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and self.low * self.high > 0


@dataclass(frozen=True)
class Rows:
    """The layout of rows in a frame."""

    frame: svg.Axes
    height: float
    at: Sequence[float]
    """The vertical centers of the rows of `names`."""
    names: Sequence[str]
    heads: Sequence[tuple[str, float]]
    """Headings and the positions of their text."""
    most: int
    """Maximum number of letters of a name."""

    @property
    def named(self) -> bool:
        """Whether there is room for names."""
        return self.height >= _LOWEST

    @property
    def places(self) -> list[tuple[str, float]]:
        """Names with the centers of their rows."""
        return list(zip(self.names, self.at, strict=True))


def lay_out(groups: Groups, height: float, shown: Point, top: float = 4, right: float = 10, most: int = 18) -> Rows:
    """Lay out rows, with space at the right and for names of at most `most` letters."""
    names = [name for _, members in groups for name in members]
    left = _LETTER * min(max(map(len, names)), most) + 14 if height >= _LOWEST else 12.0
    y, at, heads = top, list[float](), list[tuple[str, float]]()
    for head, members in groups:
        if head:
            heads.append((head, y + 17))
            y += _HEAD
        at += [y + height * (i + 0.5) for i in range(len(members))]
        y += height * len(members)
    frame = svg.Axes(left, top, svg.WIDTH - left - right, y - top, shown, (0, 1))
    return Rows(frame, height, at, names, heads, most)


def named(rows: Rows) -> list[Markup]:
    """Draw a line and, if there is room, a name per row, and headings."""
    drawn = [svg.text(0, y, cut(head, 40), "start", "head") for head, y in rows.heads]
    if rows.named:
        for name, y in rows.places:
            drawn.append(svg.line((rows.frame.left, y), (rows.frame.right, y), "lane"))
            drawn.append(name_label(rows.frame.left - 9, y + 4, name, rows.most))
    return drawn


def name_label(x: float, y: float, name: str, most: int) -> Markup:
    """Draw a name that ends at `x`, truncated to `most` letters, with the full name as title."""
    shown = svg.text(x, y, cut(name, most), "end")
    return shown if len(name) <= most else svg.group(name, shown)


def dot_plot(rows: Rows, about: str, ticks: svg.Ticks, unit: str, *drawn: Markup, class_: str = "") -> Markup:
    """Draw rows with an axis below; `about` is the alternative text."""
    axis = [rows.frame.across(ticks), *([rows.frame.named(unit)] if unit else [])]
    bottom = rows.frame.bottom + (38 if unit else 22)
    return svg.drawing(svg.WIDTH, bottom, about, *axis, *drawn, class_=f"dots {class_}".strip())


def dots(frame: svg.Axes, series: int, found: Sequence[tuple[Dot, float]], size: float, class_: str = "fill") -> Markup:
    """Draw marks of one series over their intervals, which are clipped to the frame."""

    def x(value: float) -> float:
        return min(max(frame.x(value), frame.left), frame.right)

    spans = [((x(dot.low), y), (x(dot.high), y)) for dot, y in found if dot.low is not None and dot.high is not None]
    return svg.strokes(spans) + svg.marks(series, [(frame.x(dot.value), y) for dot, y in found], size, class_)


_CELL = (110.0, 14.0)


def interval_cell(dot: Dot, shown: Point, tick: float | None, label: str) -> Markup:
    """Draw a value with its interval in a cell of a table, on a scale for all rows, and another value as a tick."""
    width, height = _CELL
    frame = svg.Axes(4, 0, width - 8, height, shown, (0, 1))
    drawn = [svg.line((frame.left, height / 2), (frame.right, height / 2), "lane")]
    if tick is not None and shown[0] <= tick <= shown[1]:
        drawn.append(svg.line((frame.x(tick), 1), (frame.x(tick), height - 1), "boundary"))
    drawn.append(dots(frame, 0, [(dot, height / 2)], 3.4))
    return svg.drawing(width, height, label, *drawn, class_="interval dots c0")


_BARS = 24


def histogram(
    values: Sequence[float], write: svg.Write, label: str, axis: str, expected: Sequence[Point] = (), least: float = 0.0
) -> Markup:
    """Draw the number of silos' values in bins of equal width, at least `least`, which are centered on the values if
    these are few. A line shows the `expected` values, each with its number."""
    marks, found = svg.ticks(min(values), max(values)), sorted(set(values))
    low, high, bars = marks[0], marks[-1], _BARS
    # shares of few inputs are multiples of a step: other bins would contain none or several of these multiples
    step = min((b - a for a, b in pairwise(found) if b - a > 1e-6), default=0.0)
    if step and (steps := round((found[-1] - found[0]) / step)) < _BARS:
        low, high, bars = found[0] - step / 2, found[-1] + step / 2, steps + 1
    if (high - low) / bars < least:
        low, high = (least * end for end in (math.floor(low / least + 1e-9), math.ceil(high / least - 1e-9)))
        bars = round((high - low) / least)
    counts, usual = (_binned(found, low, high, bars) for found in ([(value, 1) for value in values], expected))
    y_ticks = svg.ticks(0, max(*counts, *usual), 3)
    frame = svg.Axes(46, 24, 418, 90, (low, high or low + 1), (0, y_ticks[-1]))
    drawn = [svg.text(frame.left - 6, 10, "silos", "end", "tick")]
    drawn += histogram_bars(frame, counts, [plural(round(n), "silo") for n in counts])
    middles = [frame.left + frame.width * (i + 0.5) / bars for i in range(bars)]
    drawn += [svg.polyline([(x, frame.y(n)) for x, n in zip(middles, usual, strict=True)], "oracle")] * bool(expected)
    shown = svg.written([each for each in marks if low <= each <= high], write)
    return svg.plot(frame, label, shown, svg.written(y_ticks, "{:,.0f}".format), axis, *drawn)


def _binned(numbers: Sequence[Point], low: float, high: float, bars: int) -> list[float]:
    """Return for each bin the sum of the numbers of its values."""
    counts = [0.0] * bars
    for value, number in numbers:
        at = math.floor((value - low) / (high - low or 1) * bars + 1e-9)
        if 0 <= at < bars or abs(value - high) < 1e-9:
            counts[min(at, bars - 1)] += number
    return counts


def histogram_bars(frame: svg.Axes, heights: Sequence[float], titles: Sequence[str]) -> list[Markup]:
    """Return a bar per bin of equal width that is not empty."""
    width = frame.width / len(heights)
    return [
        svg.rect((frame.left + i * width + 0.5, frame.y(height)), width - 1, frame.bottom - frame.y(height), "bar",
                 svg.element("title", title))
        for i, (height, title) in enumerate(zip(heights, titles, strict=True)) if height
    ]  # fmt: skip


@dataclass(frozen=True)
class Square:
    """A cell of a matrix: its place, text and title, and how dark it is; without a kind it is not shaded."""

    row: int
    column: int
    text: str
    title: str = ""
    kind: str = ""
    shade: float = 0.0


def matrix(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Square], size: Point, label: str, corner: str = ""
) -> Markup:
    """Draw cells of one size (width, height) with the names of rows and columns; places without a cell are blank."""
    left, top, (width, height) = min(max(map(len, rows), default=0), 14) * _LETTER + 10, 34.0, size
    drawn = [svg.text(left, 12, corner, "start", "tick")] if corner else []
    drawn += [name_label(left - 8, top + height * (i + 0.5) + 4, name, 14) for i, name in enumerate(rows)]
    heads = [(left + width * (k + 0.5), name) for k, name in enumerate(columns)]
    short = max(2, int(width / _LETTER))
    drawn += [svg.group(name, svg.text(x, top - 8, cut(name, short), "middle", "tick")) for x, name in heads]
    for cell in cells:
        x, y = left + width * cell.column, top + height * cell.row
        title = [svg.element("title", cell.title)] if cell.title else []
        shade, kind = (0.12 + 0.88 * cell.shade, f"cell {cell.kind}") if cell.kind else (0, "cell")
        drawn += [svg.rect((x, y), width - 1.5, height - 1.5, kind, *title, fill_opacity=shade)] * bool(title)
        if len(cell.text) * _LETTER < width:
            at = x + width / 2, y + height / 2 + 4
            drawn.append(svg.text(*at, cell.text, "middle", "on" if cell.shade > 0.5 else ""))
    total = max(svg.WIDTH, left + width * len(columns))
    return svg.drawing(total, top + height * len(rows), label, *drawn, class_="matrix")


_MOST_TITLES = 6000  # a title per cell accounts for most of a heat map's size
_LONGEST = 18


def heat_map(names: Sequence[str], counts: Sequence[Sequence[int]], shared: int | None, label: str) -> Markup:
    """Draw a row per name and a column per codeword, darker for more tokens; a line follows the `shared` columns."""
    columns = max(map(len, counts))
    width, row, top = max(4.0, min(12.0, 700 / columns)), 16, 20
    left = 6.5 * min(max(map(len, names)), _LONGEST) + 8
    most = math.log1p(max(max(use, default=0) for use in counts))
    titles = sum(map(len, counts)) <= _MOST_TITLES
    right, bottom = left + width * columns + 4, top + row * len(names)
    drawn: list[Markup] = []
    for i, (name, use) in enumerate(zip(names, counts, strict=True)):
        y = float(top + row * i)
        drawn.append(svg.text(left - 6, y + 11, cut(name, _LONGEST), "end", "tick"))
        drawn.append(svg.rect((left, y), width * len(use), row - 2, "track"))
        for j, count in enumerate(use):
            if count:
                title = f"{name}, {j}: {count}" if titles else ""
                shade = 0.08 + 0.92 * math.log1p(count) / most
                drawn.append(_cell((left + width * j, y), width, row - 2, shade, title))
    body = svg.drawing(
        right, bottom + 2, label, *drawn, *_boundary(left, width, bottom, columns, shared), class_="heat"
    )
    return svg.element("div", body, style=f"min-width:{right * 0.8:.0f}px; max-width:{right * 1.3:.0f}px")


def _boundary(left: float, width: float, bottom: float, columns: int, shared: int | None) -> list[Markup]:
    if not shared or shared >= columns:
        return [svg.text(left, 14, "shared" if shared else "codewords", "start", "note")]
    x = left + width * shared
    rule = svg.line((x, 6), (x, bottom), "boundary")
    return [rule, svg.text(x - 5, 14, "shared", "end", "note"), svg.text(x + 5, 14, "own", "start", "note")]


def _cell(at: Point, width: float, height: float, shade: float, title: str) -> Markup:
    titled = [svg.element("title", title)] if title else []
    return svg.rect(at, width - 0.6, height, "cell", *titled, fill_opacity=shade)


def sparkline(counts: Sequence[int], names: Sequence[str]) -> Markup:
    """Draw a tiny bar per class; the counts are the alternative text."""
    most, width = max([*counts, 1]), 64 / max(len(counts), 1)
    label = ", ".join(f"{name}: {count}" for name, count in zip(names, counts, strict=True))
    bars = [
        svg.rect((width * i, 14 - 14 * c / most), max(width - 0.7, 0.4), 14 * c / most, "bar")
        for i, c in enumerate(counts)
    ]
    return svg.drawing(64, 15, label, *bars, svg.line((0, 14.5), (64, 14.5), "axis"), class_="spark")


_SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1)


def reliability_diagram(bins: Reliability, label: str) -> Markup:
    """Draw accuracy against confidence per bin with 95 % intervals, over a histogram of confidence."""
    frame, below = (
        svg.Axes(46, 10, 300, 300, (0, 1), (0, 1)),
        svg.Axes(46, 316, 300, 46, (0, 1), (0, max(bins.count) or 1)),
    )
    labels = svg.written(_SHARES, tick)
    numbers = [svg.text(below.x(v), below.bottom + 15, name, "middle", "tick") for v, name in labels]
    body = [
        frame.axes([], labels),
        *_accuracies(frame, bins, 4),
        *histogram_bars(below, bins.count, [plural(count, "prediction") for count in bins.count]),
        *numbers,
        below.named("confidence"),
    ]
    return svg.drawing(frame.right + 12, below.bottom + 38, label, *body, class_="reliability")


def _accuracies(frame: svg.Axes, bins: Reliability, size: float) -> list[Markup]:
    drawn = [svg.line(frame.at((0, 0)), frame.at((1, 1)), "diagonal")]
    for count, confidence, correct in zip(bins.count, bins.confidence, bins.correct, strict=True):
        if count:
            x, (low, high) = confidence / count, wilson(correct, count)
            note = f"{plural(count, 'prediction')}: confidence {x:.3f}, accuracy {correct / count:.3f}"
            span = svg.strokes([(frame.at((x, low)), frame.at((x, high)))], "whisker thin")
            drawn.append(svg.group(note, span, svg.marks(0, [frame.at((x, correct / count))], size), class_="c0"))
    return drawn


def risk_curve(
    coverage: Sequence[float], risk: Sequence[float], inputs: int, limit: float | None, policy: Point | None, label: str
) -> Markup:
    """Draw risk over coverage with a 95 % band over `inputs`, and an oracle that answers all correct predictions first.
    `limit`, a risk, is drawn as a horizontal rule; `policy`, coverage and risk, as a mark."""
    high = score_interval(risk[-1], inputs)[1] if inputs else 0.0
    top = max([*risk, high, limit or 0.0, policy[1] if policy else 0.0, 0.01])
    y_ticks = svg.ticks(0.0, min(1.05 * top, 1.0))
    frame = svg.Axes(46, 10, 418, 220, (0, 1), (0, y_ticks[-1]))
    drawn = [_risk_band(frame, coverage, risk, inputs)] if inputs else []
    drawn.append(svg.polyline(list(map(frame.at, zip(coverage, risk, strict=True))), "stroke"))
    drawn.append(svg.polyline([frame.at((c, oracle_risk(c, risk[-1]))) for c in coverage], "oracle"))
    if limit is not None:
        y = frame.y(limit)
        drawn += [
            svg.line((frame.left, y), (frame.right, y), "event"),
            svg.text(frame.left + 4, y - 5, "guaranteed", "", "note"),
        ]
    if policy:
        note = f"{percent(policy[0])} answered, {percent(policy[1])} of these wrong"
        drawn.append(svg.group(note, svg.marks(svg.DIAMOND, [frame.at(policy)], 5, "dot")))
    x_ticks, y_written = svg.written(_SHARES, percent_tick), svg.written(y_ticks, percent_tick)
    return svg.plot(frame, label, x_ticks, y_written, "answered", svg.group("", *drawn, class_="line mean"))


def oracle_risk(coverage: float, errors: float) -> float:
    """Return the minimum risk at this coverage if the share `errors` of all predictions is wrong."""
    return max(0.0, coverage - (1 - errors)) / coverage if coverage > 0 else 0.0


def _risk_band(frame: svg.Axes, coverage: Sequence[float], risk: Sequence[float], inputs: int) -> Markup:
    spans = [score_interval(r, max(c * inputs, 1.0)) for c, r in zip(coverage, risk, strict=True)]
    most = frame.y_range[1]
    upper = [frame.at((c, min(high, most))) for c, (_, high) in zip(coverage, spans, strict=True)]
    lower = [frame.at((c, low)) for c, (low, _) in zip(coverage, spans, strict=True)]
    return svg.polygon([*upper, *reversed(lower)], "band")


def stacked_bar(
    shares: Mapping[str, float], at: Point, size: Point, class_: str, names: Mapping[str, str] | None = None
) -> list[Markup]:
    """Draw a bar at (x, y) of (width, height), divided by shares; `names` replaces the keys as names of parts."""
    return [
        _part((at[0] + size[0] * start, at[1]), size[0] * share, size[1], f"{class_} {kind}",
              svg.element("title", f"{(names or {}).get(kind, kind)} {percent(share)}"))
        for kind, start, share in spans(shares)
    ]  # fmt: skip


def stack_swatch(kind: str, class_: str) -> Markup:
    """Draw a sample of a part of stacked bars for a legend."""
    return svg.sample(_part((1, 1), 20, 12, f"{class_} {kind}"), 22)


def spans(shares: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Yield the key, start and width of each part of a bar of width 1."""
    starts = accumulate(shares.values(), initial=0.0)
    return [(kind, start, share) for (kind, share), start in zip(shares.items(), starts, strict=False)]


def _part(at: Point, width: float, height: float, class_: str, *title: Markup) -> Markup:
    # Inset by half a stroke, so that the outline of an empty part stays inside, and a gap separates neighbors.
    inset = 0.7
    inside = max(width - 2 * inset, 0.3), height - 2 * inset
    return svg.rect((at[0] + inset, at[1] + inset), *inside, class_, *title)
