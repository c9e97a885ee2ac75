"""Checks of arrays and silos before training, and warnings of what is unusual in them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import Data, DataError, DataWarning, Silo, SiloId
from .lazy import LazyInputs
from .pools import Array, Pool, check_class_names, shown
from .splits import NAMES

PART = 1 << 22
"""Numbers that are looked at together."""
MANY = 100
"""More categories than this in a column are told."""
FEW = 10
"""Fewer samples than this per class are told, where there are more classes than `MANY_CLASSES`."""
MANY_CLASSES = 20


class InputForm(NamedTuple):
    """What the inputs of all silos have in common."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, silo: Silo) -> InputForm:
        return cls(tuple(silo.train.x.shape[1:]), silo.train.x.dtype)


def written(dtype: torch.dtype) -> str:
    """A type as people write it: float32."""
    return str(dtype).removeprefix("torch.")


def check_silo(silo: Silo, classes: int, form: InputForm | None = None) -> None:
    """Raises DataError, naming silo and split, unless a silo holds what models can take.

    That is, per split, inputs (N, ...) of finite float32 or of int64 from 0, of the form of the other silos' if that is
    known, and labels (N,) of int64 below `classes`; streams can have label -1 too.
    """
    for name in NAMES:
        form = _check_data(getattr(silo, name), f"silo {silo.name!r}, {name}", form, range(classes))
    for name, data in silo.streams.items():
        _check_data(data, f"silo {silo.name!r}, stream {name}", form, range(-1, classes))


def _check_data(data: object, where: str, form: InputForm | None, labels: range) -> InputForm:
    """The form of a split's inputs."""
    if not isinstance(data, Data):
        raise DataError(f"{where}: a {type(data).__name__}, expected caveat.data.Data(x, y)")
    x, y = data
    for name, tensor in (("x", x), ("y", y)):
        check_tensor(tensor, f"{where}: {name}")
    if x.dtype not in (torch.float32, torch.int64):
        how = "x.float() makes it" if x.is_floating_point() else "x.long() or x.float() makes it"
        raise DataError(f"{where}: x of {written(x.dtype)}, expected float32, or int64 for ids of tokens; {how}")
    if y.dtype != torch.int64:
        raise DataError(f"{where}: y of {written(y.dtype)}, expected int64, the numbers of classes; y.long() makes it")
    if x.ndim < 2:
        raise DataError(f"{where}: x of shape {tuple(x.shape)}, expected (N, ...), a row for each sample")
    if y.ndim != 1 or len(x) != len(y):
        raise DataError(f"{where}: x of shape {tuple(x.shape)} and y of {tuple(y.shape)}, expected (N, ...) and (N,)")
    own = InputForm(tuple(x.shape[1:]), x.dtype)
    if form is not None and own != form:
        raise DataError(
            f"{where}: inputs of shape {own.shape}, {written(own.dtype)}; expected {form.shape}, "
            f"{written(form.dtype)}, as the first silo's are"
        )
    if len(y) and (int(y.min()) < labels.start or int(y.max()) >= labels.stop):
        wrong = int(y.min()) if int(y.min()) < labels.start else int(y.max())
        raise DataError(f"{where}: label {wrong} is outside the {labels.stop} classes 0..{labels.stop - 1}")
    check_numbers(x, f"{where}: x")
    return own


def check_tensor(value: object, where: str) -> None:
    """Raises DataError unless a value is a dense tensor in this machine's memory that asks for no gradient."""
    if isinstance(value, LazyInputs):
        return
    if not isinstance(value, Tensor):
        how = "; torch.from_numpy makes one" if isinstance(value, np.ndarray) else ""
        raise DataError(f"{where} is a {type(value).__name__}, expected a torch.Tensor{how}")
    if value.requires_grad:
        raise DataError(f"{where} requires a gradient, expected data; tensor.detach() makes it")
    if value.layout != torch.strided:
        raise DataError(f"{where} is a sparse tensor, expected a dense one; tensor.to_dense() makes it")
    if value.device.type != "cpu":
        raise DataError(f"{where} is on device {str(value.device)!r}, expected 'cpu'; tensor.cpu() makes it")


def check_numbers(x: Tensor, where: str) -> None:
    """Raises DataError for numbers that are NaN or infinite, and for ids of tokens below 0. Looks at parts of x."""
    rows = max(PART // max(x[:1].numel(), 1), 1)
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        bad = ~part.isfinite() if x.is_floating_point() else part < 0
        if bad.any():
            row = start + int(bad.flatten(1).any(1).nonzero()[0])
            what = "NaN or infinite; expected finite" if x.is_floating_point() else "below 0; expected ids from 0"
            raise DataError(f"{where} has numbers, the first in row {row}, that are {what}")


def check_class_list(classes: Any, where: str) -> tuple[str, ...]:
    """The names of classes. Raises DataError unless they are a list of two names or more, all different."""
    if isinstance(classes, str) or not isinstance(classes, (Sequence, np.ndarray)):
        raise DataError(f"{where}: classes is a {type(classes).__name__}, expected a list of names")
    check_class_names(list(classes), where)
    if len(classes) < 2:
        raise DataError(f"{where}: {len(classes)} classes, expected two or more")
    return tuple(map(str, classes))


def checked(make: Callable[[int, SiloId], Silo], classes: int) -> Callable[[int, SiloId], Silo]:
    """What makes silos, with each silo looked at when it is made; all are to be of the first one's form."""
    form: list[InputForm] = []

    def made(number: int, name: SiloId) -> Silo:
        silo: object = make(number, name)
        if not isinstance(silo, Silo):
            raise DataError(f"make({number}, {name!r}) made a {type(silo).__name__}, expected a caveat.data.Silo")
        if silo.name != name:
            raise DataError(f"make({number}, {name!r}) made a silo called {silo.name!r}, expected the name given")
        check_silo(silo, classes, form[0] if form else None)
        form.append(InputForm.of(silo))
        del form[1:]
        return silo

    return made


def plain_array(value: Any, where: str) -> Array:
    """A user's array, tensor or list of numbers as NumPy's. Raises DataError for what is none, or ragged."""
    if isinstance(value, Tensor):
        check_tensor(value, where)
        if value.dtype == torch.bfloat16:
            raise DataError(f"{where} is of bfloat16, which NumPy does not know; tensor.float() makes it float32")
        return value.numpy()
    if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
        value = [plain_array(each, f"{where}, row {number}") for number, each in enumerate(value)]
    if isinstance(value, np.memmap):
        return value
    try:
        return np.asarray(value)
    except ValueError:
        raise DataError(f"{where}: {_lengths(value)}; expected rows of one length") from None


def _lengths(rows: Sequence[Any]) -> str:
    """How rows that are no array differ."""
    found = [len(row) if hasattr(row, "__len__") else 0 for row in rows]
    if min(found) == max(found):
        return "rows of different shapes"
    return f"rows of different lengths, from {min(found)} to {max(found)}"


def check_usual(pools: Sequence[Pool]) -> None:
    """Warns of what is unusual in all pools of a source; raises as `check_samples` does.

    Of inputs that are read as they are needed nothing is said.
    """
    check_samples(pools)
    told = list(_classes(pools))
    rows = all(pool.x.ndim == 2 and not pool.tokens and not pool.lazy for pool in pools)
    if rows and all(pool.x.shape[1] == pools[0].x.shape[1] for pool in pools):
        told += _columns(pools)
    for text in told:
        warnings.warn(text, DataWarning, stacklevel=3)


def check_samples(pools: Sequence[Pool]) -> None:
    """Warns of pools whose inputs are all the same, and of test parts that are among the training samples.

    Raises DataError where all inputs of all pools are the same, and for a test part that is the training part. Inputs
    that are read as they are needed are not compared.
    """
    if any(pool.lazy for pool in pools):
        return
    first = pools[0].x[0]
    same = [_all_same(pool.x) for pool in pools]
    if all(same) and all(_equal(pool.x[0], first) for pool in pools):
        count = sum(len(pool.x) for pool in pools)
        raise DataError(f"{_named(pools[0])}: all {count:,} inputs are the same, expected some that differ")
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
    """What is unusual about the columns of features."""
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
    """Which features have one value, or none, in all samples of all pools; a missing value is one of its own."""
    firsts = pools[0].x[:1]
    same = [((pool.x == firsts) | (np.isnan(pool.x) & np.isnan(firsts))).all(axis=0) for pool in pools]
    return [bool(each) for each in np.logical_and.reduce(same)]


def _leaked(pool: Pool) -> str:
    """That a test part is among the training samples. Raises DataError where it is all of them, in their order."""
    train, test = pool.x[: pool.development], pool.x[pool.development :]
    if train.shape == test.shape and _equal(train, test):
        raise DataError(f"{_named(pool)}: the test inputs are the training inputs, expected others")
    # Few training samples look like the first test sample already at some places.
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
    # Most inputs differ from the first already in the second or the last.
    return all(_equal(x[at], x[0]) for at in (1 % len(x), -1)) and all(_equal(each, x[0]) for each in x)


def _equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _named(pool: Pool) -> str:
    return pool.origin or pool.domain or "data"
