"""What every source is read into: pools of samples that are not yet silos."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core import DataError
from .tables.dictionary import NOTHING, Declared

Array = NDArray[Any]
LabelArray = NDArray[np.int64]
Index = NDArray[np.int64]
Kind = Literal["images", "features", "tokens", "series"]
"""What arrays of inputs can hold."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    name: str
    categories: tuple[str, ...] | None = None
    """The texts that the column's values are codes of; none for a column of numbers."""


@dataclass(frozen=True)
class CsvFormat:
    """How the text of csv files is written."""

    separator: str | None = None
    """What stands between the values of a row; None finds it in the header."""
    decimal: str = "."
    """The decimal mark of numbers."""
    declared: Declared = NOTHING
    """What is declared of their columns and labels."""


AS_USUAL = CsvFormat()


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples of one domain, or of one silo where the source comes in silos."""

    x: Array
    """(N, H, W, C) uint8 images, (N, D) float32 features, (N, T) int64 ids of tokens, or (N, T, C) float32 series. In a
    table NaN is a missing number, -1 a missing text."""
    y: LabelArray
    """(N,) class indices, -1 where a class is held out."""
    classes: tuple[str, ...]
    domain: str = ""
    """The name of the domain or silo."""
    own_test: int = 0
    """How many samples, the last ones, are the source's own test part."""
    table: tuple[TableColumn, ...] = ()
    """The columns of a table as it was read; empty for images and for features that are ready to use."""
    csv_format: CsvFormat = AS_USUAL
    """How the files of the table were written, and those with rows to predict are."""
    origin: str = ""
    """The pool's name in error messages: its file, or the silo of one's own arrays."""

    @property
    def images(self) -> bool:
        return self.x.ndim == 4 and not getattr(self.x, "ready", False)

    @property
    def lazy(self) -> bool:
        """Whether inputs are read when they are needed."""
        return not isinstance(self.x, np.ndarray)

    @property
    def tokens(self) -> bool:
        return self.x.dtype == np.int64

    @property
    def series(self) -> bool:
        return self.x.ndim == 3

    @property
    def development(self) -> int:
        """How many samples, the first ones, are not in the source's own test part."""
        return len(self.y) - self.own_test


@dataclass(frozen=True, eq=False)
class DataSource:
    """All that a source holds."""

    pools: tuple[Pool, ...]
    given: bool = False
    """Whether the data comes in silos: each pool is one."""


LONGEST = 60
"""Characters of a value that an error shows."""
MOST_TOKENS = 1 << 31
"""Ids of tokens from here on are none."""
MOST_LABELS = 1 << 31
"""Labels from here on are no classes, and would not fit into an index."""


def shown(text: str) -> str:
    """A text of the data as an error shows it: in quotes, escaped and cut."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}..."


def ordered(names: Sequence[str]) -> tuple[str, ...]:
    """Names without repetition, as numbers where all are whole numbers ("2" before "10"), else as text."""
    distinct = set(names)
    try:
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(distinct))


def image_array(x: Array, origin: str) -> Array:
    """Images as (N, H, W, C) uint8 from (N, H, W) or (N, H, W, C) whole numbers of 0..255."""
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise DataError(
            f"{origin}: shape {x.shape}, expected images N,H,W or N,H,W,C, or features N,D, or another kind named"
        )
    if x.shape[-1] > 4 and x.shape[1] in (1, 3):
        raise DataError(f"{origin}: shape {x.shape} looks like channels first, expected N,H,W,C")
    if x.dtype != np.uint8:
        if x.dtype.kind not in "iu" or (x.size and (x.min() < 0 or x.max() > 255)):
            how = ""
            if x.dtype.kind == "f":
                how = "; pixels in 0..1 become that by (255 * x).round().astype('uint8'), from_datasets takes others"
                how += "" if x.shape[-1:] == (3,) else "; float series N,T,C need kind 'series'"
            raise DataError(f"{origin}: images of {x.dtype}, expected uint8 of 0..255{how}")
        x = x.astype(np.uint8)
    return x


def feature_array(x: Array, origin: str) -> Array:
    """Finite features as (N, D) float32."""
    if x.ndim != 2:
        raise DataError(f"{origin}: shape {x.shape}, expected features N,D")
    return finite_array(x, origin)


def series_array(x: Array, origin: str) -> Array:
    """Finite series as (N, T, C) float32: C numbers at each of T steps."""
    if x.ndim != 3:
        raise DataError(f"{origin}: shape {x.shape}, expected series N,T,C, or a list of T,C")
    return finite_array(x, origin, "series", "at least one step and one channel", "step")


def token_array(x: Array, origin: str) -> Array:
    """Ids of tokens from 0 as (N, T) int64."""
    if x.ndim != 2 or x.shape[1] == 0:
        raise DataError(f"{origin}: shape {x.shape}, expected ids of tokens N,T, or a list of sequences")
    if x.dtype.kind not in "iu":
        raise DataError(f"{origin}: tokens of {x.dtype}, expected whole numbers such as int64")
    if x.size and (x.min() < 0 or x.max() >= MOST_TOKENS):
        wrong = x.min() if x.min() < 0 else x.max()
        raise DataError(f"{origin}: id {wrong} of a token, expected ids from 0 to {MOST_TOKENS - 1}")
    return x.astype(np.int64, copy=False)


def finite_array(
    x: Array, origin: str, called: str = "features", least: str = "at least one feature", place: str = "column"
) -> Array:
    """An array (N, ...) as float32. Raises DataError for what are no numbers, or none that are finite."""
    if x.dtype.kind not in "fiub":
        raise DataError(f"{origin}: {called} of {x.dtype}, expected numbers")
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        x = x.astype(np.float32)
    if 0 in x.shape[1:]:
        raise DataError(f"{origin}: shape {x.shape}, expected {least}")
    bad = ~np.isfinite(x)
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()[:2]
        raise DataError(
            f"{origin}: {int(bad.sum())} values are NaN or infinite, the first at row {row}, {place} {column}; "
            "expected finite numbers (missing values are for csv: sources)"
        )
    return x


def input_array(x: Array, origin: str, kind: Kind | None = None) -> Array:
    """The array as what its kind says: `feature_array`, `image_array`, `token_array` or `series_array`.

    Without a kind, features where it is (N, D), else images.
    """
    kind = kind or ("features" if x.ndim == 2 else "images")
    return READERS[kind](x, origin)


READERS: dict[Kind, Callable[[Array, str], Array]] = {
    "images": image_array, "features": feature_array, "tokens": token_array, "series": series_array
}  # fmt: skip


def whole_numbers(x: Array) -> bool:
    """Whether an array could be numbers as well as ids of tokens: two dimensions of whole numbers, no pixels."""
    return x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8


def label_array(y: Array, origin: str) -> LabelArray:
    """Labels as (N,) int64, not negative."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"{origin}: labels of shape {y.shape}, expected one per sample")
    if y.dtype.kind not in "iufb" or not np.array_equal(y, np.floor(y)):
        example = next((v for v in y.tolist() if not isinstance(v, int | float) or v != v or v % 1), y.dtype)
        raise DataError(f"{origin}: labels such as {example!r}, expected whole numbers from 0")
    if len(y) and y.min() < 0:
        raise DataError(f"{origin}: label {y.min()}, expected whole numbers from 0")
    if len(y) and y.max() >= MOST_LABELS:
        raise DataError(f"{origin}: label {y.max()}, expected the numbers of classes: 0, 1, 2, ...")
    return y.astype(np.int64)


def paired(x: Array, y: LabelArray, origin: str) -> None:
    """Raises DataError unless there is a label for each sample, and at least one sample."""
    if len(x) != len(y):
        raise DataError(f"{origin}: {len(x)} samples but {len(y)} labels, expected as many of each")
    if not len(y):
        raise DataError(f"{origin}: no samples")


def check_classes(
    ys: Sequence[tuple[str, LabelArray]], classes: Sequence[str] | None, trained: LabelArray
) -> tuple[str, ...]:
    """The names of the classes: those given, or "0", "1", ... up to the largest label in `trained`.

    Raises DataError for a label outside the classes, and for a numbering with gaps where no names are given.
    """
    if classes is not None:
        check_class_names(classes, ys[0][0])
    else:
        present = np.unique(trained).tolist()
        gap = next((number for number, label in enumerate(present) if number != label), None)
        if gap is not None:
            raise DataError(f"{ys[0][0]}: label {present[-1]} but none is {gap}, expected classes 0, 1, 2, ...")
        classes = [str(label) for label in present]
    for origin, y in ys:
        if y.max() >= len(classes):
            raise DataError(
                f"{origin}: label {int(y.max())} is outside the {len(classes)} classes 0..{len(classes) - 1}"
            )
    return tuple(map(str, classes))


def check_class_names(classes: Sequence[str], origin: str) -> None:
    """Raises DataError for a class without a name, and for two classes of one name."""
    for name, count in Counter(map(str, classes)).items():
        if count > 1 or not name.strip():
            wrong = "doubled" if name.strip() else "empty"
            raise DataError(f"{origin}: class name {shown(name)} is {wrong}, expected a name of its own for each class")


def check_alike(pools: Sequence[Pool], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises DataError, with both names and shapes, unless the pools' inputs are to be of one shape."""
    first = pools[0]
    for pool, shape in zip(pools, shapes, strict=True):
        if shape != shapes[0]:
            sides = first.images and pool.images and shape[:2] != shapes[0][:2]
            alike = "one shape for all" + (": set data.size" if sides else "")
            raise DataError(
                f"{first.origin or first.domain} has inputs of shape {first.x.shape[1:]}, "
                f"{pool.origin or pool.domain} of {pool.x.shape[1:]}; expected {alike}"
            )
