"""CSV files: their columns, and their rows as numbers and codes of categories."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core import ConfigurationError, DataError
from ..pools import Array, DataSource, Pool, TableColumn, ordered

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Texts that stand for a missing value, in lower case."""
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Sheet:
    """The text of one CSV file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    """The line of the file where each row ends, for messages."""

    def column(self, name: str) -> list[str]:
        at = self.columns.index(name)
        return [row[at].strip() for row in self.rows]


def missing(text: str) -> bool:
    return text.lower() in MISSING


def read_sheet(path: Path) -> Sheet:
    """The text of a file with a header line, separated by commas, semicolons or tabs. Raises DataError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=header.count), strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a readable csv file in UTF-8 ({error})") from error
    if len(rows) < 2:
        raise DataError(f"{path}: {len(rows)} lines, expected a header and at least one row")
    columns = tuple(name.strip() for name in rows[0][1])
    doubled = [name for name, count in Counter(columns).items() if count > 1 or not name]
    if doubled:
        raise DataError(f"{path}: column name {doubled[0]!r} is empty or doubled, expected a header line of names")
    for line, row in rows[1:]:
        if len(row) != len(columns):
            raise DataError(f"{path}, line {line}: {len(row)} values, expected {len(columns)} as in the header")
    return Sheet(path, columns, [row for _, row in rows[1:]], [line for line, _ in rows[1:]])


def read_sheets(paths: Sequence[Path]) -> list[Sheet]:
    """The texts of files that have the same columns. Raises DataError where columns differ."""
    sheets = [read_sheet(path) for path in paths]
    for sheet in sheets[1:]:
        if differing := set(sheet.columns) ^ set(sheets[0].columns):
            raise DataError(
                f"{sheets[0].path} and {sheet.path} differ in columns {sorted(differing)}; expected the same in all"
            )
    return sheets


def csv_source(paths: Sequence[Path], target: str, silo: str | None, categorical: Sequence[str]) -> DataSource:
    """One pool per silo where there are several files or a silo column, otherwise one pool to partition."""
    sheets = read_sheets(paths)
    for name, key in ((target, "target"), (silo, "silo"), *((name, "categorical") for name in categorical)):
        if name is not None and name not in sheets[0].columns:
            raise ConfigurationError(f"data.{key} = {name!r}: {sheets[0].path} has {', '.join(sheets[0].columns)}")
    if target == silo or target in categorical:
        raise ConfigurationError(f"data.target = {target!r} cannot be the silo column or a categorical feature too")
    for name in (target, silo):
        if name is not None:
            _require_present(sheets, name)
    classes = ordered([label for sheet in sheets for label in sheet.column(target)])
    table = _schema(sheets, {target, silo}, categorical)
    if not table:
        raise DataError(f"{sheets[0].path}: no columns but {target!r}, expected at least one feature")
    x = np.concatenate([_encode_texts(sheet, table) for sheet in sheets])
    number = {label: i for i, label in enumerate(classes)}
    y = np.array([number[label] for sheet in sheets for label in sheet.column(target)], dtype=np.int64)
    groups = np.array([g for s in sheets for g in (s.column(silo) if silo else [s.path.stem] * len(s.rows))])
    names = ordered(groups.tolist()) if silo else tuple(sheet.path.stem for sheet in sheets)
    if len(set(names)) < len(names):
        raise DataError(f"several files are called {max(names, key=names.count)!r}: expected one silo each")
    pools = [Pool(x[groups == name], y[groups == name], classes, name, table=table) for name in names]
    return DataSource(tuple(pools), given=silo is not None or len(paths) > 1)


def read_rows(path: Path, table: Sequence[TableColumn]) -> Array:
    """The rows of a file as the features of a table, its other columns ignored."""
    sheet = read_sheet(path)
    absent = [column.name for column in table if column.name not in sheet.columns]
    if absent:
        raise DataError(f"{path}: no column {absent[0]!r}, expected those the model was trained on")
    return _encode_texts(sheet, table)


def _require_present(sheets: Sequence[Sheet], name: str) -> None:
    for sheet in sheets:
        for line, text in zip(sheet.lines, sheet.column(name), strict=True):
            if missing(text):
                raise DataError(f"{sheet.path}, line {line}: {name!r} is missing ({text!r}), expected a value")


def _schema(sheets: Sequence[Sheet], without: set[str | None], categorical: Sequence[str]) -> tuple[TableColumn, ...]:
    columns = []
    for name in sheets[0].columns:
        if name in without:
            continue
        present = {text for sheet in sheets for text in sheet.column(name) if not missing(text)}
        if name in categorical or not all(_is_number(text) for text in present):
            columns.append(TableColumn(name, ordered(sorted(present))))
        else:
            columns.append(TableColumn(name))
    return tuple(columns)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _encode_texts(sheet: Sheet, table: Sequence[TableColumn]) -> Array:
    """(N, D) float32: numbers with NaN where missing; codes of categories with -1 where missing or unknown."""
    return np.stack([_column(sheet, column) for column in table], axis=1)


def _column(sheet: Sheet, column: TableColumn) -> Array:
    texts = sheet.column(column.name)
    if column.categories is not None:
        codes = {text: code for code, text in enumerate(column.categories)}
        return np.array([codes.get(text, -1) for text in texts], dtype=np.float32)
    values = np.full(len(texts), np.nan, dtype=np.float32)
    for row, text in enumerate(texts):
        if missing(text):
            continue
        if not _is_number(text) or not abs(float(text)) <= LARGEST:
            where = f"{sheet.path}, line {sheet.lines[row]}"
            raise DataError(f"{where}: {column.name!r} is {text!r}, expected a finite number or nothing")
        values[row] = float(text)
    return values
