"""The contents of table columns: numbers, categories, or a reason to refuse them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..pools import Array, TableColumn, ordered, shown
from .dictionary import NOTHING, Declared
from .files import Sheet, first_place, missing

TELLING = 20
"""More distinct texts than this, and than half the rows, are taken for names or free text."""
MOSTLY = 0.9
"""Minimum fraction of numbers from which other text in a column is taken for an error."""
LARGEST = float(np.finfo(np.float32).max)
ENDLESS = "expected a finite number or nothing"
AT_LEAST = 1 << 20
"""Numbers that are collected before duplicates are removed."""
MEND = "correct the cell (empty, ? or NA for a missing value)"


class Reading(NamedTuple):
    """The keys of `[data]` for reading tables."""

    target: str | None
    silo_column: str | None
    categorical: Sequence[str]
    numeric: Sequence[str]
    decimal: str
    separator: str | None
    declared: Declared = NOTHING
    groups: str | None = None
    time: str | None = None

    @property
    def no_inputs(self) -> dict[str, str]:
        """The keys that name a column that is not an input, and the column."""
        keys = ("target", "silo_column", "groups", "time")
        return {key: name for key in keys if (name := getattr(self, key)) is not None}

    @classmethod
    def of(cls, settings: object) -> Reading:
        """Return the keys of a `DataSettings`, with the column types of its dictionary."""
        own = cls(*(getattr(settings, key) for key in cls._fields))
        return own._replace(
            categorical=own.with_declared(own.categorical, "category"), numeric=own.with_declared(own.numeric, "number")
        )

    def with_declared(self, names: Sequence[str], kind: str) -> tuple[str, ...]:
        """Return names of features plus the dictionary's columns of a type."""
        others = [name for name in self.declared.of_type(kind) if name not in self.no_inputs.values()]
        return tuple(dict.fromkeys([*names, *others]))


@dataclass(frozen=True)
class ColumnContent:
    """The content of a column of one or several files."""

    name: str
    rows: int
    missing: int
    distinct: int
    """Number of distinct values, without missing ones."""
    holds: Literal["numbers", "texts", "nothing"] = "nothing"
    """The type of its values, without missing ones; category codes are texts."""
    lowest: float | None = None
    highest: float | None = None
    mean: float | None = None
    deviation: float | None = None
    """Population standard deviation of its numbers."""
    categories: tuple[str, ...] | None = None
    """Its texts in the order of their codes."""
    remark: str = ""
    """A note if its reading is unusual."""
    refused: str = ""
    """Why it cannot be read: file, line, cell and remedy."""

    @property
    def column(self) -> TableColumn:
        return TableColumn(self.name, self.categories)


def number(text: str, decimal: str) -> float | None:
    """Parse a number with this decimal mark; None for other text."""
    if "_" in text or (decimal != "." and "." in text):
        return None
    try:
        return float(text.replace(decimal, "."))
    except ValueError:
        return None


def features_of(sheets: Sequence[Sheet], reading: Reading) -> list[ColumnContent]:
    """Return the contents of the columns that are inputs, in the order of the first file."""
    names = [name for name in sheets[0].columns if name not in reading.no_inputs.values()]
    return [column_of(sheets, name, reading) for name in names]


def column_of(sheets: Sequence[Sheet], name: str, reading: Reading) -> ColumnContent:
    """Return the content of a column, or why it is refused."""
    if name not in reading.categorical and (stored := _stored(sheets, name, reading.decimal)) is not None:
        return stored
    counts = Counter(text for sheet in sheets for text in sheet.column(name))
    present = {text: count for text, count in counts.items() if not missing(text)}
    values = {text: number(text, reading.decimal) for text in present}
    rows, known = counts.total(), [value for value in values.values() if value is not None]
    about = (name, rows, rows - sum(present.values()), len(present))
    if name in reading.categorical:
        return ColumnContent(*about, "texts", categories=ordered(sorted(present)))
    refused = _refusal(sheets, name, reading, present, values)
    if len(known) < len(values):
        remark = _mixture(present, values)
        return ColumnContent(*about, "texts", categories=ordered(sorted(present)), remark=remark, refused=refused)
    if known:
        weights = [count for text, count in present.items() if values[text] is not None]
        mean, deviation = _moments(known, weights)
        return ColumnContent(*about, "numbers", min(known), max(known), mean, deviation, refused=refused)
    return ColumnContent(*about)


def _stored(sheets: Sequence[Sheet], name: str, decimal: str) -> ColumnContent | None:
    """Return the content of a column that all files store as numbers; None for other columns."""
    parts = [sheet.numbers(name, decimal) for sheet in sheets]
    if any(part is None for part in parts):
        return None
    rows, absent, lowest, highest = 0, 0, math.inf, -math.inf
    endless, found, moments = set[str](), Distinct(), ColumnMoments()
    for values in chain.from_iterable(part or () for part in parts):
        known = values[~np.isnan(values)]
        rows, absent = rows + len(values), absent + len(values) - len(known)
        if len(known):
            lowest, highest = min(lowest, float(known.min())), max(highest, float(known.max()))
            endless |= {str(value) for value in known[~(abs(known) <= LARGEST)].tolist()}
            found.add(known)
            moments.add(known)
    about = (name, rows, absent, found.count())
    if absent == rows:
        return ColumnContent(*about)
    refused = f"{first_place(sheets, name, endless)}, {ENDLESS}" if endless else ""
    mean, deviation = (None, None) if endless else (moments.mean, moments.deviation)
    return ColumnContent(*about, "numbers", lowest, highest, mean, deviation, refused=refused)


class ColumnMoments:
    """Mean and population standard deviation of numbers that are added in parts."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Array) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # infinite numbers are refused
            mean, count = float(values.mean()), self.count + len(values)
            apart, share = mean - self.mean, len(values) / count
            self.squares += float(((values - mean) ** 2).sum()) + apart**2 * self.count * share
            self.mean, self.count = self.mean + apart * share, count

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.count)


class Distinct:
    """Count of distinct numbers that are added in parts; needs at most 8 bytes per number."""

    def __init__(self) -> None:
        self.known, self.new = np.empty(0, np.int64), list[NDArray[np.int64]]()

    def add(self, values: Array) -> None:
        self.new.append(_once(values.view(np.int64)))  # bits, so 0.0 and -0.0 differ as in text
        if sum(map(len, self.new)) > max(len(self.known), AT_LEAST):
            self.count()

    def count(self) -> int:
        self.known, self.new = _once(np.concatenate([self.known, *self.new])), []
        return len(self.known)


def _once(values: NDArray[np.int64]) -> NDArray[np.int64]:
    values = np.sort(values)  # np.unique takes several times the memory
    first: NDArray[np.int64] = values[np.append(True, values[1:] != values[:-1])[: len(values)]]
    return first


def _moments(values: Sequence[float], weights: Sequence[int]) -> tuple[float | None, float | None]:
    if not np.isfinite(values).all() or max(map(abs, values)) > LARGEST:
        return None, None
    mean = float(np.average(values, weights=weights))
    return mean, float(np.sqrt(np.average((np.array(values) - mean) ** 2, weights=weights)))


def _refusal(
    sheets: Sequence[Sheet], name: str, reading: Reading, present: Mapping[str, int], values: Mapping[str, float | None]
) -> str:
    """Return why a column that is not declared categorical cannot be read, from counts of texts; "" if it can."""
    texts = {text for text, value in values.items() if value is None}
    endless = {text for text, value in values.items() if value is not None and not abs(value) <= LARGEST}
    other = "," if reading.decimal == "." else "."
    marked = {text for text in texts if number(text, other) is not None}
    numbers = sum(count for text, count in present.items() if text not in texts or text in marked)
    rows = sum(present.values())
    if texts and texts == marked and numbers == rows:
        codes = "" if name in reading.numeric else ", or name the column in data.categorical if its values are codes"
        return (
            f"{first_place(sheets, name, texts)}, a number with a decimal {'comma' if other == ',' else 'point'}: set "
            f'data.decimal = "{other}"{codes}'
        )
    if texts and name in reading.numeric:
        says = "the dictionary declares the column as numbers"
        says = says if name in reading.declared.of_type("number") else "data.numeric has the column"
        return f"{first_place(sheets, name, texts)}, but {says}, expected a number: {MEND}"
    if texts and numbers >= MOSTLY * rows:
        return (
            f"{first_place(sheets, name, texts)}, but {rows - sum(present[text] for text in texts)} of {rows} values "
            f"are numbers: {MEND}, or name the column in data.categorical if its numbers are codes"
        )
    if endless:
        return f"{first_place(sheets, name, endless)}, {ENDLESS}"
    if texts and len(present) > max(TELLING, rows / 2):
        return (
            f"{first_place(sheets, name, texts)}, one of {len(present)} different texts in {rows} rows, which look "
            f"like names or free text: leave the column out, {shown(name)} = false in [data.rename_columns]; or, if "
            "all data are on one machine, name it in data.categorical if these are categories: a silo of a federation "
            "never sends so many"
        )
    return ""


def _mixture(present: Mapping[str, int], values: Mapping[str, float | None]) -> str:
    numbers = sum(present[text] for text, value in values.items() if value is not None)
    if 2 * numbers < sum(present.values()):
        return ""
    return f"{numbers} of {sum(present.values())} values are numbers, the others are text"


def label_refusal(sheets: Sequence[Sheet], target: str) -> str:
    """Return why a column cannot be the target: quantities, or more labels than half the rows; "" if it can."""
    labels = {text for sheet in sheets for text in sheet.column(target) if not missing(text)}
    rows = sum(map(len, sheets))
    if len(labels) <= TELLING:
        return ""
    values = [min((v for mark in ".," if (v := number(text, mark)) is not None), default=None) for text in labels]
    quantities = all(value is not None for value in values) and any(value is not None and value % 1 for value in values)
    if not quantities and len(labels) <= rows / 2:
        return ""
    looks = "quantities, which must be converted to classes first" if quantities else "no classes"
    return (
        f"{first_place(sheets, target, labels)}, one of {len(labels)} different labels in {rows} rows, which look like "
        f"{looks}: expected another data.target"
    )
