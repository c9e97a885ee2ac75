"""The figures of the audit's page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from ...charts.charts import key
from ...charts.svg import Axes, Point, colour, dash, drawing, element, line, marker, polyline, text

Rows = Sequence[Mapping[str, float]]
CURVES = ("epistemic", "vacuity", "aleatoric", "total")


def means_by_size(rows: Rows, name: str) -> list[tuple[float, float, float, float]]:
    """(n, mean over seeds, least, most) of a number, by n."""
    sizes = sorted({row["n"] for row in rows})
    values = [[row[name] for row in rows if row["n"] == size] for size in sizes]
    return [(size, sum(v) / len(v), min(v), max(v)) for size, v in zip(sizes, values, strict=True)]


def curves(rows: Rows) -> dict[str, list[tuple[float, float, float, float]]]:
    """The uncertainties that every run has and that are never zero, which logarithms cannot show."""
    found = {name: means_by_size(rows, name) for name in CURVES if all(name in row for row in rows)}
    return {name: points for name, points in found.items() if min(low for _, _, low, _ in points) > 0}


def sweep_chart(rows: Rows) -> Markup | None:
    """Mean uncertainties over training examples per silo, both on logarithmic axes; None for a single share."""
    drawn, sizes = curves(rows), sorted({row["n"] for row in rows})
    if len(sizes) < 2 or not drawn:
        return None
    lowest = min(low for points in drawn.values() for _, _, low, _ in points)
    if "epistemic" in drawn:  # What falls as 1/n from its first point on stays in the frame.
        lowest = min(lowest, drawn["epistemic"][0][1] * sizes[0] / sizes[-1])
    highest = max(high for points in drawn.values() for _, _, _, high in points)
    exponents = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    x_range = (math.log10(sizes[0]), math.log10(sizes[-1]))
    frame = Axes(56, 10, 388, 260, x_range, (exponents[0], max(exponents[-1], exponents[0] + 1)))
    every = -(-len(exponents) // 8)
    axes = frame.axes(
        [(math.log10(n), f"{n:.4g}") for n in sizes], [(e, f"{10.0**e:g}") for e in exponents if not e % every]
    )
    return drawing(
        480,
        frame.bottom + 38,
        "Mean uncertainties over training examples per silo",
        axes,
        text(frame.right, frame.bottom + 31, "training examples per silo", "end", "tick"),
        *_references(frame, drawn.get("epistemic")),
        *(_curve(frame, CURVES.index(name), name, points) for name, points in drawn.items()),
        class_="chart",
    )


def _references(frame: Axes, points: Sequence[tuple[float, float, float, float]] | None) -> list[Markup]:
    """From the first point on, what falls as n^-1/2 and as n^-1; their names are beside the frame, clear of lines."""
    drawn: list[Markup] = []
    if not points:
        return drawn
    name_y = -math.inf
    for exponent, name in ((-0.5, "1/\N{SQUARE ROOT}n"), (-1.0, "1/n")):
        x, y = math.log10(points[0][0]), math.log10(points[0][1])
        end = frame.x_range[1], y + exponent * (frame.x_range[1] - x)
        drawn.append(line((frame.x(x), frame.y(y)), (frame.right, frame.y(end[1])), "diagonal"))
        name_y = max(frame.y(end[1]) + 4, name_y + 13)
        drawn.append(text(frame.right + 8, name_y, name, "start", "note"))
    return drawn


def _curve(frame: Axes, series: int, name: str, points: Sequence[tuple[float, float, float, float]]) -> Markup:
    at: list[Point] = [(frame.x(math.log10(n)), frame.y(math.log10(mean))) for n, mean, _, _ in points]
    drawn = [polyline(at, class_="stroke", stroke_dasharray=dash(series))]
    for (x, y), (_, _, low, high) in zip(at, points, strict=True):
        drawn.append(polyline([(x, frame.y(math.log10(low))), (x, frame.y(math.log10(high)))], class_="stroke"))
        drawn.append(marker(series, x, y, "fill"))
    return element("g", element("title", name), *drawn, class_=f"line {colour(series)}")


def legend(rows: Rows) -> list[tuple[Markup, str]]:
    """A sample and a name for each curve."""
    return [(key(CURVES.index(name)), name) for name in curves(rows)]


def rank_plane(counts: Sequence[Sequence[int]]) -> Markup:
    """How many inputs have which ranks, darker for more; a row of `counts` is a band of epistemic ranks from below."""
    side, cells = 300.0, len(counts)
    frame = Axes(46, 10, side, side, (0, cells), (0, cells))
    most = max(max(row) for row in counts) or 1
    drawn = [
        element(
            "rect", element("title", f"{count} inputs"), x=frame.x(j), y=frame.y(i + 1), width=side / cells - 0.6,
            height=side / cells - 0.6, fill_opacity=count / most, class_="cell",
        )
        for i, row in enumerate(counts) for j, count in enumerate(row) if count
    ]  # fmt: skip
    ends = [(0, "lowest"), (cells, "highest")]
    return drawing(
        366,
        frame.bottom + 38,
        "Ranks of epistemic against ranks of aleatoric uncertainty",
        frame.axes([], [(0, "low"), (cells, "high")]),
        *(text(frame.x(at), frame.bottom + 15, name, "end" if at else "start", "tick") for at, name in ends),
        text(frame.right, frame.bottom + 31, "rank of aleatoric (across), of epistemic (up)", "end", "tick"),
        *drawn,
        class_="reliability",
    )
