"""How right predictions are: against their confidence, and against the share of them that is answered."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ...core.text import percent_tick, tick
from ...files.schema.figures import Reliability
from ..intervals import score_interval, wilson
from .axes import Axes, plot, ticks, written
from .marks import DIAMOND, marks, strokes
from .svg import Point, drawing, element, group, line, polygon, polyline, rect, text

_SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1)


def reliability_diagram(bins: Reliability, label: str) -> Markup:
    """Accuracy against confidence per bin with 95 % intervals, over a histogram of the confidences."""
    frame, below = Axes(46, 10, 300, 300, (0, 1), (0, 1)), Axes(46, 316, 300, 46, (0, 1), (0, max(bins.count) or 1))
    labels = written(_SHARES, tick)
    numbers = [text(below.x(v), below.bottom + 15, name, "middle", "tick") for v, name in labels]
    body = [
        frame.axes([], labels),
        *_bins(frame, bins, 4),
        *_histogram(below, bins),
        *numbers,
        below.named("confidence"),
    ]
    return drawing(frame.right + 12, below.bottom + 38, label, *body, class_="reliability")


def small_reliability_diagram(bins: Reliability, label: str) -> Markup:
    """The same diagram of accuracy against confidence in little space, without numbers at its axes."""
    frame, below = Axes(8, 6, 104, 104, (0, 1), (0, 1)), Axes(8, 116, 104, 20, (0, 1), (0, max(bins.count) or 1))
    grid = [line((frame.left, frame.y(v)), (frame.right, frame.y(v)), "grid") for v in (0, 0.5, 1)]
    body = [*grid, *_bins(frame, bins, 2.2), *_histogram(below, bins)]
    return drawing(frame.right + 8, below.bottom + 4, label, *body, class_="reliability small")


def _histogram(frame: Axes, bins: Reliability) -> list[Markup]:
    drawn, width = [], frame.width / len(bins.count)
    for i, count in enumerate(bins.count):
        at, title = (frame.left + i * width + 0.5, frame.y(count)), element("title", f"{count} predictions")
        drawn.append(rect(at, width - 1, frame.bottom - at[1], "bar", title))
    return drawn


def _bins(frame: Axes, bins: Reliability, size: float) -> list[Markup]:
    drawn = [line(frame.at((0, 0)), frame.at((1, 1)), "diagonal")]
    for count, confidence, correct in zip(bins.count, bins.confidence, bins.correct, strict=True):
        if count:
            x, (low, high) = confidence / count, wilson(correct, count)
            note = f"{count} predictions: confidence {x:.3f}, accuracy {correct / count:.3f}"
            span = strokes([(frame.at((x, low)), frame.at((x, high)))], "whisker thin")
            drawn.append(group(note, span, marks(0, [frame.at((x, correct / count))], size), class_="c0"))
    return drawn


def risk_curve(
    coverage: Sequence[float],
    risk: Sequence[float],
    inputs: int,
    limit: float | None,
    policy: Point | None,
    label: str,
) -> Markup:
    """Risk over coverage within its 95 % band, where `inputs` were counted, over what an oracle would reach, which
    answers all right predictions first; `limit`, a risk, is a rule across, and `policy`, coverage and risk, a mark.
    """
    top = max([*risk, limit or 0.0, policy[1] if policy else 0.0, 0.01])
    y_ticks = ticks(0.0, 1.15 * top)
    frame = Axes(46, 10, 418, 220, (0, 1), (0, y_ticks[-1]))
    drawn = [_risk_band(frame, coverage, risk, inputs)] if inputs else []
    drawn.append(polyline(list(map(frame.at, zip(coverage, risk, strict=True))), "stroke"))
    drawn.append(polyline([frame.at((c, oracle_risk(c, risk[-1]))) for c in coverage], "oracle"))
    if limit is not None:
        y = frame.y(limit)
        drawn += [line((frame.left, y), (frame.right, y), "event"), text(frame.left + 4, y - 5, "promised", "", "note")]
    if policy:
        note = f"{policy[0]:.1%} answered, {policy[1]:.1%} of these wrong"
        drawn.append(group(note, marks(DIAMOND, [frame.at(policy)], 5, "dot")))
    x_ticks, y_written = written(_SHARES, percent_tick), written(y_ticks, percent_tick)
    return plot(frame, label, x_ticks, y_written, "answered", group("", *drawn, class_="line mean"))


def oracle_risk(coverage: float, errors: float) -> float:
    """The least share of errors among so large a share of inputs, of which the share `errors` is wrong in all."""
    return max(0.0, coverage - (1 - errors)) / coverage if coverage > 0 else 0.0


def _risk_band(frame: Axes, coverage: Sequence[float], risk: Sequence[float], inputs: int) -> Markup:
    """Wilson intervals point by point, cut at the top of the frame."""
    spans = [score_interval(r, max(c * inputs, 1.0)) for c, r in zip(coverage, risk, strict=True)]
    most = frame.y_range[1]
    upper = [frame.at((c, min(high, most))) for c, (_, high) in zip(coverage, spans, strict=True)]
    lower = [frame.at((c, low)) for c, (low, _) in zip(coverage, spans, strict=True)]
    return polygon([*upper, *reversed(lower)], "band")
