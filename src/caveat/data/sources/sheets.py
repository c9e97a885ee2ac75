"""CSV and parquet files as text."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core import DataError
from ..pools import shown
from .parquet import SUFFIX, parquet_cells

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Texts that stand for a missing value, in lower case."""


@dataclass(frozen=True)
class Sheet:
    """The text of one CSV or parquet file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    """The line of the file where each row ends, for messages."""

    def column(self, name: str) -> list[str]:
        """The cells of a column, without the spaces around them."""
        return [text.strip() for text in self.verbatim(name)]

    def verbatim(self, name: str) -> list[str]:
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def with_columns(self, cells: Mapping[str, Sequence[str] | None]) -> Sheet:
        """The same with other cells in columns that it has; None leaves a column out."""
        if not cells:
            return self
        kept = [(at, name) for at, name in enumerate(self.columns) if cells.get(name, ()) is not None]
        given = {name: each for name, each in cells.items() if each is not None}
        rows = [[given[name][i] if name in given else row[at] for at, name in kept] for i, row in enumerate(self.rows)]
        return replace(self, columns=tuple(name for _, name in kept), rows=rows)

    def renamed(self, names: Mapping[str, str]) -> Sheet:
        """The same with other names of its columns."""
        return replace(self, columns=tuple(names[name] for name in self.columns))

    def place(self, name: str, row: int) -> str:
        """Where a cell is and what it holds, for messages."""
        return f"{self.path}, line {self.lines[row]}: {shown(name)} is {shown(self.column(name)[row])}"


def missing(text: str) -> bool:
    return text.lower() in MISSING


def first_place(sheets: Sequence[Sheet], name: str, texts: Collection[str]) -> str:
    """Where a column has one of some texts first, for messages."""
    cells = ((sheet, row, text) for sheet in sheets for row, text in enumerate(sheet.column(name)))
    return next(sheet.place(name, row) for sheet, row, text in cells if text in texts)


def spaces(sheets: Sequence[Sheet], name: str) -> str:
    """Where a column has a text with other spaces around it than elsewhere, for messages; "" if nowhere.

    Spaces are never read, so that these count as one text.
    """
    written: dict[str, str] = {}
    for sheet in sheets:
        for row, text in enumerate(sheet.verbatim(name)):
            first = written.setdefault(text.strip(), text)
            if first != text and not missing(text.strip()):
                return (
                    f"{sheet.path}, line {sheet.lines[row]}: {shown(name)} is {shown(text)}, elsewhere {shown(first)}: "
                    f"read as one, without the spaces"
                )
    return ""


def read_sheet(path: Path, separator: str | None = None) -> Sheet:
    """The text of a csv file with a header line, or of a parquet file, whose rows count as lines. Raises DataError.

    Without a separator it is the one of comma, semicolon and tab that the header has most of.
    """
    if path.suffix.lower() == SUFFIX:
        columns, rows = parquet_cells(path)
        _check_columns(path, columns)
        if not rows:
            raise DataError(f"{path}: no rows, expected at least one")
        return Sheet(path, columns, rows, list(range(1, len(rows) + 1)))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=separator or max(",;\t", key=header.count), strict=True)
            numbered = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a readable csv file in UTF-8 ({error})") from error
    if len(numbered) < 2:
        raise DataError(f"{path}: {len(numbered)} lines, expected a header and at least one row")
    columns = tuple(name.strip() for name in numbered[0][1])
    _check_columns(path, columns)
    for line, row in numbered[1:]:
        if len(row) != len(columns):
            raise DataError(f"{path}, line {line}: {len(row)} values, expected {len(columns)} as in the header")
    return Sheet(path, columns, [row for _, row in numbered[1:]], [line for line, _ in numbered[1:]])


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raises DataError for names of columns that are empty or doubled."""
    doubled = [name for name, count in Counter(columns).items() if count > 1 or not name]
    if doubled:
        raise DataError(f"{path}: column name {shown(doubled[0])} is empty or doubled, expected a header line of names")


def read_sheets(paths: Sequence[Path], separator: str | None = None) -> list[Sheet]:
    """The texts of files that have the same columns. Raises DataError where columns differ."""
    sheets = [read_sheet(path, separator) for path in paths]
    for sheet in sheets[1:]:
        if differing := set(sheet.columns) ^ set(sheets[0].columns):
            raise DataError(
                f"{sheets[0].path} and {sheet.path} differ in columns {sorted(differing)}; expected the same in all"
            )
    return sheets
