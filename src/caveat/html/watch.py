"""The page of a watch: evidence over time, alarms with what to do, monitors and columns."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core.text import power_tick
from ..files.schema import AlarmRaised, WatchFile
from . import templates
from .svg import Axes, Chart, Line, draw, line, plot
from .templates import column as numbers
from .templates import table, words


class Found(NamedTuple):
    """The evidence of a monitor, as a share of the evidence that raises an alarm."""

    name: str
    counted: int
    share: float


def chart(points: Sequence[tuple[int, float]]) -> Chart | None:
    """Return the evidence over inputs on a logarithmic axis; None with fewer than two points."""
    if len(points) < 2:
        return None
    logs = [(float(t), math.log10(min(max(share, 1e-4), 1e4))) for t, share in points]
    frame = Axes(56, 10, 388, 200, (logs[0][0], logs[-1][0]), (-4, max(1, math.ceil(max(y for _, y in logs)))))
    x_ticks = [(t, f"{t:,.0f}") for t in (logs[0][0], logs[-1][0])]
    y_ticks = [(float(e), power_tick(e)) for e in range(-4, int(frame.y_range[1]) + 1)]
    limit = line(frame.at((logs[0][0], 0)), frame.at((logs[-1][0], 0)), "diagonal")
    drawn = plot(
        frame, "Evidence over inputs", x_ticks, y_ticks, "inputs", limit, draw(frame, Line(logs, 0, "evidence"))
    )
    about = "The largest evidence of all monitors, as a share of the evidence that raises an alarm."
    return Chart("Evidence over time", drawn, about)


def render(watch: WatchFile, found: Sequence[Found], columns: Mapping[str, float],
           alarms: Sequence[tuple[AlarmRaised, str]]) -> str:  # fmt: skip
    """Return the text of the page."""
    most = sorted(columns.items(), key=lambda each: -each[1])[:20]
    return templates.render(
        "watch.html.j2",
        watch=watch,
        alarms=alarms,
        chart=chart(watch.points),
        monitors=table([
            words("monitor", (each.name for each in found)),
            numbers("counted", (f"{each.counted:,}" for each in found)),
            numbers("evidence", (f"{each.share:.3g}" for each in found), "1 raises an alarm"),
        ]),
        columns=table([
            words("column", (name for name, _ in most)), numbers("evidence", (f"{share:.3g}" for _, share in most)),
        ], "The parts of the evidence of the monitor columns; a sum of 1 raises an alarm.") if most else None,
    )  # fmt: skip
