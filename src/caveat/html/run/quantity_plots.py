"""Plots of a run that predicts a quantity or a time: predicted against observed values, survival, calibration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from ...core.text import percent
from ...files.schema import ObservedInputs, SiloRecord, SurvivalCurves
from .. import svg
from ..diagrams import histogram_bars
from ..svg import Chart, Point


def side_by_side(groups: Mapping[str, Sequence[Chart]]) -> list[Chart]:
    """Return the charts of several kinds silo by silo, with the kind after the name of the silo in their titles."""
    names = dict.fromkeys(chart.title for charts in groups.values() for chart in charts)
    return [
        replace(chart, title=f"{name}: {kind}")
        for name in names for kind, charts in groups.items() for chart in charts if chart.title == name
    ]  # fmt: skip


def pictures(found: Sequence[ObservedInputs]) -> list[Chart]:
    """Return a chart per silo of predicted medians with their intervals against observed values, all with the same
    limits of axes. Arrows mark unbounded ends."""
    known = [each for silo in found for each in silo.observed]
    ends = [each for silo in found for each in (*silo.value, *silo.low, *silo.high) if each is not None]
    if not known:
        return []
    across, up = svg.limits(known), svg.limits([*known, *ends])
    frame = svg.Axes(56, 24, 388, 196, across or (0.0, 1.0), up or (0.0, 1.0))
    return [_picture(each, frame) for each in found]


def _picture(found: ObservedInputs, frame: svg.Axes) -> Chart:
    low, high = frame.x_range
    lows, highs = found.low or found.value, found.high or found.value
    starts = [
        (frame.x(x), frame.bottom if low is None else frame.y(low)) for x, low in zip(found.observed, lows, strict=True)
    ]
    stops = [
        (frame.x(x), frame.top if high is None else frame.y(high))
        for x, high in zip(found.observed, highs, strict=True)
    ]
    arrows = [_arrow(at, 6) for at, low in zip(starts, lows, strict=True) if low is None]
    arrows += [_arrow(at, -6) for at, high in zip(stops, highs, strict=True) if high is None]
    points = map(frame.at, zip(found.observed, found.value, strict=True))
    marks = [svg.strokes(list(zip(starts, stops, strict=True)), "whisker thin"), *arrows, svg.marks(0, points, 2.4)]
    drawn = [
        svg.line(frame.at((low, low)), frame.at((high, high)), "diagonal"),
        svg.text(2, 12, "predicted", "start", "tick"),
        svg.group("", *marks, class_=svg.color(0)),
    ]
    label = f"Predicted against observed values at {found.silo}, {len(found.value)} test inputs"
    x_ticks, y_ticks = (svg.written(svg.inner_ticks(shown), "{:g}".format) for shown in (frame.x_range, frame.y_range))
    return Chart(found.silo, svg.plot(frame, label, x_ticks, y_ticks, "observed", *drawn))


def _arrow(at: Point, depth: float) -> Markup:
    """Draw the head of an arrow whose tip is `depth` below a point."""
    return svg.polygon([(at[0], at[1] + depth), (at[0] - 3, at[1]), (at[0] + 3, at[1])], "fill")


def survival(found: SurvivalCurves) -> Chart:
    """Return the mean predicted survival of test inputs beside their Kaplan-Meier curve."""
    frame = svg.Axes(56, 10, 388, 220, (0.0, found.times[-1]), (0.0, 1.0))
    x_ticks = svg.written(svg.inner_ticks(frame.x_range), lambda value: f"{value:g}")
    y_ticks = svg.written(svg.ticks(0.0, 1.0), lambda share: percent(share, 0))
    steps = [(t, each) for k, t in enumerate(found.times) for each in found.observed[max(k - 1, 0) : k + 1]]
    curves = (("predicted mean", list(zip(found.times, found.predicted, strict=True))), ("Kaplan-Meier", steps))
    drawn = [svg.draw(frame, svg.Line(points, k, name, "stream")) for k, (name, points) in enumerate(curves)]
    label = f"Survival at {found.silo}: predicted mean and observed (Kaplan-Meier)"
    return Chart(found.silo, svg.plot(frame, label, x_ticks, y_ticks, "time", *drawn))


def probabilities(silos: Sequence[SiloRecord]) -> list[Chart]:
    """Return histograms of the predicted probability of a value below the observed one (PIT), on the same axes."""
    shares = {silo.name: [count / (sum(silo.pit) or 1.0) for count in silo.pit] for silo in silos if silo.pit}
    top = max((max(*each, 3 / len(each)) for each in shares.values()), default=1.0)
    return [_probabilities(silo, shares[silo.name], top) for silo in silos if silo.pit]


def _probabilities(silo: SiloRecord, shares: Sequence[float], top: float) -> Chart:
    ends = svg.ticks(0.0, top, 4)
    frame = svg.Axes(46, 24, 418, 196, (0.0, 1.0), (0.0, ends[-1]))
    n, part = sum(silo.pit) or 1.0, 1 / len(shares)
    low, high = (max(part + z * math.sqrt(part * (1 - part) / n), 0.0) for z in (-1.96, 1.96))
    chance = svg.rect(frame.at((0.0, high)), frame.width, frame.y(low) - frame.y(high), "track")
    titles = [f"{count:.4g} of {n:.0f} inputs" for count in silo.pit]
    x_ticks = svg.written(svg.ticks(0.0, 1.0), lambda share: percent(share, 0))
    y_ticks = svg.written(ends, lambda share: percent(share, 0))
    uniform = svg.line(frame.at((0.0, part)), frame.at((1.0, part)), "event")
    label = f"Predicted probabilities of values below the observed ones at {silo.name}"
    drawn = histogram_bars(frame, shares, titles)
    return Chart(silo.name, svg.plot(frame, label, x_ticks, y_ticks, "probability", chance, *drawn, uniform))
