"""Silos of a user's own data sets, whose items are read as they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core import DataError, SiloId
from ..core.errors import told
from ..core.settings import check_seed, check_type
from .assembly import make_silos
from .build import with_augment
from .checks import check_class_list, check_numbers, check_tensor, plain_array, written
from .lazy import JoinedRows, LazyRows
from .pools import Array, Index, LabelArray, Pool, check_classes, label_array, paired
from .settings import DataSettings, Split
from .silos import Silos
from .transforms import Augment

Columns = tuple[str, str]


class DatasetRows(LazyRows):
    """The inputs of a data set's items."""

    def __init__(self, dataset: Any, columns: Columns | None, origin: str) -> None:
        self.dataset, self.columns, self.origin = dataset, columns, origin
        first = self.input(0)
        super().__init__((_length(dataset, origin), *first.shape), first.numpy().dtype, ready=True)

    def item(self, number: int) -> tuple[Any, Any]:
        """The input and the label of an item."""
        where = f"{self.origin}, item {number}"
        try:
            item = self.dataset[number]
        except Exception as error:
            raise DataError(f"{where}: reading it fails: {told(error)}") from error
        if self.columns is not None:
            if not isinstance(item, Mapping) or any(column not in item for column in self.columns):
                has = sorted(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
                raise DataError(f"{where}: {has}, expected columns {self.columns[0]!r} and {self.columns[1]!r}")
            return item[self.columns[0]], item[self.columns[1]]
        if isinstance(item, Mapping):
            names = ", ".join(map(str, item))
            raise DataError(f"{where}: a mapping of {names}; name two of them: columns=(INPUT, LABEL)")
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise DataError(f"{where}: a {type(item).__name__}, expected (x, y)")
        return item[0], item[1]

    def input(self, number: int) -> Tensor:
        """The input of an item as a model takes it."""
        where = f"{self.origin}, item {number}: x"
        x = self.item(number)[0]
        x = x if isinstance(x, Tensor) else torch.from_numpy(_numeric(plain_array(x, where), where))
        check_tensor(x, where)
        x = x.float() if x.dtype == torch.float64 else x
        if x.dtype not in (torch.float32, torch.int64) or not x.ndim:
            raise DataError(
                f"{where} of shape {tuple(x.shape)}, {written(x.dtype)}; expected float32, or int64 for ids of tokens, "
                "of one dimension or more, as models take it"
            )
        check_numbers(x[None], where)
        return x

    def read(self, index: Index) -> Array:
        found = np.empty((len(index), *self.shape[1:]), self.dtype)
        for row, number in enumerate(index.tolist()):
            x = self.input(number).numpy()
            if (x.shape, x.dtype) != (self.shape[1:], self.dtype):
                raise DataError(
                    f"{self.origin}, item {number}: x of shape {x.shape}, {x.dtype}; expected {self.shape[1:]}, "
                    f"{self.dtype}, as the first item's is"
                )
            found[row] = x
        return found

    def labels(self) -> Array:
        """The labels of all items."""
        found = [self.item(number)[1] for number in range(len(self))]
        return plain_array([y.item() if isinstance(y, Tensor) and y.numel() == 1 else y for y in found], self.origin)


def _length(dataset: Any, origin: str) -> int:
    """How many items a data set has, one at least."""
    try:
        length = len(dataset)
    except Exception as error:
        raise DataError(f"{origin}: asking for its length fails: {told(error)}") from error
    if not length:
        raise DataError(f"{origin}: no samples")
    return length


def _numeric(x: Array, where: str) -> Array:
    if x.dtype.kind not in "fiu":
        raise DataError(f"{where} of {x.dtype}, expected numbers")
    return np.array(x, np.int64 if x.dtype.kind in "iu" and x.dtype != np.uint8 else x.dtype)


def from_datasets(
    silos: Mapping[SiloId, Any],
    *,
    classes: Sequence[str] | None = None,
    positive: str | None = None,
    columns: Columns | None = None,
    seed: int = 0,
    split: Split | None = None,
    augment: str | Sequence[str] | Augment | None = None,
) -> Silos:
    """Silos of one's own data sets: per name what has a length and items, as `torch.utils.data.Dataset` has them, or a
    tuple of two, to train on and to test on.

    An item is (x, y), or a mapping of which `columns` names input and label, as those of Hugging Face's
    `datasets.Dataset` are (Parquet, Arrow). x is what a model takes, of one shape: float32, or int64 for ids of tokens;
    y a whole number from 0. `classes` and `positive` are those of `from_arrays`. Items are read when they are needed,
    and all of them once at the start, for their labels. An item has to be the same every time: random changes are for
    `augment`, as `augmented` says. Splits hold positions alone. Raises DataError naming silo and item.
    """
    check_type(silos, Mapping, "silos", "a mapping from names to data sets, such as {'silo-0': dataset}")
    check_seed(seed)
    if not silos:
        raise DataError("no silos: expected at least one name with its data set")
    if classes is not None:
        classes = check_class_list(classes, "from_datasets")
    pools = [_pool(name, dataset, columns) for name, dataset in silos.items()]
    for pool in pools:
        if pool.x.dtype != pools[0].x.dtype:
            expected = pools[0].x.dtype
            raise DataError(f"{pool.origin}: inputs of {pool.x.dtype}, expected {expected} as at the first silo")
    labels = [(pool.origin, pool.y) for pool in pools]
    names = check_classes(labels, classes, np.concatenate([pool.y[: pool.development] for pool in pools]))
    pools = [replace(pool, classes=names) for pool in pools]
    made = make_silos(pools, True, DataSettings(positive=positive, split=split or Split()), seed)
    return with_augment(made, augment)


def _pool(name: SiloId, given: Any, columns: Columns | None) -> Pool:
    """The items of a silo's data set, or of two of which one is to test on, without names of classes yet."""
    origin = f"silo {name!r}"
    if not isinstance(name, str):
        raise DataError(f"{origin}: expected a name, which is text")
    if not isinstance(given, tuple):
        rows, y = _rows(given, columns, origin)
        return Pool(cast(Array, rows), y, (), name, origin=origin)
    if len(given) != 2:
        raise DataError(f"{origin}: {len(given)} data sets, expected one, or one to train on and one to test on")
    (rows, y), (test, y_test) = (
        _rows(each, columns, where) for each, where in zip(given, (origin, f"{origin} (test)"), strict=True)
    )
    if (test.shape[1:], test.dtype) != (rows.shape[1:], rows.dtype):
        raise DataError(
            f"{origin}: inputs {rows.shape[1:]} of {rows.dtype} but test inputs {test.shape[1:]} of {test.dtype}"
        )
    both = cast(Array, JoinedRows(rows, test))
    return Pool(both, np.concatenate([y, y_test]), (), name, own_test=len(y_test), origin=origin)


def _rows(dataset: Any, columns: Columns | None, origin: str) -> tuple[DatasetRows, LabelArray]:
    """The inputs of a data set, to be read as they are needed, and its labels."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or isinstance(dataset, (str, Mapping)):
        raise DataError(f"{origin}: a {type(dataset).__name__}, expected a data set with a length and items")
    _length(dataset, origin)
    rows = DatasetRows(dataset, columns, origin)
    y = label_array(rows.labels(), origin)
    paired(cast(Array, rows), y, origin)
    return rows, y
