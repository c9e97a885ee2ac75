"""Features of silos in two dimensions, as features.json holds them: before and after they are discretised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ....files.schema.gallery import Features, FeatureSilo
from ...charts.axes import Axes, limits
from ...charts.svg import Chart, Point, colour, drawing, group, marks, rect, swatch, text

_STAGES = {"encoder": "Features as the encoder sees them", "discretised": "The same after discretisation"}
_SIZE = 460


@dataclass(frozen=True)
class Scatter:
    figures: Sequence[Chart]
    legend: Sequence[tuple[Markup, str]]
    silos: Sequence[str]
    note: str


def scatter(features: Features | None, domains: Sequence[str]) -> Scatter | None:
    """A figure per stage, on the same axes; `domains` in the order of their colours. None where there is nothing."""
    if features is None or not any(len(points) for silo in features.silos for points in silo.points.values()):
        return None
    order = list(dict.fromkeys([*domains, *(silo.domain or silo.name for silo in features.silos)]))
    series = {silo.name: order.index(silo.domain or silo.name) for silo in features.silos}
    places = [point for silo in features.silos for points in silo.points.values() for point in points]
    x_range, y_range = (limits([place[axis] for place in places]) or (0.0, 1.0) for axis in (0, 1))
    frame = Axes(1, 1, _SIZE, 0.78 * _SIZE, x_range, y_range)
    figures = [_figure(features, stage, series, frame) for stage in features.stages]
    shown = dict.fromkeys(silo.domain or silo.name for silo in features.silos)
    legend = [(swatch(order.index(name)), name) for name in shown]
    explained = sum(features.explained[:2])
    note = f"The two directions in which features of all {len(features.silos)} silos vary most (PCA)"
    note += f", which hold {100 * explained:.0f} % of their variance. " if features.explained else ". "
    note += "A mark is one test input, the mean over its tokens, as the model sees it that its silo predicts with. "
    note += "Domains that lie apart are seen as different. There is such a picture only of silos on one machine, since "
    note += "features never leave a silo."
    return Scatter(figures, legend, [silo.name for silo in features.silos], note)


def _figure(features: Features, stage: str, series: Mapping[str, int], frame: Axes) -> Chart:
    title = _STAGES.get(stage, stage)
    count = sum(len(silo.points[stage]) for silo in features.silos)
    label = f"{title}: {count:,} test inputs of {len(features.silos)} silos, projected to two dimensions"
    drawn = [_silo(frame, silo, series[silo.name], stage) for silo in features.silos]
    back = rect((frame.left, frame.top), frame.width, frame.height, "back")
    places = len({point for silo in features.silos for point in silo.points[stage]})
    caption = f"{count:,} test inputs at {places:,} places."
    if stage == "discretised":
        caption = "The same inputs on the same axes, every token replaced by its nearest codeword: "
        caption += f"{places:,} places, larger for more inputs."
    axis = text(frame.right - 6, frame.bottom - 6, "first component \N{RIGHTWARDS ARROW}", "end", "tick")
    return Chart(title, drawing(_SIZE + 2, frame.bottom + 1, label, back, *drawn, axis, class_="scatter"), caption)


def _silo(frame: Axes, silo: FeatureSilo, series: int, stage: str) -> Markup:
    places = Counter[Point](silo.points[stage])
    # An area per input: after discretisation, many may lie at one place.
    drawn = [marks(series, [frame.at(place)], 2.6 * count**0.5, "spot") for place, count in places.items()]
    title = ", ".join(filter(None, (silo.name, silo.domain)))
    return group(title, *drawn, class_=colour(series), name=silo.name)
