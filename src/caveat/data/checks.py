"""Checks of the arrays and tensors of users and files, and warnings about unusual data."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import DataError, DataWarning
from .lazy_rows import LazyInputs
from .raw_samples import Array, Kind, LabelArray, Pool, shown
from .side_by_side import remarks
from .tables.warnings import nearly_repeated, unusual_columns

MOST_TOKENS = 1 << 31
"""Exclusive upper bound of token ids."""
MOST_LABELS = 1 << 31
"""Exclusive upper bound of labels; larger numbers are not classes, and would not fit into an index."""
PART = 1 << 22
"""Number of values checked at once."""
MANY = 100
"""Number of categories above which a column causes a warning."""
FEW = 10
"""Number of samples per class below which there is a warning, if there are more than `MANY_CLASSES` classes."""
MANY_CLASSES = 20


def image_array(x: Array, origin: str) -> Array:
    """Return images as (N, H, W, C) uint8 from (N, H, W) or (N, H, W, C) whole numbers in 0..255."""
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise DataError(
            f"{origin}: found shape {x.shape}, expected images N,H,W or N,H,W,C, or features N,D; for series or token "
            "ids, set kind to 'series' or 'tokens'"
        )
    if channels_first(x):
        how = "in Python, pass channels='first' to from_arrays"
        raise DataError(f"{origin}: shape {x.shape} looks like channels first, expected N,H,W,C; {how}")
    if x.dtype != np.uint8:
        if x.dtype.kind not in "iu" or (x.size and (x.min() < 0 or x.max() > 255)):
            how, found = "", f"dtype {x.dtype}" if x.dtype.kind not in "iu" else f"values from {x.min()} to {x.max()}"
            if x.dtype.kind == "f":
                how = "; convert pixels in 0..1 with (255 * x).round().astype('uint8'), or use from_datasets"
                how += "" if x.shape[-1:] == (3,) else "; float series N,T,C need kind 'series'"
            raise DataError(f"{origin}: images have {found}, expected uint8 in 0..255{how}")
        x = x.astype(np.uint8)
    return x


def channels_first(x: Array) -> bool:
    """Return whether four-dimensional images are (N, C, H, W) by their shape."""
    return x.shape[-1] > 4 and x.shape[1] in (1, 3)


def feature_array(x: Array, origin: str) -> Array:
    """Return finite features as (N, D) float32."""
    if x.ndim != 2:
        raise DataError(f"{origin}: found shape {x.shape}, expected features N,D")
    return finite_array(x, origin)


def series_array(x: Array, origin: str) -> Array:
    """Return finite series as (N, T, C) float32: C numbers at each of T steps."""
    if x.ndim != 3:
        raise DataError(f"{origin}: found shape {x.shape}, expected series N,T,C, or a list of series T,C")
    return finite_array(x, origin, "series", "at least one step and one channel", "step")


def token_array(x: Array, origin: str) -> Array:
    """Return non-negative token ids as (N, T) int64."""
    if x.ndim != 2 or x.shape[1] == 0:
        raise DataError(f"{origin}: found shape {x.shape}, expected token ids N,T, or a list of sequences")
    if x.dtype.kind not in "iu":
        raise DataError(f"{origin}: token ids have dtype {x.dtype}, expected integers such as int64")
    if x.size and (x.min() < 0 or x.max() >= MOST_TOKENS):
        wrong = x.min() if x.min() < 0 else x.max()
        raise DataError(f"{origin}: found token id {wrong}, expected ids from 0 to {MOST_TOKENS - 1}")
    return x.astype(np.int64, copy=False)


def finite_array(
    x: Array, origin: str, called: str = "features", least: str = "at least one feature", place: str = "column"
) -> Array:
    """Return an array (N, ...) as float32. Raise DataError unless all values are finite numbers."""
    if x.dtype.kind not in "fiub":
        raise DataError(f"{origin}: {called} have dtype {x.dtype}, expected numbers")
    with np.errstate(over="ignore"):  # infinite values are refused below
        x = x.astype(np.float32)
    if 0 in x.shape[1:]:
        raise DataError(f"{origin}: found shape {x.shape}, expected {least}")
    bad = ~np.isfinite(x)
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()[:2]
        raise DataError(
            f"{origin}: {int(bad.sum())} values are NaN or infinite, the first at row {row}, {place} {column}; "
            "expected finite numbers (only tables can have missing values)"
        )
    return x


def input_array(x: Array, origin: str, kind: Kind | None = None) -> Array:
    """Check and convert an array by its kind, by default features if the array is (N, D), else images."""
    kind = kind or ("features" if x.ndim == 2 else "images")
    return READERS[kind](x, origin)


READERS: dict[Kind, Callable[[Array, str], Array]] = {
    "images": image_array, "features": feature_array, "tokens": token_array, "series": series_array
}  # fmt: skip


def whole_numbers(x: Array) -> bool:
    """Return whether an array may contain features or token ids: it has integers (N, D) other than uint8."""
    return x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8


def label_array(y: Array, origin: str) -> LabelArray:
    """Return non-negative labels as (N,) int64."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"{origin}: labels have shape {y.shape}, expected (N,), one label per sample")
    if y.dtype.kind not in "iufb" or not np.array_equal(y, np.floor(y)):
        example = next((v for v in y.tolist() if not isinstance(v, int | float) or v != v or v % 1), y.dtype)
        raise DataError(f"{origin}: found labels such as {example!r}, expected non-negative integers")
    if len(y) and y.min() < 0:
        raise DataError(f"{origin}: found label {y.min()}, expected non-negative integers")
    if len(y) and y.max() >= MOST_LABELS:
        raise DataError(f"{origin}: found label {y.max()}, expected class numbers 0, 1, 2, ...")
    return y.astype(np.int64)


def paired(x: Array, y: LabelArray, origin: str) -> None:
    """Raise DataError unless there is a label for each sample, and at least one sample."""
    if len(x) != len(y):
        raise DataError(f"{origin}: {len(x)} samples but {len(y)} labels, expected equal numbers")
    if not len(y):
        raise DataError(f"{origin}: no samples, expected at least one")


def check_classes(
    ys: Sequence[tuple[str, LabelArray]], classes: Sequence[str] | None, trained: LabelArray
) -> tuple[str, ...]:
    """Return the class names: those given, or "0", "1", ... up to the largest label in `trained`. Raises DataError for
    a label outside the classes, and for gaps in the labels if no names are given."""
    if classes is not None:
        check_class_names(classes, ys[0][0])
    else:
        present = np.unique(trained).tolist()
        gap = next((number for number, label in enumerate(present) if number != label), None)
        if gap is not None:
            raise DataError(
                f"{ys[0][0]}: no training label is {gap}, but the largest is {present[-1]}; expected labels 0, 1, 2, "
                "... without gaps, or the names of all classes in 'classes'"
            )
        classes = [str(label) for label in present]
    for origin, y in ys:
        if y.max() >= len(classes):
            raise DataError(
                f"{origin}: label {int(y.max())} is outside the {len(classes)} classes 0..{len(classes) - 1}"
            )
    return tuple(map(str, classes))


def check_class_names(classes: Sequence[str], origin: str) -> None:
    """Raise DataError for empty and duplicate class names."""
    for name, count in Counter(map(str, classes)).items():
        if count > 1 or not name.strip():
            wrong = "duplicated" if name.strip() else "empty"
            raise DataError(f"{origin}: class name {shown(name)} is {wrong}, expected a different name for each class")


def check_alike(pools: Sequence[Pool], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise DataError, with names and shapes, unless `shapes`, the pools' shapes after conversion, are equal."""
    first = pools[0]
    for pool, shape in zip(pools, shapes, strict=True):
        if shape != shapes[0]:
            sides = first.images and pool.images and shape[:2] != shapes[0][:2]
            alike = "one shape for all" + (": set data.size" if sides else "")
            raise DataError(
                f"{first.origin or first.domain} has inputs of shape {first.x.shape[1:]}, "
                f"{pool.origin or pool.domain} of {pool.x.shape[1:]}; expected {alike}"
            )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type without "torch."."""
    return str(dtype).removeprefix("torch.")


def check_tensor(value: object, where: str) -> None:
    """Raise DataError unless a value is a dense tensor on the CPU that does not require a gradient."""
    if isinstance(value, LazyInputs):
        return
    if not isinstance(value, Tensor):
        how = "; use torch.from_numpy" if isinstance(value, np.ndarray) else ""
        raise DataError(f"{where} has type {type(value).__name__}, expected a torch.Tensor{how}")
    if value.requires_grad:
        raise DataError(f"{where} requires a gradient, expected data; use tensor.detach()")
    if value.layout != torch.strided:
        raise DataError(f"{where} is a sparse tensor, expected a dense one; use tensor.to_dense()")
    if value.device.type != "cpu":
        raise DataError(f"{where} is on device {str(value.device)!r}, expected 'cpu'; use tensor.cpu()")


def check_numbers(x: Tensor, where: str) -> None:
    """Raise DataError for NaN or infinite numbers, and for negative token ids. x is checked in parts."""
    rows = max(PART // max(x[:1].numel(), 1), 1)
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        bad = ~part.isfinite() if x.is_floating_point() else part < 0
        if bad.any():
            row = start + int(bad.flatten(1).any(1).nonzero()[0])
            wrong = "NaN or infinite numbers" if x.is_floating_point() else "negative numbers"
            expected = "finite numbers" if x.is_floating_point() else "non-negative token ids"
            raise DataError(f"{where} has {wrong}, the first in row {row}; expected {expected}")


def check_class_list(classes: Any, where: str) -> tuple[str, ...]:
    """Return class names as a tuple. Raise DataError unless they are a list of two or more different names."""
    if isinstance(classes, str) or not isinstance(classes, (Sequence, np.ndarray)):
        raise DataError(f"{where}: classes has type {type(classes).__name__}, expected a list of names")
    check_class_names(list(classes), where)
    if len(classes) < 2:
        raise DataError(f"{where}: found {len(classes)} class names, expected two or more")
    return tuple(map(str, classes))


def plain_array(value: Any, where: str) -> Array:
    """Return a user's array, tensor or list as a NumPy array. Raise DataError if it is ragged or not an array."""
    if isinstance(value, Tensor):
        check_tensor(value, where)
        if value.dtype == torch.bfloat16:
            raise DataError(f"{where} has dtype bfloat16, which NumPy does not support; use tensor.float()")
        return value.numpy()
    if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
        value = [plain_array(each, f"{where}, row {number}") for number, each in enumerate(value)]
    if isinstance(value, np.memmap):
        return value
    try:
        return np.asarray(value)
    except ValueError:
        raise DataError(f"{where}: {_lengths(value)}; expected rows of equal shape") from None


def _lengths(rows: Sequence[Any]) -> str:
    """Describe how the rows of a ragged list differ."""
    found = [len(row) if hasattr(row, "__len__") else 0 for row in rows]
    if min(found) == max(found):
        return "rows of different shapes"
    return f"rows of different lengths, from {min(found)} to {max(found)}"


def check_usual(pools: Sequence[Pool]) -> tuple[str, ...]:
    """Warn of unusual properties of a source's pools, and return the warnings. Lazy inputs are skipped. Raises
    DataError as `check_samples` does."""
    check_samples(pools)
    told = list(_classes(pools))
    rows = all(pool.x.ndim == 2 and not pool.tokens and not pool.lazy for pool in pools)
    if rows and all(pool.x.shape[1] == pools[0].x.shape[1] for pool in pools):
        told += _columns(pools)
        told += unusual_columns(pools) if pools[0].table else ()
        if pools[0].table and all(pool.table == pools[0].table for pool in pools):
            told += remarks(pools)
        told += filter(None, [nearly_repeated(pools)])
    for text in told:
        warnings.warn(text, DataWarning, stacklevel=3)
    return tuple(told)


def check_samples(pools: Sequence[Pool]) -> None:
    """Warn of pools whose inputs are all the same, and of test samples that are all in the training part.

    Raises DataError if all inputs of all pools are the same, or if a test part equals the training part. Lazy inputs
    are not compared.
    """
    if any(pool.lazy for pool in pools):
        return
    first = pools[0].x[0]
    same = [_all_same(pool.x) for pool in pools]
    if all(same) and all(_equal(pool.x[0], first) for pool in pools):
        count = sum(len(pool.x) for pool in pools)
        raise DataError(f"{_named(pools[0])}: all {count:,} inputs are the same, expected different ones")
    told = [
        f"{_named(pool)}: all {len(pool.x):,} inputs are the same"
        for pool, alike in zip(pools, same, strict=True)
        if alike and len(pool.x) > 1
    ]
    told += [text for pool in pools if pool.own_test and (text := _leaked(pool))]
    for text in told:
        warnings.warn(text, DataWarning, stacklevel=3)


def _classes(pools: Sequence[Pool]) -> Iterator[str]:
    classes, samples = len(pools[0].classes), sum(len(pool.y) for pool in pools)
    if classes > MANY_CLASSES and samples < FEW * classes:
        yield f"{classes:,} classes in {samples:,} samples; are the labels quantities?"


def _columns(pools: Sequence[Pool]) -> Iterator[str]:
    table, width = pools[0].table, pools[0].x.shape[1]
    names = [shown(column.name) for column in table] or [str(column) for column in range(width)]
    constant = [name for name, is_constant in zip(names, _constant(pools), strict=True) if is_constant]
    if constant:
        others = ", ..." if len(constant) > 5 else ""
        yield f"{len(constant)} of {width} features are the same in all samples: {', '.join(constant[:5])}{others}"
    for column in table:
        if (count := len(column.categories or ())) > MANY:
            yield f"column {shown(column.name)} becomes {count:,} inputs, one per category"


def _constant(pools: Sequence[Pool]) -> list[bool]:
    """Return which features are constant over all pools, counting a missing value as a value."""
    firsts = pools[0].x[:1]
    same = [((pool.x == firsts) | (np.isnan(pool.x) & np.isnan(firsts))).all(axis=0) for pool in pools]
    return [bool(each) for each in np.logical_and.reduce(same)]


def _leaked(pool: Pool) -> str:
    """Return a warning if all test inputs are training inputs, "" if not. Raise DataError if test and training inputs
    are equal."""
    train, test = pool.x[: pool.development], pool.x[pool.development :]
    if train.shape == test.shape and _equal(train, test):
        raise DataError(f"{_named(pool)}: the test inputs equal the training inputs, expected different ones")
    # Cheap filter: few training samples match the first test sample at 32 positions.
    flat, first = train.reshape(len(train), -1), test[0].ravel()
    places = np.linspace(0, len(first) - 1, 32).astype(int)
    alike = np.flatnonzero((flat[:, places] == first[places]).all(axis=1))
    if not any(np.array_equal(flat[row], first) for row in alike):
        return ""
    known = {row.tobytes() for row in train}
    if not all(row.tobytes() in known for row in test):
        return ""
    return f"{_named(pool)}: all {len(test):,} test inputs are among the training inputs"


def _all_same(x: Array) -> bool:
    # Cheap filter: most pools already differ in the second or the last input.
    return all(_equal(x[at], x[0]) for at in (1 % len(x), -1)) and all(_equal(each, x[0]) for each in x)


def _equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _named(pool: Pool) -> str:
    return pool.origin or pool.domain or "data"
