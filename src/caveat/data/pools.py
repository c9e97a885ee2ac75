"""Pools: the samples of a source, in memory or read on access."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import DataError
from ..core.devices import PART, PartedInputs
from .tables.dictionary import NOTHING, Declared

Array = NDArray[Any]
LabelArray = NDArray[np.int64]
Index = NDArray[np.int64]
Entry = TypeVar("Entry")
Kind = Literal["images", "features", "tokens", "series"]
"""The kinds of inputs."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    name: str
    categories: tuple[str, ...] | None = None
    """The texts that the column's values encode; None for a column of numbers."""


@dataclass(frozen=True)
class CsvFormat:
    """The format of csv files."""

    separator: str | None = None
    """The separator of values; None detects it in the header."""
    decimal: str = "."
    """The decimal mark of numbers."""
    declared: Declared = NOTHING
    """The declarations of columns and labels."""

    def of(self, *names: str) -> CsvFormat:
        """Return the format of the first of these files that has its own, else the common one."""
        own, common = self.declared.own_file(*names), replace(self.declared, files=())
        if own is None:
            return replace(self, declared=common)
        declared = replace(
            common,
            thousands=own.thousands or (common.thousands if own.decimal in (None, self.decimal) else None),
            missing=(*common.missing, *own.missing),
            label_codes=_overridden(common.label_codes, own.label_codes, "code"),
            rename_columns=_overridden(common.rename_columns, own.rename_columns, "own"),
        )
        return CsvFormat(own.separator or self.separator, own.decimal or self.decimal, declared)

    @property
    def conversions(self) -> list[str]:
        """What changes the numbers of a file: marks other than those of plain numbers, and factors of columns."""
        marks = [f"decimal mark {self.decimal!r}"] if self.decimal != "." else []
        if self.declared.thousands:
            marks.append(f"thousands mark {self.declared.thousands!r}")
        return [*marks, *(f"{each.own} * {each.factor:g}" for each in self.declared.rename_columns if each.factor)]


AS_USUAL = CsvFormat()


def _overridden(common: tuple[Entry, ...], own: tuple[Entry, ...], key: str) -> tuple[Entry, ...]:
    return tuple({getattr(each, key): each for each in (*common, *own)}.values())


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples of one domain, or of one silo if the source consists of silos."""

    x: Array
    """(N, H, W, C) uint8 images, (N, D) float32 features, (N, T) int64 token ids, or (N, T, C) float32 series. In a
    table NaN is a missing number, -1 a missing text."""
    y: LabelArray
    """(N,) class indices, -1 for held-out classes."""
    classes: tuple[str, ...]
    domain: str = ""
    """The name of the domain or silo."""
    own_test: int = 0
    """Number of samples in the source's own test part, which is last."""
    table: tuple[TableColumn, ...] = ()
    """The columns of a table as read; empty for images and for features that are ready to use."""
    csv_format: CsvFormat = AS_USUAL
    """The format of the table's files, and of files with rows to predict."""
    origin: str = ""
    """The pool's name in error messages: its file, or the silo of a user's arrays."""
    groups: Index | None = None
    """(N,) the group of each sample, such as its patient, 0, 1, ... without gaps; None without groups."""
    time: Array | None = None
    """(N,) float64, the time of each sample; None if unknown."""
    subgroup: Array | None = None
    """(N,) texts, "" if missing, that determine each sample's subgroup (`caveat.data.subgroups`); None without any."""
    value: Array | None = None
    """(N,) float64, the targets if they are quantities or times (`caveat.core.quantity`); `y` is then 0
    (`caveat.data.quantities`); else None."""

    @property
    def images(self) -> bool:
        return self.x.ndim == 4 and not getattr(self.x, "ready", False)

    @property
    def lazy(self) -> bool:
        """Whether inputs are read only when needed."""
        return not isinstance(self.x, np.ndarray)

    @property
    def tokens(self) -> bool:
        return self.x.dtype == np.int64

    @property
    def series(self) -> bool:
        return self.x.ndim == 3

    @property
    def development(self) -> int:
        """Number of samples, the first ones, that are not in the source's own test part."""
        return len(self.y) - self.own_test


@dataclass(frozen=True, eq=False)
class DataSource:
    """The content of a source."""

    pools: tuple[Pool, ...]
    given: bool = False
    """Whether each pool is a silo."""


LONGEST = 60
"""Maximum number of characters of a value in errors."""


def shown(text: str) -> str:
    """Return a text of the data for errors: quoted, escaped and truncated."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}..."


def ordered(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct names, sorted as numbers if all are whole numbers ("2" before "10"), else as text."""
    distinct = set(names)
    try:
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(distinct))


AT_ONCE = 1 << 20
"""Maximum number of values of rows that are processed at once."""


class LazyRows:
    """Inputs (N, ...) that are not in memory; like an array whose rows are read when indexed."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], ready: bool = False) -> None:
        self.shape, self.dtype = shape, dtype
        self.ready = ready
        """Whether rows are model inputs; otherwise images are normalized first."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, index: Index) -> Array:
        """Return the rows with these numbers, checked, (n, ...)."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Array:
        chosen = np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.arange(len(self))[index]
        return self.read(chosen) if chosen.ndim else self.read(chosen[None])[0]


class ArrayRows(LazyRows):
    """Rows of a memory-mapped array."""

    def __init__(self, array: Array, check: Callable[[Array, str], Array], origin: str) -> None:
        checked = check(np.asarray(array[:1]), origin)
        super().__init__((len(array), *checked.shape[1:]), checked.dtype)
        self.array, self.check, self.origin = array, check, origin
        self.file: Path | None = getattr(array, "filename", None)
        self.written = size_and_time(self.file)

    def read(self, index: Index) -> Array:
        """Read rows. Raise DataError if the file has changed, because rows would no longer belong together."""
        if size_and_time(self.file) != self.written:
            raise DataError(f"{self.file} changed while caveat was reading it. Restore its contents and start again.")
        found = np.asarray(self.array[index])
        ends = f", rows {index.min()} to {index.max()}" if len(index) else ""
        return self.check(found, f"{self.origin}{ends}")


def size_and_time(file: Path | None) -> tuple[int, int] | None:
    """Return the size and modification time of a file that is read in parts; None without a file."""
    try:
        found = None if file is None else os.stat(file)
    except FileNotFoundError:  # a mapped file stays readable
        return None
    return found and (found.st_size, found.st_mtime_ns)


class JoinedRows(LazyRows):
    """The rows of two parts, concatenated."""

    def __init__(self, first: LazyRows | Array, second: LazyRows | Array) -> None:
        super().__init__(
            (len(first) + len(second), *first.shape[1:]), first.dtype, ready=getattr(first, "ready", False)
        )
        self.first, self.second = first, second

    def read(self, index: Index) -> Array:
        cut = len(self.first)
        found = np.empty((len(index), *self.shape[1:]), self.dtype)
        found[index < cut] = self.first[index[index < cut]]
        found[index >= cut] = self.second[index[index >= cut] - cut]
        return found


class PartRows(LazyRows):
    """A selection of rows, in any order."""

    def __init__(self, rows: LazyRows, index: Index) -> None:
        super().__init__((len(index), *rows.shape[1:]), rows.dtype, rows.ready)
        self.rows, self.index = rows, index

    def read(self, index: Index) -> Array:
        return self.rows.read(self.index[index])


class ChangedRows(LazyRows):
    """Rows (N, ...) transformed by a function that keeps their number and shape."""

    def __init__(self, rows: LazyRows, change: Callable[[Array], Array]) -> None:
        super().__init__(rows.shape, rows.dtype, rows.ready)
        self.rows, self.change = rows, change

    def read(self, index: Index) -> Array:
        return self.change(self.rows.read(index))


class LazyInputs(PartedInputs):
    """Model inputs (N, ...) that are read in parts."""

    def __init__(self, rows: LazyRows, finish: Callable[[Array], Tensor]) -> None:
        self.rows, self.finish = rows, finish
        one = finish(rows.read(np.zeros(1, np.int64)))
        super().__init__(torch.Size((len(rows), *one.shape[1:])), one.dtype, one.device)

    def taken(self, index: Index) -> Tensor:
        return self.finish(self.rows.read(index))


def lazy_inputs(rows: LazyRows, finish: Callable[[Array], Tensor]) -> Tensor:
    """Return rows as the inputs of a split: not a tensor, but with all operations that inputs need."""
    return cast(Tensor, LazyInputs(rows, finish))


def in_parts(x: Tensor) -> Iterator[Tensor]:
    """Yield the inputs of a split as one part, or in several parts if they are lazy."""
    return iter(x.split(PART)) if isinstance(x, LazyInputs) else iter((x,))


def some_rows(rows: Array, index: Index) -> Array:
    """Return the rows with these numbers; lazy rows stay lazy."""
    return cast(Array, PartRows(rows, index)) if isinstance(rows, LazyRows) else rows[index]


def changed(rows: Array, change: Callable[[Array], Array]) -> Array:
    """Transform rows (N, ...) with a function that keeps their shape; lazy rows when they are read."""
    return cast(Array, ChangedRows(rows, change)) if isinstance(rows, LazyRows) else change(rows)


def row_parts(rows: Array) -> Iterator[Array]:
    """Yield rows (N, ...) in order, in parts that fit into memory."""
    count = max(AT_ONCE // max(math.prod(rows.shape[1:]), 1), 1)
    return (rows[start : start + count] for start in range(0, len(rows), count))


NUMERIC = ("quantity", "time")
"""Values of `data.predict` whose targets are numbers."""


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
    subgroups: str | None = None
    subgroup_input: bool = True
    predict: str | None = None
    event: str | None = None

    @property
    def no_inputs(self) -> dict[str, str]:
        """The keys that name a column that is not an input, and the column."""
        keys = ("target", "event", "silo_column", "groups", "time", *(() if self.subgroup_input else ("subgroups",)))
        return {key: name for key in keys if (name := getattr(self, key)) is not None}

    @classmethod
    def of(cls, settings: object) -> Reading:
        """Return the keys of a `DataSettings`, with the column types of its dictionary."""
        own = cls(*(getattr(settings, key) for key in cls._fields))
        return own._replace(
            categorical=own.with_declared(own.categorical, "category"), numeric=own.with_declared(own.numeric, "number")
        )

    @property
    def csv_format(self) -> CsvFormat:
        """The format of the files."""
        return CsvFormat(self.separator, self.decimal, self.declared)

    def with_declared(self, names: Sequence[str], kind: str) -> tuple[str, ...]:
        """Return names of features plus the dictionary's columns of a type."""
        others = [name for name in self.declared.of_type(kind) if name not in self.no_inputs.values()]
        return tuple(dict.fromkeys([*names, *others]))
