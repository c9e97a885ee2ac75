"""Accuracy of silos over rounds, and the cost of the run."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup

from ...core.text import duration, joined, percent, percent_tick, size, tick
from ...files import RunFolder, natural
from ...files.schema import RoundRow
from .. import svg
from ..diagrams import Dot
from ..svg import Chart, Point
from ..templates import Table, column, table, words
from .classification import called, over_silos

_LONGEST_LABEL = 24  # letters, so that two adjacent labels do not overlap
Event = tuple[int, str]
"""A round and its label."""
_LINE = 13
"""The height of a line of labels."""
_TAIL, _FEW = 0.1, 10
"""Share of silos beyond each end of the band, and number of silos up to which the band spans all silos."""


def domains(run: RunFolder) -> list[str]:
    """Return the domains in the order of the silos; a silo without a domain is its own domain."""
    return list(dict.fromkeys(row.domain or row.silo for row in sorted(run.curve_rows, key=lambda row: row.round)))


_METRICS: dict[str, tuple[str, Callable[[float], str], Callable[[float], str]]] = {
    "accuracy": ("Accuracy", percent, percent_tick),
    "mae": ("Mean absolute error", "{:.3g}".format, tick),
    "integrated_brier": ("Integrated Brier score", "{:.3g}".format, tick),
}


def curves(run: RunFolder, metric: str = "accuracy") -> dict[str, Any] | None:
    """Return a metric over rounds, its legend, and notes on added codewords; None without validation rows."""
    if not (points := _points(run.curve_rows, metric)):
        return None
    grown = growth(run.curve_rows)
    legend = [(svg.key(0), f"mean of {model_of(run) or run.method or 'the silos'}")]
    legend += [(svg.key(None, f"beside b{i % 3}"), f"mean of {called(name)}") for i, name in enumerate(_with_rows(run))]
    return {"figure": _figure(run, metric, points, grown), "legend": legend, "growth": _growth_text(grown)}


def growth(rows: Sequence[RoundRow]) -> dict[int, dict[str, int]]:
    """Return the number of added private codewords by silo and by the first round that shows them."""
    held: dict[str, int] = {}
    grown: dict[int, dict[str, int]] = {}
    for row in sorted(rows, key=lambda row: (row.round, natural(row.silo))):
        if row.codewords is not None:
            more = row.codewords.private - held.get(row.silo, row.codewords.private)
            if more > 0:
                grown.setdefault(row.round, {})[row.silo] = more
            held[row.silo] = row.codewords.private
    return grown


def _growth_text(grown: dict[int, dict[str, int]]) -> list[str]:
    return [
        f"Round {at}: {joined([f'{silo} (+{more})' for silo, more in silos.items()])} received private codewords."
        for at, silos in grown.items()
    ]


def _figure(
    run: RunFolder, metric: str, points: Mapping[str, list[Point]], grown: Mapping[int, Mapping[str, int]]
) -> Chart:
    title, write, write_tick = _METRICS[metric]
    mean, (low, high) = mean_line(points), spread(points)
    events = [_event(at, list(silos)) for at, silos in grown.items()]
    others = {name: mean_line(_points(other.curve_rows, metric)) for name, other in _with_rows(run).items()}
    lines = [svg.Line(mean, 0, f"mean: {write(mean[-1][1])} at the end", marked=mean[-1:])] if mean else []
    lines += [
        svg.Line(line, None, f"mean of {called(name)}: {write(line[-1][1])} at the end", f"beside b{i % 3}")
        for i, (name, line) in enumerate(others.items())
        if line
    ]
    ends = [value for line in (low, high, *(each.points for each in lines)) for _, value in line]
    y_ticks, depth = svg.ticks(min(ends), 1.0 if metric == "accuracy" else max(ends)), min(len(events), 3)
    rounds = [at for line in (low, *(each.points for each in lines)) for at, _ in line]
    frame = svg.round_frame(rounds, (y_ticks[0], y_ticks[-1]), top=10 + _LINE * depth)
    drawn = [svg.band(frame, low, high, 0, "")]
    drawn += [_rule(frame, event, depth - 1 - i % 3) for i, event in enumerate(events)]
    drawn += [svg.draw(frame, each) for each in lines]
    whose = f", of {model}" if (model := model_of(run)) else ""
    band = (
        f"that contains {percent(1 - 2 * _TAIL, 0)} of silos"
        if len(points) > _FEW
        else "from the lowest to the highest"
    )
    scaled = metric == "accuracy" and run.summary and run.summary.temperature
    before = ", before temperature scaling" * bool(scaled)
    caption = f"{title} on each silo's validation samples{whose}{before}: the mean, and a band {band}"
    caption += ". A vertical line marks where silos received private codewords." if grown else "."
    told = f", from {write(mean[0][1])} to {write(mean[-1][1])} in the mean" if mean else ""
    label = f"{title} per round of {len(points)} silos{told}"
    y_written = svg.written(y_ticks, write_tick)
    return Chart(title, svg.plot(frame, label, svg.round_ticks(frame), y_written, "round", *drawn), caption)


def model_of(run: RunFolder) -> str:
    """Return the name of the model whose metrics the curves show; empty if a run has one model."""
    (model,) = {row.model for row in run.curve_rows}
    several = len({row.model for row in run.rows}) > 1 or model == "local"
    return ("local models" if model == "local" else f"the {model} model") if several and model else ""


def spread(points: Mapping[str, list[Point]]) -> tuple[list[Point], list[Point]]:
    """Return the lower and the upper end over silos at each round: 10 % and 90 % quantiles, or all of few silos."""
    at_round: dict[float, list[float]] = {}
    for at, value in (point for each in points.values() for point in each):
        at_round.setdefault(at, []).append(value)
    found = [(at, sorted(values)) for at, values in sorted(at_round.items())]
    tail = _TAIL if len(points) > _FEW else 0.0
    places = [(at, values, round(tail * (len(values) - 1))) for at, values in found]
    return [(at, v[k]) for at, v, k in places], [(at, v[-1 - k]) for at, v, k in places]


def _event(at: int, silos: Sequence[str]) -> Event:
    names = ", ".join(silos)
    return at, names if len(names) <= _LONGEST_LABEL else f"{len(silos)} silos extended"


def _rule(frame: svg.Axes, event: Event, level: int) -> Markup:
    """Draw a vertical line, with its label `level` lines above the frame."""
    x, y = frame.x(event[0]), frame.top - 4 - _LINE * level
    left_half = x < frame.left + frame.width / 2
    label = svg.text(x + (4 if left_half else -4), y, event[1], "start" if left_half else "end", "note")
    return svg.line((x, y - 9), (x, frame.bottom), "event") + label


def _points(rows: Sequence[RoundRow], metric: str) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for row in rows:
        if (value := getattr(row, metric)) is not None:
            points.setdefault(row.silo, []).append((row.round, value))
    return points


def mean_line(points: Mapping[str, list[Point]]) -> list[Point]:
    """Return the mean over silos at the rounds of all silos, because other means would depend on participation."""
    at_round: dict[float, list[float]] = {}
    for at, value in (point for each in points.values() for point in each):
        at_round.setdefault(at, []).append(value)
    return [(at, fmean(values)) for at, values in sorted(at_round.items()) if len(values) == len(points)]


def _with_rows(run: RunFolder) -> dict[str, RunFolder]:
    return {name: other for name, other in run.baselines.items() if other.curve_rows}


def cost_table(run: RunFolder) -> Table | None:
    """Return traffic and wall-clock time, in total and per round; traffic for metrics needs the ledger."""
    if run.summary is None:
        return None
    traffic, rounds = run.summary.traffic, run.rounds_run
    measuring = [("sent by silos for metrics", run.sent.total.measuring)] if run.sent else []
    sent = (
        [("sent by silos in rounds", traffic.bytes_up), *measuring, ("sent to silos in rounds", traffic.bytes_down)]
        if traffic
        else []
    )
    rows = [(name, size(n), size(n / rounds) if rounds else "") for name, n in sent if n is not None]
    for name, seconds in run.summary.seconds.items():
        called = f"time to {name}" if name != "engine" else "time of the engine"
        rows.append((called, total_time(seconds), f"{seconds / rounds:.3g} s" if rounds else ""))
    if not rows:
        return None
    names, totals, each = zip(*rows, strict=True)
    columns = [words("", names), column("in total", totals), column("per round", each)]
    about = (
        ""
        if not measuring or run.quantity
        else ' The section "What left the silos" lists what silos sent, by silo and tensor.'
    )
    return table(columns, f"Traffic and time of the run.{about}")


def rising(run: RunFolder) -> Dot | None:
    """Return the mean gain in validation accuracy in the last round, with its 95 % interval over silos, if the
    interval is above 0 or the gain is at least 10 points; otherwise None."""
    points = _points(run.curve_rows, "accuracy").values()
    ends = [sorted(each)[-2:] for each in points if len(each) > 1]
    gap = over_silos([last[1] - before[1] for before, last in ends])
    return gap if gap and (gap.value >= _STEEP or (gap.low or 0.0) > 0) else None


def unstable(run: RunFolder) -> list[Point]:
    """Return the peak, the low after it and the end of mean validation accuracy, if it fell by more than `_UNSTABLE`
    from the peak to the low; empty if it did not."""
    line = mean_line(_points(run.curve_rows, "accuracy"))
    pairs = [(high, low) for i, high in enumerate(line) for low in line[i + 1 :]]
    high, low = max(pairs, key=lambda pair: pair[0][1] - pair[1][1], default=((0, 0.0), (0, 0.0)))
    return list(dict.fromkeys([high, low, line[-1]])) if high[1] - low[1] > _UNSTABLE else []


def last_accuracy(run: RunFolder) -> float | None:
    """Return the accuracy on all validation inputs in the last round; None if some silo was not evaluated in it."""
    rows = [(row.accuracy or 0.0, row.examples or 0) for row in run.curve_rows if row.round == run.rounds_run]
    inputs = sum(n for _, n in rows)
    return sum(share * n for share, n in rows) / inputs if inputs and len(rows) == len(run.silos) else None


def overtrained(run: RunFolder, metric: str) -> tuple[int, float, float, Dot | None] | None:
    """Return the round with the lowest mean of an error over silos, this mean, the last one and their difference, with
    its interval over silos, if the last mean is at least a tenth higher, and higher at each silo; otherwise None."""
    points = _points(run.curve_rows, metric)
    if len(line := mean_line(points)) < 3:
        return None
    (at, least), (last, now) = min(line, key=lambda point: point[1]), line[-1]
    ends = [dict(each) for each in points.values()]
    gap = over_silos([each[last] - each[at] for each in ends])
    return (int(at), least, now, gap) if now >= 1.1 * least and all(each[last] > each[at] for each in ends) else None


_UNSTABLE = 0.2
"""Fall of mean accuracy between rounds above which training is not stable."""
_STEEP = 0.1
"""Minimum gain of accuracy in one round with which training is unfinished, even if few silos show it."""


def total_time(seconds: float) -> str:
    return duration(seconds, tenths=120)
