"""Write the tables of `caveat reproduce` and of `caveat bench` as pages of docs/results/tables.

    CAVEAT_DATA=DIR caveat reproduce TABLE --out OUT/TABLE     # for every table
    CAVEAT_DATA=DIR caveat bench --out OUT/leaderboard
    python benchmarks/results.py OUT                           # pages of tables that OUT lacks do not change

The other pages of docs/results are written by hand; every number in a table is from OUT/TABLE/comparison.json or
OUT/leaderboard/board.md. A table that is too wide for a line is divided into several.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from wrapped import wrapped

from caveat.analysis import reproduced_tables
from caveat.analysis.compare.result_tables import about, contrasts, differences, measured
from caveat.analysis.reproduced_tables import PaperTable
from caveat.files import read_comparison
from caveat.files.schema import Comparison, TuningReport

ENOUGH = 10
"""Number of seeds from which a page lists the pairs that differ; fewer seeds decide nothing."""
PAGES = Path(__file__).parent.parent / "docs" / "results"


def main(out: Path, pages: Path = PAGES) -> None:
    for name in reproduced_tables.tables():
        path = out / name / "comparison.json"
        if path.exists():
            page = page_of(name, pages)
            (pages / "tables" / f"{name}.md").write_text(section(name, page, read_comparison(path)))
    if (board := out / "leaderboard" / "board.md").exists():
        head, text = board.read_text().split("\n", 1)
        verdict = "The findings are in [leaderboard](../leaderboard.md)."
        (pages / "tables" / "leaderboard.md").write_text(wrapped(f"{head}\n\n{verdict}{text}"))


def page_of(name: str, pages: Path = PAGES) -> Path:
    """The page with a table's verdict."""
    for page in sorted(pages.glob("*.md")):
        if f"(tables/{name}.md)" in page.read_text():
            return page
    raise SystemExit(f"no page of {pages} has a link to tables/{name}.md: add one, with the table's verdict")


def section(name: str, page: Path, record: Comparison) -> str:
    table = reproduced_tables.named(name)
    scale = re.search(r"\((\w+) scale\)$", record.title)
    seeds, done, tuning = len(record.seeds), record.runs(status="done"), record.tuning
    chosen = "" if tuning is None else tried(tuning)
    options = f"--scale {scale[1] if scale else 'cpu'} --seeds {seeds}{only(table, record)}"
    parts = [
        f"# {name}",
        f"The command below made this table; the verdicts are in [{page.stem}](../{page.name}).",
        f"`caveat reproduce {name} {options} --out DIR`",
        f"Paper: {table.source}. {table.differs}",
        f"The table contains {len(done)} of {len(record.cells)} runs, with {seeds} seed{'s' * (seeds > 1)}. Without "
        f"tuning, these runs took {sum(run.seconds for run in done) / 3600:.1f} h in total.{missing(table, record)} "
        "Values are "
        f"means with 95 % intervals over seeds and silos; the paper's values are in square brackets.{chosen}"
        f"{refined(table)}",
        *contrasts(record),
        *measured(record),
        *(differences(record) if seeds >= ENOUGH else []),
        *about(record),
    ]
    return wrapped("\n\n".join(parts)) + "\n"


def only(table: PaperTable, record: Comparison) -> str:
    """The option that makes only the rows of the record."""
    made = [row.name for row in record.rows]
    names = ",".join(f'"{name}"' if "," in name else name for name in made)
    return f" --rows '{names}'" if len(made) < len(table.rows) else ""


def missing(table: PaperTable, record: Comparison) -> str:
    """Which rows were not made."""
    made = {row.name for row in record.rows}
    left = [f'"{row.name}"' for row in table.rows if row.name not in made]
    return f" The rows {', '.join(left[:-1])} and {left[-1]} were not made." if len(left) > 1 else ""


def tried(tuning: TuningReport) -> str:
    """What every row tried, and by what it chose."""
    if tuning.runs == len(tuning.seeds):
        return f" The table fixes the value of `{tuning.key}` for every row."
    seeds = f"seed{'s' * (len(tuning.seeds) > 1)} {', '.join(map(str, tuning.seeds))}"
    return (
        f" Every row tried {(tuning.runs or 0) // len(tuning.seeds)} values of `{tuning.key}` on {seeds} and kept the "
        f"one with the best {tuning.by}."
    )


def refined(table: PaperTable) -> str:
    """Which rows then tried a key of their own."""
    rows = [(row.name, row.then) for row in table.rows if row.then]
    return "".join(f' The row "{name}" then tried {len(then.values)} values of `{then.key}`.' for name, then in rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
