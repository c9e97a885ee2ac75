"""Pictures with a row per silo: what its figures are, and what they may be, having come from few inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from ....core.text import decimal, percent, percent_tick, tick
from ....files.run_folder import RunFolder, natural
from ....files.schema.summary import SiloRecord
from ...charts.axes import Axes, Write, ticks, written
from ...charts.dots import Dot, Groups, Rows, dot_plot, dots, lay_out, named
from ...charts.svg import DIAMOND, Chart, Point, colour, drawing, group, key, marks, polyline, sample, swatch
from ...intervals import wilson
from .shares import parts, told
from .streams import kinds

_MOST = 240
"""Silos that a plot has rows for."""
_NAMED, _TALLEST = 40, 640
"""Silos whose rows have room for a name, and how high the rows of more are together."""
_BESIDE = (0, DIAMOND, 1)
"""The marks of methods beside the page's own."""


@dataclass(frozen=True)
class Panel:
    """A figure of silos, how it is written, and within what it lies."""

    title: str
    value: Callable[[SiloRecord], float | None]
    write: Callable[[float | None], str] = decimal
    tick: Write = tick
    better: str = ""
    interval: Callable[[SiloRecord], tuple[float, float] | None] = lambda silo: None
    lines: str = ""
    """What the intervals are."""
    top: float | None = None
    """The largest value that there can be."""
    compared: bool = False
    """With the methods beside this one."""


@dataclass(frozen=True)
class SiloRows:
    """The silos of a run's plots from top to bottom, in groups of a domain or in one without a heading."""

    groups: Groups
    series: Mapping[str, int]
    """By silo: the colour and mark of its domain."""

    @property
    def silos(self) -> list[str]:
        return [name for _, names in self.groups for name in names]

    def laid_out(self, methods: int = 1, shown: Point = (0, 1)) -> Rows:
        """With room for so many methods' dots, or without names and low where the silos are many."""
        many = len(self.silos) > _NAMED
        height = max(2.5, _TALLEST / len(self.silos)) if many else 15.0 + 5.0 * methods
        return lay_out(self.groups, height, shown, most=14)

    def named(self, rows: Rows) -> list[Markup]:
        return named(rows, {head: self.series[names[0]] for head, names in self.groups})


@dataclass(frozen=True)
class MethodDots:
    """A method's dots by silo; `beside` counts the methods beside the page's own, which has none."""

    name: str
    dots: Mapping[str, Dot]
    beside: int | None = None

    @property
    def mean(self) -> float:
        return fmean(dot.value for dot in self.dots.values())


def rows_of(run: RunFolder) -> SiloRows:
    """Silos by domain in the order of the run, those of highest accuracy first; evenly chosen where they are many."""
    ordered = sorted(run.silos, key=lambda silo: (-(silo.test.accuracy or 0.0), natural(silo.name)))
    if len(ordered) > _MOST:
        ordered = [ordered[round(i * (len(ordered) - 1) / (_MOST - 1))] for i in range(_MOST)]
    domains = list(dict.fromkeys(silo.domain or silo.name for silo in run.silos))
    series = {silo.name: domains.index(silo.domain or silo.name) for silo in ordered}
    if not 1 < len(domains) < len(run.silos):
        return SiloRows([("", [silo.name for silo in ordered])], series)
    groups = [(d, [silo.name for silo in ordered if (silo.domain or silo.name) == d]) for d in domains]
    return SiloRows([group for group in groups if group[1]], series)


def wilson_of(silo: SiloRecord) -> tuple[float, float] | None:
    """The 95 % interval of a silo's accuracy, from as many test inputs as it has."""
    if silo.test.accuracy is None or not silo.n_test:
        return None
    return wilson(round(silo.test.accuracy * silo.n_test), silo.n_test)


def entropy_interval(silo: SiloRecord) -> tuple[float, float] | None:
    if silo.test.entropy is None or silo.entropy_error is None:
        return None
    half = 1.96 * silo.entropy_error
    return max(0.0, silo.test.entropy - half), silo.test.entropy + half


def chance(silo: SiloRecord) -> tuple[float, float] | None:
    """What ECE a perfectly calibrated model would show: from 0 to its 95 % quantile."""
    return (0.0, silo.test.ece_null.upper) if silo.test.ece_null else None


ACCURACY = Panel(
    "Accuracy",
    lambda silo: silo.test.accuracy,
    percent,
    percent_tick,
    "the further right the better",
    wilson_of,
    "lines are 95 % intervals (Wilson) from as many inputs as a silo has",
    top=1.0,
    compared=True,
)
ENTROPY = Panel(
    "Entropy, nats",
    lambda silo: silo.test.entropy,
    better="the further left the more certain, right or wrong",
    interval=entropy_interval,
    lines="lines are 95 % intervals of the mean over a silo's inputs",
    compared=True,
)
ECE = Panel(
    "Calibration error (ECE)",
    lambda silo: silo.test.ece,
    better="the further left the better",
    interval=chance,
    lines="lines reach as far as chance explains, a mark beyond its line is miscalibrated",
)
NLL = Panel("Negative log-likelihood, nats", lambda silo: silo.test.nll, better="the further left the better")
EPISTEMIC = Panel(
    "Epistemic uncertainty, nats",
    lambda silo: silo.test.epistemic,
    better="how much of the entropy is what the model does not know",
)
AUROC = Panel(
    "AUROC of errors",
    lambda silo: silo.test.auroc_error,
    better="how well entropy tells errors from hits: 0.5 is chance, 1 is best",
    top=1.0,
)


def panel(run: RunFolder, silos: SiloRows, measure: Panel) -> Chart | None:
    """None where no silo has the figure."""
    own = _dots(run, measure)
    if not own:
        return None
    methods = [MethodDots(run.title, own)]
    for i, (name, other) in enumerate(run.comparable.items() if measure.compared else ()):
        if found := _dots(other, measure):
            methods.append(MethodDots(name, found, i))
    label = f"{measure.title} of {len(run.silos)} silos. " + "; ".join(_said(one, measure) for one in methods)
    about = [measure.better] if measure.better else []
    if any(dot.low is not None for one in methods for dot in one.dots.values()):
        about.append(measure.lines)
    if len(silos.silos) < len(run.silos):
        about.append(f"shown are {len(silos.silos)} of {len(run.silos):,} silos, evenly by accuracy")
    caption = "; ".join(about)
    return Chart(measure.title, _plot(silos, methods, measure, label), f"{caption[:1].upper()}{caption[1:]}.")


def _plot(silos: SiloRows, methods: Sequence[MethodDots], measure: Panel, label: str) -> Markup:
    """Marks and means of methods, the page's own first."""
    ends = [end for one in methods for dot in one.dots.values() for end in dot.known]
    low, high = (min(ends), measure.top) if measure.top is not None else (min(0.0, *ends), max(ends))
    values = ticks(low, high)
    rows = silos.laid_out(len(methods), (values[0], values[-1]))
    drawn = [_mean(rows.frame, one) for one in reversed(methods)]
    drawn += [_row(rows, methods, name, y, silos.series[name]) for name, y in rows.places]
    return dot_plot(rows, label, written(values, measure.tick), "", *silos.named(rows), *drawn)


def _mean(frame: Axes, one: MethodDots) -> Markup:
    x, kind = frame.x(one.mean), "mean" if one.beside is None else f"beside b{one.beside % 3}"
    rule = polyline([(x, frame.top - 2), (x, frame.bottom)], "stroke")
    return group(f"mean of {one.name}", rule, class_=f"line {kind}")


def _row(rows: Rows, methods: Sequence[MethodDots], name: str, y: float, series: int) -> Markup:
    found = [(i, one, one.dots[name]) for i, one in enumerate(methods) if name in one.dots]
    drawn = list[Markup]()
    for i, one, dot in reversed(found):  # the page's own method on top
        at = y + 5.5 * (i - (len(methods) - 1) / 2) if rows.named else y
        if one.beside is None:
            size = 4.0 if rows.named else min(3.2, max(1.4, rows.height / 3))
            drawn.append(dots(rows.frame, series, [(dot, at)], size))
        elif rows.named:
            mark = dots(rows.frame, _BESIDE[one.beside % 3], [(dot, at)], 2.9, "hollow")
            drawn.append(group("", mark, class_="other"))
    title = f"{name}: " + "; ".join(f"{one.name} {dot.note}" for _, one, dot in found)
    return group(title, *drawn, class_=colour(series), name=name) if drawn else Markup()


def _dots(run: RunFolder, measure: Panel) -> dict[str, Dot]:
    found = {}
    for silo in run.silos:
        if (value := measure.value(silo)) is not None:
            low, high = measure.interval(silo) or (None, None)
            between = "" if low is None else f" ({measure.write(low)} to {measure.write(high)})"
            found[silo.name] = Dot(value, low, high, measure.write(value) + between)
    return found


def _said(one: MethodDots, measure: Panel) -> str:
    values = [dot.value for dot in one.dots.values()]
    return f"{one.name}: mean {measure.write(one.mean)}, {measure.write(min(values))} to {measure.write(max(values))}"


def decision_bars(run: RunFolder, silos: SiloRows) -> Chart | None:
    """Who answered at each silo, in the same order; None where all was decided alike."""
    shares = {silo.name: silo.decisions for silo in run.silos if silo.decisions}
    if len(kinds(*shares.values())) < 2:
        return None
    rows = silos.laid_out()
    thick = min(11.0, 0.8 * rows.height)
    bars = []
    for name, y in rows.places:
        if of := shares.get(name):
            drawn = parts(of, (rows.frame.left, y - thick / 2), (rows.frame.width, thick))
            bars.append(group(f"{name}: {told(of)}", *drawn, name=name))
    whole = told(run.summary.decisions or {}) if run.summary else ""
    label = f"Shares of decisions of {len(shares)} silos. All together: {whole}"
    figure = drawing(rows.width, rows.frame.bottom + 4, label, *silos.named(rows), *bars, class_="dots")
    caption = "Share of each silo's test inputs that its own model answered, that the federation's answered, and that "
    caption += "nobody answered: blue, amber and empty."
    return Chart("Decisions", figure, caption)


def panel_legend(run: RunFolder) -> list[tuple[Markup, str]]:
    """What tells this method's marks from those of the methods beside it."""
    legend = [(swatch(0), run.title), (key(None, "mean"), f"mean of {run.title}")]
    for i, name in enumerate(run.comparable):
        mark = sample(marks(_BESIDE[i % 3], [(7, 7)], 2.9, "hollow"))
        legend += [(mark, name), (key(None, f"beside b{i % 3}"), f"mean of {name}")]
    return legend


def more_panels(run: RunFolder) -> list[Chart]:
    """Further figures of each silo, this method's alone."""
    rows = rows_of(run)
    return [found for measure in (ECE, NLL, EPISTEMIC, AUROC) if (found := panel(run, rows, measure))]
