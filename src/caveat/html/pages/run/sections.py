"""The tables of the page, as rows of written cells; a section that the run has nothing for is None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ....files.run_folder import RunFolder
from ....files.schema.run import Metrics, SiloRecord
from ...charts.charts import sparkline
from ...text import decimal, percent, size
from .terminal import metric_column, of_models


@dataclass(frozen=True)
class HtmlCell:
    text: str | Markup
    flag: str = ""
    """Why the cell is marked; empty for one that is not."""


@dataclass(frozen=True)
class HtmlColumn:
    header: str
    cells: Sequence[HtmlCell]
    help: str = ""
    words: bool = False
    """Words stand left, numbers right."""


@dataclass(frozen=True)
class HtmlTable:
    columns: Sequence[HtmlColumn]

    def has(self, header: str) -> bool:
        return any(column.header == header for column in self.columns)

    @property
    def rows(self) -> list[tuple[HtmlCell, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))


def table(columns: Sequence[HtmlColumn]) -> HtmlTable:
    """Without the columns that no row has anything in."""
    return HtmlTable([column for column in columns if any(cell.text for cell in column.cells)])


METRICS: tuple[tuple[str, str, Callable[[float | None], str], str], ...] = (
    ("accuracy", "accuracy", percent, "share of right predictions, those that were abstained from included"),
    ("entropy", "entropy", decimal, "mean total uncertainty of a prediction, in nats"),
    ("aleatoric", "aleatoric", decimal, "what lies in the data, however well a model knows them, in nats"),
    (
        "epistemic",
        "epistemic",
        decimal,
        "what the model does not know (mutual information, corrected for few samples), in nats",
    ),
    ("nll", "NLL", decimal, "negative log-likelihood, in nats; lower is better"),
    ("brier", "Brier", decimal, "squared distance of probabilities and outcome; lower is better"),
    ("auroc_error", "AUROC error", decimal, "how well uncertainty tells errors from hits; 0.5 is chance, 1 is best"),
    ("augrc", "AUGRC", decimal, "area under the generalised risk-coverage curve; lower is better"),
)


OF_MODELS = "architecture of the silo's own model, and accuracy of either model on all of the silo's test samples"


def silo_table(run: RunFolder) -> HtmlTable | None:
    """A row per silo, then the mean over silos and the worst."""
    silos = run.silos
    if not silos:
        return None
    names = [silo.name for silo in silos]
    worst = run.worst.silo if run.worst else ""
    metrics = [
        HtmlColumn(header, [HtmlCell(write(value)) for value in metric_column(run, names, metric)], help)
        for metric, header, write, help in METRICS
    ]
    others = [
        HtmlColumn(f"{name} {header}", [HtmlCell(write(value)) for value in metric_column(other, names, metric)], help)
        for name, other in run.comparable.items()
        for metric, header, write, help in METRICS[:2]
    ]
    columns = [
        HtmlColumn("silo", [*map(HtmlCell, names), HtmlCell("mean"), HtmlCell(f"worst {worst}".rstrip())], words=True),
        HtmlColumn("domain", [*(HtmlCell(silo.domain) for silo in silos), HtmlCell(""), HtmlCell("")], words=True),
        *metrics[:2],
        *(
            HtmlColumn(" ".join(header.split()), [*map(HtmlCell, cells)], OF_MODELS)
            for header, cells in of_models(silos)
        ),
        _per_silo("codewords", silos, lambda silo: str(silo.codewords or ""), "shared + the silo's own"),
        _per_silo("perplexity", silos, lambda silo: decimal(silo.perplexity, 1), "codewords in effective use"),
        *others,
        *_calibration(run, silos),
        *metrics[2:],
        _count("train", silos, "n_train", "samples to train on"),
        _count(run.split, silos, f"n_{run.split}", "samples that the figures of this table come from"),
        _classes(run, silos),
    ]
    return table(columns)


def _per_silo(header: str, silos: Sequence[SiloRecord], write: Callable[[SiloRecord], str], help: str) -> HtmlColumn:
    return HtmlColumn(header, [*(HtmlCell(write(silo)) for silo in silos), HtmlCell(""), HtmlCell("")], help)


def _count(header: str, silos: Sequence[SiloRecord], name: str, help: str) -> HtmlColumn:
    counts = [getattr(silo, name, None) for silo in silos]
    return HtmlColumn(
        header, [*(HtmlCell("" if n is None else f"{n:,}") for n in counts), HtmlCell(""), HtmlCell("")], help
    )


def _classes(run: RunFolder, silos: Sequence[SiloRecord]) -> HtmlColumn:
    names = (run.summary.classes if run.summary else None) or []

    def spark(counts: Sequence[int]) -> Markup:
        return sparkline(counts, names if len(names) == len(counts) else list(map(str, range(len(counts)))))

    cells = [HtmlCell(spark(silo.class_counts) if silo.class_counts else "") for silo in silos]
    return HtmlColumn("classes", [*cells, HtmlCell(""), HtmlCell("")], "training samples per class", words=True)


def _calibration(run: RunFolder, silos: Sequence[SiloRecord]) -> list[HtmlColumn]:
    values = metric_column(run, [silo.name for silo in silos], "ece")
    worst = next((silo for silo in silos if run.worst and silo.name == run.worst.silo), None)
    metrics: list[Metrics | None] = [*(silo.test for silo in silos), run.mean, worst.test if worst else None]
    return [
        HtmlColumn(
            "ECE", [_ece(value, m) for value, m in zip(values, metrics, strict=True)], "expected calibration error"
        ),
        HtmlColumn(
            "ECE by chance",
            [HtmlCell(_band(m)) for m in metrics],
            "what a perfectly calibrated model would show on as many samples: mean to 95 % quantile",
        ),
    ]


def _ece(value: float | None, metrics: Metrics | None) -> HtmlCell:
    above = metrics is not None and metrics.ece_above_chance
    return HtmlCell(decimal(value), "above what chance explains" if above else "")


def _band(metrics: Metrics | None) -> str:
    band = metrics.ece_null if metrics else None
    return f"{band.mean:.3f} to {band.upper:.3f}" if band else ""


def method_table(run: RunFolder) -> HtmlTable | None:
    """This method's figures over those of the methods beside it."""
    runs = {run.title: run, **run.comparable}
    if len(runs) == 1:
        return None
    worst = [f"{percent(r.worst.accuracy)} ({r.worst.silo})" if r.worst else "" for r in runs.values()]
    return table(
        [
            HtmlColumn("method", [HtmlCell(name) for name in runs], words=True),
            HtmlColumn("mean accuracy", [HtmlCell(percent(r.mean.accuracy)) for r in runs.values()]),
            HtmlColumn("mean entropy", [HtmlCell(decimal(r.mean.entropy)) for r in runs.values()]),
            HtmlColumn("worst silo", list(map(HtmlCell, worst))),
            HtmlColumn("rounds", [HtmlCell(str(r.rounds_run)) for r in runs.values()]),
        ]
    )


def temperatures(run: RunFolder) -> str:
    """In words; empty for a run without temperature scaling."""
    found = run.summary.temperature if run.summary else {}
    return ", ".join(f"{value:.3g} for the {name} model" for name, value in found.items())


def milestone_table(run: RunFolder) -> HtmlTable | None:
    """One row per milestone, one column per number that any of them has."""
    milestones = run.summary.milestones if run.summary else []
    first = ("round", "iteration", "threshold", "lowest", "highest")
    found = dict.fromkeys(name for milestone in milestones for name in milestone)
    names = [*(name for name in first if name in found), *(name for name in found if name not in first)]
    if not names:
        return None
    units = {"lowest": "lowest entropy", "highest": "highest entropy"}
    return table(
        [HtmlColumn(units.get(name, name), [HtmlCell(_number(m.get(name))) for m in milestones]) for name in names],
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"


def cost_table(run: RunFolder) -> HtmlTable | None:
    """Traffic and wall-clock time, in total and per round."""
    if run.summary is None:
        return None
    traffic, rounds = run.summary.traffic, run.rounds_run
    sent = [("sent by silos", traffic.bytes_up), ("sent to silos", traffic.bytes_down)] if traffic else []
    rows = [(name, size(n), size(n / rounds) if rounds else "") for name, n in sent if n is not None]
    for name, seconds in run.summary.seconds.items():
        rows.append((f"time to {name}" if name != "engine" else "time of the engine", *_seconds(seconds, rounds)))
    headers = ("", "in total", "per round")
    if not rows:
        return None
    return table([HtmlColumn(headers[i], [HtmlCell(row[i]) for row in rows], words=i == 0) for i in range(3)])


def costs(run: RunFolder) -> list[tuple[str, str]]:
    """What all of it took, in short."""
    if run.summary is None:
        return []
    sent, seconds = run.summary.traffic and run.summary.traffic.bytes_up, sum(run.summary.seconds.values())
    found = [("sent by silos", size(sent) if sent else ""), ("time", _seconds(seconds, 0)[0] if seconds else "")]
    return [each for each in found if each[1]]


def _seconds(seconds: float, rounds: int) -> tuple[str, str]:
    total = f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
    return total, f"{seconds / rounds:.3g} s" if rounds else ""
