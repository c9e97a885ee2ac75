"""A comparison as text: tables in GitHub's Markdown, and CSV."""

import csv
import io
from collections.abc import Sequence

from ...core.text import MINUS
from ...files import as_text
from ...files.schema import ComparedMethod, ComparedRun, Comparison, ContrastRecord, Measure, Result
from ...html.comparison.verdict import winner
from ...html.comparison.wording import contrast_name, contrast_verdict, gap_interval, gap_of, scope

COSTS = ("rounds", "seconds", "bytes_up", "bytes_down")


def per_run(record: Comparison) -> str:
    """Return CSV with a line per method, setting, seed and silo, and one line with silo "" for metrics of the run."""
    measures = [measure.name for measure in record.measures]
    file = io.StringIO(newline="")
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(("row", "column", "seed", "status", "error", "tuned", *COSTS, "silo", "domain", *measures))
    for run in record.cells:
        tuned = " ".join(f"{key}={value}" for key, value in run.tuned.items())
        costs = (getattr(run, cost) for cost in COSTS)
        words = (as_text(run.row), as_text(run.column), run.seed, run.status, as_text(run.error), as_text(tuned))
        about = (*words, *costs)
        if run.figures or run.status != "done":
            lines.writerow((*about, "", "", *(run.figures.get(name) for name in measures)))
        for silo in run.silos:
            if silo.figures:
                lines.writerow(
                    (*about, as_text(silo.name), as_text(silo.domain), *(silo.figures.get(name) for name in measures))
                )
    return file.getvalue()


def markdown(record: Comparison) -> str:
    """Return contrasts, means with 95 % intervals, the paper's results in brackets, tests, tuning, costs, failures."""
    return "\n\n".join([*contrasts(record), *measured(record), *differences(record), *about(record)]) + "\n"


def measured(record: Comparison) -> list[str]:
    """Return a table per metric."""
    return [_measured(record, measure) for measure in record.measures]


def about(record: Comparison) -> list[str]:
    """Return tuned values, costs and failures."""
    return [part for part in (_costs(record), _failures(record)) if part]


def contrasts(record: Comparison) -> list[str]:
    """Return the contrasts with their verdicts; empty without contrasts."""
    lines = [
        f"- {each.claim}. {contrast_name(each)}: {_difference(each)}**{contrast_verdict(record, each)}**"
        for each in record.contrasts
    ]
    head = (
        "The following contrasts have 95 % intervals over seeds and test inputs. Differences of fractions, such as "
        "accuracies, are in percentage points. The intervals of contrasts that are not decided are corrected for the "
        "number of contrasts:"
    )
    return ["\n".join([head, "", *lines])] if lines else []


def _difference(contrast: ContrastRecord) -> str:
    mean = gap_of(contrast, contrast.mean).replace(MINUS, "-")
    return f"{mean} ({gap_interval(contrast).replace(MINUS, '-')}), " if mean else ""


def _measured(record: Comparison, measure: Measure) -> str:
    """Return a metric of all methods and settings, with the worst silo for metrics of silos."""
    results = {
        method.name: [record.result(method, setting, measure) for setting in record.columns] for method in record.rows
    }
    worst = any(result.worst is not None for found in results.values() for result in found)
    heads = [part for setting in record.columns for part in (setting.name or measure.name, *(["worst silo"] * worst))]
    unit = " (%)" if measure.percent else ""
    lines = [f"**{measure.name}{unit}**", "", *_head(["", *heads])]
    for method in record.rows:
        cells = []
        for setting, found in zip(record.columns, results[method.name], strict=True):
            bold = "**" * (found.row == winner(record, setting, measure))
            cells.append(_cell(measure, found, record.printed(method, setting, measure), bold))
            cells += [_number(measure, found.worst)] * worst
        lines.append(_line([method.name, *cells]))
    return "\n".join(lines)


def _cell(measure: Measure, found: Result, paper: float | None, bold: str) -> str:
    text = f"{bold}{_number(measure, found.mean)}{bold}" if found.mean is not None else ""
    if found.low is not None:
        text += f" ({_number(measure, found.low)} to {_number(measure, found.high)})"
    if found.failed:
        text += f" {found.failed} failed"
    if paper is not None:
        text += f" [{_number(measure, paper)}]"
    return text.strip()


def differences(record: Comparison) -> list[str]:
    """Return the pairs that differ in the first metric, with simultaneous intervals, and the number of pairs; empty
    without pairs."""
    measure, lines = record.measures[0], []
    for setting in record.columns:
        pairs = record.results(setting, measure).pairs
        surely = [pair for pair in pairs if pair.p_adjusted is not None and pair.p_adjusted < 0.05]
        shown = ", ".join(
            f"{p.a} - {p.b} {'+' * ((p.mean or 0.0) > 0)}{_number(measure, p.mean)} "
            f"({_number(measure, p.low)} to {_number(measure, p.high)}, p = {p.p_adjusted:.3f})"
            for p in surely
        )
        where = f"{setting.name}: " if setting.name else ""
        lines += [f"- {where}{shown or 'none'}, of {len(pairs)} pairs."] * bool(pairs)
    seeds = max((result.seeds for table in record.tables for result in table.rows), default=0)
    where = scope(record.results(record.columns[0], measure))
    test = f"{seeds} seeds; simultaneous 95 % intervals, and p-values corrected for all pairs, for {where}"
    return ["\n".join([f"Pairs that differ in {measure.name} ({test}):", "", *lines])] if lines else []


def _costs(record: Comparison) -> str:
    """Return the tuned values and the cost of a run, averaged over seeds."""
    heads = [f"tuned {record.tuning.key}"] if record.tuning else []
    each = [*heads, "rounds", "s", "MB up", "MB down"]
    names = [setting.name for setting in record.columns]
    lines = _head(["", *(f"{head}, {name}" if name else head for name in names for head in each)])
    return "\n".join([*lines, *(_line([method.name, *_costs_of(record, method)]) for method in record.rows)])


def _costs_of(record: Comparison, method: ComparedMethod) -> list[str]:
    cells = []
    for setting in record.columns:
        runs, done = record.runs(method, setting), record.runs(method, setting, "done")
        cells += [", ".join(dict.fromkeys(str(value) for run in runs for value in run.tuned.values()))] * bool(
            record.tuning
        )
        cells += [_mean(done, "rounds"), _mean(done, "seconds")]
        cells += [_mean(done, cost, 1e-6) for cost in ("bytes_up", "bytes_down")]
    return cells


def _failures(record: Comparison) -> str:
    trials = [
        f"- {_place(run)}, tuning, {trial.value}: failed: {trial.error.splitlines()[-1]}"
        for run in record.cells
        for trial in run.tuning
        if trial.error
    ]
    lines = [
        f"- {_place(run)}, seed {run.seed}: {run.status}" + (f": {run.error.splitlines()[-1]}" if run.error else "")
        for run in record.cells
        if run.status != "done"
    ]
    return "\n".join(["Runs without metrics:", "", *lines, *trials]) if lines or trials else ""


def _place(run: ComparedRun) -> str:
    return f"{run.row}, {run.column}" if run.column else run.row


def _mean(runs: Sequence[ComparedRun], name: str, scale: float = 1.0) -> str:
    return f"{scale * sum(getattr(run, name) for run in runs) / len(runs):.3g}" if runs else ""


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|" + "|".join(["---", *["---:"] * (len(cells) - 1)]) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _number(measure: Measure, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}" if measure.percent else f"{value:.3f}"
