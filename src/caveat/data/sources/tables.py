"""Tables in CSV files: their rows as numbers and codes of categories."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core import ConfigurationError, DataError, DataWarning, Refused
from ..pools import Array, CsvFormat, DataSource, Pool, TableColumn, ordered, shown
from .columns import LARGEST, ColumnContent, Reading, features_of, label_refusal, number
from .declared_sheets import declared_rows, declared_sheets
from .sheets import Sheet, missing, read_sheet, read_sheets, spaces


def csv_source(paths: Sequence[Path], reading: Reading) -> DataSource:
    """One pool per silo where there are several files or a silo column, otherwise one pool to partition.

    Raises ConfigurationError for names of columns that the files lack, DataError for what cannot be read as it is
    declared.
    """
    sheets = read_sheets(paths, reading.separator)
    declared, target, silo = reading.declared, reading.target or "", reading.silo
    sheets = declared_sheets(sheets, declared, reading.decimal, reading.target, silo)
    check_names(sheets, reading)
    check_labels(sheets, reading)
    if refused := label_refusal(sheets, target):
        raise DataError(refused)
    table = _schema(features_of(sheets, reading))
    if not table:
        raise DataError(f"{sheets[0].path}: no columns but {target!r}, expected at least one feature")
    warn_of_spaces(sheets, [target, *([silo] if silo else []), *(each.name for each in table if each.categories)])
    x = np.concatenate([_encode_texts(sheet, table, reading.decimal) for sheet in sheets])
    classes = declared.classes or ordered([label for sheet in sheets for label in sheet.column(target)])
    codes = {label: i for i, label in enumerate(classes)}
    y = np.array([codes[label] for sheet in sheets for label in sheet.column(target)], dtype=np.int64)
    groups = np.array([group for sheet in sheets for group in silos_of(sheet, reading)])
    names = ordered(groups.tolist()) if silo else tuple(sheet.path.stem for sheet in sheets)
    if len(set(names)) < len(names):
        raise DataError(f"several files are called {max(names, key=names.count)!r}: expected one silo each")
    csv_format = CsvFormat(reading.separator, reading.decimal, declared)
    pools = [
        Pool(x[groups == name], y[groups == name], classes, name, table=table, csv_format=csv_format) for name in names
    ]
    return DataSource(tuple(pools), given=silo is not None or len(paths) > 1)


def silos_of(sheet: Sheet, reading: Reading) -> list[str]:
    """The silo of each row: what the silo column says, or else the name of the file."""
    return sheet.column(reading.silo) if reading.silo else [sheet.path.stem] * len(sheet.rows)


def read_rows(path: Path, table: Sequence[TableColumn], csv_format: CsvFormat) -> Array:
    """The rows of a file as the features of a table, its other columns ignored.

    A category that the table lacks has the code after its last.
    """
    sheet = declared_rows(read_sheet(path, csv_format.separator), csv_format.declared, csv_format.decimal)
    absent = [column.name for column in table if column.name not in sheet.columns]
    if absent:
        raise DataError(f"{path}: no column {absent[0]!r}, expected those the model was trained on")
    return _encode_texts(sheet, table, csv_format.decimal)


def check_names(sheets: Sequence[Sheet], reading: Reading) -> None:
    """Raises ConfigurationError for names of columns that the files lack or that contradict each other."""
    features = [(name, key) for key in ("categorical", "numeric") for name in getattr(reading, key)]
    for name, key in ((reading.target, "target"), (reading.silo, "silo"), *features):
        if name is not None and name not in sheets[0].columns:
            columns = ", ".join(sheets[0].columns)
            raise ConfigurationError(f"data.{key} = {name!r}: {sheets[0].path} has {columns}", f"data.{key}")
    if reading.target is not None and reading.target in (reading.silo, *(name for name, _ in features)):
        raise ConfigurationError(
            f"data.target = {reading.target!r} cannot be the silo column or a feature too", "data.target"
        )


def check_labels(sheets: Sequence[Sheet], reading: Reading) -> None:
    """Raises DataError for rows without a label or a silo."""
    for name in (reading.target, reading.silo):
        for sheet in sheets if name is not None else ():
            for row, text in enumerate(sheet.column(name or "")):
                if missing(text):
                    line = sheet.lines[row]
                    raise DataError(f"{sheet.path}, line {line}: {name!r} is missing ({text!r}), expected a value")


def warn_of_spaces(sheets: Sequence[Sheet], columns: Sequence[str]) -> None:
    """Warns of columns of texts in which some differ by spaces around them alone, which are not read."""
    for name in columns:
        if told := spaces(sheets, name):
            warnings.warn(told, DataWarning, stacklevel=3)


def _schema(columns: Sequence[ColumnContent]) -> tuple[TableColumn, ...]:
    """The columns of a table. Raises DataError for the first that cannot be read."""
    refused = [column for column in columns if column.refused]
    if refused:
        more = f" (so for {len(refused) - 1} more columns: `caveat data` shows them)" if len(refused) > 1 else ""
        raise Refused(refused[0].refused + more, "reading", refused[0].name)
    for column in columns:
        if column.remark:
            told = f"column {shown(column.name)} is read as {column.distinct} categories: {column.remark}"
            warnings.warn(told, DataWarning, stacklevel=2)
    return tuple(column.column for column in columns)


def _encode_texts(sheet: Sheet, table: Sequence[TableColumn], decimal: str) -> Array:
    """(N, D) float32: numbers with NaN where missing; codes of categories with -1 where missing."""
    return np.stack([_column(sheet, column, decimal) for column in table], axis=1)


def _column(sheet: Sheet, column: TableColumn, decimal: str) -> Array:
    texts = sheet.column(column.name)
    if column.categories is not None:
        codes = {text: code for code, text in enumerate(column.categories)}
        unseen = len(codes)
        return np.array([-1 if missing(text) else codes.get(text, unseen) for text in texts], dtype=np.float32)
    values = np.full(len(texts), np.nan, dtype=np.float32)
    for row, text in enumerate(texts):
        if missing(text):
            continue
        value = number(text, decimal)
        if value is None or not abs(value) <= LARGEST:
            raise DataError(f"{sheet.place(column.name, row)}, expected a finite number or nothing")
        values[row] = value
    return values
