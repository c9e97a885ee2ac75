"""Inputs that are read when they are asked for, so that no split has to be in memory whole."""

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
from .pools import Array, Index

AT_ONCE = 1 << 20
"""Values of rows that are looked at together, at most."""


class LazyRows:
    """Inputs (N, ...) somewhere else than in memory; looks like an array, of which rows are read by their numbers."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], ready: bool = False) -> None:
        self.shape, self.dtype = shape, dtype
        self.ready = ready
        """Whether what is read is what a model takes; else images are normalised first."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, index: Index) -> Array:
        """The rows with these numbers, checked, (n, ...)."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Array:
        chosen = np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.arange(len(self))[index]
        return self.read(chosen) if chosen.ndim else self.read(chosen[None])[0]


class ArrayRows(LazyRows):
    """Rows of an array that is mapped into memory, of which pages are read when they are needed."""

    def __init__(self, array: Array, check: Callable[[Array, str], Array], origin: str) -> None:
        checked = check(np.asarray(array[:1]), origin)
        super().__init__((len(array), *checked.shape[1:]), checked.dtype)
        self.array, self.check, self.origin = array, check, origin
        self.file: Path | None = getattr(array, "filename", None)
        self.written = written(self.file)

    def read(self, index: Index) -> Array:
        """Raises DataError for a file that was written since: the rows before would not go with those after."""
        if written(self.file) != self.written:
            raise DataError(f"{self.file}: was written while it was read; begin again from what it held")
        found = np.asarray(self.array[index])
        ends = f", rows {index.min()} to {index.max()}" if len(index) else ""
        return self.check(found, f"{self.origin}{ends}")


def written(file: Path | None) -> tuple[int, int] | None:
    """Size and time of the last change of a file that is read in parts; None of none."""
    try:
        found = None if file is None else os.stat(file)
    except FileNotFoundError:  # what was mapped stays readable
        return None
    return found and (found.st_size, found.st_mtime_ns)


class JoinedRows(LazyRows):
    """The rows of two parts, one after the other."""

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
    """Some rows of others, in an order of their own."""

    def __init__(self, rows: LazyRows, index: Index) -> None:
        super().__init__((len(index), *rows.shape[1:]), rows.dtype, rows.ready)
        self.rows, self.index = rows, index

    def read(self, index: Index) -> Array:
        return self.rows.read(self.index[index])


class ChangedRows(LazyRows):
    """Others' rows (N, ...), changed by a function to as many of the same shape."""

    def __init__(self, rows: LazyRows, change: Callable[[Array], Array]) -> None:
        super().__init__(rows.shape, rows.dtype, rows.ready)
        self.rows, self.change = rows, change

    def read(self, index: Index) -> Array:
        return self.change(self.rows.read(index))


class LazyInputs(PartedInputs):
    """Model inputs (N, ...) that are read in parts, where they are."""

    def __init__(self, rows: LazyRows, finish: Callable[[Array], Tensor]) -> None:
        self.rows, self.finish = rows, finish
        one = finish(rows.read(np.zeros(1, np.int64)))
        super().__init__(torch.Size((len(rows), *one.shape[1:])), one.dtype, one.device)

    def taken(self, index: Index) -> Tensor:
        return self.finish(self.rows.read(index))


def lazy_inputs(rows: LazyRows, finish: Callable[[Array], Tensor]) -> Tensor:
    """Rows as the inputs of a split. They are no tensor, but all that is asked of inputs can be asked of them."""
    return cast(Tensor, LazyInputs(rows, finish))


def in_parts(x: Tensor) -> Iterator[Tensor]:
    """The inputs of a split as they are, or one part after the other where they are read as needed."""
    return iter(x.split(PART)) if isinstance(x, LazyInputs) else iter((x,))


def some_rows(rows: Array, index: Index) -> Array:
    """The rows with these numbers, which stay where they are if they are read as needed."""
    return cast(Array, PartRows(rows, index)) if isinstance(rows, LazyRows) else rows[index]


def changed(rows: Array, change: Callable[[Array], Array]) -> Array:
    """The rows (N, ...), changed to as many of the same shape, at once or when they are read."""
    return cast(Array, ChangedRows(rows, change)) if isinstance(rows, LazyRows) else change(rows)


def row_parts(rows: Array) -> Iterator[Array]:
    """Rows (N, ...) in parts that memory holds, from the first to the last."""
    count = max(AT_ONCE // max(math.prod(rows.shape[1:]), 1), 1)
    return (rows[start : start + count] for start in range(0, len(rows), count))
