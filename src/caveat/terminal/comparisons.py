"""Text output for comparisons and audits: a table of methods, and conclusions."""

from collections.abc import Iterable, Sequence

from rich.text import Text

from ..core.text import duration, escaped, megabytes, plain
from ..files.schema import AuditFile, ComparedMethod, ComparedRun, Comparison, Measure, Setting
from ..html import audit
from ..html.comparison import advice, budgets, wording
from ..html.comparison import verdict as verdicts
from .tables import Heading, TextTable, breaking, text_table

_MEASURES = 2
_SENT = ("MB from\nsilos", "MB to\nsilos")


def comparison_table(record: Comparison) -> TextTable:
    """Return a table of means with 95 % intervals and a row per method.

    With several settings and a single metric, each setting has a column. Otherwise, each setting has a part of the
    table, which shows the first two metrics, the worst silo, the rank and the costs.
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
    heads = _heads(list(map(wording.header, shown)), ["worst\nsilo", "rank", "time", *_SENT])
    return text_table(heads, rows, plain(record.title), wording.POPULATION, ends, gap=1)


def _by_setting(record: Comparison) -> TextTable:
    measure, rows = record.measures[0], []
    for row in record.rows:
        runs = record.runs(row)
        means = [wording.bracketed(measure, record.result(row, setting, measure)) for setting in record.columns]
        rows.append(list(map(plain, [row.name, *means, *_costs(runs), ", ".join(wording.not_done(runs))])))
    caption = f"{wording.header(measure)}, mean and 95 % interval. {wording.POPULATION}"
    heads = _heads([setting.name for setting in record.columns], ["time", *_SENT])
    return text_table(heads, rows, plain(record.title), caption, gap=1)


def _heads(means: Sequence[str], costs: Sequence[str]) -> list[Heading]:
    """Return headings. If the terminal is too narrow, columns of means wrap, but columns of names and costs do not."""
    middle = [*(Heading(name, wraps=True) for name in map(plain, means)), *map(Heading, costs)]
    return [Heading("method", words=True), *middle, Heading("", words=True)]


def _cells(record: Comparison, row: ComparedMethod, setting: Setting, shown: Iterable[Measure]) -> list[str]:
    first = record.result(row, setting, record.measures[0])
    runs = record.runs(row, setting)
    cells = [
        row.name,
        *(wording.bracketed(measure, record.result(row, setting, measure)) for measure in shown),
        wording.figure(record.measures[0], first.worst),
        "" if first.rank is None or budgets.unequal_budgets(record, setting) else f"{first.rank:.1f}",
        *_costs(runs),
        ", ".join(wording.not_done(runs)),
    ]
    return list(map(plain, cells))


def _costs(runs: list[ComparedRun]) -> list[str]:
    sent = [megabytes(wording.mean_of(runs, name)) for name in ("bytes_up", "bytes_down")]
    return [duration(wording.mean_of(runs, "seconds")), *sent]


def conclusion(record: Comparison) -> list[str]:
    """Return lines with the verdict of each setting, the results of contrasts, the next steps, and a command for the
    next steps."""
    lines, steps = list[str](), list[advice.Advice]()
    for setting in record.columns:
        where = f"{plain(setting.name)}: " if setting.name else ""
        lines.append(f"{where}{verdicts.verdict(record, setting)}")
        steps += [each._replace(step=f"→ {where}{each.step}") for each in advice.next_steps(record, setting)]
    lines += [*wording.contrast_sentences(record), *(each.step for each in steps)]
    again = advice.command(record, steps)
    return [escaped(breaking(line)) for line in [*lines, *([f"  {again}"] if again else [])]]


def audit_conclusion(found: AuditFile) -> list[str]:
    """Return lines that state how many promises hold, the next steps, and a command for the next steps."""
    steps, again = audit.next_steps(found), audit.command(found)
    lines = [audit.sentence(found.findings), *(f"→ {step}" for step in steps), *([f"  {again}"] if again else [])]
    return [escaped(breaking(line)) for line in lines]
