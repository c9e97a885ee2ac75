"""Silos from data in Python: rotated parts of a pool, arrays, and data sets whose items are read lazily."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from ..core import ConfigurationError, DataError, SiloId
from ..core.errors import message_of
from ..core.settings import check_seed, check_type
from . import checks
from .augmentation import Augment, augmented
from .build import make_silos
from .groups import placed
from .lazy_rows import JoinedRows, LazyRows
from .preprocessing import SequenceFormat, sequence_format
from .raw_samples import Array, Index, Kind, LabelArray, Pool
from .series_standardization import Standardize
from .settings import DataSettings, Normalize, Partition, Shift, Split
from .silo_collection import Silos
from .sources.array_files import PARTS, pools_of
from .subgroups import Subgrouping, of_arrays, with_subgroups
from .tables.reading_settings import NUMERIC

Columns = tuple[str, str]


def rotated(
    pool: Pool,
    angles: Sequence[float] = (0, -50, 120),
    silos_per_angle: int = 3,
    samples_per_silo: int | None = None,
    seed: int = 0,
    *,
    test_per_silo: int | Literal["all"] | None = None,
    noise_std: Sequence[float] = (),
    partition: Partition | None = None,
    split: Split | None = None,
    normalize: Normalize | None = None,
) -> Silos:
    """Make silos whose parts of the pool are rotated by one of the angles, in degrees counter-clockwise. `noise_std`
    has one entry per silo, or a number of entries that divides the number of silos."""
    check_type(pool, Pool, "pool", "a Pool, such as caveat.data.digits()")
    check_type(angles, (Sequence, np.ndarray), "angles", "a list of degrees")
    check_type(noise_std, (Sequence, np.ndarray), "noise_std", "a list of numbers")
    check_type(silos_per_angle, (int, np.integer), "silos_per_angle", "a whole number")
    check_seed(seed)
    settings = DataSettings(
        n_silos=len(angles) * silos_per_angle,
        samples_per_silo=samples_per_silo,
        test_per_silo=test_per_silo,
        shift=Shift(angles=tuple(angles), noise_std=tuple(noise_std)),
        partition=partition or Partition(),
        split=split or Split(),
        normalize=normalize or Normalize(),
    )
    return make_silos([pool], False, settings, seed)


def from_arrays(
    silos: Mapping[SiloId, tuple[Any, Any] | tuple[Any, Any, Any, Any]],
    *,
    classes: Sequence[str] | None = None,
    positive_class: str | None = None,
    seed: int = 0,
    split: Split | None = None,
    normalize: Normalize | None = None,
    shift: Shift | None = None,
    size: int | None = None,
    channels: Literal[1, 3, "first"] | None = None,
    kind: Kind | None = None,
    pad: int | None = None,
    length: int | None = None,
    standardize: Standardize = "none",
    augment: str | Sequence[str] | Augment | None = None,
    groups: Mapping[SiloId, Any] | None = None,
    time: Mapping[SiloId, Any] | None = None,
    subgroups: Mapping[SiloId, Any] | None = None,
    subgrouping: Subgrouping | None = None,
    predict: Literal["classes", "quantity", "time"] = "classes",
    range: tuple[float, float] | None = None,
    horizons: Sequence[float] = (),
    standardize_target: Literal["none", "silo"] = "none",
) -> Silos:
    """Make silos from arrays: (x, y) per name, or (x, y, x_test, y_test) with a test part.

    y is (N,) non-negative integers or, with `predict="quantity"`, any finite numbers, whose distribution is predicted
    over bars fitted to all silos' targets, or between the two numbers of `range`; with `standardize_target="silo"`, of
    targets minus their silo's mean, divided by its standard deviation. With `predict="time"`, y is (N, 2):
    times, and 1 for the event or 0 if it had not happened at that time; predictions have risks at `horizons`. Without
    `classes`, the largest label of all silos determines the number of classes.
    `positive_class` is the positive one of two classes, by default the second. `kind` is the kind of x:

    - "images": uint8 (N, H, W) or (N, H, W, C), resized to `size` x `size` pixels (by default all must have the same
      size) and converted to `channels`, by default 3 if some have color; "first" reads (N, C, H, W) instead.
    - "features": finite numbers (N, D).
    - "tokens": ids from 0, (N, T), or a list of sequences (T,) of any lengths; model inputs are int64 (N, T), and
      shorter sequences are padded at the end with the id `pad` (0 by default).
    - "series": finite numbers (N, T, C), or a list of (T, C) of any lengths. If lengths differ, shorter
      series are padded with zeros, and the last of C + 1 channels is a mask: 1 for a real step, else 0. `standardize`
      standardizes every channel over the real steps of training splits: of the silo ("silo") or of all silos together
      ("federation").

    T is the length of the longest sequence of all silos, or `length`; longer sequences are truncated, in training and
    in prediction. Without `kind`, x is features if it has two dimensions, else images; two-dimensional whole numbers
    other than uint8 are refused, because they could be token ids. A `numpy.memmap` such as ``numpy.load(path,
    mmap_mode="r")`` is read on access and never completely in memory. `augment` changes training batches at random (see
    `augmented`).

    `groups` has (N,) values per silo, equal for samples that belong together, such as the samples of a patient: a group
    is in one split only, and the calibration and the test split keep one random sample of each group, so a group counts
    once in every guarantee (see `caveat.data.groups`). `time` has (N,) dates or numbers per silo: the last samples are
    used for testing. For a silo with a test part, both are (N + N_test,), with the values of test samples last. Raises
    DataError naming the silo.
    """
    check_type(silos, Mapping, "silos", "a mapping from names to arrays, such as {'silo-0': (x, y)}")
    check_seed(seed)
    if classes is not None:
        classes = checks.check_class_list(classes, "from_arrays")
    if not silos:
        raise DataError("no silos, expected at least one name with its arrays")
    _check_kind(kind, pad, length)
    origins = [f"silo {name!r}" for name in silos]
    parts = [_four(arrays, name) for name, arrays in silos.items()]
    sequences = None
    mapped = any(isinstance(part, np.memmap) for x, _, x_test, _ in parts for part in (x, x_test))
    if mapped and length is not None:
        raise ConfigurationError(f"length = {length}: memory-mapped arrays cannot be truncated", "length")
    if kind in ("tokens", "series") and not mapped:
        sequences = _common_sequences(parts, origins, kind, pad or 0, length)
        parts = [(sequences(x, of), y, None if x_test is None else sequences(x_test, f"{of} (test)"), y_test)
                 for (x, y, x_test, y_test), of in zip(parts, origins, strict=True)]  # fmt: skip
    parts = [_arrays(part, name, kind) for part, name in zip(parts, silos, strict=True)]
    if channels == "first":
        parts = [(_last(x, of), y, x_test if x_test is None else _last(x_test, of), y_test)
                 for (x, y, x_test, y_test), of in zip(parts, origins, strict=True)]  # fmt: skip
    pools = placed(pools_of(parts, list(silos), origins, classes, kind, predict), groups, time)
    pools = with_subgroups(pools, subgroups)
    settings = DataSettings(
        size=size,
        channels=None if channels == "first" else channels,
        positive_class=positive_class,
        split=split or Split(),
        normalize=normalize or Normalize(),
        shift=shift or Shift(),
        standardize=standardize,
    )
    if predict in NUMERIC or range is not None or horizons or standardize_target != "none":
        event = "event" if predict == "time" else None
        settings = replace(
            settings, source="npz:arrays", predict=predict, event=event, range=range, horizons=tuple(horizons),
            standardize_target=standardize_target,
        )  # fmt: skip
    wanted = of_arrays(subgroups, subgrouping)
    made = make_silos(pools, True, settings, seed, sequence_format=sequences, subgrouping=wanted)
    return with_augment(made, augment)


def _last(x: Array, origin: str) -> Array:
    """Return images (N, C, H, W) as (N, H, W, C)."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        found = f"{origin}: found shape {x.shape}"
        raise DataError(f"{found}, expected images N,C,H,W with 1 or 3 channels for channels='first'")
    return np.moveaxis(x, 1, -1)


def with_augment(silos: Silos, augment: str | Sequence[str] | Augment | None) -> Silos:
    """Return the silos with random augmentation of their training batches; unchanged without `augment`."""
    if augment is None:
        return silos
    changed = (replace(silo, train=augmented(silo.train, augment, silos.normalize)) for silo in silos)
    return replace(silos, silos=tuple(changed))


def _check_kind(kind: str | None, pad: int | None, length: int | None) -> None:
    """Raise ConfigurationError for an unknown kind, and for options of another kind."""
    if kind not in (None, *get_args(Kind)):
        raise ConfigurationError(f"kind = {kind!r}, expected one of {', '.join(get_args(Kind))}", "kind")
    for name, value, least, owners in (("pad", pad, 0, ("tokens",)), ("length", length, 1, ("tokens", "series"))):
        if value is None:
            continue
        check_type(value, (int, np.integer), name, "a whole number")
        if value < least:
            raise ConfigurationError(f"{name} = {value}, expected at least {least}", name)
        if kind not in owners:
            kinds = " and ".join(map(repr, owners))
            raise ConfigurationError(f"{name} = {value} is not used by kind {kind!r}; it belongs to {kinds}", name)


def _common_sequences(
    parts: Sequence[tuple[Any, Any, Any, Any]],
    origins: Sequence[str],
    kind: Literal["tokens", "series"],
    pad: int,
    length: int | None,
) -> SequenceFormat:
    given = [(of, x) for (x, *_), of in zip(parts, origins, strict=True)]
    given += [(f"{of} (test)", x) for (_, _, x, _), of in zip(parts, origins, strict=True) if x is not None]
    return sequence_format(given, kind, pad, length)


def _four(arrays: Sequence[Any], name: SiloId) -> tuple[Any, Any, Any, Any]:
    if not isinstance(name, str):
        raise DataError(f"silo {name!r}: expected a string as the name")
    if not isinstance(arrays, (tuple, list)):
        raise DataError(
            f"silo {name!r}: found a value of type {type(arrays).__name__}, expected (x, y) or (x, y, x_test, y_test)"
        )
    if len(arrays) not in (2, 4):
        raise DataError(f"silo {name!r}: found {len(arrays)} arrays, expected (x, y) or (x, y, x_test, y_test)")
    x, y, *test = arrays
    return (x, y, test[0], test[1]) if test else (x, y, None, None)


def _arrays(
    parts: tuple[Any, Any, Any, Any], name: SiloId, kind: Kind | None
) -> tuple[Array, Array, Array | None, Array | None]:
    """Return a silo's parts as arrays. Raise DataError for other values, and for possible ids without a kind."""
    named = [(f"silo {name!r}: {called}", part) for called, part in zip(PARTS, parts, strict=True) if part is not None]
    x, y, *test = (checks.plain_array(part, where) for where, part in named)
    if kind is None and checks.whole_numbers(x):
        raise DataError(
            f"silo {name!r}: x has dtype {x.dtype} and two dimensions; set kind='tokens' if x contains token ids, or "
            "kind='features' if x contains numbers"
        )
    return (x, y, test[0], test[1]) if test else (x, y, None, None)


class DatasetRows(LazyRows):
    """The inputs of a data set, read item by item."""

    def __init__(self, dataset: Any, columns: Columns | None, origin: str) -> None:
        self.dataset, self.columns, self.origin = dataset, columns, origin
        first = self.input(0)
        super().__init__((_length(dataset, origin), *first.shape), first.numpy().dtype, ready=True)

    def item(self, number: int) -> tuple[Any, Any]:
        """Return the input and the label of an item."""
        where = f"{self.origin}, item {number}"
        try:
            item = self.dataset[number]
        except Exception as error:
            raise DataError(f"{where}: the item cannot be read ({message_of(error)})") from error
        if self.columns is not None:
            if not isinstance(item, Mapping) or any(column not in item for column in self.columns):
                has = sorted(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
                raise DataError(f"{where}: found {has}, expected columns {self.columns[0]!r} and {self.columns[1]!r}")
            return item[self.columns[0]], item[self.columns[1]]
        if isinstance(item, Mapping):
            names = ", ".join(map(str, item))
            raise DataError(f"{where}: found a mapping with keys {names}; set columns=(INPUT, LABEL)")
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise DataError(f"{where}: found a value of type {type(item).__name__}, expected (x, y)")
        return item[0], item[1]

    def input(self, number: int) -> Tensor:
        """Return an item's input as a model input."""
        where = f"{self.origin}, item {number}: x"
        x = self.item(number)[0]
        x = x if isinstance(x, Tensor) else torch.from_numpy(_numeric(checks.plain_array(x, where), where))
        checks.check_tensor(x, where)
        x = x.float() if x.dtype == torch.float64 else x
        if x.dtype not in (torch.float32, torch.int64) or not x.ndim:
            raise DataError(
                f"{where} has shape {tuple(x.shape)} and dtype {checks.dtype_name(x.dtype)}; expected float32, or "
                "int64 for token ids, with at least one dimension"
            )
        checks.check_numbers(x[None], where)
        return x

    def read(self, index: Index) -> Array:
        found = np.empty((len(index), *self.shape[1:]), self.dtype)
        for row, number in enumerate(index.tolist()):
            x = self.input(number).numpy()
            if (x.shape, x.dtype) != (self.shape[1:], self.dtype):
                raise DataError(
                    f"{self.origin}, item {number}: x has shape {x.shape} and dtype {x.dtype}, expected "
                    f"{self.shape[1:]} and {self.dtype} as in the first item"
                )
            found[row] = x
        return found

    def labels(self) -> Array:
        """Return the labels of all items."""
        found = [self.item(number)[1] for number in range(len(self))]
        return checks.plain_array(
            [y.item() if isinstance(y, Tensor) and y.numel() == 1 else y for y in found], self.origin
        )


def _length(dataset: Any, origin: str) -> int:
    try:
        length = len(dataset)
    except Exception as error:
        raise DataError(f"{origin}: len() of the data set fails ({message_of(error)})") from error
    if not length:
        raise DataError(f"{origin}: no samples, expected at least one")
    return length


def _numeric(x: Array, where: str) -> Array:
    if x.dtype.kind not in "fiu":
        raise DataError(f"{where} has dtype {x.dtype}, expected numbers")
    return np.array(x, np.int64 if x.dtype.kind in "iu" and x.dtype != np.uint8 else x.dtype)


def from_datasets(
    silos: Mapping[SiloId, Any],
    *,
    classes: Sequence[str] | None = None,
    positive_class: str | None = None,
    columns: Columns | None = None,
    seed: int = 0,
    split: Split | None = None,
    augment: str | Sequence[str] | Augment | None = None,
    groups: Mapping[SiloId, Any] | None = None,
    time: Mapping[SiloId, Any] | None = None,
    subgroups: Mapping[SiloId, Any] | None = None,
    subgrouping: Subgrouping | None = None,
) -> Silos:
    """Make silos from data sets: per name a map-style data set such as `torch.utils.data.Dataset`, or a tuple of a
    training and a test data set.

    An item is (x, y), or a mapping in which `columns` names input and label, as in Hugging Face's `datasets.Dataset`. x
    is a model input, of one shape: float32, or int64 for token ids; y is a non-negative integer. `classes`,
    `positive_class`, `groups`, `time`, `subgroups` and `subgrouping` are as in `from_arrays`. Items are read on access,
    and all of them once at the start for their labels. An item must be the same every time: use `augment` for random
    changes (see `augmented`). Splits store positions only. Raises DataError naming silo and item.
    """
    check_type(silos, Mapping, "silos", "a mapping from names to data sets, such as {'silo-0': dataset}")
    check_seed(seed)
    if not silos:
        raise DataError("no silos, expected at least one name with its data set")
    if classes is not None:
        classes = checks.check_class_list(classes, "from_datasets")
    pools = [_pool(name, dataset, columns) for name, dataset in silos.items()]
    for pool in pools:
        if pool.x.dtype != pools[0].x.dtype:
            expected = pools[0].x.dtype
            raise DataError(
                f"{pool.origin}: inputs have dtype {pool.x.dtype}, expected {expected} as at the first silo"
            )
    labels = [(pool.origin, pool.y) for pool in pools]
    names = checks.check_classes(labels, classes, np.concatenate([pool.y[: pool.development] for pool in pools]))
    pools = with_subgroups(placed([replace(pool, classes=names) for pool in pools], groups, time), subgroups)
    settings = DataSettings(positive_class=positive_class, split=split or Split())
    made = make_silos(pools, True, settings, seed, subgrouping=of_arrays(subgroups, subgrouping))
    return with_augment(made, augment)


def _pool(name: SiloId, given: Any, columns: Columns | None) -> Pool:
    origin = f"silo {name!r}"
    if not isinstance(name, str):
        raise DataError(f"{origin}: expected a string as the name")
    if not isinstance(given, tuple):
        rows, y = _rows(given, columns, origin)
        return Pool(cast(Array, rows), y, (), name, origin=origin)
    if len(given) != 2:
        raise DataError(f"{origin}: found {len(given)} data sets, expected one, or a training and a test data set")
    (rows, y), (test, y_test) = (
        _rows(each, columns, where) for each, where in zip(given, (origin, f"{origin} (test)"), strict=True)
    )
    if (test.shape[1:], test.dtype) != (rows.shape[1:], rows.dtype):
        raise DataError(
            f"{origin}: inputs have shape {rows.shape[1:]} and dtype {rows.dtype}, but test inputs have shape "
            f"{test.shape[1:]} and dtype {test.dtype}"
        )
    both = cast(Array, JoinedRows(rows, test))
    return Pool(both, np.concatenate([y, y_test]), (), name, own_test=len(y_test), origin=origin)


def _rows(dataset: Any, columns: Columns | None, origin: str) -> tuple[DatasetRows, LabelArray]:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or isinstance(dataset, (str, Mapping)):
        raise DataError(
            f"{origin}: found a value of type {type(dataset).__name__}, expected a data set with a length and items"
        )
    _length(dataset, origin)
    rows = DatasetRows(dataset, columns, origin)
    y = checks.label_array(rows.labels(), origin)
    checks.paired(cast(Array, rows), y, origin)
    return rows, y
