"""Data frames of pandas, polars and others as sheets: cells as in a csv file, and numbers if a frame stores numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ...core import DataError
from ..raw_samples import Array, shown
from .files import Sheet

EPOCH = datetime(1970, 1, 1)
DAY = timedelta(days=1)
TEXTS = ("category", "categorical", "enum")
"""Prefixes of the names of types whose values are categories, even if they are numbers."""

NESTED = (list, dict, tuple, set, np.ndarray)


def is_frame(value: object) -> bool:
    """Return whether a value is a data frame, which has named columns that can be converted to lists. Arrow tables are
    not data frames: their `columns` are the values."""
    named = hasattr(value, "columns") and not hasattr(value, "column_names")
    return named and hasattr(value, "__getitem__") and not isinstance(value, Mapping | Sheet)


class Columns:
    """Columns by name as a frame: some rows of another frame, or the columns of an array (N, D) as x0, x1, ..."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.columns, self._values = list(values), values

    @classmethod
    def of(cls, rows: Any, index: Array | None = None) -> Columns:
        """Return the rows at the positions `index`, by default all rows."""
        if not is_frame(rows):
            rows = cls({f"x{i}": column for i, column in enumerate(rows.T)})
        return cls({name: _taken(rows[name], index) for name in rows.columns})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __len__(self) -> int:
        return len(self._values[self.columns[0]])

    def plus(self, name: str, values: Any) -> Columns:
        """Return the columns with an additional one called `name`."""
        return Columns({**self._values, name: values})


def _taken(column: Any, index: Array | None) -> Any:
    if index is None:
        return column
    return column.iloc[index] if hasattr(column, "iloc") else column[index]


class FrameSheet(Sheet):
    """A data frame. Dates and times are numbers of days since 1970-01-01, durations numbers of days. Raises DataError
    for a frame without rows, for column names that are equal or empty, and for nested values."""

    def __init__(self, frame: Any, silo: str, where: str = "") -> None:
        self._silo, self.path = silo, Path(where or f"silo {silo}")
        own = list(frame.columns)
        self.columns = tuple(str(name).strip() for name in own)
        if wrong := next((name for name in self.columns if not name or self.columns.count(name) > 1), None):
            raise DataError(f"{self.path}: column name {shown(wrong)} is empty or duplicated, expected different names")
        self.frame, self.names = frame, dict(zip(self.columns, own, strict=True))
        self.lines = range(1, len(frame) + 1)
        if not len(frame):
            raise DataError(f"{self.path}: no rows, expected at least one")
        self._values = cache(self._values_of)

    @property
    def silo(self) -> str:
        return self._silo

    def categorical(self, names: Iterable[str]) -> list[str]:
        """Return the columns among `names` whose type is categorical."""
        types = {name: str(getattr(self.frame[self.names[name]], "dtype", "")).lower() for name in names}
        return [name for name, kind in types.items() if kind.startswith(TEXTS)]

    def has_dates(self, name: str) -> bool:
        """Return whether the first value of a column that is not missing is a date, a time or a duration."""
        first = next((value for value in self.frame[self.names[name]] if not _is_missing(value)), None)
        return isinstance(first, date | timedelta)

    def verbatim(self, name: str) -> Iterable[str]:
        return map(_text, self._values(name))

    def stores_numbers(self, name: str) -> bool:
        """Return whether all values are numbers, dates or durations; a column without values is not."""
        return isinstance(self._values(name), np.ndarray)

    def numbers(self, name: str, decimal: str = ".") -> Iterable[Array] | None:
        values = self._values(name)
        return iter((values,)) if isinstance(values, np.ndarray) else None

    def _values_of(self, name: str) -> Array | Sequence[Any]:
        """Return the values of a column: (N,) float64 with NaN for missing ones, or else objects."""
        column = self.frame[self.names[name]]
        kind = getattr(column, "dtype", None)
        if isinstance(kind, np.dtype) and kind.kind in "iuf":
            return np.asarray(column, np.float64)
        values = [None if _is_missing(value) else value for value in column]
        if nested := next((value for value in values if isinstance(value, NESTED)), None):
            raise DataError(
                f"{self.path}: column {shown(name)} has values such as {shown(str(nested))}, expected numbers or text; "
                "remove the column"
            )
        numbers = [None if value is None else _number(value) for value in values]
        if self.categorical([name]) or any(n is None and v is not None for n, v in zip(numbers, values, strict=True)):
            return values
        if all(value is None for value in values):
            return values
        return np.array([np.nan if number is None else number for number in numbers], np.float64)


def _is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or one of pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | Decimal) and value != value


def _number(value: object) -> float | None:
    """Return a number, a date or a duration as float; None for other values, including truth values."""
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, Real | Decimal):
        return float(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC).replace(tzinfo=None) - EPOCH if value.tzinfo else value - EPOCH) / DAY
    if isinstance(value, date):
        return float((value - EPOCH.date()).days)
    return value / DAY if isinstance(value, timedelta) else None


def _text(value: object) -> str:
    """Return a value as the cell of a csv file: whole numbers without a decimal point, "" for a missing value."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def is_numeric(frame: Any) -> bool:
    """Return whether a frame has numbers and truth values only, without missing ones."""
    sheet = FrameSheet(frame, "")
    for name, own in sheet.names.items():
        kind = str(getattr(frame[own], "dtype", "")).lower()
        if kind != "bool":
            found = None if kind.startswith(("date", "time", "duration")) else sheet.numbers(name)
            if found is None or any(np.isnan(part).any() for part in found):
                return False
    return True


def sheets_of(frames: Mapping[str, Any]) -> list[FrameSheet]:
    """Return a sheet for each silo's frame. Raise DataError for other values and names."""
    for name, frame in frames.items():
        if not isinstance(name, str) or not is_frame(frame):
            expected = "expected a name and a data frame of pandas or polars"
            raise DataError(f"silo {name!r}: found a value of type {type(frame).__name__}, {expected}")
    return [FrameSheet(frame, name) for name, frame in frames.items()]


def dates_of(sheets: Sequence[FrameSheet]) -> tuple[str, ...]:
    """Return the columns with dates, times or durations in some frame."""
    return tuple(dict.fromkeys(name for sheet in sheets for name in sheet.columns if sheet.has_dates(name)))


def categories_of(sheets: Sequence[FrameSheet]) -> tuple[str, ...]:
    """Return the columns with a categorical type in some frame."""
    return tuple(dict.fromkeys(name for sheet in sheets for name in sheet.categorical(sheet.columns)))
