"""Rows that are read from disk on access, and not kept in memory."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core import DataError
from ..core.devices import PART, PartedInputs
from .raw_samples import Array, Index

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
        """Return the rows (n, ...) with the numbers in `index`, after checking them."""
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
    """Return the rows with the numbers in `index`; lazy rows stay lazy."""
    return cast(Array, PartRows(rows, index)) if isinstance(rows, LazyRows) else rows[index]


def changed(rows: Array, change: Callable[[Array], Array]) -> Array:
    """Transform rows (N, ...) with a function that keeps their shape; lazy rows are transformed when they are read."""
    return cast(Array, ChangedRows(rows, change)) if isinstance(rows, LazyRows) else change(rows)


def row_parts(rows: Array) -> Iterator[Array]:
    """Yield rows (N, ...) in order, in parts that fit into memory."""
    count = max(AT_ONCE // max(math.prod(rows.shape[1:]), 1), 1)
    return (rows[start : start + count] for start in range(0, len(rows), count))
