"""What can be read but is unusual: said in a warning each, or refused where nothing could be learnt."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from ..core import DataError, DataWarning
from .pools import Array, Pool, shown

MANY = 100
"""More categories than this in a column are told."""
FEW = 10
"""Fewer samples than this per class are told, where there are more classes than `MANY_CLASSES`."""
MANY_CLASSES = 20


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
