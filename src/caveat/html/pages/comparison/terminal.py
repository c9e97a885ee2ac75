"""The table of a comparison for standard output."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from ....core.text import duration, megabytes, plain
from ....files.schema.comparison import ComparedMethod, ComparedRun, Comparison, Measure, Setting
from .budgets import equal_by, unequal_budgets
from .contrasts import decided
from .numbers import POPULATION, bracketed, figure, header, mean_of, not_done
from .verdict import verdict

_MEASURES = 2


def terminal(record: Comparison) -> Table:
    """Means with 95 % intervals, one row per method.

    Several settings with a single measure become columns; with several measures they follow one another, each
    under its name with its first two measures, worst silo, rank and costs.
    """
    if len(record.columns) > 1 and len(record.measures) == 1:
        return _by_setting(record)
    several = len(record.columns) > 1
    shown = record.measures[:_MEASURES]
    names = list(map(header, shown))
    table = _table(record, ["method", *names, "worst\nsilo", "rank", "time", "MB\nup", "MB\ndown", ""], names)
    for setting in record.columns:
        if several:
            table.add_row(Text(plain(setting.name), style="bold"))
        for row in record.rows:
            table.add_row(*_plain(_cells(record, row, setting, shown)), end_section=row == record.rows[-1])
    return table


def conclusion(record: Comparison) -> list[str]:
    """What came out, a line per setting, after what is unfair about it: the last lines in a terminal."""
    lines = []
    for setting in record.columns:
        where = f"{plain(setting.name)}: " if setting.name else ""
        if told := unequal_budgets(record, setting):
            lines.append(f"{where}UNEQUAL BUDGETS: {plain(told)} {equal_by(record, setting)} gives all as many.")
        lines.append(f"{where}{plain(_breaking(verdict(record, setting)))}")
    return lines + [plain(_breaking(line)) for line in decided(record)]


def _breaking(text: str) -> str:
    """With plain spaces, since a terminal shows others as escapes."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def _by_setting(record: Comparison) -> Table:
    measure, names = record.measures[0], [setting.name for setting in record.columns]
    table = _table(record, ["method", *names, "time", "MB\nup", "MB\ndown", ""], names)
    table.caption = Text(f"{header(measure)}, mean and 95 % interval. {POPULATION}")
    for row in record.rows:
        runs = record.runs(row)
        figures = [bracketed(measure, record.result(row, setting, measure)) for setting in record.columns]
        table.add_row(*_plain([row.name, *figures, *_costs(runs), ", ".join(not_done(runs))]))
    return table


def _table(record: Comparison, heads: Sequence[str], wrapping: Sequence[str]) -> Table:
    table = Table(
        title=Text(plain(record.title)), title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0),
        caption=Text(POPULATION), caption_justify="left",
    )  # fmt: skip
    for head in heads:
        left = head in ("method", "")
        # Where the terminal is too narrow for all, figures with their intervals break, names and costs do not.
        wraps = head in wrapping
        head = "\n".join(map(plain, head.split("\n")))
        justify: JustifyMethod = "left" if left else "right"
        table.add_column(Text(head), justify=justify, overflow="fold", no_wrap=not wraps)
    return table


def _cells(record: Comparison, row: ComparedMethod, setting: Setting, shown: Sequence[Measure]) -> list[str]:
    first = record.result(row, setting, record.measures[0])
    runs = record.runs(row, setting)
    return [
        row.name,
        *(bracketed(measure, record.result(row, setting, measure)) for measure in shown),
        figure(record.measures[0], first.worst),
        "" if first.rank is None else f"{first.rank:.1f}",
        *_costs(runs),
        ", ".join(not_done(runs)),
    ]


def _costs(runs: list[ComparedRun]) -> list[str]:
    sent = [megabytes(mean_of(runs, name)) for name in ("bytes_up", "bytes_down")]
    return [duration(mean_of(runs, "seconds")), *sent]


def _plain(cells: Sequence[str]) -> list[Text]:
    # Text, not str: a name may hold brackets, which rich would take for markup, and so do the intervals.
    return [Text(plain(cell)) for cell in cells]
