"""Inputs that are read when they are asked for, so that no split has to be in memory whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core import DataError
from .pools import Array, Index

PART = 256
"""Inputs that are read together where all of them are needed, one part after the other."""


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
        chosen = np.arange(len(self))[index]
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


class LazyInputs:
    """Model inputs (N, ...) that are read in parts: `x[index]` and the parts of `torch.split` are tensors.

    Any other function or method of a tensor reads all of them into memory.
    """

    requires_grad = False
    layout = torch.strided

    def __init__(self, rows: LazyRows, finish: Callable[[Array], Tensor]) -> None:
        self.rows, self.finish = rows, finish
        one = finish(rows.read(np.zeros(1, np.int64)))
        self.shape, self.dtype = torch.Size((len(rows), *one.shape[1:])), one.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"LazyInputs{tuple(self.shape)}"

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, tuple):
            return self[index[0]][(slice(None), *index[1:])]
        if isinstance(index, Tensor):
            index = index.numpy()
        chosen = np.arange(len(self))[index]
        found = self.finish(self.rows.read(np.atleast_1d(chosen)))
        return found if np.ndim(chosen) else found[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[number] for number in range(len(self)))

    def split(self, size: int, dim: int = 0) -> Parts:
        """The inputs in parts of so many, each read when it is its turn."""
        if dim:
            raise ValueError("inputs that are read as needed are split along their first axis alone")
        return Parts(self, size)

    def whole(self) -> Tensor:
        """All inputs, in memory."""
        return torch.cat(list(Parts(self, PART))) if len(self) else self[:0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(name)
        return getattr(self.whole(), name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.split:
            return args[0].split(*args[1:], **(kwargs or {}))
        return function(*map(_whole, args), **{name: _whole(value) for name, value in (kwargs or {}).items()})


class Parts(Sequence[Tensor]):
    """Parts of inputs, of which each is read when it is asked for."""

    def __init__(self, inputs: LazyInputs, size: int) -> None:
        self.inputs, self.size_of_each = inputs, size

    def __len__(self) -> int:
        return max(-(-len(self.inputs) // self.size_of_each), 1)

    def __getitem__(self, number: Any) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        start = number % len(self) * self.size_of_each
        return self.inputs[start : start + self.size_of_each]


def _whole(value: Any) -> Any:
    if isinstance(value, LazyInputs):
        return value.whole()
    return type(value)(map(_whole, value)) if type(value) in (list, tuple) else value


def lazy_inputs(rows: LazyRows, finish: Callable[[Array], Tensor]) -> Tensor:
    """Rows as the inputs of a split. They are no tensor, but all that is asked of inputs can be asked of them."""
    return cast(Tensor, LazyInputs(rows, finish))


def in_parts(x: Tensor) -> Iterator[Tensor]:
    """The inputs of a split as they are, or one part after the other where they are read as needed."""
    return iter(x.split(PART)) if isinstance(x, LazyInputs) else iter((x,))
