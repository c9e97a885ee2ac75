"""The tables of the page, as rows of written cells; a section that the run has nothing for is None."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup, escape

from ....core.text import count, decimal, duration, percent, plural, size
from ....files.run_folder import RunFolder
from ....files.schema.figures import Metrics
from ....files.schema.summary import SiloRecord
from ...charts.diagrams import sparkline
from ...charts.svg import element
from ...tables import Cell, Column, Table, column, table, words

_EPISTEMIC = "what the model does not know (mutual information, corrected for few samples), in nats"
METRICS: tuple[tuple[str, str, Callable[[float | None], str], str], ...] = (
    ("accuracy", "accuracy", percent, "share of right predictions, those that were abstained from included"),
    ("entropy", "entropy", decimal, "mean total uncertainty of a prediction, in nats"),
    ("aleatoric", "aleatoric", decimal, "what lies in the data, however well a model knows them, in nats"),
    ("epistemic", "epistemic", decimal, _EPISTEMIC),
    ("nll", "NLL", decimal, "negative log-likelihood, in nats; lower is better"),
    ("brier", "Brier", decimal, "squared distance of probabilities and outcome; lower is better"),
    ("auroc_error", "AUROC error", decimal, "how well uncertainty tells errors from hits; 0.5 is chance, 1 is best"),
    ("augrc", "AUGRC", decimal, "area under the generalised risk-coverage curve; lower is better"),
    ("set_coverage", "label in set", percent, "share of prediction sets that hold the label"),
    ("set_size", "classes in set", decimal, "mean number of classes in a prediction set"),
)


MODELS = {"local": "own\nmodel", "global": "federation's\nmodel"}
"""Two models that a silo may have at hand, and how a column with their accuracy is headed."""


def of_models(silos: Sequence[SiloRecord]) -> list[tuple[str, tuple[str, ...]]]:
    """What the silos' own models are, and the accuracy of each of two models; cells are empty without."""
    about = [("model", (*(silo.model for silo in silos), "", ""))]
    both = [silo for silo in silos if MODELS.keys() <= silo.models.keys()]
    for name, header in MODELS.items():
        found = [silo.models[name].accuracy if name in silo.models else None for silo in silos]
        # A mean over the silos that have both, so that the two can be compared.
        known = [value for silo in both if (value := silo.models[name].accuracy) is not None]
        about.append((header, (*map(percent, found), percent(sum(known) / len(known)) if known else "", "")))
    return about


def metric_column(run: RunFolder, names: Sequence[str], metric: str, worst: str) -> list[float | None]:
    """A metric of the silos called `names`, then the mean over them, then that of one of them, called `worst`.

    There is no mean where the run has figures of other silos than these.
    """
    found: dict[str, SiloRecord] = {silo.name: silo for silo in run.silos}

    def value(metrics: Metrics | None) -> float | None:
        number = getattr(metrics, metric, None)
        return number if isinstance(number, float) else None

    figures = [value(found[name].test) if name in found else None for name in names]
    mean = value(run.mean) if found.keys() == set(names) else None
    return [*figures, mean, value(found[worst].test) if worst in found else None]


OF_MODELS = "architecture of the silo's own model, and accuracy of either model on all of the silo's test samples"


def silo_table(run: RunFolder) -> Table | None:
    """A row per silo, then the mean over silos, and once more the silo of lowest accuracy, by all methods."""
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
        column("train", [*map(count, counts[0]), *last], "samples to train on"),
        column(run.split, [*map(count, counts[1]), *last], "samples that the figures of this table come from"),
        words("classes", [*(_classes(run, silo) for silo in silos), *last], "training samples per class"),
    ]
    flags = any(header.header == "ECE by chance" and any(cell.text for cell in header.cells) for header in columns)
    about = "; worst is the silo of lowest accuracy" if worst else ""
    about += "; a triangle marks an ECE above what chance explains." if flags else "."
    return table(columns, f"Figures of each silo on its own {run.split} samples, entropies in nats{about}", names, 2)


def _classes(run: RunFolder, silo: SiloRecord) -> str:
    counts, names = silo.class_counts, (run.summary.classes if run.summary else None) or []
    if not counts:
        return ""
    return sparkline(counts, names if len(names) == len(counts) else list(map(str, range(len(counts)))))


def _calibration(run: RunFolder, names: Sequence[str], worst: str) -> list[Column]:
    values = metric_column(run, names, "ece", worst)
    of_worst = next((silo.test for silo in run.silos if silo.name == worst), None)
    metrics: list[Metrics | None] = [*(silo.test for silo in run.silos), run.mean, of_worst]
    about = "what a perfectly calibrated model would show on as many samples: mean to 95 % quantile"
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


def method_table(run: RunFolder) -> Table | None:
    """This method's figures over those of the methods beside it, over the silos that all of them have."""
    runs = {run.title: run, **run.comparable}
    if len(runs) == 1:
        return None
    shared = set.intersection(*({silo.name for silo in each.silos} for each in runs.values()))
    found = {name: over(each, shared) for name, each in runs.items()}
    columns = [
        words("method", runs),
        column("mean accuracy", (percent(each.accuracy) for each in found.values())),
        column("mean entropy", (decimal(each.entropy) for each in found.values())),
        column("worst silo", (each.worst for each in found.values())),
        column("rounds", (str(r.rounds_run) for r in runs.values())),
    ]
    silos = plural(len(shared), "silo")
    caption = f"The same data and budget by other methods, over {silos}; each method's own worst silo."
    if any(len(each.silos) > len(shared) for each in runs.values()):
        caption += " Silos that not all of these methods have are left out."
    return table(columns, caption)


@dataclass(frozen=True)
class OverSilos:
    """What a method comes to over some of its silos."""

    accuracy: float | None
    entropy: float | None
    worst: str


def over(run: RunFolder, names: Collection[str]) -> OverSilos:
    """The means over silos of these names, and the one of lowest accuracy."""
    if len(names) == len(run.silos):
        worst = f"{percent(run.worst.accuracy)} ({run.worst.silo})" if run.worst else ""
        return OverSilos(run.mean.accuracy, run.mean.entropy, worst)
    tests = {silo.name: silo.test for silo in run.silos if silo.name in names}
    accuracies = {name: test.accuracy for name, test in tests.items() if test.accuracy is not None}
    entropies = [test.entropy for test in tests.values() if test.entropy is not None]
    lowest = min(accuracies, key=lambda name: (accuracies[name], name), default="")
    return OverSilos(
        fmean(accuracies.values()) if accuracies else None,
        fmean(entropies) if entropies else None,
        f"{percent(accuracies[lowest])} ({lowest})" if lowest else "",
    )


def temperatures(run: RunFolder) -> str:
    """In words; empty for a run without temperature scaling."""
    if run.summary is None:
        return ""
    spread = run.summary.temperature_spread
    factors = {name: f" (silos' own typically within a factor of {math.exp(by):.3g})" for name, by in spread.items()}
    found = run.summary.temperature.items()
    return ", ".join(f"{value:.3g} for the {name} model{factors.get(name, '')}" for name, value in found)


def milestone_table(run: RunFolder) -> Table | None:
    """One row per milestone, one column per number that any of them has."""
    milestones = run.summary.milestones if run.summary else []
    first = ("round", "iteration", "threshold", "lowest", "highest")
    found = dict.fromkeys(name for milestone in milestones for name in milestone)
    names = [*(name for name in first if name in found), *(name for name in found if name not in first)]
    units = {"lowest": "lowest entropy", "highest": "highest entropy"}
    columns = [column(units.get(name, name), (_number(m.get(name)) for m in milestones)) for name in names]
    if "threshold" in found:
        caption = "What the server measured and decided on the way, a row whenever it changed; uncertainties in nats."
    else:
        caption = "What the method reported of the server's state, by round."
    return table(columns, caption)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"


def cost_table(run: RunFolder) -> Table | None:
    """Traffic and wall-clock time, in total and per round; what silos send for figures is known by the ledger alone."""
    if run.summary is None:
        return None
    traffic, rounds = run.summary.traffic, run.rounds_run
    measuring = [("sent by silos for figures", run.sent.total.measuring)] if run.sent else []
    sent = (
        [("sent by silos in rounds", traffic.bytes_up), *measuring, ("sent to silos in rounds", traffic.bytes_down)]
        if traffic
        else []
    )
    rows = [(name, size(n), size(n / rounds) if rounds else "") for name, n in sent if n is not None]
    for name, seconds in run.summary.seconds.items():
        called = f"time to {name}" if name != "engine" else "time of the engine"
        rows.append((called, _time(seconds), f"{seconds / rounds:.3g} s" if rounds else ""))
    if not rows:
        return None
    names, totals, each = zip(*rows, strict=True)
    columns = [words("", names), column("in total", totals), column("per round", each)]
    about = "" if not measuring else " What silos sent is by silo and tensor under What left the silos."
    return table(columns, f"What the run moved and how long it took, on the machine that ran it.{about}")


def headline(run: RunFolder) -> list[tuple[str, str]]:
    """How large the run was and what all of it took, in short."""
    count, summary = len(run.silos), run.summary
    of = Markup(" ") + element("small", f"of {count + len(run.absent)}") if run.absent else ""
    nats = Markup(" ") + element("small", "nats")
    # All that left them, as the ledger has it, where there is one.
    rounds = summary.traffic.bytes_up if summary and summary.traffic else None
    sent = run.sent.total.bytes if summary and run.sent else rounds
    seconds = sum(summary.seconds.values()) if summary else 0
    early = Markup(" ") + element("small", "ended early") if summary and summary.stopped else ""
    begun = Markup(" ") + element("small", f"begun with {run.numbers[0]}") if run.numbers else ""
    found = [
        ("silos", escape(count) + of if count else ""),
        ("rounds", escape(run.rounds_run) + early + begun),
        ("mean entropy", decimal(run.mean.entropy) + nats if run.mean.entropy is not None else ""),
        ("sent by silos", size(sent) if sent else ""),
        ("time", _time(seconds) if seconds else ""),
    ]
    return [each for each in found if each[1]]


def _time(seconds: float) -> str:
    return duration(seconds, tenths=120)
