"""Parquet files as tables, a part of their rows at a time, through the optional package `pyarrow`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...core import ConfigurationError, DataError
from ...core.errors import told
from ..lazy import written
from ..pools import Array, shown
from .sheets import Sheet

SUFFIX = ".parquet"
AT_ONCE = 1 << 20
"""Cells that are decoded together, at most."""
MOST_ROWS = 10_000
"""Rows that are decoded together, at most."""


class ParquetRows(Sheet):
    """Some rows of a parquet file, decoded: cells are as a csv file would have them, "" where a value is missing."""

    def __init__(self, path: Path, batch: Any, columns: tuple[str, ...], first: int) -> None:
        self.path, self.columns, self.batch = path, columns, batch
        self.lines = range(first, first + batch.num_rows)

    def verbatim(self, name: str) -> Iterable[str]:
        try:
            values = self.batch.column(self.columns.index(name)).to_pylist()
        except (ValueError, OverflowError) as error:  # such as a date that Python has none for
            raise unreadable(self.path, error) from error
        return ("" if value is None else str(value) for value in values)

    def numbers(self, name: str, decimal: str) -> Iterable[Array] | None:
        column = self.batch.column(self.columns.index(name))
        if not _numeric(column.type, decimal):
            return None
        return iter((np.asarray(column.to_numpy(zero_copy_only=False), np.float64),))


class ParquetSheet(Sheet):
    """A parquet file, of which a part is in memory at a time, and only the columns that are asked for.

    Raises ConfigurationError without pyarrow, DataError for a file that cannot be read, and columns of no plain values.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.arrow, self.parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ConfigurationError(
                f"{path} needs the optional package 'pyarrow': install caveat with the extra 'parquet'"
            ) from error
        self.path, self.written = path, written(path)
        try:
            with self.parquet.ParquetFile(path, pre_buffer=False) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except self._unreadable as error:
            raise unreadable(path, error) from error
        _check_types(self.arrow, schema, path)
        self.columns = tuple(name.strip() for name in schema.names)
        self.names = dict(zip(self.columns, schema.names, strict=True))
        """The name that the file has for each column."""
        self.types = dict(zip(self.columns, schema.types, strict=True))
        self.lines = range(1, rows + 1)

    def verbatim(self, name: str) -> Iterable[str]:
        return (text for part in self._parts((name,)) for text in part.verbatim(name))

    def numbers(self, name: str, decimal: str) -> Iterable[Array] | None:
        if not _numeric(self.types[name], decimal):
            return None
        return (values for part in self._parts((name,)) for values in part.numbers(name, decimal) or ())

    def parts(self) -> Iterator[Sheet]:
        return self._parts(self.columns)

    def _parts(self, columns: tuple[str, ...]) -> Iterator[ParquetRows]:
        """Rows of these columns. Raises DataError for a file that was written since it was opened first."""
        if written(self.path) != self.written:
            raise DataError(f"{self.path}: was written while it was read; begin again from what it holds")
        wanted, first = [self.names[name] for name in columns], 1
        rows = min(MOST_ROWS, max(AT_ONCE // len(columns), 1))
        try:
            with self.parquet.ParquetFile(self.path, pre_buffer=False) as file:
                for group in range(file.num_row_groups):  # together they would take more memory
                    for batch in file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
                        chosen = batch.select(wanted)  # a name with a point in it can bring others along
                        yield ParquetRows(self.path, chosen, columns, first)
                        first += batch.num_rows
        except self._unreadable as error:
            raise unreadable(self.path, error) from error

    @property
    def _unreadable(self) -> tuple[type[Exception], ...]:
        return (self.arrow.ArrowException, OSError, ValueError, OverflowError)


def unreadable(path: Path, error: Exception) -> DataError:
    """What is told of a file that cannot be read."""
    return DataError(f"{path}: not a readable parquet file ({told(error)})")


def _numeric(kind: Any, decimal: str) -> bool:
    """Whether values of a type are numbers, and their text is read as the same ones with a decimal mark."""
    return str(kind).removeprefix("u") in ("int8", "int16", "int32", "int64") or (
        decimal == "." and str(kind) in ("float", "double")
    )


def _check_types(arrow: Any, schema: Any, path: Path) -> None:
    """Raises DataError for a column whose values are neither numbers nor text, nor dates."""
    for field in schema:
        kind = field.type.value_type if arrow.types.is_dictionary(field.type) else field.type
        if arrow.types.is_nested(kind) or arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
            raise DataError(
                f"{path}: column {shown(field.name)} holds {kind}, expected numbers or text; take it out of the file"
            )
