"""A comparison as text: tables in GitHub's markdown, and a line per run for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
COSTS = ("rounds", "seconds", "bytes_up", "bytes_down")


def per_run(record: Record) -> str:
    """CSV: a line per row, column, seed and silo, and one with silo "" for figures of the whole run."""
    measures = [measure["name"] for measure in record["measures"]]
    file = io.StringIO(newline="")
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(("row", "column", "seed", "status", "error", "tuned", *COSTS, "silo", "domain", *measures))
    for cell in record["cells"]:
        tuned = " ".join(f"{key}={value}" for key, value in cell["tuned"].items())
        about = (cell["row"], cell["column"], cell["seed"], cell["status"], cell["error"], tuned,
                 *(cell.get(cost) for cost in COSTS))  # fmt: skip
        whole = cell.get("figures") or {}
        if whole or cell["status"] != "done":
            lines.writerow((*about, "", "", *(whole.get(name) for name in measures)))
        for silo in cell.get("silos", ()):
            found = silo["figures"]
            if found:
                lines.writerow((*about, silo["name"], silo["domain"], *(found.get(name) for name in measures)))
    return file.getvalue()


def markdown(record: Record) -> str:
    """Means with 95 % intervals, the paper's figures in brackets, then tuning, costs, tests and failures."""
    return "\n\n".join([*measured(record), *about(record)]) + "\n"


def measured(record: Record) -> list[str]:
    """A table per measure."""
    return [_measured(record, measure) for measure in record["measures"]]


def about(record: Record) -> list[str]:
    """Which pairs differ, what was tuned and spent, what failed."""
    return [part for part in (_differences(record), _costs(record), _failures(record)) if part]


def _measured(record: Record, measure: Record) -> str:
    """A measure of all rows and columns; with the worst silo where it is one of silos."""
    tables = [table for table in record["tables"] if table["measure"] == measure["name"]]
    paper = {
        (figure["row"], figure["column"]): figure["paper"]
        for figure in (record["paper"] or {"figures": ()})["figures"]
        if figure["measure"] == measure["name"]
    }
    worst = any(row.get("worst") is not None for table in tables for row in table["rows"])
    heads = [part for table in tables for part in (table["column"] or measure["name"], *(["worst silo"] * worst))]
    unit = " (%)" if measure["percent"] else ""
    lines = [f"**{measure['name']}{unit}**", "", *_head(["", *heads])]
    for row in record["rows"]:
        cells = []
        for table in tables:
            found = next(each for each in table["rows"] if each["row"] == row["name"])
            cells.append(_cell(measure, found, paper.get((row["name"], table["column"]))))
            cells += [_number(measure, found.get("worst"))] * worst
        lines.append(_line([row["name"], *cells]))
    return "\n".join(lines)


def _cell(measure: Record, found: Record, paper: float | None) -> str:
    bold = "**" if found["best"] else ""
    text = f"{bold}{_number(measure, found.get('mean'))}{bold}" if found.get("mean") is not None else ""
    if found.get("low") is not None:
        text += f" ({_number(measure, found['low'])} to {_number(measure, found['high'])})"
    if found["failed"]:
        text += f" {found['failed']} failed"
    if paper is not None:
        text += f" [{_number(measure, paper)}]"
    return text.strip()


def _differences(record: Record) -> str:
    """Pairs of the first measure that differ after Holm's correction, and how many pairs there were."""
    measure = record["measures"][0]
    lines = []
    for table in record["tables"]:
        if table["measure"] != measure["name"] or not table["pairs"]:
            continue
        surely = [pair for pair in table["pairs"] if pair["p_holm"] is not None and pair["p_holm"] < 0.05]
        shown = ", ".join(
            f"{pair['a']} - {pair['b']} {_signed(measure, pair['mean'])} (p = {pair['p_holm']:.3f})" for pair in surely
        )
        where = f"{table['column']}: " if table["column"] else ""
        lines.append(f"- {where}{shown or 'none'}, of {len(table['pairs'])} pairs.")
    seeds = max((row["seeds"] for table in record["tables"] for row in table["rows"]), default=0)
    about = f"Pairs that differ in {measure['name']} (paired t over {seeds} seeds, Holm-corrected, p < 0.05):"
    return "\n".join([about, "", *lines]) if lines else ""


def _costs(record: Record) -> str:
    """What was chosen in tuning, and what a run cost, mean over seeds."""
    names = [column["name"] for column in record["columns"]]
    tuning = record["tuning"]
    heads = ["tuned " + tuning["key"]] if tuning else []
    each = [*heads, "rounds", "s", "MB up", "MB down"]
    lines = _head(["", *(f"{head}, {name}" if name else head for name in names for head in each)])
    for row in record["rows"]:
        cells = []
        for name in names:
            runs = [c for c in record["cells"] if (c["row"], c["column"]) == (row["name"], name)]
            done = [run for run in runs if run["status"] == "done"]
            cells += [", ".join(dict.fromkeys(value for run in runs for value in run["tuned"].values()))] * bool(tuning)
            cells += [_mean(done, "rounds"), _mean(done, "seconds")]
            cells += [_mean(done, cost, 1e-6) for cost in ("bytes_up", "bytes_down")]
        lines.append(_line([row["name"], *cells]))
    return "\n".join(lines)


def _failures(record: Record) -> str:
    failed = [cell for cell in record["cells"] if cell["status"] != "done"]
    trials = [
        f"- {cell['row']}{', ' if cell['column'] else ''}{cell['column']}, tuning, {trial['value']}: failed: "
        + trial["error"].splitlines()[-1]
        for cell in record["cells"]
        for trial in cell["tuning"]
        if trial["error"]
    ]
    lines = [
        f"- {cell['row']}{', ' if cell['column'] else ''}{cell['column']}, seed {cell['seed']}: {cell['status']}"
        + (f": {cell['error'].splitlines()[-1]}" if cell["error"] else "")
        for cell in failed
    ]
    return "\n".join(["Runs without figures:", "", *lines, *trials]) if lines or trials else ""


def _mean(runs: Sequence[Record], name: str, scale: float = 1.0) -> str:
    return f"{scale * sum(run[name] for run in runs) / len(runs):.3g}" if runs else ""


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|" + "|".join(["---", *["---:"] * (len(cells) - 1)]) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _number(measure: Record, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}" if measure["percent"] else f"{value:.3f}"


def _signed(measure: Record, value: float) -> str:
    return ("+" if value > 0 else "") + _number(measure, value)
