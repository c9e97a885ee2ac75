"""All metrics of each silo, in one table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat

from ...core.text import count, decimal, percent, plural
from ...files import RunFolder
from ...files.schema import INSIDE, Metrics, SiloRecord
from ..diagrams import sparkline
from ..templates import Table, column, table, words
from .classification import called, too_few

_EPISTEMIC = "uncertainty of the model (mutual information, corrected for few samples), in nats"
METRICS: tuple[tuple[str, str, Callable[[float | None], str], str], ...] = (
    ("accuracy", "accuracy", percent, "share of correct predictions, including those that were abstained from"),
    ("entropy", "entropy", decimal, "mean total uncertainty of a prediction, in nats"),
    ("aleatoric", "aleatoric", decimal, "uncertainty of the data, which a better model does not reduce, in nats"),
    ("epistemic", "epistemic", decimal, _EPISTEMIC),
    ("nll", "NLL", decimal, "negative log-likelihood, in nats; lower is better"),
    ("brier", "Brier", decimal, "squared distance between probabilities and outcome; lower is better"),
    ("auroc_error", "AUROC error", decimal, "how well uncertainty detects errors; 0.5 is chance, 1 is best"),
    ("augrc", "AUGRC", decimal, "area under the generalized risk-coverage curve; lower is better"),
    ("auroc", "AUROC", decimal, "mean over classes; 0.5 is chance, 1 is best"),
    ("balanced_accuracy", "balanced accuracy", percent, "for the most probable class"),
    ("f1", "F1", decimal, "for the most probable class"),
    ("average_precision", "average precision", decimal, "chance is the share of the class, 1 is best"),
    ("set_coverage", "label in set", percent, "share of prediction sets that contain the label"),
    ("set_size", "classes in set", decimal, "mean number of classes in a prediction set"),
)
MODELS = {"local": "own\nmodel", "global": "federation's\nmodel"}
"""The two models of a silo, with the headings of their accuracy."""


def of_models(silos: Sequence[SiloRecord]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the silos' architectures, and the accuracy of local and global models; empty where unknown."""
    about = [("model", (*(silo.model for silo in silos), "", ""))]
    both = [silo for silo in silos if MODELS.keys() <= silo.models.keys()]
    for name, header in MODELS.items():
        found = [silo.models[name].accuracy if name in silo.models else None for silo in silos]
        # The mean is over silos with both models, so that the two means are comparable.
        known = [value for silo in both if (value := silo.models[name].accuracy) is not None]
        about.append((header, (*map(percent, found), percent(sum(known) / len(known)) if known else "", "")))
    return about


def metric_column(run: RunFolder, names: Sequence[str], metric: str, worst: str) -> list[float | None]:
    """Return a metric of the silos `names`, then the mean over them, then the value of the silo `worst`. The mean is
    None unless `names` are all silos of the run."""
    found: dict[str, SiloRecord] = {silo.name: silo for silo in run.silos}

    def value(metrics: Metrics | None) -> float | None:
        number = getattr(metrics, metric, None)
        return number if isinstance(number, float) else None

    figures = [value(found[name].test) if name in found else None for name in names]
    mean = value(run.mean) if found.keys() == set(names) else None
    return [*figures, mean, value(found[worst].test) if worst in found else None]


OF_MODELS = "architecture of the silo's local model, and accuracy of both models on all of the silo's test samples"


def metric_table(run: RunFolder) -> Table | None:
    """Return a row per silo with the metrics that the table of silos lacks, then the mean over silos and the silo with
    the lowest accuracy, and accuracy and entropy of baselines."""
    silos, names = run.silos, [silo.name for silo in run.silos]
    worst = run.worst.silo if run.worst and not too_few(run) else ""
    metrics = [
        column(header, map(write, metric_column(run, names, metric, worst)), help)
        for metric, header, write, help in METRICS[1:]
    ]
    others = [
        column(f"{called(name)} {header}", map(write, metric_column(other, names, metric, worst)), help)
        for name, other in run.comparable.items()
        for metric, header, write, help in METRICS[:2]
    ]
    last = ["", ""]
    columns = [
        words("silo", [*names, "mean", f"worst {worst}".rstrip()]),
        column("ECE (by chance)", [*(_ece(silo.test) for silo in silos), *last], _ECE),
        *metrics,
        *(column(" ".join(header.split()), cells, OF_MODELS) for header, cells in of_models(silos)),
        column("codewords", [*(str(s.codewords or "") for s in silos), *last], "shared + the silo's own"),
        column("perplexity", [*(decimal(s.perplexity, 1) for s in silos), *last], "effective number of codewords"),
        *(column(f"answered by {name}", [*map(_decided, silos, repeat(name)), *last], _OF_OWN) for name in MODELS),
        *others,
        column("train", [*(count(silo.n_train) for silo in silos), *last], "training samples"),
        column(
            "threshold", [*map(_threshold, silos), *last], "probability above which an input is predicted as positive"
        ),
        words("classes", [*(_classes(run, silo) for silo in silos), *last], "training samples per class"),
    ]
    if not any(cell.text for each in columns[1:] for cell in each.cells):
        return None
    about = "; worst is the silo with the lowest accuracy" if worst else ""
    if not worst:
        columns = [replace(each, cells=each.cells[:-1]) for each in columns]
    caption = f"More metrics on each silo's own {run.split} inputs, entropies in nats{about}."
    return table(columns, caption, names, 2 if worst else 1)


_OF_OWN = "share of the silo's own test inputs"


_ECE = "expected calibration error; in brackets, the largest that chance explains"


def _ece(test: Metrics) -> str:
    band = f" ({test.ece_null.upper:.3f})" if test.ece_null else ""
    return f"{decimal(test.ece)}{band}" if test.ece is not None else ""


def _decided(silo: SiloRecord, model: str) -> str:
    """Return the share of inputs that a model answered; empty without a choice between two models."""
    found = silo.streams.get(INSIDE)
    return percent(found.decisions.get(model, 0.0)) if found and len(found.models) > 1 else ""


def _threshold(silo: SiloRecord) -> str:
    at = silo.classification.operating if silo.classification else None
    if at is None or at.threshold is None:
        return ""
    return decimal(at.threshold) if at.whose == "silo" else f"{decimal(at.threshold)} (federation's)"


def _classes(run: RunFolder, silo: SiloRecord) -> str:
    counts, names = silo.class_counts, (run.summary.classes if run.summary else None) or []
    if not counts:
        return ""
    return sparkline(counts, names if len(names) == len(counts) else list(map(str, range(len(counts)))))


def own_metrics(run: RunFolder) -> Table | None:
    """Return a row per silo, then the mean over silos and the worst of each metric; None without such metrics."""
    summary = run.summary
    if summary is None or not summary.metrics:
        return None
    names = [silo.name for silo in run.silos]
    metrics = {silo.name: silo.metrics for silo in summary.silos}
    columns = [words("silo", [*names, "mean", "worst of each"])]
    for name, over in summary.metrics.items():
        values = [metrics.get(silo, {}).get(name) for silo in names]
        better = "higher" if over.higher_is_better else "lower"
        about = f"{better} is better; defined at {plural(over.silos, 'silo')}"
        columns.append(column(name, map(decimal, (*values, over.mean, over.worst)), about))
    return table(columns, "Custom metrics on each silo's test split; undefined metrics are omitted.",
                 names, 2)  # fmt: skip
