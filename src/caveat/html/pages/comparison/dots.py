"""Pictures with a line per thing compared: figures with intervals, silo by silo, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ....files.schema.comparison import DifferenceRecord, IntervalRecord, Measure
from ...charts.svg import Axes, Point, colour, drawing, element, line, text
from .numbers import better, bracketed, figure, probability, signed, with_unit
from .plots import across, cut_inside, hollow, label, label_width, limits, marks, values_of, whisker, whiskers
from .verdict import LEVEL

_WIDTH, _ROW = 460, 26
_SIDE = 21
"""Letters of each name of a pair."""
_MOST_TITLES = 1500
"""A title per mark is most of the size of a picture of many silos."""


@dataclass(frozen=True)
class Dot:
    """A line of a dot plot."""

    name: str
    series: int
    value: IntervalRecord
    paper: float | None = None
    absent: str = ""
    """What stands where there is no figure."""


def dot_limits(dots: Sequence[Dot], measure: Measure) -> Point | None:
    return limits([*values_of(dot.value for dot in dots), *(d.paper for d in dots if d.paper is not None)], measure)


def dot_plot(dots: Sequence[Dot], measure: Measure, shown: Point, about: str) -> Markup:
    """A line per method, in the order given: mean and interval, the paper's figure hollow, the mean in digits."""
    left = label_width(dot.name for dot in dots)
    frame = Axes(left, 6, _WIDTH - left - 46, _ROW * len(dots), shown, (0, 1))
    lines = [_dot(frame, dot, frame.top + _ROW * (i + 0.5), measure) for i, dot in enumerate(dots)]
    name = f"{measure.name}{f' ({better(measure)})' if better(measure) else ''}"
    return drawing(_WIDTH, frame.bottom + 38, about, across(frame, measure, name), *lines, class_="measured")


def _dot(frame: Axes, dot: Dot, y: float, measure: Measure) -> Markup:
    drawn: list[Markup | str] = [label(frame.left - 8, y + 4, dot.name)]
    printed = "" if dot.paper is None else f"; the paper: {with_unit(measure, dot.paper)}"
    if dot.paper is not None:
        drawn.append(hollow(frame.x(dot.paper), y))
    if dot.value.mean is None:
        drawn.append(text(frame.left + 6, y + 4, dot.absent, "start", "alarm"))
    else:
        drawn += [whisker(frame, dot.value, y), marks(dot.series, [(frame.x(dot.value.mean), y)], 4.6)]
        drawn.append(text(_WIDTH, y + 4, figure(measure, dot.value.mean), "end"))
    note = element("title", f"{dot.name}: {bracketed(measure, dot.value) or dot.absent}{printed}")
    return element("g", note, *drawn, class_=colour(dot.series), data_row=dot.name)


def forest(pairs: Sequence[DifferenceRecord], measure: Measure, about: str) -> Markup:
    """A line per pair: the mean difference and its interval about zero, and what is left of p after Holm's correction.

    Pairs without a difference are listed with that said.
    """
    names = [f"{cut_inside(pair.a, _SIDE)} \N{MINUS SIGN} {cut_inside(pair.b, _SIDE)}" for pair in pairs]
    left, right = label_width(names, 2 * _SIDE + 3), 104
    shown = limits([0.0, *values_of(pairs)]) or (-1.0, 1.0)
    row = 22
    frame = Axes(left, 34, max(520.0, left + right + 200) - left - right, row * len(pairs), shown, (0, 1))
    width = frame.right + right
    zero = line((frame.x(0), frame.top - 4), (frame.x(0), frame.bottom), "boundary")
    sides = {True: ("first worse", "first better"), False: ("first better", "first worse"), None: ("", "")}
    heads = [
        text(frame.x(0) - 8, 26, sides[measure.higher][0], "end", "tick"),
        text(frame.x(0) + 8, 26, sides[measure.higher][1], "start", "tick"),
        text(frame.right + 46, 12, "difference", "end", "tick"),
        text(width, 12, "Holm p", "end", "tick"),
    ]
    drawn = []
    for i, (pair, name) in enumerate(zip(pairs, names, strict=True)):
        y = frame.top + row * (i + 0.5)
        drawn.append(element("g", *_pair(frame, pair, name, y, measure, width), class_=_found(pair)))
    unit = "difference in points" if measure.percent else "difference"
    return drawing(width, frame.bottom + 38, about, across(frame, measure, unit), zero, *heads, *drawn, class_="forest")


def _found(pair: DifferenceRecord) -> str:
    return "found" if pair.p_holm is not None and pair.p_holm < LEVEL else "open"


def _pair(
    frame: Axes, pair: DifferenceRecord, name: str, y: float, measure: Measure, width: float
) -> list[Markup | str]:
    said = "no seed that both have" if pair.mean is None else bracketed(measure, pair)
    p = probability(pair.p_holm)
    title = f"{pair.a} \N{MINUS SIGN} {pair.b}: {said}{f', Holm p {p}' if p else ''}"
    drawn: list[Markup | str] = [element("title", title), text(frame.left - 8, y + 4, name, "end")]
    if pair.mean is None:
        return [*drawn, text(frame.left + 6, y + 4, said, "start", "tick")]
    mark = marks(0, [(frame.x(pair.mean), y)], 4.2)
    return [
        *drawn,
        whisker(frame, pair, y),
        mark,
        text(frame.right + 46, y + 4, signed(measure, pair.mean), "end"),
        text(width, y + 4, p or "no test", "end", "" if _found(pair) == "found" else "tick"),
    ]


def silo_plot(
    groups: Sequence[tuple[str, Sequence[str]]],
    methods: Mapping[str, Mapping[str, IntervalRecord]],
    measure: Measure,
    series: Mapping[str, int],
    about: str,
) -> Markup | None:
    """A line per silo, grouped by domain, with a mark and an interval per method; None without figures.

    `methods` is what each has per silo.
    """
    shown = _silo_limits([one for silos in methods.values() for one in silos.values()], measure)
    silos = [silo for _, members in groups for silo in members]
    if shown is None:
        return None
    step = max(3.4, min(6.5, 26 / len(methods)))
    row = max(18.0, step * (len(methods) - 1) + 11)
    heights, heads, y = {}, [], 6.0
    left = label_width(silos, 16)
    for domain, members in groups:
        if domain:
            heads.append(text(0, y + 12, domain, "start", "tick"))
            y += 18
        for silo in members:
            heights[silo] = y + row / 2
            y += row
    frame = Axes(left, 6, _WIDTH - left - 8, y - 6, shown, (0, 1))
    stripes = [
        element("rect", x=left, y=heights[silo] - row / 2, width=frame.width, height=row, class_="track")
        for silo in silos[::2]
    ]
    names = [label(left - 8, heights[silo] + 4, silo, 16) for silo in silos]
    titles = len(silos) * len(methods) <= _MOST_TITLES
    size = 3.4 if len(methods) <= 4 else 2.6
    drawn = []
    for place, (method, values) in enumerate(methods.items()):
        offset = step * (place - (len(methods) - 1) / 2)
        found = [(silo, values[silo], heights[silo] + offset) for silo in silos if silo in values]
        drawn.append(_silos(frame, method, series[method], found, measure, size, titles))
    body = across(frame, measure)
    return drawing(_WIDTH, frame.bottom + 38, about, *stripes, body, *heads, *names, *drawn, class_="silo-dots")


def _silo_limits(values: Sequence[IntervalRecord], measure: Measure) -> Point | None:
    """Room for all means, and for no more of the intervals than their span on either side.

    With two or three seeds a silo's interval may be many times as long as all that the silos differ by.
    """
    means = [one.mean for one in values if one.mean is not None]
    full, own = limits(values_of(values), measure), limits(means, measure)
    if full is None or own is None:
        return None
    span = own[1] - own[0]
    low, high = max(full[0], own[0] - span), min(full[1], own[1] + span)
    return (max(0.0, low), min(1.0, high)) if measure.percent and own[0] >= 0 and own[1] <= 1 else (low, high)


def _silos(
    frame: Axes,
    method: str,
    series: int,
    found: Sequence[tuple[str, IntervalRecord, float]],
    measure: Measure,
    size: float,
    titles: bool,
) -> Markup:
    known = [(name, one, (frame.x(one.mean), y)) for name, one, y in found if one.mean is not None]
    spans = whiskers(frame, [(one, y) for _, one, (_, y) in known])
    if titles:
        drawn = [
            element("g", element("title", f"{method}, {name}: {bracketed(measure, one)}"), marks(series, [at], size))
            for name, one, at in known
        ]
    else:
        drawn = [marks(series, [at for _, _, at in known], size)]
    return element("g", spans, *drawn, class_=colour(series), data_row=method)
