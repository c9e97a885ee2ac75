"""The rows of tables as numbers and codes: in memory, or in a file of this machine that is mapped into it.

Such a file lies in `tables` below `core.cache.cache_folder`. Its name is a hash of the tables' files and of how they
are read, so that every run that reads them does with one; beside it lies a hash of its own content, by which damage is
noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from ...core import ConfigurationError, DataError
from ...core.devices import cache_folder
from ..lazy import ArrayRows
from ..pools import Array, TableColumn
from .columns import ENDLESS, LARGEST, number
from .sheets import Sheet, missing

FORMAT = 1
"""Rises whenever other numbers are made of the same files."""


def encoded_rows(sheets: Sequence[Sheet], table: Sequence[TableColumn], decimal: str) -> Array:
    """(N, D) float32 of all rows of tables: numbers with NaN where missing; codes of categories with -1 where missing.

    A category that the table lacks has the code after its last. Raises DataError for other text among numbers.
    """
    rows = np.empty((sum(map(len, sheets)), len(table)), np.float32)
    first = 0
    for part in _parts(sheets, table, decimal):
        rows[first : first + len(part)] = part
        first += len(part)
    return rows


def mapped_rows(sheets: Sequence[Sheet], table: Sequence[TableColumn], decimal: str) -> Array:
    """The same rows, which are read as they are needed. Raises ConfigurationError where they cannot be kept."""
    folder = cache_folder() / "tables"
    file = folder / f"{_name(sheets, table, decimal)}.npy"
    shape = (sum(map(len, sheets)), len(table))
    try:
        rows = _kept(file, shape)
        if rows is None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # what is in it is private data
            _write(file, shape, sheets, table, decimal)
            rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ConfigurationError(
            f"data.lazy = true keeps the {shape[0]:,} rows of the table in {folder}, which fails ({error}); "
            "CAVEAT_CACHE=FOLDER names another folder",
            "data.lazy",
        ) from error
    return cast(Array, ArrayRows(rows, lambda x, _: x, ", ".join(str(sheet.path) for sheet in sheets[:3])))


def _parts(sheets: Sequence[Sheet], table: Sequence[TableColumn], decimal: str) -> Iterator[Array]:
    for part in (part for sheet in sheets for part in sheet.parts()):
        yield np.stack([_column(part, column, decimal) for column in table], axis=1)


def _column(sheet: Sheet, column: TableColumn, decimal: str) -> Array:
    if column.categories is not None:
        codes = {text: code for code, text in enumerate(column.categories)}
        unseen, texts = len(codes), sheet.column(column.name)
        return np.array([-1 if missing(text) else codes.get(text, unseen) for text in texts], dtype=np.float32)
    if (stored := sheet.numbers(column.name, decimal)) is not None:
        return _stored(np.concatenate(list(stored)), sheet, column)
    values = np.full(len(sheet), np.nan, dtype=np.float32)
    for row, text in enumerate(sheet.column(column.name)):
        if missing(text):
            continue
        value = number(text, decimal)
        if value is None or not abs(value) <= LARGEST:
            raise DataError(f"{sheet.place(column.name, row)}, {ENDLESS}")
        values[row] = value
    return values


def _stored(values: Array, sheet: Sheet, column: TableColumn) -> Array:
    """float32 of the numbers (n,) that a file stores."""
    endless = abs(values) > LARGEST
    if endless.any():
        raise DataError(f"{sheet.place(column.name, int(endless.argmax()))}, {ENDLESS}")
    return values.astype(np.float32)


def _name(sheets: Sequence[Sheet], table: Sequence[TableColumn], decimal: str) -> str:
    """A hash of all that rows are made of."""
    columns = [(column.name, column.categories) for column in table]
    digest = hashlib.sha256(json.dumps([FORMAT, decimal, columns]).encode())
    for sheet in sheets:
        if sheet.changes is not None:
            digest.update(json.dumps(sheet.changes).encode())
        with sheet.path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:40]


def _kept(file: Path, shape: tuple[int, int]) -> Array | None:
    """The rows of a file that was written before; None where there is none, or it is damaged."""
    try:
        if file.is_symlink() or _sum_of(file) != file.with_suffix(".sha256").read_text():
            return None
        rows: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return rows if rows.shape == shape and rows.dtype == np.float32 else None


def _write(
    file: Path, shape: tuple[int, int], sheets: Sequence[Sheet], table: Sequence[TableColumn], decimal: str
) -> None:
    """Write rows to a file that appears whole or not at all, and its hash beside it."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".part-") as part:
        made = Path(part) / file.name
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
        with made.open("wb") as opened:
            np.lib.format.write_array_header_1_0(opened, header)
            for rows in _parts(sheets, table, decimal):
                opened.write(rows.data)
        told = Path(part) / "sum"
        told.write_text(_sum_of(made))
        os.replace(told, file.with_suffix(".sha256"))
        os.replace(made, file)


def _sum_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
