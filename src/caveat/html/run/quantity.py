"""The page and the table of a run that predicts a quantity: errors, intervals, predicted against observed values."""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ...core.text import percent
from ...files import RunFolder
from ...files.schema import Metrics, ObservedInputs, SiloRecord
from ...uncertainty.statistical_tests import beta_binomial_tail
from .. import svg
from ..svg import Chart
from ..templates import Cell, Table, column, table, words
from .rounds import cost_table

SHOWN = 12
"""Maximum number of silos with a picture."""
FIGURES = (
    ("MAE", "mae", "mean absolute error of medians"), ("RMSE", "rmse", "root of the mean squared error of means"),
    ("CRPS", "crps", "continuous ranked probability score of the distributions; lower is better"),
)  # fmt: skip


def quantity_table(run: RunFolder) -> Table | None:
    """Return a table of the errors and intervals of each silo, beside the training targets' and other methods' errors;
    None without metrics."""
    silos = run.silos
    if not silos:
        return None
    tests = [silo.test for silo in silos]
    mean = run.mean

    def numbers(name: str, of: Sequence[Metrics], last: Metrics) -> list[str]:
        return [_number(getattr(each, name)) for each in (*of, last)]

    columns = [words("silo", [*(silo.name for silo in silos), "mean"])]
    columns += [column(f"{run.title} {head}" * bool(run.comparable) or head, numbers(name, tests, mean), help)
                for head, name, help in FIGURES]  # fmt: skip
    for title, other in run.comparable.items():
        theirs = {silo.name: silo.test for silo in other.silos}
        own = [theirs.get(silo.name, Metrics()) for silo in silos]
        columns += [column(f"{title} {head}", numbers(name, own, other.mean), help) for head, name, help in FIGURES]
    columns += [column(f"no inputs {head}", numbers(f"reference_{name}", tests, mean)) for head, name, _ in FIGURES]
    wanted = run.summary.intervals.coverage if run.summary and run.summary.intervals else None
    covered = [_coverage(silo, wanted, len(silos)) for silo in silos]
    columns.append(column("coverage", [*covered, percent(mean.interval_coverage)], "inputs within their interval"))
    columns.append(column("width", numbers("interval_width", tests, mean), "mean width of intervals"))
    if any((silo.decisions or {}).get("abstain") for silo in silos):
        shares = [percent(1 - (silo.decisions or {}).get("abstain", 0.0)) for silo in silos]
        columns.append(column("answered", [*shares, percent(mean.coverage)]))
    split = (
        f"Errors on {run.split} inputs in the unit of the target. No inputs: the distribution of all training targets."
    )
    promise = f" Intervals contain {percent(wanted)} of inputs or more." if wanted else ""
    return table(columns, split + promise, [silo.name for silo in silos], footer=1)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _coverage(silo: SiloRecord, wanted: float | None, silos: int) -> Cell:
    """Return the coverage, flagged if it is too low beyond chance at 5 % over all silos. Chance includes that of the
    calibration inputs, as for false alarms."""
    found, inputs, n = silo.test.interval_coverage, silo.n_test or 0, silo.n_calibration or 0
    if found is None or wanted is None or not inputs:
        return Cell(percent(found))
    outside = math.floor((1 - wanted) * (n + 1) + 1e-9)
    missed = round((1 - found) * inputs)
    few = outside > 0 and beta_binomial_tail(missed, inputs, outside, n + 1 - outside) < 0.05 / silos
    return Cell(percent(found), f"fewer than chance explains, given {wanted:.0%} and {inputs} inputs" if few else "")


def picture(found: ObservedInputs) -> Chart:
    """Return predicted medians with their intervals against observed values."""
    ends = [value for value in (*found.observed, *found.value) if value is not None]
    low, high = min(ends), max(ends)
    room = 0.04 * (high - low or 1.0)
    frame = svg.Axes(56, 10, 388, 300, (low - room, high + room), (low - room, high + room))
    inside = [(a, b, c) for a, b, c in zip(found.observed, found.low, found.high, strict=True)
              if b is not None and c is not None]  # fmt: skip
    bars = [((x, max(a, low - room)), (x, min(b, high + room))) for x, a, b in inside]
    points = list(zip(found.observed, found.value, strict=True))
    ticks = svg.written(svg.inner_ticks(frame.x_range), lambda value: f"{value:g}")
    drawn = [
        svg.line(frame.at((low, low)), frame.at((high, high)), "grid"),
        svg.strokes([(frame.at(a), frame.at(b)) for a, b in bars]),
        svg.group("", svg.marks(0, map(frame.at, points), 2.4), class_=svg.color(0)),
    ]
    label = f"Predicted against observed values at {found.silo}"
    drawing: Markup = svg.plot(frame, label, ticks, ticks, "observed", *drawn)
    return Chart(found.silo, drawing)


def sentence(run: RunFolder) -> str:
    """Return the result in a sentence."""
    mean = run.mean
    if mean.mae is None:
        return ""
    said = f"{run.title} is off by {mean.mae:.4g} on average"
    if mean.reference_mae:
        said += f"; the median of all training targets by {mean.reference_mae:.4g}"
    return f"{said} (mean absolute error, mean over {len(run.silos)} silos)."


def quantity_parts(run: RunFolder) -> dict[str, Any]:
    """Return the parts of the page by name."""
    observed = run.gallery.observed if run.gallery else []
    return {
        "sentence": sentence(run),
        "silo_table": quantity_table(run),
        "pictures": [picture(each) for each in observed[:SHOWN]],
        "promise": run.summary.guarantee.statement if run.summary and run.summary.guarantee else "",
        "cost_table": cost_table(run),
        "warnings": run.summary.warnings if run.summary else (),
    }
