"""Parquet files as the text of a table, through the optional package `pyarrow`, which nothing else needs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ...core import ConfigurationError, DataError
from ...core.errors import told
from ..pools import shown

SUFFIX = ".parquet"
AT_ONCE = 10_000
"""Rows that are decoded together."""


def parquet_cells(path: Path) -> tuple[tuple[str, ...], list[list[str]]]:
    """The names of a file's columns, and its rows as a csv file would have them: "" where a value is missing.

    Raises ConfigurationError without pyarrow, DataError for a file that cannot be read, and columns of no plain values.
    """
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigurationError(
            f"{path} needs the optional package 'pyarrow': install caveat with the extra 'parquet'"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_types(arrow, file.schema_arrow, path)
            names = tuple(name.strip() for name in file.schema_arrow.names)
            rows: list[list[str]] = []
            for batch in file.iter_batches(AT_ONCE):
                columns = [[_text(value) for value in column.to_pylist()] for column in batch.columns]
                rows += map(list, zip(*columns, strict=True))
            return names, rows
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a readable parquet file ({told(error)})") from error


def _check_types(arrow: Any, schema: Any, path: Path) -> None:
    """Raises DataError for a column whose values are neither numbers nor text, nor dates."""
    for field in schema:
        kind = field.type.value_type if arrow.types.is_dictionary(field.type) else field.type
        if arrow.types.is_nested(kind) or arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
            raise DataError(
                f"{path}: column {shown(field.name)} holds {kind}, expected numbers or text; take it out of the file"
            )


def _text(value: Any) -> str:
    return "" if value is None else str(value)
