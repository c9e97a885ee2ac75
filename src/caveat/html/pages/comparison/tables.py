"""The tables of the page, as rows of written cells; one that the comparison has nothing for is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup

from ....files.schema.comparison import (
    ComparedMethod,
    ComparedRun,
    Comparison,
    IntervalRecord,
    Measure,
    Printed,
    Setting,
)
from ...charts.svg import element
from ..run.sections import HtmlCell
from .numbers import (
    as_number,
    bracketed,
    duration,
    figure,
    header,
    interval,
    mean_of,
    megabytes,
    probability,
    setting_value,
    signed,
)
from .plots import swatch


@dataclass(frozen=True)
class Column:
    header: str
    cells: Sequence[HtmlCell]
    help: str = ""
    words: bool = False
    measure: str = ""
    """The measure that the column belongs to; empty for one that is there whichever is chosen."""


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    names: Sequence[str]
    """The method of each row; empty for a row of several."""

    @property
    def rows(self) -> list[tuple[str, tuple[HtmlCell, ...]]]:
        cells = zip(*(column.cells for column in self.columns), strict=True)
        return list(zip(self.names, cells, strict=True))


def table(columns: Sequence[Column], names: Sequence[str]) -> Table | None:
    """Without the columns that no row has anything in; None without rows."""
    kept = [column for column in columns if any(cell.text for cell in column.cells)]
    return Table(kept, names) if names and kept else None


def main_table(record: Comparison, setting: Setting) -> Table | None:
    """A row per method: every measure, rank and worst silo, what it cost and what was tuned."""
    rows = record.rows
    runs = [record.runs(row, setting) for row in rows]
    measures = [_measured(record, setting, measure) for measure in record.measures]
    further = [column for measure in record.measures for column in _ranked(record, setting, measure)]
    return table(
        [
            Column("method", [HtmlCell(_name(record, row)) for row in rows], words=True),
            Column("runs", [_runs(found) for found in runs], "done, of those planned", words=True),
            *measures,
            *further,
            Column("time", _times(runs), "of a run, mean over seeds"),
            Column("MB up", [HtmlCell(megabytes(mean_of(each, "bytes_up"))) for each in runs], "sent by all silos"),
            Column("MB down", [HtmlCell(megabytes(mean_of(each, "bytes_down"))) for each in runs], "sent to all silos"),
            *_tuned(runs),
        ],
        [row.name for row in rows],
    )  # fmt: skip


def _name(record: Comparison, row: ComparedMethod) -> Markup:
    note = element("small", row.note, class_="bounds") if row.note else ""
    return swatch(record.series[row.name]) + Markup(" ") + row.name + note


def _measured(record: Comparison, setting: Setting, measure: Measure) -> Column:
    results = [record.result(row, setting, measure) for row in record.rows]
    direction = {True: "\N{NO-BREAK SPACE}\N{UPWARDS ARROW}", False: "\N{NO-BREAK SPACE}\N{DOWNWARDS ARROW}", None: ""}[
        measure.higher
    ]
    cells = [
        HtmlCell(_mean(measure, one, one.best) or ("failed" if record.runs(row, setting, "failed") else ""))
        for row, one in zip(record.rows, results, strict=True)
    ]
    return Column(header(measure) + direction, cells)


def _mean(measure: Measure, value: IntervalRecord, best: bool = False) -> Markup | str:
    """The mean over its interval."""
    if value.mean is None:
        return ""
    bounds = interval(measure, value)
    below = element("small", bounds, class_="bounds") if bounds else ""
    return element("b" if best else "span", figure(measure, value.mean)) + below


def _ranked(record: Comparison, setting: Setting, measure: Measure) -> list[Column]:
    results = [record.result(row, setting, measure) for row in record.rows]
    worst = [HtmlCell(figure(measure, one.worst)) for one in results]
    ranks = [HtmlCell("" if one.rank is None else f"{one.rank:.1f}") for one in results]
    about_worst = f"{measure.name} of the worst silo of each seed, mean over seeds"
    about_rank = f"mean rank by {measure.name} among the methods, over seeds and silos; 1 is best"
    return [
        Column(f"worst silo, {measure.name}", worst, about_worst, measure=measure.name),
        Column(f"rank, {measure.name}", ranks, about_rank, measure=measure.name),
    ]


def _tuned(runs: Sequence[Sequence[ComparedRun]]) -> list[Column]:
    keys = dict.fromkeys(key for found in runs for run in found for key in run.tuned)
    return [Column(key, [HtmlCell(_values(found, key)) for found in runs], "chosen on validation data") for key in keys]


def _values(runs: Sequence[ComparedRun], key: str) -> str:
    return ", ".join(dict.fromkeys(setting_value(run.tuned[key]) for run in runs if key in run.tuned))


def _times(runs: Sequence[list[ComparedRun]]) -> list[HtmlCell]:
    return [HtmlCell(duration(mean_of(each, "seconds"))) for each in runs]


def _runs(runs: Sequence[ComparedRun]) -> HtmlCell:
    failed, missing = (sum(run.status == status for run in runs) for status in ("failed", "missing"))
    said = [f"{len(runs) - failed - missing} of {len(runs)}"]
    said += [f"{failed} failed"] * bool(failed) + [f"{missing} to come"] * bool(missing)
    return HtmlCell(", ".join(said), "; ".join(run.error or "failed" for run in runs if run.status == "failed"))


def place_table(
    record: Comparison, setting: Setting, measure: Measure, places: Sequence[str], head: str
) -> Table | None:
    """A row per domain or silo, a column per method."""
    results = [record.result(row, setting, measure) for row in record.rows]
    columns = [Column(head, [HtmlCell(place) for place in places], words=True)]
    for one in results:
        found: Mapping[str, IntervalRecord] = {**one.domains, **one.silos}
        columns.append(
            Column(one.row, [HtmlCell(_mean(measure, found.get(place, IntervalRecord()))) for place in places])
        )
    return table(columns, [""] * len(places)) if len(columns) > 1 else None


def pair_table(record: Comparison, setting: Setting, measure: Measure) -> Table | None:
    pairs = record.results(setting, measure).pairs
    return table(
        [
            Column("pair", [HtmlCell(f"{pair.a} \N{MINUS SIGN} {pair.b}") for pair in pairs], words=True),
            Column("difference", [HtmlCell(signed(measure, pair.mean)) for pair in pairs]),
            Column("95 % interval", [HtmlCell(interval(measure, pair)) for pair in pairs]),
            Column("p", [HtmlCell(probability(pair.p)) for pair in pairs], "paired t test over seeds"),
            Column("Holm p", [HtmlCell(probability(p.p_holm)) for p in pairs], "corrected for all pairs"),
        ],
        [""] * len(pairs),
    )


def tuning_table(record: Comparison) -> Table | None:
    """A row per method and setting: the values tried, with their scores, and the one chosen."""
    if record.tuning is None:
        return None
    key = record.tuning.key
    found = [(row, setting, record.runs(row, setting)) for setting in record.columns for row in record.rows]
    tried = [[_Tried(run, key) for run in runs if run.tuning] for _, _, runs in found]
    return table(
        [
            Column("method", [HtmlCell(_name(record, row)) for row, _, _ in found], words=True),
            Column("setting", [HtmlCell(setting.name) for _, setting, _ in found], words=True),
            Column("chosen", [_chosen(runs, key) for _, _, runs in found], words=True),
            Column("tried", [HtmlCell(tries[0].written(record) if tries else "") for tries in tried], words=True),
        ],
        [row.name for row, _, _ in found],
    )


@dataclass(frozen=True)
class _Tried:
    run: ComparedRun
    key: str

    def written(self, record: Comparison) -> Markup:
        """Every value with its score, the chosen one in bold."""
        by = record.tuning.by if record.tuning else ""
        measure = next((m for m in record.measures if by.startswith(m.name)), Measure(name=""))
        chosen = setting_value(self.run.tuned.get(self.key))
        parts = []
        for trial in self.run.tuning:
            value = setting_value(trial.value)
            score = element("small", figure(measure, trial.score) or "failed", title=trial.error or None)
            parts.append(
                element("span", element("b" if value == chosen else "span", value), " ", score, class_="trial")
            )
        return Markup(" ").join(parts)


def _chosen(runs: Sequence[ComparedRun], key: str) -> HtmlCell:
    """Flagged where the best value is the least or the most that was tried: a better one may lie beyond."""
    tuned = next((run for run in runs if run.tuning and key in run.tuned), None)
    if tuned is None:
        return HtmlCell(_values(runs, key))
    numbers = sorted(number for trial in tuned.tuning if (number := as_number(trial.value)) is not None)
    edge = len(numbers) > 1 and as_number(tuned.tuned[key]) in (numbers[0], numbers[-1])
    return HtmlCell(_values(runs, key), "at the edge of what was tried: a better value may lie beyond" if edge else "")


def paper_table(record: Comparison) -> Table | None:
    """The paper's figures beside ours."""
    if record.paper is None:
        return None
    measures = {measure.name: measure for measure in record.measures}
    found = [one for one in record.paper.figures if one.measure in measures and one.row in record.series]

    def of(one: Printed) -> Measure:
        return measures[one.measure]

    ours = [IntervalRecord(mean=one.ours, low=one.low, high=one.high) for one in found]
    return table(
        [
            Column("method", [HtmlCell(one.row) for one in found], words=True),
            Column("setting", [HtmlCell(one.column) for one in found], words=True),
            Column("measure", [HtmlCell(header(of(one))) for one in found], words=True),
            Column("paper", [HtmlCell(figure(of(one), one.paper)) for one in found]),
            Column(
                "here",
                [HtmlCell(bracketed(of(one), own)) for one, own in zip(found, ours, strict=True)],
                "95 % interval",
            ),
            Column(
                "difference", [HtmlCell(signed(of(one), one.difference)) for one in found], "here \N{MINUS SIGN} paper"
            ),
        ],
        [one.row for one in found],
    )


def run_table(record: Comparison) -> Table | None:
    """A row per run, with its report; failed ones with their error."""
    runs = record.cells
    return table(
        [
            Column("run", [HtmlCell(_link(run)) for run in runs], words=True),
            Column("setting", [HtmlCell(run.column) for run in runs], words=True),
            Column("seed", [HtmlCell(str(run.seed)) for run in runs]),
            Column(
                "state",
                [HtmlCell(_state(run), run.error if run.status == "failed" else "") for run in runs],
                words=True,
            ),
            Column("rounds", [HtmlCell("" if run.rounds is None else str(run.rounds)) for run in runs]),
            Column("time", [HtmlCell(duration(run.seconds)) for run in runs]),
            Column("MB up", [HtmlCell(megabytes(run.bytes_up)) for run in runs]),
            Column("MB down", [HtmlCell(megabytes(run.bytes_down)) for run in runs]),
        ],
        [run.row for run in runs],
    )


def _link(run: ComparedRun) -> Markup | str:
    if run.status != "done" or not run.folder or run.folder.startswith("/"):
        return run.row
    return element("a", run.row, href=f"{quote(run.folder)}/report.html")


def _state(run: ComparedRun) -> str:
    return {"done": "done", "failed": f"failed: {run.error or 'no error was kept'}", "missing": "to come"}[run.status]
