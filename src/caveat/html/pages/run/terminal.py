"""The result tables of a run for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from ....core.text import decimal, listed, percent, plain
from ....files.run_folder import RunFolder
from ....files.schema.figures import Metrics
from ....files.schema.summary import SiloRecord
from .beside_majority import Ranged, judged, judged_together
from .streams import abstains, accuracy, accuracy_answered, label, models, streams

Cells = tuple[str, ...]
_MOST_ABSENT = 12
"""Silos without figures that a title names."""


def result_table(run: RunFolder) -> Table:
    """One row per silo, then the mean over silos and the worst silo.

    Columns that no silo has a value for are left out. With runs beside this one, their accuracy and entropy
    follow, headed by the method. Figures are of the test split, of validation while the run is unfinished.
    """
    columns = [column for column in _columns(run) if any(cell for cell in column[1])]
    # No padding: with one method beside, names of usual length then fit 80 columns.
    table = Table(title=_title(run), title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for header, _ in columns:
        justify: JustifyMethod = "left" if header in ("silo", "domain") else "right"
        table.add_column(Text(header), justify=justify, vertical="bottom", overflow="fold", no_wrap=justify == "right")
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    for i, row in enumerate(rows):
        # Text, not str: a silo's name may hold brackets, which rich would take for markup.
        table.add_row(*(Text(cell) for cell in row), end_section=i == len(run.silos) - 1)
    return table


def _title(run: RunFolder) -> Text:
    state = "" if run.complete else f", unfinished after round {run.rounds_run}: figures of {run.split}"
    without = f", without {listed(list(map(plain, run.absent)), _MOST_ABSENT)}" if run.absent else ""
    return Text(f"{run.title}, {len(run.silos)} silos{without}{state}")


def model_table(run: RunFolder) -> Table | None:
    """The accuracy of every model per stream of test inputs, then how many were abstained from and what that spared.

    None where there was nothing to decide. Accuracies are means over silos, the last two rows are of all inputs.
    """
    tested = streams(run)
    if not tested:
        return None
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column(Text("accuracy on test inputs"))
    for name in tested:
        table.add_column(Text(name), justify="right")
    rows = {label(run, model): [accuracy(*each, model) for each in tested.items()] for model in models(tested)}
    last = len(rows) - 1
    if abstains(tested):
        rows["of those answered"] = [accuracy_answered(*each) for each in tested.items()]
        rows["abstained from"] = [stream.decisions.get("abstain") for stream in tested.values()]
    for i, (header, values) in enumerate(rows.items()):
        table.add_row(Text(header), *(Text(percent(value) or "-") for value in values), end_section=i == last)
    return table


def class_table(run: RunFolder) -> Table | None:
    """Of two classes: what each silo's figures of them are, and what the majority comes to. None for other runs."""
    if run.summary is None or run.summary.classification is None or not run.summary.classification.positive:
        return None
    title = (
        f"{plain(run.summary.classification.positive)!r}, in %, with 95 % intervals over test inputs; majority: always "
    )
    title += "the most frequent class of the silo's training data"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column(Text("silo"), vertical="bottom", overflow="fold")
    for header in ("test", "accuracy", "majority", "sensitivity", "specificity", "AUROC"):
        table.add_column(Text(header), justify="right", vertical="bottom", no_wrap=True)
    rows = [(silo.name, each) for silo, each in zip(run.silos, judged(run), strict=True)]
    for i, (name, each) in enumerate([*rows, ("pooled", judged_together(run))]):
        most = f"{100 * each.majority.share:.0f}" if each.majority else ""
        cells = [_ranged(figure) for figure in (each.accuracy, each.sensitivity, each.specificity, each.auroc)]
        written = [plain(name), f"{each.inputs:,}", cells[0], most, *cells[1:]]
        table.add_row(*map(Text, written), end_section=i == len(rows) - 1)
    return table


def _ranged(found: Ranged | None) -> str:
    if found is None:
        return ""
    bounds = f" ({100 * found.interval[0]:.0f}\N{EN DASH}{100 * found.interval[1]:.0f})" if found.interval else ""
    return f"{100 * found.value:.0f}{bounds}"


def _columns(run: RunFolder) -> list[tuple[str, Cells]]:
    silos = run.silos
    worst = run.worst.silo if run.worst else ""
    own = f"{run.title}\n" if run.comparable else ""
    names = [silo.name for silo in silos]

    def of(other: RunFolder, prefix: str) -> list[tuple[str, Cells]]:
        accuracies, entropies = (metric_column(other, names, metric, worst) for metric in ("accuracy", "entropy"))
        return [(f"{prefix}accuracy", (*map(percent, accuracies),)), (f"{prefix}entropy", (*map(decimal, entropies),))]

    columns: list[tuple[str, Cells]] = [
        ("silo", (*names, "mean", f"worst {worst}".rstrip())),
        ("domain", (*(silo.domain for silo in silos), "", "")),
        *of(run, own),
        *([] if run.comparable else of_models(silos)),
        ("codewords", (*(str(silo.codewords or "") for silo in silos), "", "")),
        ("perplexity", (*(decimal(silo.perplexity, 1) for silo in silos), "", "")),
        ("label\nin set", (*map(percent, metric_column(run, names, "set_coverage", worst)),)),
        ("classes\nin set", (*map(decimal, metric_column(run, names, "set_size", worst)),)),
    ]
    for name, other in run.comparable.items():
        columns += of(other, f"{name}\n")
    return columns


MODELS = {"local": "own\nmodel", "global": "federation's\nmodel"}
"""Two models that a silo may have at hand, and how a column with their accuracy is headed."""


def of_models(silos: Sequence[SiloRecord]) -> list[tuple[str, Cells]]:
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
