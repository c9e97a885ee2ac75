"""Plots of a comparison: dot plots, forest plots of differences, learning curves, and scatter plots of two metrics."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from ...core.text import MINUS, cut, probability
from ...files.schema import ComparedRun, DifferenceRecord, IntervalRecord, Measure
from .. import svg
from ..diagrams import Dot, dot_plot, dots, lay_out, named
from ..svg import Point, Write
from .wording import LEVEL, bracketed, directed, dot, figure, known, signed, tick, with_unit

_SIDE = 18
"""Maximum number of letters of each name of a pair."""


@dataclass(frozen=True)
class MethodRow:
    """A line of a plot of methods."""

    name: str
    series: int
    value: IntervalRecord
    paper: float | None = None
    absent: str = ""
    """The text instead of a missing value."""
    seeds: Mapping[int, float] = field(default_factory=dict)
    """The value of each seed, if there are few."""
    rounds: str = ""
    """The number of rounds as text, if methods differ in it."""
    apart: bool = False
    """Whether the method's number of rounds is not that of most methods."""


def method_limits(rows: Sequence[MethodRow], measure: Measure) -> Point | None:
    printed = [row.paper for row in rows if row.paper is not None]
    seeds = [value for row in rows for value in row.seeds.values()]
    return svg.limits([*known(row.value for row in rows), *printed, *seeds], measure.percent)


def scale(measure: Measure, shown: Point) -> svg.Ticks:
    """Return the numbers along an axis of the metric."""
    return [(value, tick(measure, value)) for value in svg.inner_ticks(shown)]


def method_plot(
    methods: Sequence[MethodRow], measure: Measure, shown: Point, about: str, most: float | None = None
) -> Markup:
    """Draw a line per method: mean and interval, the paper's result as a hollow mark, and the mean in digits. `most`,
    the value of the baseline, is a dashed line if it is within the axis."""
    rows = lay_out(
        [("", [", ".join(filter(None, [method.name, method.rounds])) for method in methods])],
        26,
        shown,
        right=46,
        most=22,
    )
    drawn = [_method(rows.frame, one, y, measure) for one, y in zip(methods, rows.at, strict=True)]
    if most is not None and shown[0] <= most <= shown[1]:
        x = rows.frame.x(most)
        rule = svg.line((x, rows.frame.top), (x, rows.frame.bottom), "event")
        name = "always predicting the most frequent class" if measure.figure == "accuracy" else "no inputs"
        drawn.append(svg.group(f"{name}: {with_unit(measure, most)}", rule))
    unit = directed(measure.title, measure)
    return dot_plot(rows, about, scale(measure, shown), unit, *named(rows), *drawn, class_="measured")


def _method(frame: svg.Axes, one: MethodRow, y: float, measure: Measure) -> Markup:
    printed = "" if one.paper is None else f"; the paper: {with_unit(measure, one.paper)}"
    drawn = [] if one.paper is None else [svg.hollow(svg.DIAMOND, (frame.x(one.paper), y), 4.4)]
    if found := dot(one.value):
        drawn.append(dots(frame, one.series, [(found, y)], 4.6, "hollow" if one.apart else "fill"))
        for seed, value in one.seeds.items():
            said = f"{one.name}, seed {seed}: {with_unit(measure, value)}"
            drawn.append(svg.group(said, svg.marks(0, [(frame.x(value), y + 8)], 2.4, "seed"), class_="one-seed"))
        drawn.append(svg.text(svg.WIDTH, y + 4, figure(measure, found.value), "end"))
    else:
        drawn.append(svg.text(frame.left + 6, y + 4, one.absent, "start", "alarm"))
    each = ", ".join(figure(measure, value) for value in one.seeds.values())
    note = f"{one.name}: {bracketed(measure, one.value) or one.absent}{printed}{f'; seeds: {each}' if each else ''}"
    return svg.group(note, *drawn, class_=svg.color(one.series), name=one.name)


_LEFT = 0.3
"""Minimum range to the left of 0, as a share of that to the right, which leaves room for a name."""


def forest(pairs: Sequence[DifferenceRecord], best: str, measure: Measure, about: str) -> Markup:
    """Draw a line per pair with the method `best`: the mean difference with its interval around zero. Pairs without a
    difference are listed with a note."""
    names = [f"{cut(pair.a, _SIDE)} {MINUS} {cut(pair.b, _SIDE)}" for pair in pairs]
    low, high = svg.limits([0.0, *known(pairs)]) or (-1.0, 1.0)
    shown = min(low, -_LEFT * high), high
    rows = lay_out([(name, [""]) for name in names], 22, shown, top=30, right=46)
    frame = rows.frame
    zero = frame.x(0)
    heads = list[Markup]()
    if measure.higher is not None:
        heads.append(svg.text(zero - 8, 20, f"{cut(best, 9)} worse", "end", "tick"))
        heads.append(svg.text(zero + 8, 20, f"{cut(best, 9)} better", "start", "tick"))
    drawn = [_pair(frame, pair, y, measure) for pair, y in zip(pairs, rows.at, strict=True)]
    unit = "difference in points" if measure.percent else "difference"
    rule = svg.strokes([((zero, y - 9), (zero, y + 9)) for y in rows.at], "boundary")
    return dot_plot(rows, about, scale(measure, shown), unit, *named(rows), rule, *heads, *drawn, class_="forest")


def _pair(frame: svg.Axes, pair: DifferenceRecord, y: float, measure: Measure) -> Markup:
    found, p = dot(pair), probability(pair.p_adjusted)
    clear = pair.p_adjusted is not None and pair.p_adjusted < LEVEL
    said = bracketed(measure, pair) or "no common seed"
    title = f"{pair.a} {MINUS} {pair.b}: {said}{f', corrected p {p}' if p else ''}"
    if found is None:
        return svg.group(title, svg.text(frame.left + 6, y + 4, said, "start", "tick"))
    drawn = [
        dots(frame, 0, [(found, y)], 4.2),
        svg.text(svg.WIDTH, y + 4, signed(measure, pair.mean), "end", "" if clear else "tick"),
    ]
    return svg.group(title, *drawn, class_="found" if clear else "open")


_MOST_POINTS = 150
"""Maximum number of rounds in a curve."""


@dataclass(frozen=True)
class Course:
    """A method's metric over rounds: the mean over seeds, with the minimum and the maximum."""

    name: str
    series: int
    mean: Sequence[Point]
    low: Sequence[Point]
    high: Sequence[Point]


def course(name: str, series: int, runs: Sequence[ComparedRun]) -> Course | None:
    """Return a method's first metric over rounds of all `runs`, at most 150."""
    curves = [[(row[0], row[1]) for row in run.curve] for run in runs]
    found = [known for curve in curves if (known := {at: value for at, value in curve if value is not None})]
    shared = sorted(set.intersection(*map(set, found))) if found else []
    if not shared:
        return None
    step = math.ceil(len(shared) / _MOST_POINTS)
    # from the end, to include the last round
    values = {at: [one[at] for one in found] for at in shared[::-1][::step][::-1]}
    means = [(at, math.fsum(row) / len(row)) for at, row in values.items()]
    low, high = ([(at, of(row)) for at, row in values.items()] for of in (min, max))
    return Course(name, series, means, low, high)


def course_chart(courses: Sequence[Course], about: str, write: Write) -> Markup:
    """Return lines over rounds, each with a band over its seeds."""
    values = [value for one in courses for _, value in (*one.low, *one.high)]
    frame = svg.round_frame([at for one in courses for at, _ in one.mean], svg.limits(values) or (0.0, 1.0), 230)
    bands = [svg.band(frame, one.low, one.high, one.series, one.name) for one in courses]
    lines = [svg.draw(frame, svg.Line(one.mean, one.series, one.name, name=one.name)) for one in courses]
    y_ticks = svg.written(svg.inner_ticks(frame.y_range), write)
    return svg.plot(frame, about, svg.round_ticks(frame), y_ticks, "round", *bands, *lines)


@dataclass(frozen=True)
class Place:
    """A method in a plane of two metrics."""

    name: str
    series: int
    x: Dot
    y: Dot
    note: str


def plane(places: Sequence[Place], names: tuple[str, str], write: tuple[Write, Write], about: str) -> Markup | None:
    """Return a named mark per method, with both intervals; None without any."""
    x_range = svg.limits([end for place in places for end in place.x.known])
    y_range = svg.limits([end for place in places for end in place.y.known])
    if x_range is None or y_range is None:
        return None
    frame = svg.Axes(50, 24, 414, 240, x_range, y_range)
    x_ticks, y_ticks = (
        svg.written(svg.inner_ticks(x_range, 4), write[0]),
        svg.written(svg.inner_ticks(y_range, 4), write[1]),
    )
    drawn, taken = [svg.text(2, 12, names[1], "start", "tick")], list[Point]()
    for place in sorted(places, key=lambda place: -place.y.value):
        x, y = frame.at((place.x.value, place.y.value))
        while any(abs(x - other) < _APART[0] and abs(y - at) < _APART[1] for other, at in taken):
            y += 2
        taken.append((x, y))
        drawn.append(_place(frame, place, y))
    return svg.plot(frame, about, x_ticks, y_ticks, names[0], *drawn)


_APART = (90.0, 12.0)
"""Minimum horizontal and vertical distance of names; one of the two suffices."""


def _place(frame: svg.Axes, place: Place, label: float) -> Markup:
    """Draw a mark with its intervals, and its name at the height `label`."""
    x, y = place.x, place.y
    ends = []
    if x.low is not None and x.high is not None:
        ends.append((frame.at((x.low, y.value)), frame.at((x.high, y.value))))
    if y.low is not None and y.high is not None:
        ends.append((frame.at((x.value, y.low)), frame.at((x.value, y.high))))
    at = frame.at((x.value, y.value))
    right = at[0] < frame.left + 0.7 * frame.width
    name = svg.text(at[0] + (9 if right else -9), label + 4, cut(place.name, 24), "start" if right else "end")
    drawn = [svg.strokes(ends, "whisker thin"), svg.marks(place.series, [at], 4.6), name]
    return svg.group(place.note, *drawn, class_=svg.color(place.series), name=place.name)
