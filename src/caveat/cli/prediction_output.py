"""Predictions as CSV, and as the content of the page about them."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ..core import Decision, Prediction, Reason
from ..core.text import plural
from ..data.preprocessing import Inputs
from ..data.tables.encoding import Encoder
from ..files import as_text, read_run, record_of
from ..files.checkpoints import hashes
from ..files.schema import Gallery, SiloRecord, Summary, WarningRecord
from ..html.predicted_inputs import NOTHING, PredictedInputs, namesake
from ..html.run.at_silo import at_silo
from ..runs.finished_run import Run


def prediction_rows(
    prediction: Prediction, classes: Sequence[str], others: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str:
    """Return CSV with a row per input, numbered from 0; probabilities and nats have nine significant digits.

    The label of an input whose probabilities are NaN is empty. The column "reason" gives the reason not to rely on the
    label, or "". The column "set" contains the classes of the prediction set, separated by "; ". `others` maps names of
    further columns to their values; a column without values is omitted. For a quantity, see `_quantity_rows`.
    """
    if prediction.target is not None:
        return _quantity_rows(prediction, others)
    numbers = [*prediction.uncertainty.values()]
    columns = ("total_uncertainty" if name == "total" else name for name in prediction.uncertainty)
    header = ["row", "label", *(f"p_{name}" for name in classes), *columns]
    if prediction.log_evidence is not None:
        header.append("log_evidence")
        numbers.append(prediction.log_evidence)
    header += prediction.p_values
    numbers += prediction.p_values.values()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ends = ["decision", "reason", *(["set"] if prediction.sets is not None else [])]
    ends += [name for name, each in others.items() if each]
    writer.writerow([as_text(cell) for cell in (*header, *ends)])
    reasons = [_reason(Reason(reason)) for reason in prediction.reason.tolist()]
    for i, (label, probs) in enumerate(zip(prediction.label.tolist(), prediction.probs.tolist(), strict=True)):
        values = [*probs, *(float(column[i]) for column in numbers)]
        decision = Decision(int(prediction.decision[i])).name.lower()
        known = as_text(classes[label]) if all(map(math.isfinite, probs)) else ""
        cells = [i, known, *(f"{value:.9g}" for value in values), decision, reasons[i]]
        if prediction.sets is not None:
            cells.append(as_text("; ".join(classes[k] for k in prediction.sets[i].nonzero().flatten().tolist())))
        cells += [as_text(each[i]) for each in others.values() if each]
        writer.writerow(cells)
    return text.getvalue()


def _quantity_rows(prediction: Prediction, others: Mapping[str, Sequence[str]]) -> str:
    """Return the CSV of `prediction_rows` for a quantity or a time, with `figures` instead of label and
    probabilities."""
    figures = {} if prediction.target is None else prediction.target.figures(prediction.probs, prediction.interval)
    numbers = {**figures, **prediction.p_values}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = (as_text(name) for name, each in others.items() if each)
    writer.writerow(["row", *numbers, "decision", "reason", *names])
    for i, (decision, reason) in enumerate(zip(prediction.decision.tolist(), prediction.reason.tolist(), strict=True)):
        values = (f"{float(column[i]):.9g}" for column in numbers.values())
        ends = [as_text(each[i]) for each in others.values() if each]
        writer.writerow([i, *values, Decision(decision).name.lower(), _reason(Reason(reason)), *ends])
    return text.getvalue()


def predicted_inputs(prediction: Prediction, found: Inputs, run: Run, silo: str, source: str) -> PredictedInputs:
    """Return the content of the page about predictions for the inputs `found` in the file `source`, without the cells
    of a table."""
    from ..data.sources.base import locate
    from ..runs.gallery import png

    def image(i: int) -> str | None:
        return png(run.preparation, found.x[i]) if run.preparation.normalize is not None else None

    others = [name for name in run.preparation.names if name != silo]
    # a silo's own copy of a federation's model has no summary
    folder = read_run(run.folder) if (run.folder / "summary.json").exists() else None
    summary = folder.summary if folder else None
    tested, limit = (None, None) if summary is None else known_errors(summary, silo)
    own = None if summary is None else _wrong_of(summary.silos, silo)
    advised = NOTHING if folder is None else at_silo(folder, silo)
    confusion, positive = by_class(summary, silo)
    warnings = warnings_at(silo, summary.warnings if summary else ())
    different = len(set(hashes(found.x.numpy()))) if len(found.x) else 0
    features = "codewords" if summary and any(each.codewords for each in summary.silos) else "features"
    return PredictedInputs(
        prediction, run.preparation.classes, run.experiment.method.name, silo, locate(source).name, {}, image,
        found.files, others, tested, own, limit, advised, confusion, positive, warnings,
        of_own(source, run, silo, summary), different, features,
    )  # fmt: skip


def by_class(summary: Summary | None, silo: str) -> tuple[Sequence[Sequence[int]], int | None]:
    """Return a silo's numbers of test inputs by class and most probable class, or () if they are unknown, and the index
    of the positive class, or None if there is none."""
    found = next((each.classification for each in (summary.silos if summary else ()) if each.name == silo), None)
    if summary is None or found is None or not found.confusion:
        return (), None
    names, positive = summary.classes or [], summary.classification.positive if summary.classification else ""
    return found.confusion, names.index(positive) if len(names) == 2 and positive in names else None


def mostly_missing(encoder: Encoder | None) -> set[str]:
    """Return the names of columns with mostly missing values in the reference rows of a silo, which the run keeps."""
    # A silo with few rows has no reference rows.
    columns = zip(encoder.table, encoder.reference.columns, strict=False) if encoder else ()
    return {column.name for column, known in columns if known.missing > len(known.values)}


def has_images(folder: Path, silo: str) -> bool:
    """Return whether the run's report shows images of a silo."""
    from ..html.run.page import within_budget

    gallery = within_budget(record_of(folder / "gallery.json", Gallery))
    own = (each for each in gallery.silos if each.name == silo) if gallery else ()
    return any(item.image for each in own for item in (*each.certain, *each.uncertain))


def of_own(inputs: str, run: Run, silo: str, summary: Summary | None) -> str:
    """Return a warning if the file `inputs` is a file of the run's data, or "" for other files. The warning contains
    the test result of the silo after which the file is named, or else of `silo`."""
    settings = run.experiment.spec.data
    own = settings.source.partition(":")[2].split(",") if settings is not None else ()
    if Path(inputs).absolute() not in [Path(each).absolute() for each in own]:
        return ""
    told = f"{Path(inputs).name} is a file of the run's data, so the model was trained on most of its inputs. Results "
    whose = namesake(inputs, run.preparation.names) or silo
    return f"{told}for new inputs may be worse{right_at(summary, whose)}"


def right_at(summary: Summary | None, silo: str) -> str:
    """Return the end of a sentence, which states how many of a silo's test inputs the run predicted correctly, or where
    this is recorded."""
    from ..html.predictions import rate

    wrong, of = (summary and _wrong_of(summary.silos, silo)) or (0, 0)
    if not of:
        return "; the results for the run's test split are in summary.json." if summary else "."
    told = f"{of - wrong:,} of {of:,} answered test inputs in the run were right ({rate(of - wrong, of)})"
    return f": at silo {silo}, {told}."


def warnings_at(silo: str, warnings: Sequence[WarningRecord]) -> list[str]:
    """Return the run's warnings that concern a silo. One column can cause many warnings about data, so only the first
    of these warnings is returned, with the number of the others."""
    known = [each for each in warnings if silo in (each.silos or [silo])]
    first, *others = [each.sentences for each in known if each.of_data] or [""]
    more = f" The run's report has {plural(len(others), 'more warning')} about data." if others else ""
    return [*(each.sentences for each in known if not each.of_data), *([first + more] if first else [])]


def table_cells(run: Run, silo: str, source: str) -> dict[str, list[str]]:
    """Return the cells of a table with rows to predict, as written in the file, by column; an empty dictionary for
    other inputs."""
    from ..data.sources.base import locate
    from ..data.tables.files import read_sheet

    if not run.preparation.encoders:
        return {}
    path = locate(source)
    sheet = read_sheet(path, run.preparation.encoders[silo].csv_format.of(path.stem, silo).separator)
    return {name: list(map(str, sheet.verbatim(name))) for name in sheet.columns}


def known_errors(summary: Summary, silo: str) -> tuple[tuple[int, int] | None, float | None]:
    """Return the numbers of wrong and of answered test inputs, and a limit of uncertainty or None.

    If the run's report refers inputs above a limit of uncertainty to a person, the numbers count the test inputs of all
    silos up to this limit. Otherwise, they count the test inputs of the silo."""
    curve, inputs = summary.risk_coverage, sum(each.n_test or 0 for each in summary.silos)
    answers_all = all(each.test.coverage in (None, 1.0) for each in summary.silos)
    found = curve.deferral if curve and answers_all else None
    if found is None or found.limit is None:
        return _wrong_of(summary.silos, silo), None
    coverage, risk, limit = found
    answered = round(coverage * inputs)
    return (round(risk * answered), answered), float(f"{limit:.3g}")


def _wrong_of(silos: Sequence[SiloRecord], name: str) -> tuple[int, int] | None:
    """Return the numbers of wrongly answered and of answered test inputs of a silo; None if its test metrics do not
    contain these numbers."""
    found = next((silo for silo in silos if silo.name == name), None)
    if found is None or not found.n_test:
        return None
    share = found.test.accuracy if found.test.answered_accuracy is None else found.test.answered_accuracy
    if share is None:
        return None
    answered = round(found.n_test * (1.0 if found.test.coverage is None else found.test.coverage))
    return answered - round(answered * share), answered


def _reason(reason: Reason) -> str:
    return "" if reason is Reason.NONE else reason.name.lower()
