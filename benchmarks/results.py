"""Put the tables of `caveat reproduce` into docs/results.md, between the marks of each.

    CAVEAT_DATA=DIR caveat reproduce TABLE --out OUT/TABLE     # for every table
    python benchmarks/results.py OUT                           # what OUT lacks keeps what the page has

The words between the tables are written by hand; every number in a table comes from OUT/TABLE/comparison.json. A
table that is too wide for a line becomes several.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from wrapped import wrapped

from caveat.analysis import reproduce
from caveat.analysis.compare.texts import about, measured
from caveat.files.schema.comparison import Comparison, TuningReport, read_comparison

SHOWN = 3
"""Measures of a table that are not folded away."""
PAGE = Path(__file__).parent.parent / "docs" / "results.md"


def main(out: Path, page: Path = PAGE) -> None:
    text = page.read_text()
    for name in reproduce.tables():
        path = out / name / "comparison.json"
        if path.exists():
            text = placed(text, name, section(name, read_comparison(path)))
    page.write_text(text)


def placed(text: str, name: str, body: str) -> str:
    """The page with that body between the table's marks."""
    mark, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if mark not in text:
        raise SystemExit(f"{PAGE} has no place for {name}: add the lines {mark} and {end}")
    before, rest = text.split(mark, 1)
    return f"{before}{mark}\n{body}{end}{rest.split(end, 1)[1]}"


def section(name: str, record: Comparison) -> str:
    table = reproduce.named(name)
    scale = re.search(r"\((\w+) scale\)$", record.title)
    seeds, done, tuning = len(record.seeds), len(record.runs(status="done")), record.tuning
    parts = [
        f"`caveat reproduce {name} --scale {scale[1] if scale else 'cpu'} --seeds {seeds} --out DIR`",
        f"{table.source}. {table.differs}",
        f"{seeds} seeds, {done} of {len(record.cells)} runs done. Mean and 95 % intervals over seeds and silos, in "
        f"square brackets the paper's.{'' if tuning is None else tried(tuning)}",
        *measured(record)[:SHOWN],
        "<details><summary>Everything else that was measured, costs and tests</summary>",
        *measured(record)[SHOWN:],
        *about(record),
        "</details>\n",
    ]
    return wrapped("\n\n".join(parts))


def tried(tuning: TuningReport) -> str:
    """What every row tried, and by what it chose."""
    seeds = f"seed{'s' * (len(tuning.seeds) > 1)} {', '.join(map(str, tuning.seeds))}"
    return (
        f" Every row tried {(tuning.runs or 0) // len(tuning.seeds)} values of `{tuning.key}` on {seeds} and kept the "
        f"one with the best {tuning.by}."
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
