"""Pictures with a row per silo: what its figures are, and what they may be, having come from few inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from ....files.run_folder import RunFolder, natural
from ....files.schema.run import SiloRecord
from ...charts.charts import key, wilson
from ...charts.dots import WIDTH, Dot, Rows, Series, dot_plot, hollow, layout, names
from ...charts.svg import drawing, element, marker
from ...text import decimal, percent
from .figures import Chart
from .shares import parts, told
from .streams import kinds

_MOST = 240
"""Silos that a plot has rows for."""


@dataclass(frozen=True)
class Panel:
    """A figure of silos, how it is written, and within what it lies."""

    title: str
    value: Callable[[SiloRecord], float | None]
    write: Callable[[float | None], str] = decimal
    tick: Callable[[float], str] = lambda value: f"{value:g}"
    better: str = ""
    interval: Callable[[SiloRecord], tuple[float, float] | None] = lambda silo: None
    lines: str = ""
    """What the intervals are."""
    top: float | None = None
    """The largest value that there can be."""
    compared: bool = False
    """With the methods beside this one."""


def rows_of(run: RunFolder) -> Rows:
    """Silos by domain in the order of the run, those of highest accuracy first; evenly chosen where they are many."""
    ordered = sorted(run.silos, key=lambda silo: (-(silo.test.accuracy or 0.0), natural(silo.name)))
    if len(ordered) > _MOST:
        ordered = [ordered[round(i * (len(ordered) - 1) / (_MOST - 1))] for i in range(_MOST)]
    domains = list(dict.fromkeys(silo.domain or silo.name for silo in run.silos))
    series = {silo.name: domains.index(silo.domain or silo.name) for silo in ordered}
    if not 1 < len(domains) < len(run.silos):
        return Rows([("", [silo.name for silo in ordered])], series)
    groups = [(d, [silo.name for silo in ordered if (silo.domain or silo.name) == d]) for d in domains]
    return Rows([group for group in groups if group[1]], series)


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
    "Accuracy", lambda silo: silo.test.accuracy, percent, lambda value: f"{100 * value:g} %",
    "the further right the better", wilson_of, "lines are 95 % intervals (Wilson) from as many inputs as a silo has",
    top=1.0, compared=True,
)  # fmt: skip
ENTROPY = Panel(
    "Entropy, nats", lambda silo: silo.test.entropy, better="the further left the more certain, right or wrong",
    interval=entropy_interval, lines="lines are 95 % intervals of the mean over a silo's inputs", compared=True,
)  # fmt: skip
ECE = Panel(
    "Calibration error (ECE)", lambda silo: silo.test.ece, better="the further left the better", interval=chance,
    lines="lines reach as far as chance explains, a mark beyond its line is miscalibrated",
)  # fmt: skip
NLL = Panel("Negative log-likelihood, nats", lambda silo: silo.test.nll, better="the further left the better")
EPISTEMIC = Panel(
    "Epistemic uncertainty, nats", lambda silo: silo.test.epistemic,
    better="how much of the entropy is what the model does not know",
)  # fmt: skip
AUROC = Panel(
    "AUROC of errors", lambda silo: silo.test.auroc_error, top=1.0,
    better="how well entropy tells errors from hits: 0.5 is chance, 1 is best",
)  # fmt: skip


def panel(run: RunFolder, rows: Rows, measure: Panel) -> Chart | None:
    """None where no silo has the figure."""
    runs = {run.title: run, **(run.comparable if measure.compared else {})}
    found = [(name, dots) for name, each in runs.items() if (dots := _dots(each, measure)) or each is run]
    if not found[0][1]:
        return None
    series = [
        Series(
            name,
            dots,
            fmean(dot.value for dot in dots.values()),
            list(runs).index(name) - 1 if name != run.title else None,
        )
        for name, dots in found
    ]
    label = f"{measure.title} of {len(run.silos)} silos. " + "; ".join(_said(one, measure) for one in series)
    about = [measure.better] if measure.better else []
    if any(dot.low is not None for one in series for dot in one.dots.values()):
        about.append(measure.lines)
    if len(rows.silos) < len(run.silos):
        about.append(f"shown are {len(rows.silos)} of {len(run.silos):,} silos, evenly by accuracy")
    caption = "; ".join(about)
    return Chart(
        measure.title, dot_plot(rows, series, measure.tick, label, measure.top), f"{caption[:1].upper()}{caption[1:]}."
    )


def _dots(run: RunFolder, measure: Panel) -> dict[str, Dot]:
    dots = {}
    for silo in run.silos:
        if (value := measure.value(silo)) is not None:
            low, high = measure.interval(silo) or (None, None)
            between = "" if low is None else f" ({measure.write(low)} to {measure.write(high)})"
            dots[silo.name] = Dot(value, low, high, measure.write(value) + between)
    return dots


def _said(one: Series, measure: Panel) -> str:
    values = [dot.value for dot in one.dots.values()]
    return f"{one.name}: mean {measure.write(one.mean)}, {measure.write(min(values))} to {measure.write(max(values))}"


def decision_bars(run: RunFolder, rows: Rows) -> Chart | None:
    """Who answered at each silo, in the same order; None where all was decided alike."""
    shares = {silo.name: silo.decisions for silo in run.silos if silo.decisions}
    if len(kinds(*shares.values())) < 2:
        return None
    place = layout(rows)
    thick = min(11.0, 0.8 * place.height)
    bars = [
        element(
            "g",
            element("title", f"{name}: {told(shares[name])}"),
            *parts(shares[name], (place.left, y - thick / 2), (place.width, thick), labels=False),
            data_silo=name,
        )
        for name, y in place.at.items()
        if name in shares
    ]
    whole = told(run.summary.decisions or {}) if run.summary else ""
    label = f"Shares of decisions of {len(shares)} silos. All together: {whole}"
    drawn = drawing(WIDTH, place.bottom + 4, label, *names(place), *bars, class_="dots")
    caption = "Share of each silo's test inputs that its own model answered, that the federation's answered, and that "
    caption += "nobody answered: blue, orange and empty."
    return Chart("Decisions", drawn, caption)


def panel_legend(run: RunFolder) -> list[tuple[Markup, str]]:
    """What tells this method's marks from those of the methods beside it."""
    own = [(_sample(marker(0, 17, 7, "fill", 4)), run.title), (key(None, "mean"), f"mean of {run.title}")]
    others = [
        each
        for i, name in enumerate(run.comparable)
        for each in ((_sample(hollow(i, 17, 7)), name), (key(None, f"beside b{i % 3}"), f"mean of {name}"))
    ]
    return own + others


def _sample(mark: Markup) -> Markup:
    return element("svg", element("g", mark, class_="c0"), viewBox="0 0 34 14", class_="key", aria_hidden="true")


def more_panels(run: RunFolder) -> list[Chart]:
    """Further figures of each silo, this method's alone."""
    rows = rows_of(run)
    return [found for measure in (ECE, NLL, EPISTEMIC, AUROC) if (found := panel(run, rows, measure))]
