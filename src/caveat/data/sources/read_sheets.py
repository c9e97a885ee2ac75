"""Reading CSV and parquet files of tables."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...core import DataError
from ..pools import shown
from .parquet import SUFFIX, ParquetSheet
from .sheets import CsvSheet, Sheet


def read_sheet(path: Path, separator: str | None = None) -> Sheet:
    """The cells of a csv file with a header line, or of a parquet file, whose rows count as lines. Raises DataError.

    Without a separator it is the one of comma, semicolon and tab that the header has most of.
    """
    if path.suffix.lower() == SUFFIX:
        sheet = ParquetSheet(path)
        _check_columns(path, sheet.columns)
        if not len(sheet):
            raise DataError(f"{path}: no rows, expected at least one")
        return sheet
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
    return CsvSheet(path, columns, [row for _, row in numbered[1:]], [line for line, _ in numbered[1:]])


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raises DataError for names of columns that are empty or doubled."""
    doubled = [name for name, count in Counter(columns).items() if count > 1 or not name]
    if doubled:
        raise DataError(f"{path}: column name {shown(doubled[0])} is empty or doubled, expected a header line of names")


def read_sheets(paths: Sequence[Path], separator: str | None = None) -> list[Sheet]:
    """The texts of files. Raises DataError for those that cannot be read."""
    return [read_sheet(path, separator) for path in paths]


def check_same_columns(sheets: Sequence[Sheet]) -> None:
    """Raises DataError where columns differ."""
    for sheet in sheets[1:]:
        if differing := set(sheet.columns) ^ set(sheets[0].columns):
            raise DataError(
                f"{sheets[0].path} and {sheet.path} differ in columns {sorted(differing)}; expected the same in all"
            )
