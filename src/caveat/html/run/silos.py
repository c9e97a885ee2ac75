"""The silos of a run: their table, whom the federation helps, and the table of all metrics."""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from ...core.text import count, decimal, percent, percent_tick, plural, signed, tick
from ...files import RunFolder, natural
from ...files.schema import Metrics
from ..diagrams import Dot, dot_plot, dots, histogram, interval_cell, lay_out, named
from ..svg import Chart, Point, Write, group, line, ticks, written
from ..templates import Cell, Table, column, table
from .alarms import alarms_only, promised
from .classification import MOST_ROWS, Judged, Ranged, judged, judged_together, too_few, without_gain
from .confidence import silos_off
from .guarantee import exceeding, kept_by, wrong_among
from .silo_baselines import SiloRow, differences_to_alone, points, rows_of, worse_alone
from .silo_metrics import METRICS, metric_table

WORST = 10
"""Number of silos in the open table."""


@dataclass(frozen=True)
class SiloSection:
    """Tables of the worst and the other silos, histograms and CSV if there are many, and whom the federation helps."""

    note: str
    """Why no silo is called one of the worst; empty otherwise."""
    worst: Table | None
    rest: Table | None
    histograms: Sequence[Chart]
    csv: str
    helped: Chart | None
    metrics: Table | None
    """All metrics by silo; None for many silos, whose metrics are in the CSV."""


def silo_section(run: RunFolder) -> SiloSection | None:
    """Return the section; None without silos."""
    rows = rows_of(run)
    if not rows:
        return None
    few, many, most = len(rows) <= WORST + 4, len(rows) > MOST_ROWS, too_few(run)
    if alike := not few and most > 0:  # ranks would be chance
        rows.sort(key=lambda row: natural(row.silo.name))
    top, rest = (rows, []) if few else ([], rows) if alike else (rows[:WORST], rows[WORST:])
    note = f"Single silos cannot be judged, because each has at most {plural(most, 'test input')}." * bool(most)
    return SiloSection(
        note=f"{note} {'The CSV' if many else 'A table'} below has all silos." if alike else note,
        worst=_open_table(run, top, len(rows)) if top else None,
        rest=silo_table(run, rest, "", footer=alike) if rest and not many else None,
        histograms=_histograms(rows, _COARSE if alike else 0.0) if many or alike else (),
        csv=_csv(rows) if many else "",
        helped=None if many or alike else helped(rows),
        metrics=None if many else metric_table(run),
    )


def _open_table(run: RunFolder, top: Sequence[SiloRow], silos: int) -> Table | None:
    """Return the table of the worst silos, or of all silos if these are few, with its caption."""
    few = len(top) == silos
    which = "Silos" if few else f"The {WORST} worst of {silos:,} silos"
    caption = f"{which}, ordered by the upper end of the 95 % interval of their accuracy on their own {run.split} "
    caption += "inputs, lowest first"
    if any(row.of.majority and row.of.majority.share >= _least(top) for row in top):
        caption += "; a tick marks the accuracy of always predicting the most frequent training class"
    worst = silo_table(run, top, f"{caption}.", footer=True)
    if worst and any(cell.flag for each in worst.columns for cell in each.cells):
        caption += ". A triangle marks what a silo's own test inputs show, beyond chance"
    return worst and replace(worst, caption=f"{caption}.")


def silo_table(run: RunFolder, rows: Sequence[SiloRow], caption: str, footer: bool = False) -> Table | None:
    """Return a row per silo; with `footer` also a row for the mean over all silos, and one for all inputs."""
    binary = run.summary and run.summary.classification and run.summary.classification.positive
    found = [each for each in _columns(run, rows) if binary or each.header not in _OF_CLASS]
    if same := alarms_only(run):
        found = [each for each in found if each.header != "abstains"]
    ends = _ends(run) if footer else {}
    columns = [
        each._replace(cells=[*each.cells, *ends.get(each.header, ("", ""))]) if footer else each for each in found
    ]
    few = too_few(run)  # then inputs show nothing about a single silo
    texts = [[cell.text if few and isinstance(cell, Cell) else cell for cell in each.cells] for each in columns]
    shown = {"false alarms": "abstains, with a false alarm"} if same else {}
    made = [
        column(shown.get(each.header, each.header), cells, each.help, words=each.words)
        for each, cells in zip(columns, texts, strict=True)
    ]
    return table(made, caption, [row.silo.name for row in rows], 2 if footer else 0)


_SOME = 10
"""Minimum number of inputs of a class at each silo for a mean over silos."""
_OF_CLASS = ("sensitivity", "specificity", "AUROC")
"""The columns that concern a single class."""


class SiloColumn(NamedTuple):
    """A column of the table of silos."""

    header: str
    cells: Sequence[Cell | str]
    help: str = ""
    words: bool = False


def _columns(run: RunFolder, rows: Sequence[SiloRow]) -> list[SiloColumn]:
    silos, above = [row.silo for row in rows], exceeding(run.summary) if run.summary else []
    (worse, _), lost, off = without_gain(run), worse_alone(run), silos_off(run)
    domains = [silo.domain for silo in run.silos]
    told = [""] * len(silos) if len(set(domains)) == 1 else [silo.domain for silo in silos]
    positive = run.summary.classification.positive if run.summary and run.summary.classification else ""
    low = _least(rows)
    return [
        SiloColumn("silo", [silo.name for silo in silos], words=True),
        SiloColumn("accuracy", [percent(row.silo.test.accuracy) for row in rows]),
        SiloColumn("wrong among answered", [_wrong_answers(run, row, row.silo.name in above) for row in rows]),
        SiloColumn("abstains", [_abstains(row.abstains) for row in rows], "share of inputs without an answer"),
        SiloColumn(f"95 % interval, {percent(low, 0)} to 100 %", [_bar(row, low) for row in rows], words=True),
        SiloColumn(f"{run.split} inputs", [count(getattr(silo, f"n_{run.split}")) for silo in silos]),
        SiloColumn("gain over training alone", [_alone(row, lost) for row in rows], "points of accuracy"),
        SiloColumn("gain over most frequent class", [_gain(row, worse) for row in rows], "points of accuracy"),
        SiloColumn(
            "sensitivity",
            [_share(row.of.sensitivity) for row in rows],
            f"share of class {positive} that is found, at the thresholds noted below",
        ),
        SiloColumn(
            "specificity",
            [_share(row.of.specificity) for row in rows],
            f"share of the others not predicted as {positive}, at the thresholds noted below",
        ),
        SiloColumn("AUROC", [_auroc(row.of.auroc) for row in rows], "0.5 is chance, 1 is best"),
        SiloColumn(
            "false alarms", [percent(silo.test.alarms) if promised(run) else "" for silo in silos], "on own inputs"
        ),
        SiloColumn(
            "mean confidence",
            [Cell(percent(row.confidence), off.get(row.silo.name, "")) for row in rows],
            "a triangle marks a difference from the accuracy beyond chance over silos",
        ),
        SiloColumn(
            "domain",
            ["" if domain == silo.name else domain for silo, domain in zip(silos, told, strict=True)],
            words=True,
        ),
    ]


def _least(rows: Sequence[SiloRow]) -> float:
    """Return the lower end of the scale of intervals of accuracy."""
    return 0.1 * math.floor(10 * min((row.interval[0] for row in rows if row.interval), default=0.0))


def _ends(run: RunFolder) -> dict[str, tuple[Cell | str, Cell | str]]:
    """Return the mean over silos and the value over all inputs together of each column."""
    mean, pooled = run.mean, (run.summary.pooled if run.summary else Metrics())
    together = judged_together(run)
    gaps = [dot.value for dot in differences_to_alone(run).values()]
    sensitivity, specificity = _share(together.sensitivity), _share(together.specificity)
    answers = kept_by([silo for silo in run.silos if not silo.newcomer])
    return {
        "silo": ("mean over silos", "all inputs"),
        f"{run.split} inputs": ("", count(together.inputs or None)),
        "accuracy": (percent(mean.accuracy), percent(pooled.accuracy)),
        "gain over training alone": (points(sum(gaps) / len(gaps)) if gaps else "", ""),
        "gain over most frequent class": ("", _gain_of(together)),
        "sensitivity": (_mean_of(mean.sensitivity, [each.sensitivity for each in judged(run)]), sensitivity),
        "specificity": (_mean_of(mean.specificity, [each.specificity for each in judged(run)]), specificity),
        "AUROC": (decimal(mean.auroc, 2), ""),  # of all inputs, it has no meaning, because silos differ
        "false alarms": (percent(mean.alarms), percent(pooled.alarms)) if promised(run) else ("", ""),
        "wrong among answered": ("", wrong_among(answers) if run.summary and run.summary.guarantee else ""),
        "abstains": ("", _abstains(1 - answers.answered / answers.inputs) if answers else ""),
    }


def _mean_of(mean: float | None, found: Sequence[Ranged | None]) -> str:
    """Return the mean of a share over silos; empty if some silo has too few inputs for a share."""
    return percent(mean) if all(each is None or not each.of or each.of >= _SOME for each in found) else ""


def _bar(row: SiloRow, low: float) -> str:
    accuracy, most = row.silo.test.accuracy, row.of.majority
    if accuracy is None or row.interval is None:
        return ""
    label = f"{row.silo.name}: {percent(accuracy)}, {percent(row.interval[0])} to {percent(row.interval[1])}"
    return interval_cell(Dot(accuracy, *row.interval), (low, 1.0), most.share if most else None, label)


def _alone(row: SiloRow, lost: Sequence[str]) -> Cell:
    flag = "training alone is better, beyond chance over silos" if row.silo.name in lost else ""
    return Cell("" if row.alone is None else points(row.alone.value), flag)


def _gain(row: SiloRow, worse: Sequence[str]) -> Cell:
    flag = "always predicting the most frequent class is better, beyond chance" if row.silo.name in worse else ""
    return Cell("" if row.gain is None else points(row.gain), flag)


def _gain_of(of: Judged) -> str:
    most = of.majority
    return "" if most is None else points((most.gained - most.lost) / most.inputs)


def _abstains(share: float | None) -> str:
    return percent(share) if share else ""


def _wrong_answers(run: RunFolder, row: SiloRow, above: bool) -> Cell:
    """Return the errors among a silo's answers, flagged if they are above a guarantee beyond chance."""
    found, promise = kept_by([row.silo]), run.summary.guarantee if run.summary else None
    if promise is None or found is None or not (text := wrong_among(found)):
        return Cell("")
    flag = f"more than the guarantee allows, beyond chance{'' if row.silo.promise else ' on average over silos'}"
    return Cell(text, flag if above else "")


def _share(found: Ranged | None) -> Cell:
    """Return a share with its number of inputs."""
    if found is None or not found.of:
        return Cell(percent(found.value if found else None))
    flag = "none is recognized" if found.clearly_zero else ""
    return Cell(f"{round(found.value * found.of):,} of {found.of:,}", flag)


def _auroc(found: Ranged | None) -> str:
    if found is None:
        return ""
    low, high = found.interval or (None, None)
    return decimal(found.value, 2) + (f" ({decimal(low, 2)} to {decimal(high, 2)})" if low is not None else "")


def helped(rows: Sequence[SiloRow]) -> Chart | None:
    """Return the difference in accuracy of each silo to training alone, largest first; None if it is unknown."""
    known = [(row.alone, row.silo.name) for row in rows if row.alone]
    if not known:
        return None
    known.sort(key=lambda each: -each[0].value)
    better = sum(dot.low is not None and dot.low > 0 for dot, _ in known)
    worse = sum(dot.high is not None and dot.high < 0 for dot, _ in known)
    about = f"The interval is above 0 at {better:,} and below 0 at {worse:,} of {plural(len(known), 'silo')}"
    about += f" (by chance, {0.025 * len(known):.2g} of each are expected)"
    about = about if better or worse else f"No interval of {plural(len(known), 'silo')} excludes 0"
    ends = [end for dot, _ in known for end in dot.known]
    values = ticks(min(0.0, *ends), max(0.0, *ends))
    layout = lay_out([("", [name for _, name in known])], 17.0, (values[0], values[-1]), most=22)
    frame = layout.frame
    zero = line((frame.x(0), frame.top), (frame.x(0), frame.bottom), "boundary")
    drawn = [
        group(dot.note, dots(frame, 0, [(dot, y)], 3.6), class_="c0", name=name)
        for (dot, name), y in zip(known, layout.at, strict=True)
    ]
    label = f"Accuracy of the federation minus that of training alone. {about}. "
    label += "; ".join(dot.note for dot, _ in [*known[:3], *known[3:][-3:]])
    written_ticks = written(values, lambda value: signed(tick(100 * value)) if value > 0 else tick(100 * value))
    drawing = dot_plot(layout, label, written_ticks, "points of accuracy", *named(layout), zero, *drawn)
    caption = f"{about}; lines are 95 % intervals over a silo's inputs, not corrected for the number of silos. "
    caption += "Right of 0, the federation is better than training alone."
    return Chart("Whom the federation helps", drawing, caption)


def _points_tick(share: float) -> str:
    return tick(round(100 * share, 6))


_COLUMNS: tuple[tuple[str, Callable[[SiloRow], float | None], Write], ...] = (
    ("Accuracy", lambda row: row.silo.test.accuracy, percent_tick),
    ("Confidence less accuracy", lambda row: _sure_gap(row), _points_tick),
    ("Accuracy less training alone", lambda row: row.alone.value if row.alone else None, _points_tick),
    ("Accuracy less most frequent class", lambda row: row.gain, _points_tick),
    ("False alarms", lambda row: row.silo.test.alarms, percent_tick),
    ("Abstains", lambda row: row.abstains or None, percent_tick),
)


def _sure_gap(row: SiloRow) -> float | None:
    accuracy, confidence = row.silo.test.accuracy, row.confidence
    return None if accuracy is None or confidence is None else confidence - accuracy


_COARSE = 0.1
"""Minimum width of bins if each silo has few inputs, so that accuracies are less exact."""


def _histograms(rows: Sequence[SiloRow], width: float) -> list[Chart]:
    """Return the distribution over silos of each column that varies, in bins of at least this width."""
    charts = []
    for title, value, write in _COLUMNS:
        known = [found for row in rows if (found := value(row)) is not None]
        if len(set(known)) < 2:
            continue
        unit = " points" * (write is _points_tick)
        middle, low, high = (write(round(end, 3)) for end in (median(known), min(known), max(known)))
        about, usual = f"Median {middle}, from {low} to {high}{unit}", _by_chance(rows) if title == "Accuracy" else []
        if usual:
            about += f". Standard deviation {_deviation([(value, 1.0) for value in known]):.1f} points; if silos "
            about += f"differ only by chance (line), it is {_deviation(usual):.1f}"
        label = f"{title} of {plural(len(known), 'silo')}. {about}"
        drawn = histogram(known, write, label, unit.strip(), usual, width)
        charts.append(Chart(title, drawn, f"{plural(len(known), 'silo')}. {about}."))
    return charts


def _by_chance(rows: Sequence[SiloRow]) -> list[Point]:
    """Return accuracies with the expected numbers of silos, if all silos had the same probability of a correct
    prediction; empty if this probability is 0 or 1."""
    known = [(row.silo.n_test or 0, row.silo.test.accuracy or 0.0) for row in rows]
    inputs, right = sum(n for n, _ in known), sum(n * share for n, share in known)
    if not 0 < right < inputs:
        return []
    odds, no = math.log(right / (inputs - right)), math.log1p(-right / inputs)
    return [
        (k / n, silos * math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * odds + n * no))
        for n, silos in Counter(n for n, _ in known if n).items() for k in range(n + 1)
    ]  # fmt: skip


def _deviation(found: Sequence[Point]) -> float:
    """Return the standard deviation, in points, of values with their frequencies."""
    total = sum(number for _, number in found)
    mean = sum(value * number for value, number in found) / total
    return 100 * math.sqrt(sum(number * (value - mean) ** 2 for value, number in found) / total)


def _csv(rows: Sequence[SiloRow]) -> str:
    """Return a row per silo: name, sizes, the columns of the table as fractions, and all metrics."""
    values = [(title.lower(), value) for title, value, _ in _COLUMNS]
    names = [name for name, _, _, _ in METRICS[1:] if any(getattr(row.silo.test, name) is not None for row in rows)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["silo", "domain", "test inputs", *(name for name, _ in values), "ece", "ece by chance", *names])
    for row in rows:
        test = row.silo.test
        band = test.ece_null.upper if test.ece_null else None
        cells = [*(value(row) for _, value in values), test.ece, band, *(getattr(test, name) for name in names)]
        numbers = ["" if cell is None else f"{cell:.3g}" for cell in cells]
        writer.writerow([row.silo.name, row.silo.domain, row.silo.n_test, *numbers])
    return text.getvalue()
