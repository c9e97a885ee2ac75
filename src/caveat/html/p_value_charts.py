"""Charts of the p-values of new inputs: beside those of the silo's own inputs, and in the order of the file."""

import math
from collections import Counter
from itertools import accumulate

from ..core.text import percent_tick, plural, tick
from . import svg
from .predicted_inputs import PredictedInputs
from .svg import Chart

SCORES = {
    "familiarity": "distance from the silo's own inputs",
    "nearness": "distance from the silo's nearest training input",
    "sureness": "uncertainty of the prediction",
}
_MOST_POINTS = 400
"""Maximum number of points of a chart by row."""


def curve(found: PredictedInputs, name: str, about: str) -> Chart | None:
    """Return the share of inputs up to each p-value of a score, about the p-value itself for the silo's own inputs;
    None without p-values."""
    values = found.prediction.p_values.get(name)
    known = values[values.isfinite()].tolist() if values is not None else []
    if not known:
        return None
    counts, frame = sorted(Counter(known).items()), svg.Axes(46, 8, 418, 110, (0, 1), (0, 1))
    shares = accumulate(times / len(known) for _, times in counts)
    points = [(0.0, 0.0), *zip((p for p, _ in counts), shares, strict=True)]
    chance = [(i / 40, _half(i / 40, found.ranked_among, len(known))) for i in range(41)]
    low, high = ([(x, min(max(x + side * half, 0.0), 1.0)) for x, half in chance] for side in (-1, 1))
    rate = found.prediction.false_alarm_rate
    told = f"{sum(p <= rate for p in known):,} of {plural(len(known), 'input')} have a p-value of at most {rate:g}"
    drawn = [
        svg.polygon([frame.at(point) for point in [*high, *low[::-1]]], "track"),
        svg.line(frame.at((0, 0)), frame.at((1, 1)), "event"),
        svg.draw(frame, svg.Line(points, 0, told, marked=points[1:])),
    ]
    x_ticks = svg.written((0, 0.2, 0.4, 0.6, 0.8, 1), tick)
    y_ticks = svg.written((0, 0.5, 1), percent_tick)
    label = f"Share of inputs up to a p-value of {name}: {told}"
    plot = svg.plot(frame, label, x_ticks, y_ticks, "p-value", *drawn)
    return Chart(f"{name.capitalize()}: {about}", plot, f"{told}.")


def _half(p: float, among: int, inputs: int) -> float:
    """Return half the width of the band of chance: both the calibration inputs and the new ones vary."""
    return 2 * math.sqrt(p * (1 - p) * (1 / (among + 2) + 1 / inputs))


def by_row(found: PredictedInputs) -> Chart | None:
    """Return the p-values of all inputs in the order of the file, or means of adjacent ones if there are too many."""
    values, n = found.prediction.typicality, len(found.prediction)
    if values is None or found.alarms is None or n < 2:
        return None
    size = -(-n // _MOST_POINTS)
    places = [(float(i), float(values[i : i + size].nanmean())) for i in range(0, n, size)]
    frame = svg.Axes(46, 8, 418, 110, (0, n - 1), (0, 1))
    rate = found.prediction.false_alarm_rate
    drawn = [svg.line(frame.at((0, rate)), frame.at((n - 1, rate)), "event")]
    for low, own in ((False, "c0"), (True, "c1")):
        marked = [frame.at(each) for each in places if (each[1] <= rate) == low]
        drawn.append(svg.group("", svg.marks(0, marked, 2), class_=own))
    x_ticks = [(v, f"{v:,.0f}") for v in svg.ticks(0, n - 1) if v < n and v == int(v)]
    about = (
        f"{found.alarms.raised:,} of {plural(n, 'input')} have a p-value of at most {rate:g} (dashed), which raises "
    )
    about += "an alarm"
    plot = svg.plot(frame, f"P-values in the order of the file: {about}", x_ticks, [(0, "0"), (1, "1")], "row", *drawn)
    means = f" Points are means of {size} rows." * (size > 1)
    return Chart("Typicality in the order of the file", plot, f"{about}.{means}")


def scores(found: PredictedInputs) -> str:
    """Return for how many inputs the p-value of each single score is low, and for how many that of all together."""
    low, rate = ", ".join(f"{name} for {n:,}" for name, n in _low(found).items()), found.prediction.false_alarm_rate
    return f"p-values of at most {rate:g}: {low} inputs; typicality combines the others, corrected for their number"


def _low(found: PredictedInputs) -> dict[str, int]:
    """Return the number of low p-values of each single score, and of all scores together."""
    known, rate = found.prediction.p_values, found.prediction.false_alarm_rate
    return {name: int((known[name] <= rate).sum()) for name in (*SCORES, "typicality") if name in known}


def equal(found: PredictedInputs) -> str:
    """Return that many inputs have the same prediction; "" if they do not."""
    n, different, why = len(found.prediction), len(set(map(tuple, found.prediction.probs.tolist()))), ""
    if found.different == n:
        why = f", because the model maps several of them to the same {found.features}"
    elif found.different is not None and found.different <= different:
        why = ", because inputs are repeated"
    told = f" The {n:,} inputs have {different:,} different predictions{why}, so many have equal p-values."
    return told * (2 * different <= n)


def alone(found: PredictedInputs) -> str:
    """Return a sentence on the single score with the most low p-values, if these are more than those of all scores
    together; "" otherwise."""
    low, rate = _low(found), found.prediction.false_alarm_rate
    alarms = low.pop("typicality", None)
    if alarms is None or not low or low[most := max(low, key=lambda name: low[name])] <= alarms:
        return ""
    told = f" Of these inputs, {low[most]:,} have a low p-value of {most} alone (at most {rate:g}), and {alarms:,} a "
    return f"{told}low typicality, which is corrected for {len(low)} scores."
