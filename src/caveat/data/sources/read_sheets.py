"""Reading CSV and parquet files of tables."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...core import DataError, Refused
from ..pools import shown
from .parquet import SUFFIX, ParquetSheet
from .sheets import CsvSheet, Sheet

NEWLINE = b"\n"


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
    except UnicodeDecodeError as error:
        raise Refused(_not_utf8(path), "file") from error
    except (OSError, csv.Error) as error:
        raise Refused(f"{path}: not a readable csv file in UTF-8 ({error})", "file") from error
    if len(numbered) < 2:
        lines = f"{len(numbered)} line{'s' * (len(numbered) != 1)}"
        raise Refused(f"{path}: {lines}, expected a header and at least one row", "file")
    columns = tuple(name.strip() for name in numbered[0][1])
    _check_columns(path, columns)
    for line, row in numbered[1:]:
        if len(row) != len(columns):
            raise Refused(f"{path}, line {line}: {len(row)} values, expected {len(columns)} as in the header", "file")
    return CsvSheet(path, columns, [row for _, row in numbered[1:]], [line for line, _ in numbered[1:]])


def _not_utf8(path: Path) -> str:
    """Where a file is not in UTF-8, and how it comes into that."""
    whole = path.read_bytes()
    where, known = f"{path}: not in UTF-8", "UTF-16" if whole.startswith((b"\xff\xfe", b"\xfe\xff")) else "ISO-8859-1"
    try:
        whole.decode()
    except UnicodeDecodeError as error:
        where = f"{path}, line {whole.count(NEWLINE, 0, error.start) + 1}: not in UTF-8"
    return (
        f"{where}, expected a csv file in UTF-8: save the table so; of one in {known}, "
        f"`iconv -f {known} -t UTF-8 OLD.csv > NEW.csv` makes it"
    )


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
