"""All silos of a run: plots with a row per silo, and the table of all metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from ...core.text import count, decimal, percent, percent_tick, tick
from ...files import RunFolder, natural
from ...files.schema import Metrics, SiloRecord
from ...uncertainty.statistical_tests import wilson
from ..diagrams import Dot, Groups, Rows, dot_plot, dots, lay_out, named, sparkline
from ..svg import DIAMOND, Axes, Chart, Point, Write, color, group, key, marks, polyline, sample, swatch, ticks, written
from ..templates import Cell, Column, Table, column, table, words

_MOST = 240
"""Maximum number of silos in a plot."""
_NAMED, _TALLEST = 40, 640
"""Maximum number of rows with names, and total height if there are more."""
_BESIDE = (0, DIAMOND, 1)
"""The marks of baselines."""


@dataclass(frozen=True)
class Panel:
    """A plot of a metric by silo."""

    title: str
    value: Callable[[SiloRecord], float | None]
    write: Callable[[float | None], str] = decimal
    tick: Write = tick
    better: str = ""
    interval: Callable[[SiloRecord], tuple[float, float] | None] = lambda silo: None
    lines: str = ""
    """Description of the intervals."""
    top: float | None = None
    """Maximum of the metric."""
    compared: bool = False
    """Whether baselines are shown."""


@dataclass(frozen=True)
class SiloRows:
    """The silos of a run's plots from top to bottom, in groups by domain or in one group without a heading."""

    groups: Groups
    series: Mapping[str, int]
    """By silo, the color and mark of its domain."""

    @property
    def silos(self) -> list[str]:
        return [name for _, names in self.groups for name in names]

    def laid_out(self, methods: int = 1, shown: Point = (0, 1)) -> Rows:
        """Return rows with space for the dots of `methods` methods; low rows without names if there are many silos."""
        many = len(self.silos) > _NAMED
        height = max(2.5, _TALLEST / len(self.silos)) if many else 15.0 + 5.0 * methods
        return lay_out(self.groups, height, shown, most=14)

    def named(self, rows: Rows) -> list[Markup]:
        return named(rows, {head: self.series[names[0]] for head, names in self.groups})


@dataclass(frozen=True)
class MethodDots:
    """A method's dots by silo; `beside` is the index of a baseline, or None for the page's own method."""

    name: str
    dots: Mapping[str, Dot]
    beside: int | None = None

    @property
    def mean(self) -> float:
        return fmean(dot.value for dot in self.dots.values())


def rows_of(run: RunFolder) -> SiloRows:
    """Return silos by domain in the order of the run, highest accuracy first; a sample if there are many."""
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
    """Return the 95 % interval of a silo's accuracy over its test inputs."""
    if silo.test.accuracy is None or not silo.n_test:
        return None
    return wilson(round(silo.test.accuracy * silo.n_test), silo.n_test)


def entropy_interval(silo: SiloRecord) -> tuple[float, float] | None:
    if silo.test.entropy is None or silo.entropy_error is None:
        return None
    half = 1.96 * silo.entropy_error
    return max(0.0, silo.test.entropy - half), silo.test.entropy + half


def chance(silo: SiloRecord) -> tuple[float, float] | None:
    """Return the ECE of a perfectly calibrated model: from 0 to its 95 % quantile."""
    return (0.0, silo.test.ece_null.upper) if silo.test.ece_null else None


ACCURACY = Panel(
    "Accuracy",
    lambda silo: silo.test.accuracy,
    percent,
    percent_tick,
    "further right is better",
    wilson_of,
    "lines are 95 % intervals (Wilson) over a silo's inputs",
    top=1.0,
    compared=True,
)
ENTROPY = Panel(
    "Entropy, nats",
    lambda silo: silo.test.entropy,
    better="further left is more certain, correct or not",
    interval=entropy_interval,
    lines="lines are 95 % intervals of the mean over a silo's inputs",
    compared=True,
)
ECE = Panel(
    "Calibration error (ECE)",
    lambda silo: silo.test.ece,
    better="further left is better",
    interval=chance,
    lines="lines show what chance explains; a mark beyond its line is miscalibrated",
)
NLL = Panel("Negative log-likelihood, nats", lambda silo: silo.test.nll, better="further left is better")
EPISTEMIC = Panel(
    "Epistemic uncertainty, nats",
    lambda silo: silo.test.epistemic,
    better="the part of the entropy that is uncertainty of the model",
)
AUROC = Panel(
    "AUROC of errors",
    lambda silo: silo.test.auroc_error,
    better="how well entropy detects errors: 0.5 is chance, 1 is best",
    top=1.0,
)


def panel(run: RunFolder, silos: SiloRows, measure: Panel) -> Chart | None:
    """Return the plot of a metric; None if no silo has it."""
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
        about.append(f"{len(silos.silos)} of {len(run.silos):,} silos are shown, evenly selected by accuracy")
    caption = "; ".join(about)
    return Chart(measure.title, _plot(silos, methods, measure, label), f"{caption[:1].upper()}{caption[1:]}.")


def _plot(silos: SiloRows, methods: Sequence[MethodDots], measure: Panel, label: str) -> Markup:
    """Draw marks and means of methods, the page's own first."""
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
    return group(title, *drawn, class_=color(series), name=name) if drawn else Markup()


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


def panel_legend(run: RunFolder) -> list[tuple[Markup, str]]:
    """Return the marks of this method and of its baselines."""
    legend = [(swatch(0), run.title), (key(None, "mean"), f"mean of {run.title}")]
    for i, name in enumerate(run.comparable):
        mark = sample(marks(_BESIDE[i % 3], [(7, 7)], 2.9, "hollow"))
        legend += [(mark, name), (key(None, f"beside b{i % 3}"), f"mean of {name}")]
    return legend


def more_panels(run: RunFolder) -> list[Chart]:
    """Return plots of more metrics, for this method alone."""
    rows = rows_of(run)
    return [found for measure in (ECE, NLL, EPISTEMIC, AUROC) if (found := panel(run, rows, measure))]


_EPISTEMIC = "uncertainty of the model (mutual information, corrected for few samples), in nats"
METRICS: tuple[tuple[str, str, Callable[[float | None], str], str], ...] = (
    ("accuracy", "accuracy", percent, "share of correct predictions, including those abstained from"),
    ("entropy", "entropy", decimal, "mean total uncertainty of a prediction, in nats"),
    ("aleatoric", "aleatoric", decimal, "uncertainty of the data, which a better model does not reduce, in nats"),
    ("epistemic", "epistemic", decimal, _EPISTEMIC),
    ("nll", "NLL", decimal, "negative log-likelihood, in nats; lower is better"),
    ("brier", "Brier", decimal, "squared distance between probabilities and outcome; lower is better"),
    ("auroc_error", "AUROC error", decimal, "how well uncertainty detects errors; 0.5 is chance, 1 is best"),
    ("augrc", "AUGRC", decimal, "area under the generalized risk-coverage curve; lower is better"),
    ("set_coverage", "label in set", percent, "share of prediction sets that contain the label"),
    ("set_size", "classes in set", decimal, "mean number of classes in a prediction set"),
)
MODELS = {"local": "own\nmodel", "global": "federation's\nmodel"}
"""Two models of a silo, with the headings of their accuracy."""


def of_models(silos: Sequence[SiloRecord]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the silos' architectures, and the accuracy of local and global models; empty cells without them."""
    about = [("model", (*(silo.model for silo in silos), "", ""))]
    both = [silo for silo in silos if MODELS.keys() <= silo.models.keys()]
    for name, header in MODELS.items():
        found = [silo.models[name].accuracy if name in silo.models else None for silo in silos]
        # The mean is over silos with both models, so the two are comparable.
        known = [value for silo in both if (value := silo.models[name].accuracy) is not None]
        about.append((header, (*map(percent, found), percent(sum(known) / len(known)) if known else "", "")))
    return about


def metric_column(run: RunFolder, names: Sequence[str], metric: str, worst: str) -> list[float | None]:
    """Return a metric of the silos `names`, then the mean over them, then the value of the silo `worst`. The mean is
    None if the run has metrics of other silos than these."""
    found: dict[str, SiloRecord] = {silo.name: silo for silo in run.silos}

    def value(metrics: Metrics | None) -> float | None:
        number = getattr(metrics, metric, None)
        return number if isinstance(number, float) else None

    figures = [value(found[name].test) if name in found else None for name in names]
    mean = value(run.mean) if found.keys() == set(names) else None
    return [*figures, mean, value(found[worst].test) if worst in found else None]


OF_MODELS = "architecture of the silo's local model, and accuracy of both models on all of the silo's test samples"


def silo_table(run: RunFolder) -> Table | None:
    """Return a row per silo, then the mean over silos, then the silo with the lowest accuracy, for all methods."""
    silos, names = run.silos, [silo.name for silo in run.silos]
    if not silos:
        return None
    worst = run.worst.silo if run.worst else ""
    metrics = [
        column(header, map(write, metric_column(run, names, metric, worst)), help)
        for metric, header, write, help in METRICS
    ]
    others = [
        column(f"{name} {header}", map(write, metric_column(other, names, metric, worst)), help)
        for name, other in run.comparable.items()
        for metric, header, write, help in METRICS[:2]
    ]
    last = ["", ""]
    counts = [[getattr(silo, f"n_{split}", None) for silo in silos] for split in ("train", run.split)]
    columns = [
        words("silo", [*names, "mean", f"worst {worst}".rstrip()]),
        words("domain", [*(silo.domain for silo in silos), *last]),
        *metrics[:2],
        *(column(" ".join(header.split()), cells, OF_MODELS) for header, cells in of_models(silos)),
        column("codewords", [*(str(s.codewords or "") for s in silos), *last], "shared + the silo's own"),
        column("perplexity", [*(decimal(s.perplexity, 1) for s in silos), *last], "codewords in effective use"),
        *others,
        *_calibration(run, names, worst),
        *metrics[2:],
        column("train", [*map(count, counts[0]), *last], "training samples"),
        column(run.split, [*map(count, counts[1]), *last], "samples for the metrics of this table"),
        words("classes", [*(_classes(run, silo) for silo in silos), *last], "training samples per class"),
    ]
    flags = any(header.header == "ECE by chance" and any(cell.text for cell in header.cells) for header in columns)
    about = "; worst is the silo with the lowest accuracy" if worst else ""
    about += "; a triangle marks an ECE above what chance explains." if flags else "."
    return table(columns, f"Metrics of each silo on its own {run.split} samples, entropies in nats{about}", names, 2)


def _classes(run: RunFolder, silo: SiloRecord) -> str:
    counts, names = silo.class_counts, (run.summary.classes if run.summary else None) or []
    if not counts:
        return ""
    return sparkline(counts, names if len(names) == len(counts) else list(map(str, range(len(counts)))))


def _calibration(run: RunFolder, names: Sequence[str], worst: str) -> list[Column]:
    values = metric_column(run, names, "ece", worst)
    of_worst = next((silo.test for silo in run.silos if silo.name == worst), None)
    metrics: list[Metrics | None] = [*(silo.test for silo in run.silos), run.mean, of_worst]
    about = "ECE of a perfectly calibrated model on the same number of samples: mean to 95 % quantile"
    return [
        column("ECE", map(_ece, values, metrics), "expected calibration error"),
        column("ECE by chance", map(_band, metrics), about),
    ]


def _ece(value: float | None, metrics: Metrics | None) -> Cell:
    above = metrics is not None and metrics.ece_above_chance
    return Cell(decimal(value), "above what chance explains" if above else "")


def _band(metrics: Metrics | None) -> str:
    band = metrics.ece_null if metrics else None
    return f"{band.mean:.3f} to {band.upper:.3f}" if band else ""
