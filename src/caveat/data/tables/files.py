"""The files of tables, csv and parquet: cells as text, and numbers if a file stores them."""

from __future__ import annotations

import csv
import importlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...core import ConfigurationError, DataError, Refused
from ...core.errors import message_of
from ..lazy_rows import size_and_time
from ..raw_samples import Array, shown
from .cell_formats import PLAIN, CellFormat, is_no_text, no_utf8, reader
from .reading_settings import CsvFormat

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Texts for a missing value, in lower case."""
SUFFIX = ".parquet"
AT_ONCE = 1 << 20
"""Maximum number of cells that are decoded at once."""
MOST_ROWS = 10_000
"""Maximum number of rows that are decoded at once."""


class Sheet:
    """The cells of one file with a header, as text."""

    path: Path
    columns: tuple[str, ...]
    lines: Sequence[int]
    """The line at which each row ends, for messages."""
    hidden = False
    """Whether messages do not show cells."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    @property
    def silo(self) -> str:
        """The name of the silo that the rows belong to, unless a column names it."""
        return self.path.stem

    def verbatim(self, name: str) -> Iterable[str]:
        """Return the cells of a column as written, in row order."""
        raise NotImplementedError

    def stores_numbers(self, name: str) -> bool:
        """Return whether a column is stored as numbers and not as their text."""
        return False

    def numbers(self, name: str) -> Iterable[Array] | None:
        """Return the values of a numeric column, in parts (n,) of float64 with NaN for missing ones. None if the column
        stores text, or if its numbers are read in another format."""
        return None

    def parts(self) -> Iterator[Sheet]:
        """Yield the rows in order, in parts that fit into memory."""
        yield self

    @property
    def changes(self) -> object:
        """The differences from the file, as a value that can be written as JSON; None without differences."""
        return None

    def with_columns(self, cells: Mapping[str, Sequence[str] | None]) -> Sheet:
        """Replace the cells of columns; None leaves a column out."""
        return ChangedSheet(self, {name: name for name in self.columns}).with_columns(cells) if cells else self

    def renamed(self, names: Mapping[str, str]) -> Sheet:
        """Rename all columns."""
        return ChangedSheet(self, {name: name for name in self.columns}).renamed(names)

    def formatted(self, formats: Mapping[str, CellFormat]) -> Sheet:
        """Set the formats of columns."""
        return ChangedSheet(self, {name: name for name in self.columns}).formatted(formats) if formats else self

    def format_of(self, name: str) -> CellFormat:
        """Return the format of a column's cells."""
        return PLAIN

    def own_name(self, name: str) -> str:
        """Return a column's name in the file."""
        return name

    def column(self, name: str) -> Iterable[str]:
        """Return the cells of a column without surrounding spaces, numbers with a decimal point."""
        return (text.strip() for text in self.verbatim(name))

    def raw(self, name: str) -> Iterable[str]:
        """Return the cells of a column as written in the file, without surrounding spaces."""
        return (text.strip() for text in self.verbatim(name))

    def place(self, name: str, row: int) -> str:
        """Return a cell's place and content, for messages."""
        where = f"{self.path}, line {self.lines[row]}"
        if self.hidden:
            return f"{where}: the value of {shown(name)}"
        return f"{where}: {shown(name)} is {shown(next(islice(self.raw(name), row, None)))}"


@dataclass(frozen=True)
class CsvSheet(Sheet):
    """The text of a csv file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: Sequence[int]

    def verbatim(self, name: str) -> Iterable[str]:
        at = self.columns.index(name)
        return (row[at] for row in self.rows)


@dataclass(frozen=True)
class ChangedSheet(Sheet):
    """A file with renamed, removed or replaced columns; replaced cells are in memory."""

    base: Sheet
    names: Mapping[str, str]
    """The file's name of each column, in order."""
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Replaced cells, by column."""
    first: int = 0
    """The row of `cells` for the first row of `base`, which may be a part of a file."""
    formats: Mapping[str, CellFormat] = field(default_factory=dict)
    """Formats of cells, by column."""
    hidden: bool = False

    @property
    def path(self) -> Path:  # type: ignore[override]
        return self.base.path

    @property
    def silo(self) -> str:
        return self.base.silo

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.names)

    @property
    def lines(self) -> Sequence[int]:  # type: ignore[override]
        return self.base.lines

    @property
    def changes(self) -> object:
        formats = {name: asdict(each) for name, each in self.formats.items()}
        return [list(self.names.items()), {name: list(cells) for name, cells in self.cells.items()}, formats]

    def verbatim(self, name: str) -> Iterable[str]:
        if name in self.cells:
            return islice(self.cells[name], self.first, self.first + len(self))
        return self.base.verbatim(self.names[name])

    def stores_numbers(self, name: str) -> bool:
        return name not in self.cells and self.base.stores_numbers(self.names[name])

    def numbers(self, name: str) -> Iterable[Array] | None:
        return None if name in (*self.cells, *self.formats) else self.base.numbers(self.names[name])

    def parts(self) -> Iterator[Sheet]:
        first = self.first
        for part in self.base.parts():
            yield replace(self, base=part, first=first)
            first += len(part)

    def with_columns(self, cells: Mapping[str, Sequence[str] | None]) -> Sheet:
        names = {name: own for name, own in self.names.items() if cells.get(name, ()) is not None}
        given = {name: each for name, each in cells.items() if each is not None}
        known = {name: each for name, each in self.cells.items() if name in names}
        formats = {name: each for name, each in self.formats.items() if name in names and name not in given}
        return replace(self, names=names, cells=known | given, formats=formats)

    def renamed(self, names: Mapping[str, str]) -> Sheet:
        called = {names[name]: own for name, own in self.names.items()}
        cells = {names[name]: each for name, each in self.cells.items()}
        formats = {names[name]: each for name, each in self.formats.items()}
        return replace(self, names=called, cells=cells, formats=formats)

    def formatted(self, formats: Mapping[str, CellFormat]) -> Sheet:
        return replace(self, formats={**self.formats, **formats})

    def format_of(self, name: str) -> CellFormat:
        return self.formats.get(name, PLAIN)

    def own_name(self, name: str) -> str:
        return self.base.own_name(self.names[name])

    def column(self, name: str) -> Iterable[str]:
        cells = super().column(name)
        return map(reader(self.formats[name]), cells) if name in self.formats else cells

    def raw(self, name: str) -> Iterable[str]:
        return super().column(name) if name in self.cells else self.base.raw(self.names[name])


def missing(text: str) -> bool:
    return text.lower() in MISSING


def first_place(sheets: Sequence[Sheet], name: str, texts: Collection[str]) -> str:
    """Return the first place in a column with one of `texts`, for messages."""
    for sheet in sheets:
        for row, (text, raw) in enumerate(zip(sheet.column(name), sheet.raw(name), strict=True)):
            if text in texts or raw in texts:
                return sheet.place(name, row)
    raise LookupError(name)


def spaces(sheets: Sequence[Sheet], name: str) -> str:
    """Return the first text of a column that occurs with different surrounding spaces, for messages; "" if there is
    none."""
    written: dict[str, str] = {}
    for sheet in sheets:
        for row, text in enumerate(sheet.verbatim(name)):
            first = written.setdefault(text.strip(), text)
            if first != text and not missing(text.strip()):
                return (
                    f"{sheet.path}, line {sheet.lines[row]}: {shown(name)} is {shown(text)}, elsewhere {shown(first)}: "
                    f"read as equal, without the spaces"
                )
    return ""


class ParquetRows(Sheet):
    """Decoded rows of a parquet file: cells are as in a csv file, "" for missing values."""

    def __init__(self, path: Path, batch: Any, columns: tuple[str, ...], first: int) -> None:
        self.path, self.columns, self.batch = path, columns, batch
        self.lines = range(first, first + batch.num_rows)

    def verbatim(self, name: str) -> Iterable[str]:
        try:
            values = self.batch.column(self.columns.index(name)).to_pylist()
        except (ValueError, OverflowError) as error:  # such as a date outside of Python's range
            raise unreadable(self.path, error) from error
        return ("" if value is None else str(value) for value in values)

    def stores_numbers(self, name: str) -> bool:
        return _numeric(self.batch.column(self.columns.index(name)).type)

    def numbers(self, name: str) -> Iterable[Array] | None:
        column = self.batch.column(self.columns.index(name))
        if not _numeric(column.type):
            return None
        return iter((np.asarray(column.to_numpy(zero_copy_only=False), np.float64),))


class ParquetSheet(Sheet):
    """A parquet file, of which only the needed columns are read, in parts. Raises ConfigurationError without pyarrow,
    DataError for an unreadable file and for nested or binary columns."""

    def __init__(self, path: Path) -> None:
        try:
            self.arrow, self.parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ConfigurationError(
                f"{path} needs the optional package 'pyarrow': install caveat with the extra 'parquet'"
            ) from error
        self.path, self.written = path, size_and_time(path)
        try:
            with self.parquet.ParquetFile(path, pre_buffer=False) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except self._unreadable as error:
            raise unreadable(path, error) from error
        _check_types(self.arrow, schema, path)
        self.columns = tuple(name.strip() for name in schema.names)
        self.names = dict(zip(self.columns, schema.names, strict=True))
        """The file's name of each column."""
        self.types = dict(zip(self.columns, schema.types, strict=True))
        self.lines = range(1, rows + 1)

    def verbatim(self, name: str) -> Iterable[str]:
        return (text for part in self._parts((name,)) for text in part.verbatim(name))

    def stores_numbers(self, name: str) -> bool:
        return _numeric(self.types[name])

    def numbers(self, name: str) -> Iterable[Array] | None:
        if not _numeric(self.types[name]):
            return None
        return (values for part in self._parts((name,)) for values in part.numbers(name) or ())

    def parts(self) -> Iterator[Sheet]:
        return self._parts(self.columns)

    def _parts(self, columns: tuple[str, ...]) -> Iterator[ParquetRows]:
        """Yield the rows of `columns`. Raise DataError if the file has changed since it was first opened."""
        if size_and_time(self.path) != self.written:
            raise DataError(f"{self.path} changed while caveat was reading it. Start again.")
        wanted, first = [self.names[name] for name in columns], 1
        rows = min(MOST_ROWS, max(AT_ONCE // len(columns), 1))
        try:
            with self.parquet.ParquetFile(self.path, pre_buffer=False) as file:
                for group in range(file.num_row_groups):  # one group at a time takes less memory
                    for batch in file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
                        chosen = batch.select(wanted)  # a name with a dot can match other columns
                        yield ParquetRows(self.path, chosen, columns, first)
                        first += batch.num_rows
        except self._unreadable as error:
            raise unreadable(self.path, error) from error

    @property
    def _unreadable(self) -> tuple[type[Exception], ...]:
        return (self.arrow.ArrowException, OSError, ValueError, OverflowError)


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the error for an unreadable file."""
    return DataError(f"{path}: not a readable parquet file ({message_of(error)})")


def _numeric(kind: Any) -> bool:
    return str(kind).removeprefix("u") in ("int8", "int16", "int32", "int64", "float", "double")


def _check_types(arrow: Any, schema: Any, path: Path) -> None:
    """Raise DataError for a column with nested or binary values."""
    for column in schema:
        kind = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
        if arrow.types.is_nested(kind) or arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
            raise DataError(
                f"{path}: column {shown(column.name)} contains {kind}, expected numbers or texts; remove the column"
            )


def read_sheet(path: Path, separator: str | None = None) -> Sheet:
    """Read a csv file with a header line, or a parquet file, whose rows count as lines. Raise DataError. By default the
    separator is the most frequent of comma, semicolon and tab in the header."""
    if path.suffix.lower() == SUFFIX:
        sheet = ParquetSheet(path)
        _check_columns(path, sheet.columns)
        if not len(sheet):
            raise DataError(f"{path}: no rows, expected at least one")
        return sheet
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            if is_no_text(header):
                raise Refused(no_utf8(path), "file")
            declared = re.fullmatch(r"sep=(.)\s*", header)  # as spreadsheets write it
            separator = separator or (declared[1] if declared else None)
            header = file.readline() if declared else header
            file.seek(0)
            reader = csv.reader(file, delimiter=separator or max(",;\t|", key=header.count), strict=True)
            numbered = [(reader.line_num, row) for row in reader if row][bool(declared) :]
    except UnicodeDecodeError as error:
        raise Refused(no_utf8(path), "file") from error
    except (OSError, csv.Error) as error:
        raise Refused(f"{path}: not a readable csv file in UTF-8 ({error})", "file") from error
    if len(numbered) < 2:
        lines = f"{len(numbered)} line{'s' * (len(numbered) != 1)}"
        raise Refused(f"{path}: {lines}, expected a header and at least one row", "file")
    columns = tuple(name.strip() for name in numbered[0][1])
    _check_columns(path, columns)
    for line, row in numbered[1:]:
        if len(row) != len(columns):
            alone = "; remove the lines above the header, or set data.separator" * (len(columns) == 1)
            told = f"{path}, line {line}: {len(row)} values, expected {len(columns)} as in the header{alone}"
            raise Refused(told, "file")
    return CsvSheet(path, columns, [row for _, row in numbered[1:]], [line for line, _ in numbered[1:]])


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raise DataError for empty and duplicate column names."""
    doubled = [name for name, count in Counter(columns).items() if count > 1 or not name]
    if doubled:
        raise DataError(
            f"{path}: column name {shown(doubled[0])} is empty or duplicated, expected a different name for each "
            "column; rename or remove the column (to_csv(index=False) of pandas omits the index)"
        )


def read_sheets(paths: Sequence[Path], csv_format: CsvFormat) -> list[Sheet]:
    """Read files, each with its separator. Raise DataError for a file that cannot be read."""
    return [read_sheet(path, csv_format.of(path.stem).separator) for path in paths]
