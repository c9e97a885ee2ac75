"""Text output for runs: result tables, conclusions and the ledger."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup
from rich.text import Text

from ..core.errors import MissingError
from ..core.text import decimal, escaped, named, percent, plain, times
from ..files import RunFolder, Sent, Total, check_file, manifest_of, natural, read_sent, record_of
from ..files.schema import Form, OwnState
from ..html.run.advice import premature
from ..html.run.classification import Ranged, judged, judged_together
from ..html.run.decisions import abstains, accuracy, accuracy_answered, label, models, streams
from ..html.run.quantity_silos import quantity_table
from ..html.run.silo_metrics import metric_column, of_models
from ..html.run.subgroups import subgroup_table
from ..html.run.trust import trust
from ..html.templates import Table
from .tables import Heading, TextTable, breaking, text_table

_WORST, _MOST_SILOS = 10, 20
"""Number of silos in the table of a run with more than `_MOST_SILOS` silos."""
Cells = tuple[str, ...]
_FILE, _KEPT = "ledger.jsonl", "kept.json"
_PARTS = ("delivered", "undone/*", "baselines/*", "baselines/*/delivered")
"""Folders of a run that have their own ledgers."""


def result_table(run: RunFolder) -> TextTable:
    """Return a table with a row per silo, then the mean over silos and the worst silo.

    Of more than 20 silos, only the ten silos with the lowest accuracy have rows. Empty columns are omitted. If other
    methods ran on the same data, each has a column with its accuracy. Metrics are those of the test split, or of the
    validation split if the run is unfinished.
    """
    columns, worst = [column for column in _columns(run) if any(column[1])], ""
    if len(run.silos) > _MOST_SILOS:
        shown = [i for i, _ in sorted(enumerate(run.silos), key=lambda each: each[1].test.accuracy or 0.0)[:_WORST]]
        shown += [len(run.silos), len(run.silos) + 1]
        columns = [(name, tuple(cells[i] for i in shown)) for name, cells in columns]
        worst = f", the {_WORST} with the lowest accuracy"
    heads = [Heading(name, words=name in ("silo", "domain"), wraps=name in ("silo", "domain")) for name, _ in columns]
    state = "" if run.complete else f", unfinished after round {run.rounds_run}: metrics of {run.split}"
    without = f", without {named(run.absent)}" if run.absent else ""
    title = f"{run.title}, {len(run.silos):,} silos{worst}{without}{state}"
    # Without a gap, a table of two methods with short names fits 80 columns.
    rows = zip(*(cells for _, cells in columns), strict=True)
    return text_table(heads, rows, title, ends={len(columns[0][1]) - 3}, vertical="bottom")


def run_conclusion(run: RunFolder) -> list[str]:
    """Return lines with the verdicts and the advice of a run's page; no lines if there are no test metrics."""
    found = None if run.quantity else trust(run)
    if found is None:
        return []
    lines = [f"{line.mark} {Markup(line.text).striptags()}" for line in found.lines]
    lines += ["→ Do not use it yet."] * (premature(run))
    return [escaped(breaking(line)) for line in [*lines, *(f"→ {each.striptags()}" for each in found.advice)]]


def _columns(run: RunFolder) -> list[tuple[str, Cells]]:
    silos = run.silos
    worst = run.worst.silo if run.worst else ""
    own = f"{run.title}\n" if run.comparable else ""
    names = [silo.name for silo in silos]

    def of(other: RunFolder, prefix: str) -> tuple[str, Cells]:
        return f"{prefix}accuracy", (*map(percent, metric_column(other, names, "accuracy", worst)),)

    columns: list[tuple[str, Cells]] = [
        ("silo", (*names, "mean", f"worst {worst}".rstrip())),
        ("domain", (*(silo.domain for silo in silos), "", "")),
        of(run, own),
        (f"{own}entropy", (*map(decimal, metric_column(run, names, "entropy", worst)),)),
        *([] if run.comparable else of_models(silos)),
        ("label\nin set", (*map(percent, metric_column(run, names, "set_coverage", worst)),)),
        ("classes\nin set", (*map(decimal, metric_column(run, names, "set_size", worst)),)),
    ]
    for name, other in run.comparable.items():
        columns.append(of(other, f"{name}\n"))
    return columns


def model_table(run: RunFolder) -> TextTable | None:
    """Return a table of the accuracy of every model per stream of test inputs; None if there was nothing to decide.
    Accuracies are means over silos. If models abstained, two more rows, on abstention, count the inputs of all silos
    together."""
    tested = streams(run)
    if not tested:
        return None
    rows = {label(run, model): [accuracy(*each, model) for each in tested.items()] for model in models(tested)}
    last = len(rows) - 1
    if abstains(tested):
        rows["of those answered"] = [accuracy_answered(*each) for each in tested.items()]
        rows["abstained from"] = [stream.decisions.get("abstain") for stream in tested.values()]
    heads = [
        Heading("accuracy on test inputs", words=True, wraps=True),
        *(Heading(name, wraps=True) for name in tested),
    ]
    cells = ([name, *(percent(value) or "-" for value in values)] for name, values in rows.items())
    return text_table(heads, cells, ends={last})


def class_table(run: RunFolder) -> TextTable | None:
    """Return a table of the positive class's metrics by silo, with the share of the majority class; None if there is no
    positive class."""
    if run.summary is None or run.summary.classification is None or not run.summary.classification.positive:
        return None
    title = (
        f"Results for the class {plain(run.summary.classification.positive)!r} in %, with 95 % intervals over test "
        "inputs. Sensitivity and specificity are measured at thresholds from calibration inputs (see the report). "
        "Majority is the accuracy of always predicting the most frequent class of the silo's training data."
    )
    heads = ("test", "accuracy", "majority", "sensitivity", "specificity", "AUROC")
    rows = []
    found = [(silo.name, each) for silo, each in zip(run.silos, judged(run), strict=True)]
    for name, each in [*found, ("pooled", judged_together(run))]:
        most = f"{100 * each.majority.share:.0f}" if each.majority else ""
        cells = [_ranged(metric) for metric in (each.accuracy, each.sensitivity, each.specificity, each.auroc)]
        rows.append([plain(name), f"{each.inputs:,}", cells[0], most, *cells[1:]])
    made = [Heading("silo", words=True, wraps=True), *map(Heading, heads)]
    return text_table(made, rows, title, ends={len(found) - 1}, vertical="bottom")


def subgroups(run: RunFolder) -> TextTable | None:
    """Return a table with a row per subgroup of inputs; None for a run without subgroups."""
    return _as_text(subgroup_table(run))


def quantity(run: RunFolder) -> TextTable | None:
    """Return a table of errors and intervals with a row per silo; None for a run that does not predict a quantity."""
    return _as_text(quantity_table(run, brief=True))


def _as_text(found: Table | None) -> TextTable | None:
    """Return the table of a page as a table for the terminal."""
    if found is None:
        return None
    heads = [Heading(each.header, words=each.words, wraps=True) for each in found.columns]
    return text_table(heads, ([cell.text for cell in cells] for _, cells in found.rows), vertical="bottom")


def _ranged(found: Ranged | None) -> str:
    if found is None:
        return ""
    bounds = f" ({100 * found.interval[0]:.0f}\N{EN DASH}{100 * found.interval[1]:.0f})" if found.interval else ""
    return f"{100 * found.value:.0f}{bounds}"


def ledger_tables(folder: Path) -> Iterator[Text | TextTable]:
    """Yield tables of the ledgers in a run's folder (the run, later deliveries, undone rounds, and each baseline), or
    of the ledger in a silo's folder of one method.

    Each ledger has a heading and a table of tensors per form of message, and then a heading and a table with a row per
    silo. All sizes are in bytes. Raises MissingError if the folder has no ledger, DataError if a ledger is damaged.
    """
    more = (each for pattern in _PARTS for each in sorted(folder.glob(pattern)))
    found = {part: _sent(part) for part in (folder, *more)}
    ledgers = {path: sent for path, sent in found.items() if sent}
    if not ledgers:
        raise MissingError(_without(folder))
    for path, sent in ledgers.items():
        heading = f"{path.relative_to(folder)}: " if path != folder else ""
        for form in sent.forms.values():
            yield from _tensors(form, sent, heading)
        yield from _silos(sent, heading)


def _sent(folder: Path) -> Sent | None:
    """Return the totals of a folder's ledger; None if it has no messages. Raises DataError if the ledger does not match
    the folder's other files."""
    manifest_of(folder).check(_FILE)
    own = record_of(folder / _KEPT, OwnState)
    if own is not None and own.ledger is not None:
        check_file(folder / _FILE, own.ledger, growing=True)
    return read_sent(folder / _FILE)


def _without(folder: Path) -> str:
    """Return an error message for a folder without a ledger. The message names subfolders with ledgers, because a silo
    has a ledger per federation and method."""
    parts = sorted(str(path.parent) for path in folder.glob(f"*/*/{_FILE}"))
    if parts:
        return f"{folder} has no {_FILE}, but these folders have one: {', '.join(parts)}"
    if (folder / _FILE).exists():
        return f"{folder / _FILE} has no messages yet"
    return f"{folder} has no {_FILE}; expected the folder of a run, or STATE/FEDERATION/METHOD of a silo"


def _tensors(form: Form, sent: Sent, heading: str) -> tuple[Text, TextTable]:
    uses = [f"{use.messages:,} to {plain(purpose)}" for (name, purpose), use in sent.uses.items() if name == form.form]
    title = f"{heading}form {plain(form.form)}, {form.bytes:,} bytes: {', '.join(uses) or 'no message'}"
    rows = [(plain(name), times(t.shape), plain(t.dtype), f"{t.bytes:,}") for name, t in form.tensors.items()]
    return _headed(title, ("tensor", "shape", "type", "bytes"), 3, rows)


def _silos(sent: Sent, heading: str) -> tuple[Text, TextTable]:
    title = f"{heading}what left {'the silo' if len(sent.silos) == 1 else f'{len(sent.silos):,} silos'}, in bytes"
    rows = [(plain(name), *_bytes(sent.silos[name], sent)) for name in sorted(sent.silos, key=natural)]
    if len(rows) > 1:
        rows.append(("all", *_bytes(sent.total, sent)))
    rounds = ("rounds",) if sent.total.rounds else ()
    return _headed(title, ("silo", "messages", *rounds, "training", "measuring"), 1, rows)


def _bytes(total: Total, sent: Sent) -> list[str]:
    rounds = [len(total.rounds)] if sent.total.rounds else []
    return [f"{number:,}" for number in (total.messages, *rounds, total.training, total.measuring)]


def _headed(title: str, heads: Sequence[str], words: int, rows: Sequence[Sequence[str]]) -> tuple[Text, TextTable]:
    """Return a heading and a table whose first `words` columns are text. The heading is not the table's title, because
    a title is wrapped to the width of the table."""
    made = [Heading(name, words=i < words, wraps=i == 0) for i, name in enumerate(heads)]
    return Text(f"\n{title}"), text_table(made, rows)
