"""What commands print of a comparison: a table of means with their intervals, and conclusions in sentences."""

from collections.abc import Iterable, Sequence

from rich.text import Text

from ..core.text import duration, megabytes, plain
from ..files.schema import ComparedMethod, ComparedRun, Comparison, Measure, Setting
from ..html.pages.comparison.numbers import POPULATION, bracketed, figure, header, mean_of, not_done
from ..html.pages.comparison.verdict import decided, equal_by, unequal_budgets, verdict
from .tables import Heading, TextTable, text_table

_MEASURES = 2


def comparison_table(record: Comparison) -> TextTable:
    """Means with 95 % intervals, one row per method.

    With several settings and a single measure, the settings are columns. With several measures the settings follow one
    another, each under its name with its first two measures, worst silo, rank and costs.
    """
    if len(record.columns) > 1 and len(record.measures) == 1:
        return _by_setting(record)
    several = len(record.columns) > 1
    shown = record.measures[:_MEASURES]
    rows, ends = list[Sequence[str | Text]](), set[int]()
    for setting in record.columns:
        if several:
            rows.append([Text(plain(setting.name), style="bold"), *[""] * (len(shown) + 6)])
        rows += [_cells(record, row, setting, shown) for row in record.rows]
        ends.add(len(rows) - 1)
    heads = _heads(list(map(header, shown)), ["worst\nsilo", "rank", "time", "MB\nup", "MB\ndown"])
    return text_table(heads, rows, plain(record.title), POPULATION, ends, gap=1)


def _by_setting(record: Comparison) -> TextTable:
    measure, rows = record.measures[0], []
    for row in record.rows:
        runs = record.runs(row)
        means = [bracketed(measure, record.result(row, setting, measure)) for setting in record.columns]
        rows.append(list(map(plain, [row.name, *means, *_costs(runs), ", ".join(not_done(runs))])))
    caption = f"{header(measure)}, mean and 95 % interval. {POPULATION}"
    heads = _heads([setting.name for setting in record.columns], ["time", "MB\nup", "MB\ndown"])
    return text_table(heads, rows, plain(record.title), caption, gap=1)


def _heads(means: Sequence[str], costs: Sequence[str]) -> list[Heading]:
    """Where the terminal is too narrow for all columns, means with their intervals break; names and costs do not."""
    middle = [*(Heading(name, wraps=True) for name in map(plain, means)), *map(Heading, costs)]
    return [Heading("method", words=True), *middle, Heading("", words=True)]


def _cells(record: Comparison, row: ComparedMethod, setting: Setting, shown: Iterable[Measure]) -> list[str]:
    first = record.result(row, setting, record.measures[0])
    runs = record.runs(row, setting)
    cells = [
        row.name,
        *(bracketed(measure, record.result(row, setting, measure)) for measure in shown),
        figure(record.measures[0], first.worst),
        "" if first.rank is None else f"{first.rank:.1f}",
        *_costs(runs),
        ", ".join(not_done(runs)),
    ]
    return list(map(plain, cells))


def _costs(runs: list[ComparedRun]) -> list[str]:
    sent = [megabytes(mean_of(runs, name)) for name in ("bytes_up", "bytes_down")]
    return [duration(mean_of(runs, "seconds")), *sent]


def conclusion(record: Comparison) -> list[str]:
    """The last lines in a terminal: for each setting what is unfair about the comparison, then its verdict; and the
    verdict of each contrast.
    """
    lines = []
    for setting in record.columns:
        where = f"{plain(setting.name)}: " if setting.name else ""
        if told := unequal_budgets(record, setting):
            lines.append(
                f"{where}UNEQUAL BUDGETS: {plain(told)} {equal_by(record, setting)} gives all methods as many rounds."
            )
        lines.append(f"{where}{plain(_breaking(verdict(record, setting)))}")
    return lines + [plain(_breaking(line)) for line in decided(record)]


def _breaking(text: str) -> str:
    """The text with plain spaces, because a terminal shows other spaces as escapes."""
    return text.replace("\N{NO-BREAK SPACE}", " ")
