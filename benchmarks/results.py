"""Put the tables of `caveat reproduce` into the pages of docs/results, between the marks of each.

    CAVEAT_DATA=DIR caveat reproduce TABLE --out OUT/TABLE     # for every table
    python benchmarks/results.py OUT                           # what OUT lacks keeps what its page has

The words between the tables are written by hand; every number in a table comes from OUT/TABLE/comparison.json. A
table that is too wide for a line becomes several.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from wrapped import wrapped

from caveat.analysis import reproduce
from caveat.analysis.compare.table_files import about, contrasts, measured
from caveat.analysis.reproduce import PaperTable
from caveat.files import read_comparison
from caveat.files.schema import Comparison, TuningReport

SHOWN = 3
"""Measures of a table that are not folded away."""
PAGES = Path(__file__).parent.parent / "docs" / "results"


def main(out: Path, pages: Path = PAGES) -> None:
    texts = {page: page.read_text() for page in sorted(pages.glob("*.md"))}
    for name in reproduce.tables():
        path = out / name / "comparison.json"
        if path.exists():
            page = page_of(name, texts)
            texts[page] = placed(texts[page], name, section(name, read_comparison(path)))
    for page, text in texts.items():
        page.write_text(text)


def page_of(name: str, texts: Mapping[Path, str]) -> Path:
    """The page that has a place for a table."""
    for page, text in texts.items():
        if f"<!-- {name} -->" in text:
            return page
    raise SystemExit(f"no page has a place for {name}: add the lines <!-- {name} --> and <!-- end of {name} --> to one")


def placed(text: str, name: str, body: str) -> str:
    """The page with that body between the table's marks."""
    mark, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = text.split(mark, 1)
    return f"{before}{mark}\n{body}{end}{rest.split(end, 1)[1]}"


def section(name: str, record: Comparison) -> str:
    table = reproduce.named(name)
    scale = re.search(r"\((\w+) scale\)$", record.title)
    seeds, done, tuning = len(record.seeds), len(record.runs(status="done")), record.tuning
    parts = [
        f"`caveat reproduce {name} --scale {scale[1] if scale else 'cpu'} --seeds {seeds} --out DIR`",
        f"{table.source}. {table.differs}",
        f"{seeds} seed{'s' * (seeds > 1)}, {done} of {len(record.cells)} runs done. Mean and 95 % intervals over seeds "
        f"and silos, in square brackets the paper's.{'' if tuning is None else tried(tuning)}{refined(table)}",
        *contrasts(record),
        *measured(record)[:SHOWN],
        "<details><summary>Everything else that was measured, costs and tests</summary>",
        *measured(record)[SHOWN:],
        *about(record),
        "</details>\n",
    ]
    return wrapped("\n\n".join(parts))


def tried(tuning: TuningReport) -> str:
    """What every row tried, and by what it chose."""
    if tuning.runs == len(tuning.seeds):
        return f" Every row has the one value of `{tuning.key}` that the table names: nothing was chosen."
    seeds = f"seed{'s' * (len(tuning.seeds) > 1)} {', '.join(map(str, tuning.seeds))}"
    return (
        f" Every row tried {(tuning.runs or 0) // len(tuning.seeds)} values of `{tuning.key}` on {seeds} and kept the "
        f"one with the best {tuning.by}."
    )


def refined(table: PaperTable) -> str:
    """Which rows then tried a key of their own."""
    rows = [(row.name, row.then) for row in table.rows if row.then]
    return "".join(f" {name} then tried {len(then.values)} values of `{then.key}`." for name, then in rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
