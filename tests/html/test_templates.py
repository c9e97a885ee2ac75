"""Tables keep what their rows have, and nothing else."""

from __future__ import annotations

from caveat.core.text import short_source, without_folders
from caveat.html.templates import Cell, column, table, words


def test_a_column_that_no_row_has_anything_in_is_left_out() -> None:
    found = table([words("name", ["a", "b"]), column("empty", ["", ""]), column("figure", ["", Cell("1", "odd")])])
    assert found is not None
    assert [one.header for one in found.columns] == ["name", "figure"]
    assert [[cell.text for cell in cells] for _, cells in found.rows] == [["a", ""], ["b", "1"]]
    assert found.columns[1].cells[1].flag == "odd"


def test_no_rows_or_nothing_in_them_are_no_table() -> None:
    assert table([words("name", [])]) is None
    assert table([words("name", [""])]) is None


def test_rows_after_the_named_ones_have_no_name() -> None:
    found = table([words("silo", ["a", "b", "mean"])], names=["a", "b"], footer=1)
    assert found is not None
    assert [name for name, _ in found.rows] == ["a", "b", ""]


def test_titles_have_no_absolute_paths() -> None:
    assert without_folders("csv:/data/of us/a.csv,/data/b.csv") == "csv:a.csv,b.csv"
    assert without_folders("npz:mnist.npz") == "npz:mnist.npz"
    assert without_folders("hub:owner/name") == "hub:owner/name"
    assert without_folders("images:/scans/2024/north") == "images:north"


def test_titles_name_the_first_file_of_each_source() -> None:
    assert short_source("csv:/x/a.csv,/y/b.csv,c.csv") == "a.csv and 2 more files"
    assert short_source("csv:/x/a.csv") == "csv:a.csv"
    assert (
        short_source("npz:/x/a.npz,b.npz + digits + hub:owner/name")
        == "a.npz and 1 more file + digits + hub:owner/name"
    )
    assert short_source("digits,mnist") == "digits,mnist"
