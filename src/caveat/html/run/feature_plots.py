"""Plots of the features of models: projections by class or silo, and the use of codewords."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup

from ...core.text import cut, plural
from ...files import RunFolder
from ...files.schema import Codewords, Features, FeatureSilo, SiloRecord
from .. import svg
from ..diagrams import heat_map
from ..svg import Chart, Point

_STAGES = {"encoder": "Features of the encoder", "discretised": "The same after discretization"}
_SIZE = 460


@dataclass(frozen=True)
class Scatter:
    figures: Sequence[Chart]
    legend: Sequence[tuple[Markup, str]]
    silos: Sequence[str]
    note: str


def scatter(
    features: Features | None, domains: Sequence[str], silos: int = 0, sizes: Mapping[str, int] = MappingProxyType({})
) -> Scatter | None:
    """Return a figure per stage, on the same axes; `domains` are in the order of their colors, `silos` is the number of
    all silos of the run, and `sizes` has the number of test inputs of each. None without features."""
    if features is None or not any(len(points) for silo in features.silos for points in silo.points.values()):
        return None
    order = list(dict.fromkeys([*domains, *(silo.domain or silo.name for silo in features.silos)]))
    series = {silo.name: order.index(silo.domain or silo.name) for silo in features.silos}
    places = [point for silo in features.silos for points in silo.points.values() for point in points]
    x_range, y_range = (svg.limits([place[axis] for place in places]) or (0.0, 1.0) for axis in (0, 1))
    frame = svg.Axes(1, 1, _SIZE, 0.78 * _SIZE, x_range, y_range)
    figures = [_scatter_figure(features, stage, series, frame) for stage in features.stages]
    shown = dict.fromkeys(silo.domain or silo.name for silo in features.silos)
    legend = [(svg.swatch(order.index(name)), name) for name in shown]
    explained = sum(features.explained[:2])
    count = len(features.silos)
    of = f"{count} of {silos:,} silos" if count < silos else plural(count, "silo")
    of += ", chosen from every domain in turn," if count < silos and len(order) == len(shown) else ""
    note = f"Axes: the two directions in which the features of {of} vary most (PCA)"
    note += f". They explain {100 * explained:.0f} % of the variance. " if features.explained else ". "
    shown_of = {silo.name: len(points) for silo in features.silos for points in silo.points.values()}
    if any(number < sizes.get(name, 0) for name, number in shown_of.items()):
        note += f"Of each silo, at most {max(shown_of.values()):,} test inputs are shown. "
    note += "A mark shows the features of one test input (means over tokens or positions), from the model that the "
    note += "silo predicts with. "
    note += "Domains that do not overlap look different to the model. Only runs on one machine have this plot, because "
    note += "features never leave a silo."
    return Scatter(figures, legend, [silo.name for silo in features.silos], note)


def _scatter_figure(features: Features, stage: str, series: Mapping[str, int], frame: svg.Axes) -> Chart:
    title = _STAGES.get(stage, stage)
    count = sum(len(silo.points[stage]) for silo in features.silos)
    label = f"{title}: {count:,} test inputs of {len(features.silos)} silos, projected to two dimensions"
    drawn = [_silo(frame, silo, series[silo.name], stage) for silo in features.silos]
    back = svg.rect((frame.left, frame.top), frame.width, frame.height, "back")
    places = len({point for silo in features.silos for point in silo.points[stage]})
    caption = f"{count:,} test inputs at {places:,} places."
    if stage == "discretised":
        caption = "The same inputs on the same axes, with every token replaced by its nearest codeword, "
        caption += f"at {places:,} places; marks are larger for more inputs."
    axis = svg.text(frame.right - 6, frame.bottom - 6, "first component \N{RIGHTWARDS ARROW}", "end", "tick")
    return Chart(title, svg.drawing(_SIZE + 2, frame.bottom + 1, label, back, *drawn, axis, class_="scatter"), caption)


def _silo(frame: svg.Axes, silo: FeatureSilo, series: int, stage: str) -> Markup:
    places = Counter[Point](silo.points[stage])
    # Area is proportional to inputs: after discretization, many may share a place.
    drawn = [svg.marks(series, [frame.at(place)], 2.6 * count**0.5, "spot") for place, count in places.items()]
    title = ", ".join(filter(None, (silo.name, silo.domain)))
    return svg.group(title, *drawn, class_=svg.color(series), name=silo.name)


def codebook(run: RunFolder) -> Chart | None:
    """Return a chart of tokens per codeword and silo; None for methods without a codebook."""
    silos = [silo for silo in run.silos if silo.codeword_use]
    if not silos:
        return None
    uses = [silo.codeword_use or [] for silo in silos]
    most = max(max(use) for use in uses)
    label = f"Heat map of codeword use, {len(silos)} silos by {max(map(len, uses))} codewords, at most {most} tokens"
    names = [s.name if s.perplexity is None else f"{cut(s.name, 12)} {s.perplexity:.1f}" for s in silos]
    caption = f"A cell shows how many of a silo's test tokens use a codeword, on a log scale, darkest at {most:,}; "
    caption += "empty cells are codewords that the silo never uses"
    perplexed = any(silo.perplexity is not None for silo in silos)
    caption += ", and the number after a silo is its perplexity, the effective number of codewords in use." * perplexed
    return Chart("Codeword use", heat_map(names, uses, _shared(silos), label), caption.rstrip(".") + ".")


def _shared(silos: Sequence[SiloRecord]) -> int | None:
    """Return the number of shared columns; None if silos differ in it."""
    held = [(silo.codewords or Codewords(shared=0), len(silo.codeword_use or [])) for silo in silos]
    agreed = {words.shared if words.shared + words.private == columns else None for words, columns in held}
    return agreed.pop() if len(agreed) == 1 else None
