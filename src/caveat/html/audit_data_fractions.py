"""The chart and the table of an audit's uncertainties over training examples."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from ..core.text import minus, percent, power_tick
from .svg import Axes, Chart, Line, draw, key, line, plot, strokes, text
from .templates import Table, column, table

Rows = Sequence[Mapping[str, float]]
CURVES = ("epistemic", "vacuity", "aleatoric", "total")


def means_by_size(rows: Rows, name: str) -> list[tuple[float, float, float, float]]:
    """Return (n, mean over seeds, minimum, maximum) of a number, by n."""
    sizes = sorted({row["n"] for row in rows})
    values = [[row[name] for row in rows if row["n"] == size] for size in sizes]
    return [(size, sum(v) / len(v), min(v), max(v)) for size, v in zip(sizes, values, strict=True)]


def curves(rows: Rows) -> dict[str, list[tuple[float, float, float, float]]]:
    """Return the uncertainties that every run has and that are never zero, because logarithms cannot show zero."""
    found = {name: means_by_size(rows, name) for name in CURVES if all(name in row for row in rows)}
    return {name: points for name, points in found.items() if min(low for _, _, low, _ in points) > 0}


def sweep_chart(rows: Rows) -> Markup | None:
    """Return mean uncertainties over training examples per silo, on logarithmic axes; None for one fraction."""
    drawn, sizes = curves(rows), sorted({row["n"] for row in rows})
    if len(sizes) < 2 or not drawn:
        return None
    lowest = min(low for points in drawn.values() for _, _, low, _ in points)
    if "epistemic" in drawn:  # leave room for the line that decreases as 1/n
        lowest = min(lowest, drawn["epistemic"][0][1] * sizes[0] / sizes[-1])
    highest = max(high for points in drawn.values() for _, _, _, high in points)
    exponents = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    y_range = (float(exponents[0]), float(max(exponents[-1], exponents[0] + 1)))
    if len(exponents) > 3:  # at least two ticks are within
        y_range, exponents = (math.log10(lowest) - 0.1, math.log10(highest) + 0.1), exponents[1:-1]
    x_range = (math.log10(sizes[0]), math.log10(sizes[-1]))
    frame = Axes(56, 10, 388, 260, x_range, y_range)
    every = -(-len(exponents) // 8)
    x_ticks = [(math.log10(n), f"{n:,.0f}") for n in sizes]
    y_ticks = [(e, power_tick(e)) for e in exponents if not e % every]
    body = [*_references(frame, drawn.get("epistemic")), *(_curve(frame, *each) for each in drawn.items())]
    label = "Mean uncertainties over training examples per silo"
    return plot(frame, label, x_ticks, y_ticks, "training examples per silo", *body)


def _references(frame: Axes, points: Sequence[tuple[float, float, float, float]] | None) -> list[Markup]:
    """Draw lines from the first point that decrease as n^-1/2 and as n^-1, with their names next to the frame."""
    drawn: list[Markup] = []
    if not points:
        return drawn
    name_y = -math.inf
    for exponent, name in ((-0.5, "1/\N{SQUARE ROOT}n"), (-1.0, "1/n")):
        x, y = math.log10(points[0][0]), math.log10(points[0][1])
        end = frame.x_range[1], y + exponent * (frame.x_range[1] - x)
        drawn.append(line(frame.at((x, y)), frame.at(end), "diagonal"))
        name_y = max(frame.y(end[1]) + 4, name_y + 13)
        drawn.append(text(frame.right + 8, name_y, name, "start", "note"))
    return drawn


def _curve(frame: Axes, name: str, points: Sequence[tuple[float, float, float, float]]) -> Markup:
    logs = [[math.log10(value) for value in point] for point in points]
    ranges = strokes([(frame.at((n, low)), frame.at((n, high))) for n, _, low, high in logs], "stroke")
    means = [(n, mean) for n, mean, _, _ in logs]
    return draw(frame, Line(means, CURVES.index(name), name, marked=means), ranges)


def legend(rows: Rows) -> list[tuple[Markup, str]]:
    """Return a sample and a name for each curve."""
    return [(key(CURVES.index(name)), name) for name in curves(rows)]


def sweep_figure(rows: Sequence[Mapping[str, float]]) -> Chart | None:
    """Return mean uncertainties over the training examples of a silo."""
    drawn = sweep_chart(rows)
    if drawn is None:
        return None
    without = ", ".join(name for name in CURVES if name in rows[0] and name not in curves(rows))
    share = " (vacuity: a share)" * ("vacuity" in rows[0])
    about = f"Means over test inputs, silos and seeds, in nats{share}; vertical strokes are the range "
    about += "over seeds. The dashed lines decrease like a variance and like a standard deviation."
    if len(known := curves(rows).get("epistemic", [])) > 2:
        logs = [(math.log(n), math.log(mean)) for n, mean, *_ in known]
        steps = [minus(f"{(y2 - y1) / (x2 - x1):.2f}") for (x1, y1), (x2, y2) in pairwise(logs)]
        about += f" Exponents of epistemic uncertainty from one size to the next: {', '.join(steps)}."
    return Chart(
        "Mean uncertainties", drawn, about + (f" Not drawn because they contain zeros: {without}." if without else "")
    )


def sweep_table(rows: Sequence[Mapping[str, float]]) -> Table | None:
    """Return a row per fraction: means over seeds."""
    names, accuracy = [name for name in CURVES if all(name in row for row in rows)], means_by_size(rows, "accuracy")
    share = ", vacuity as a share" * ("vacuity" in names)
    columns = [
        column("training examples", (f"{size:,.0f}" for size, *_ in accuracy), "per silo, mean over silos"),
        column("accuracy", (percent(mean) for _, mean, _, _ in accuracy)),
        *(column(name, (f"{mean:#.3g}" for _, mean, _, _ in means_by_size(rows, name))) for name in names),
    ]
    return table(columns, f"Means over test inputs, silos and seeds; uncertainties in nats{share}.")
