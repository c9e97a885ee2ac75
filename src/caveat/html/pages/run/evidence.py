"""How log-evidence is distributed over each stream of test inputs: it should be higher for what a model knows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from ....core.text import percent, tick
from ....files.schema.figures import INSIDE, NOBODY, Histogram, Stream
from ...charts.axes import Axes, Line, draw, inner_ticks, plot, ticks, written
from ...charts.svg import Chart, Point, key

_STREAMS = (INSIDE, "ood_local", NOBODY)
"""The streams that are drawn: a stream's place here is its colour, dash and mark."""
_MODELS = {"local": "the silos' own models", "global": "the federation's model"}
_BETTER = {
    "local": f"a model that tells what it knows has {INSIDE} right of the others",
    "global": f"a model that tells what it knows has {NOBODY} left of the others",
}
_MOST_STEPS = 48
_TAIL = 0.005
"""Share of a stream at each end that need not be shown in its place."""
_FARTHEST = 4
"""How many times as wide as the range of what is known the chart may reach to either side of it."""


def evidence_figures(tested: Mapping[str, Stream]) -> list[Chart]:
    """One per model that has log-evidence of several streams."""
    found = {model: _histograms(tested, model) for model in _MODELS}
    return [_figure(model, streams) for model, streams in found.items() if len(streams) > 1]


def _histograms(tested: Mapping[str, Stream], model: str) -> dict[str, Histogram]:
    records = {name: tested[name].models[model] for name in _STREAMS if name in tested and model in tested[name].models}
    return {name: h for name, record in records.items() if (h := record.log_evidence) and sum(h.count) > 0}


def _figure(model: str, streams: Mapping[str, Histogram]) -> Chart:
    low, high = _window(streams)
    step = max(h.step for h in streams.values())
    low, high = step * math.floor(low / step), step * math.ceil(high / step)
    width = step * max(1, math.ceil((high - low) / (step * _MOST_STEPS)))
    count = math.ceil((high - low) / width)
    shares = {name: _shares(histogram, low, width, count) for name, histogram in streams.items()}
    beyond = any(h.start[0] < low or h.start[-1] >= low + count * width for h in streams.values())
    notes = {name: told(histogram) for name, histogram in streams.items()}
    said = "; ".join(f"{name}: {note}" for name, note in notes.items())
    label = f"Distribution of log-evidence of {_MODELS[model]}, in nats. {said}"
    caption = f"Share of each stream's test inputs over what {_MODELS[model]} found for evidence, in steps of "
    caption += f"{width:g} nats; {_BETTER[model]}."
    caption += " What lies beyond is counted in the outermost steps." if beyond else ""
    edges = [low + i * width for i in range(count + 1)]
    return Chart(f"Log-evidence, {model} model", histogram_chart(edges, shares, notes, label), caption)


def _window(streams: Mapping[str, Histogram]) -> Point:
    """Where all but the tails of every stream lie, within reach of what is known: that should not become a spike."""
    ranges = {name: (quantile(h, _TAIL), quantile(h, 1 - _TAIL) + h.step) for name, h in streams.items()}
    low, high = min(low for low, _ in ranges.values()), max(high for _, high in ranges.values())
    first, last = ranges.get(INSIDE, (low, high))
    reach = _FARTHEST * (last - first)
    return max(low, first - reach), min(high, last + reach)


def quantile(histogram: Histogram, level: float) -> float:
    """The lower end of the step that holds it."""
    wanted, seen = level * sum(histogram.count), 0.0
    for start, count in zip(histogram.start, histogram.count, strict=True):
        seen += count
        if seen >= wanted and count:
            return start
    return histogram.start[-1]


def told(histogram: Histogram) -> str:
    """The distribution in words, to half a step."""
    low, middle, high = (quantile(histogram, level) + histogram.step / 2 for level in (0.05, 0.5, 0.95))
    return f"median about {middle:g}, nine tenths between about {low:g} and {high:g}"


def _shares(histogram: Histogram, low: float, width: float, count: int) -> list[float]:
    total = sum(histogram.count)
    shares = [0.0] * count
    for start, inputs in zip(histogram.start, histogram.count, strict=True):
        shares[min(max(math.floor((start - low) / width), 0), count - 1)] += inputs / total
    return shares


def histogram_chart(
    edges: Sequence[float], shares: Mapping[str, Sequence[float]], notes: Mapping[str, str], label: str
) -> Markup:
    """A line of steps per stream over the same edges, its mark at its highest step; `notes` are their titles."""
    y_ticks = ticks(0.0, max(max(each) for each in shares.values()), 4)
    frame = Axes(46, 10, 418, 170, (edges[0], edges[-1]), (0, y_ticks[-1]))
    x_ticks, shown = written(inner_ticks(frame.x_range, 6), tick), written(y_ticks, lambda share: percent(share, 0))
    drawn = [draw(frame, _steps(name, edges, each, notes[name])) for name, each in shares.items()]
    return plot(frame, label, x_ticks, shown, "log-evidence, nats", *drawn)


def _steps(name: str, edges: Sequence[float], shares: Sequence[float], note: str) -> Line:
    corners: list[Point] = [(edges[0], 0.0)]
    for (left, right), share in zip(pairwise(edges), shares, strict=True):
        corners += [(left, share), (right, share)]
    highest = max(range(len(shares)), key=shares.__getitem__)
    peak = (edges[highest] + edges[highest + 1]) / 2, shares[highest]
    return Line([*corners, (edges[-1], 0.0)], _STREAMS.index(name), f"{name}: {note}", "stream", marked=[peak])


def evidence_legend(tested: Mapping[str, Stream]) -> list[tuple[Markup, str]]:
    shown = {name for model in _MODELS for name in _histograms(tested, model)}
    return [(key(i, "stream"), name) for i, name in enumerate(_STREAMS) if name in shown]
