"""Values of a silo's table that it keeps to test whether a batch of new rows is like its own.

It keeps each column's values of at most 100 rows of the calibration split, sorted, so values of a row are not linked.
The values and the missing values of each column of new rows are tested against them. Holm's correction covers all
tests, so at most 5 % of batches that are like the silo's own rows have any finding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core import UnlikeColumn
from ...uncertainty.statistical_tests import count_test, holm, rank_test
from ..raw_samples import Array, shown
from .reading_settings import TableColumn

LEVEL = 0.05
"""Maximum share of batches like the silo's own rows for which any column is reported."""
FEWEST = 5
"""Minimum number of rows, new or known, to be tested."""
MOST_ROWS, MOST_VALUES = 100, 50_000
"""Maximum numbers of rows and of values that are kept; for wide tables at least `LEAST_ROWS` rows."""
LEAST_ROWS = 20
MOST_CODES = 6
"""Maximum number of different whole numbers of a column that are reported as codes, by a share instead of a median."""
FREQUENT = 0.2
"""Minimum share of the most frequent number, in new and known values together, for which it is tested separately: most
cells may be 0, which hides other changes."""


@dataclass(frozen=True)
class ColumnReference:
    """Known values of one column, without their rows."""

    values: tuple[float, ...]
    """Numbers, or codes of categories, ascending."""
    missing: int
    """Number of missing values, which are not in `values`."""


@dataclass(frozen=True)
class Reference:
    """Known values of all columns of a silo's raw rows, in order; no columns if there are too few rows."""

    columns: tuple[ColumnReference, ...] = ()

    def unlike(self, rows: Array, table: Sequence[TableColumn]) -> tuple[UnlikeColumn, ...]:
        """Return the columns of `table` in which raw rows (N, D) are unlike the known ones, lowest p-value first.
        Categories that the silo has never seen are pooled; the notes of `Encoder.checked` name their rows."""
        if len(rows) < FEWEST or not self.columns:
            return ()
        found = []
        for i, (column, known) in enumerate(zip(table, self.columns, strict=True)):
            values = _present(rows[:, i], column)
            differs = _values(column, values.astype(np.float32), np.array(known.values, np.float32))
            found.append(replace(differs, values=(len(values), len(known.values))))
            if len(values) < len(rows) or known.missing:  # otherwise there is nothing to find
                found.append(_missing(column, len(values), len(rows), known))
        corrected = holm([each.p for each in found])
        unlike = [replace(each, p=p) for p, each in zip(corrected, found, strict=True) if p <= LEVEL]
        return tuple(sorted(unlike, key=lambda each: each.p))


NO_REFERENCE = Reference()


def reference_of(rows: Array, table: Sequence[TableColumn], generator: np.random.Generator) -> Reference:
    """Return the reference of raw rows (N, D), sampled without replacement if there are too many."""
    most = min(MOST_ROWS, max(LEAST_ROWS, MOST_VALUES // max(len(table), 1)))
    chosen = np.sort(generator.permutation(len(rows))[:most])
    if len(chosen) < FEWEST:
        return NO_REFERENCE
    some = np.asarray(rows[chosen])
    columns = []
    for i, column in enumerate(table):
        values = _present(some[:, i], column)
        kept = tuple(float(str(each)) for each in np.sort(values.astype(np.float32)))  # fewest digits of the float32
        columns.append(ColumnReference(kept, len(some) - len(values)))
    return Reference(tuple(columns))


def _present(values: Array, column: TableColumn) -> Array:
    """Return the values that are not missing."""
    missing = np.isnan(values) if column.categories is None else np.isnan(values) | (values == -1)
    return values[~missing]


def _values(column: TableColumn, new: Array, known: Array) -> UnlikeColumn:
    if column.categories is None:
        codes = np.unique(np.concatenate([new, known]))
        if 0 < len(codes) <= MOST_CODES and (codes % 1 == 0).all():
            most, here, there = _differing(
                *(np.array([(each == code).sum() for code in codes]) for each in (new, known))
            )
            return UnlikeColumn(column.name, f"share of {codes[most]:g}", here, there, _numbers(new, known))
        here, there = (float(np.median(each)) if len(each) else math.nan for each in (new, known))
        return UnlikeColumn(column.name, "median", here, there, _numbers(new, known))
    codes = np.arange(len(column.categories))
    seen = [each[np.isin(each, codes)].astype(np.int64) for each in (new, known)]
    counts = [np.bincount(each, minlength=len(codes)) for each in seen]
    most, here, there = _differing(*counts, sizes=(len(new), len(known)))
    p = count_test(*counts, unnamed=(len(new) - len(seen[0]), len(known) - len(seen[1])))
    return UnlikeColumn(column.name, f"share of {shown(column.categories[most])}", here, there, p)


def _differing(*counts: Array, sizes: Sequence[int] = ()) -> tuple[int, float, float]:
    """Return the position at which the shares of new and of known values differ most, and the two shares at it. `sizes`
    are the numbers of values if some values are not counted."""
    here, there = (each / max(size, 1) for each, size in zip(counts, sizes or map(sum, counts), strict=True))
    most = int(np.argmax(np.abs(here - there)))
    return most, float(here[most]), float(there[most])


def _numbers(new: Array, known: Array) -> float:
    """Return the p-value of numbers by ranks and, if a number is frequent, by its share and the ranks of the others."""
    numbers, counts = np.unique(np.concatenate([new, known]), return_counts=True)
    ps = [rank_test(new, known)]
    if len(counts) and counts.max() >= FREQUENT * counts.sum():
        often = numbers[counts.argmax()]
        shares = (np.array([(each == often).sum(), (each != often).sum()]) for each in (new, known))
        ps += [count_test(*shares), rank_test(new[new != often], known[known != often])]
    return min(1.0, len(ps) * min(ps))


def _missing(column: TableColumn, present: int, rows: int, known: ColumnReference) -> UnlikeColumn:
    missing, count = rows - present, len(known.values) + known.missing
    counts = np.array([missing, present]), np.array([known.missing, len(known.values)])
    p = count_test(*counts)
    return UnlikeColumn(column.name, "share missing", missing / rows, known.missing / count, p, (rows, count))
