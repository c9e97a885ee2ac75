"""The front page of results: what it says each method is for is what the tables behind it have decided."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from caveat.analysis import reproduced_tables

DOCS = Path(__file__).parents[1] / "docs" / "results"
FRONT = (DOCS / "index.md").read_text()
ROW = re.compile(
    r"^\|(?P<where>[^|]*)\|(?P<method>[^|]*)\|(?P<against>[^|]*)\| (?P<verdict>better|worse|equal|not decided)\*? "
    r"\| (?P<points>[-+.\d]+ \([-+.\d]+ to [-+.\d]+\)) \| \[(?P<table>[\w-]+)\] \|$",
    re.MULTILINE,
)
ROWS = [found.groupdict() for found in ROW.finditer(FRONT)]
PAGES = dict(re.findall(r"^\[([\w-]+)\]: ([^#]+)#", FRONT, re.MULTILINE))


ELSEWHERE = {
    "uefl-extension": "its verdict is about rates, as its page says; uefl-growth asks the same",
    "fedpn-paper": "five seeds, at the paper's scale; the front page has ten seeds",
}
"""Tables that decide something else than they were made for."""


def decided(table: str) -> list[tuple[str, str]]:
    """Points and verdict of every contrast of a table, as its page has them."""
    body = " ".join((DOCS / "tables" / f"{table}.md").read_text().split())
    found = re.findall(r"\): ([-+.\d]+ \([-+.\d]+ to [-+.\d]+\)), \*\*([^*]+)\*\*", body)
    words = {"is better": "better", "is worse": "worse", "equal within": "equal", "not decided": "not decided"}
    return [(points, next(word for said, word in words.items() if said in verdict)) for points, verdict in found]


def test_every_row_of_the_table_is_read() -> None:
    rows = [line for line in FRONT.splitlines() if line.startswith("|") and "[" in line]
    assert len(ROWS) == len(rows) > 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['table']} {row['points']}")
def test_a_verdict_is_that_of_a_contrast_of_the_table_it_names(row: dict[str, str]) -> None:
    assert row["table"] in reproduced_tables.tables()
    assert (row["points"], row["verdict"]) in decided(row["table"])
    assert f"(tables/{row['table']}.md)" in (DOCS / PAGES[row["table"]]).read_text()


@pytest.mark.parametrize(
    "table", [name for name in reproduced_tables.tables() if reproduced_tables.named(name).contrasts]
)
def test_a_table_with_contrasts_is_not_left_out_because_of_what_it_decided(table: str) -> None:
    made = decided(table)
    assert table in {row["table"] for row in ROWS} or not made or table in ELSEWHERE


def test_the_readme_has_figures_of_contrasts_and_of_the_leaderboard_alone() -> None:
    section = (DOCS.parents[1] / "README.md").read_text().split("## What to expect")[1].split("\n## ")[0]
    contrasts, board = section.split("\n- ")[1:]
    figures = re.findall(r"([-+][.\d]+)(?: points)?\s+\(([-+.\d]+)\s+to\s+([-+.\d]+)(, not decided)?\)", contrasts)
    assert len(figures) == contrasts.count("(") == 3
    for mean, low, high, undecided in figures:
        points = f"{mean} ({low} to {high})"
        verdicts = {row["verdict"] == "not decided" for row in ROWS if row["points"] == points}
        assert bool(undecided) in verdicts, points
    mean, low, high, times = re.findall(r"[\d.]+(?= %| to|\)| times)", board.split("([leaderboard]")[0])
    page = (DOCS / "leaderboard.md").read_text()
    assert re.search(rf"^\| `ditto/ensemble` \|.* \+{mean} \[\+{low}, \+{high}\] \|", page, re.MULTILINE)
    (spent,) = re.findall(r"^\| any \| 10 \| any \| `ditto/ensemble` \|.* \| ([.\d]+) \|$", page, re.MULTILINE)
    assert f"{float(spent):.1f}" == times
