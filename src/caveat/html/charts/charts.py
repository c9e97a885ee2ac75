"""The kinds of figure that the report draws: lines over rounds, heat map, reliability, bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...files.schema.run import Reliability
from .svg import Axes, Point, colour, dash, drawing, element, join, line, marker, polyline, text, ticks

_MOST_TITLES = 6000  # a title per cell is most of a heat map's size


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[Point]  # (round, value), by round
    series: int | None
    """Which colour, dash and mark; None for a line that is no silo's but a mean."""
    style: str = "silo"
    note: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happened at a round, drawn as a vertical line."""

    round: int
    label: str


def line_chart(
    lines: Sequence[Line],
    events: Sequence[Event],
    label: str,
    write: Callable[[float], str],
    ceiling: float | None,
    marks: Sequence[Event] = (),
) -> Markup:
    """Lines over rounds; `ceiling` is the largest possible value, where there is one; `marks` stand on the axis."""
    values = [value for one in lines for _, value in one.points]
    rounds = [at for one in lines for at, _ in one.points]
    top = ceiling if ceiling is not None else max(values)
    y_ticks = ticks(min(values) if ceiling is not None else min(0.0, *values), top)
    x_ticks = [t for t in ticks(min(rounds), max(rounds), 6) if t == int(t) and min(rounds) <= t <= max(rounds)]
    depth = min(len(events), 3)
    frame = Axes(46, 10 + 13 * depth, 418, 220, (min(rounds), max(rounds)), (y_ticks[0], y_ticks[-1]))
    return drawing(
        480,
        frame.bottom + 38,
        label,
        frame.axes([(t, f"{t:g}") for t in x_ticks], [(t, write(t)) for t in y_ticks]),
        text(frame.right, frame.bottom + 31, "round", "end", "tick"),
        *(_event(frame, event, i % 3, depth) for i, event in enumerate(events)),
        *(_mark(frame, mark) for mark in marks if frame.x_range[0] <= mark.round <= frame.x_range[1]),
        *(_line(frame, one) for one in lines),
        class_="chart",
    )


def _event(frame: Axes, event: Event, level: int, depth: int) -> Markup:
    x = frame.x(event.round)
    y = frame.top - 4 - 13 * (depth - 1 - level)
    left_half = x < frame.left + frame.width / 2
    label = text(x + (4 if left_half else -4), y, event.label, "start" if left_half else "end", "note")
    return line((x, y - 9), (x, frame.bottom), "event") + label


def _mark(frame: Axes, mark: Event) -> Markup:
    x, y = frame.x(mark.round), frame.bottom
    corners = element("polygon", points=f"{x:.1f},{y - 1:.1f} {x + 5:.1f},{y + 7:.1f} {x - 5:.1f},{y + 7:.1f}")
    return element("g", element("title", mark.label), corners, class_="compared")


def _line(frame: Axes, one: Line) -> Markup:
    points = [(frame.x(at), frame.y(value)) for at, value in one.points]
    own = colour(one.series) if one.series is not None else ""
    drawn = [polyline(points, class_="stroke", stroke_dasharray=dash(one.series) if one.series is not None else None)]
    if one.series is not None:
        ends = points[:1] if len(points) == 1 else [points[len(points) // 2], points[-1]]
        drawn += [marker(one.series, x, y, "fill") for x, y in ends]
    # Without this wide invisible stroke one has to hit 1.4 units with the pointer to see the title.
    drawn.append(polyline(points, class_="reach"))
    silo = one.name if one.style == "silo" else None
    return element("g", element("title", one.note), *drawn, class_=f"line {one.style} {own}".strip(), data_silo=silo)


def key(series: int | None, style: str = "silo") -> Markup:
    """A line's sample for a legend; says nothing to a screen reader, the word beside it does."""
    own = colour(series) if series is not None else ""
    stroke = polyline([(1, 7), (33, 7)], class_="stroke", stroke_dasharray=dash(series) if series is not None else None)
    mark = marker(series, 17, 7, "fill") if series is not None else ""
    group = element("g", stroke, mark, class_=f"line {style} {own}".strip())
    return element("svg", group, viewBox="0 0 34 14", class_="key", aria_hidden="true")


def heat_map(names: Sequence[str], counts: Sequence[Sequence[int]], shared: int | None, label: str) -> Markup:
    """A row per name, a column per codeword, darker for more tokens on a log scale; a rule after the `shared` first."""
    columns = max(map(len, counts))
    cell, row, left, top = max(4.0, min(12.0, 700 / columns)), 16, 6.5 * min(max(map(len, names)), 18) + 8, 20
    most = max(max(use, default=0) for use in counts)
    titles = sum(map(len, counts)) <= _MOST_TITLES
    width, bottom = left + cell * columns + 4, top + row * len(names)
    drawn: list[Markup] = []
    for i, (name, use) in enumerate(zip(names, counts, strict=True)):
        y = top + row * i
        back = element("rect", x=left, y=y, width=cell * len(use), height=row - 2, class_="track")
        drawn += [text(left - 6, y + 11, shorten(name, 18), "end", "tick"), back]
        for j, count in enumerate(use):
            if count:
                drawn.append(_cell(left + cell * j, y, cell, row - 2, count, most, f"{name}, {j}" if titles else ""))
    if shared and shared < columns:
        x = left + cell * shared
        drawn += [line((x, top - 14), (x, bottom), "boundary"), text(x - 5, top - 6, "shared", "end", "note")]
        drawn.append(text(x + 5, top - 6, "own", "start", "note"))
    else:
        drawn.append(text(left, top - 6, "shared" if shared else "codewords", "start", "note"))
    return element(
        "div",
        drawing(width, bottom + 2, label, *drawn, class_="heat"),
        style=f"min-width:{width * 0.8:.0f}px; max-width:{width * 1.3:.0f}px",
    )


def _cell(x: float, y: float, width: float, height: float, count: int, most: int, name: str) -> Markup:
    shade = 0.08 + 0.92 * math.log1p(count) / math.log1p(most)
    title = [element("title", f"{name}: {count}")] if name else []
    return element("rect", *title, x=x, y=y, width=width - 0.6, height=height, fill_opacity=shade, class_="cell")


def reliability_diagram(bins: Reliability, label: str, small: bool = False) -> Markup:
    """Accuracy against confidence per bin with 95 % intervals, over a histogram of the confidences."""
    size = 104 if small else 300
    frame = Axes(*((8, 6) if small else (46, 10)), size, size, (0, 1), (0, 1))
    histogram = Axes(frame.left, frame.bottom + 6, size, 20 if small else 46, (0, 1), (0, max(bins.count) or 1))
    labels = [(t, f"{t:g}") for t in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    grid = [line((frame.left, frame.y(v)), (frame.right, frame.y(v)), "grid") for v in (0, 0.5, 1)]
    axes = join(grid) if small else frame.axes([], labels)
    width = 1 / len(bins.count)
    bars = [
        element(
            "rect",
            element("title", f"{count} predictions"),
            x=histogram.x(i * width) + 0.5,
            y=histogram.y(count),
            width=size * width - 1,
            height=histogram.bottom - histogram.y(count),
            class_="bar",
        )
        for i, count in enumerate(bins.count)
    ]
    below = [text(histogram.x(v), histogram.bottom + 15, name, "middle", "tick") for v, name in labels]
    names = [text(histogram.right, histogram.bottom + 31, "confidence", "end", "tick"), *below]
    return drawing(
        frame.right + (8 if small else 12),
        histogram.bottom + (4 if small else 38),
        label,
        axes,
        line((frame.x(0), frame.y(0)), (frame.x(1), frame.y(1)), "diagonal"),
        *_bins(frame, bins, small),
        *bars,
        *([] if small else names),
        class_="reliability small" if small else "reliability",
    )


def _bins(frame: Axes, bins: Reliability, small: bool) -> list[Markup]:
    drawn = []
    for count, confidence, correct in zip(bins.count, bins.confidence, bins.correct, strict=True):
        if count:
            x, low, high = frame.x(confidence / count), *wilson(correct, count)
            note = f"{count} predictions: confidence {confidence / count:.3f}, accuracy {correct / count:.3f}"
            interval = line((x, frame.y(low)), (x, frame.y(high)), "interval")
            dot = element("circle", cx=x, cy=frame.y(correct / count), r=2.2 if small else 4, class_="dot")
            drawn.append(element("g", element("title", note), interval, dot))
    return drawn


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` > 0 trials."""
    z = 1.96
    share, scale = hits / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def risk_curve(
    coverage: Sequence[float], risk: Sequence[float], limit: float | None, policy: Point | None, label: str
) -> Markup:
    """Risk over coverage; `limit`, a risk, is a rule across, and `policy`, coverage and risk, a mark."""
    top = max([*risk, limit or 0.0, policy[1] if policy else 0.0, 0.01])
    y_ticks = ticks(0.0, top)
    frame = Axes(46, 10, 418, 220, (0, 1), (0, y_ticks[-1]))
    shares = [(t, f"{100 * t:g} %") for t in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    drawn = [polyline([(frame.x(c), frame.y(r)) for c, r in zip(coverage, risk, strict=True)], class_="stroke")]
    if limit is not None:
        y = frame.y(limit)
        drawn += [line((frame.left, y), (frame.right, y), "event"), text(frame.left + 4, y - 5, "promised", "", "note")]
    if policy:
        note = element("title", f"{policy[0]:.1%} answered, {policy[1]:.1%} of these wrong")
        mark = marker(3, frame.x(policy[0]), frame.y(policy[1]), "dot", size=5)
        drawn.append(element("g", note, mark))
    return drawing(
        480,
        frame.bottom + 38,
        label,
        frame.axes(shares, [(t, f"{100 * t:g} %") for t in y_ticks]),
        text(frame.right, frame.bottom + 31, "answered", "end", "tick"),
        element("g", *drawn, class_="line mean"),
        class_="chart",
    )


def sparkline(counts: Sequence[int], names: Sequence[str]) -> Markup:
    """A tiny bar per class; the counts are its alternative text."""
    most, width = max([*counts, 1]), 64 / max(len(counts), 1)
    label = ", ".join(f"{name}: {count}" for name, count in zip(names, counts, strict=True))
    bars = [
        element(
            "rect", x=width * i, y=14 - 14 * c / most, width=max(width - 0.7, 0.4), height=14 * c / most, class_="bar"
        )
        for i, c in enumerate(counts)
    ]
    return drawing(64, 15, label, *bars, line((0, 14.5), (64, 14.5), "axis"), class_="spark")


def shorten(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
