"""Rows that were in the test or the calibration split of an earlier federation are held out again.

Rows are identified by keyed hashes of their contents.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .raw_samples import Array, Index, LabelArray, Pool
from .splits import PROTECTED, Splits, ranks, with_ranks
from .tables.cell_formats import number
from .tables.reading_settings import TableColumn

HASH = 16
"""Bytes of a keyed hash."""


def contents(pool: Pool, columns: Sequence[str] = ()) -> list[bytes]:
    """Return the content of each sample without its label, independent of its position and of other samples. A table
    row consists of its cells in the order of column names (all, or `columns`); numbers are as models see them."""
    if not pool.table:
        return [f"{x.dtype.str}{x.shape}".encode() + np.ascontiguousarray(x).tobytes() for x in map(np.asarray, pool.x)]
    at = {column.name: i for i, column in enumerate(pool.table)}
    cells = [_cells(pool, pool.table[at[name]], pool.x[:, at[name]]) for name in sorted(columns or at)]
    return [json.dumps(row).encode() for row in zip(*cells, strict=True)]


def _cells(pool: Pool, column: TableColumn, values: Array) -> list[str]:
    if column.categories is None:
        return ["" if value != value else repr(value) for value in (values + np.float32(0)).tolist()]
    # A single added text turns a column of numbers into a column of texts.
    known = [number(text) for text in column.categories]
    texts = [
        text if value is None else repr(float(np.float32(value) + np.float32(0)))
        for text, value in zip(column.categories, known, strict=True)
    ]
    return ["" if code < 0 else texts[code] for code in values.astype(np.int64).tolist()]


def keyed(values: Iterable[bytes], key: bytes) -> list[bytes]:
    """Return 16-byte hashes (BLAKE2b), which reveal nothing without the key of at most 64 bytes."""
    return [hashlib.blake2b(value, key=key, digest_size=HASH).digest() for value in values]


class HeldOut(NamedTuple):
    """The rows of earlier federations that were in the test or the calibration split."""

    columns: tuple[str, ...]
    """The table columns that identify the rows."""
    test: Counter[bytes]
    """Number of rows per keyed hash."""
    calibration: Counter[bytes]


def again_held_out(pool: Pool, splits: Splits, known: Sequence[HeldOut], key: bytes) -> Splits:
    """Move rows that were in the test or the calibration split before back to this split, so no model is trained on
    them.

    Each row swaps with a row of the same label that was never held out, if there is one, so that sizes do not change.
    Nothing changes if all rows are in their earlier split or in the test split. Rows identified by columns that the
    table no longer has are not recognized.
    """
    names = {column.name for column in pool.table}
    known = [each for each in known if bool(each.columns) == bool(names) and set(each.columns) <= names]
    where, place = np.concatenate([splits[name] for name in PROTECTED]), ranks(splits)
    hashes = {each.columns: keyed(contents(pool, each.columns), key) for each in known}
    rows = [[hashes[each.columns][i] for i in where.tolist()] for each in known]
    if pool.groups is not None:
        return with_ranks(splits, where, _groups_put_back(place, pool.groups[where], pool.y[where], known, rows))
    once = [each.test.keys() | each.calibration.keys() for each in known]
    never = [not any(row[i] in held for row, held in zip(rows, once, strict=True)) for i in range(len(where))]
    for each, row in zip(known, rows, strict=True):
        _put_back(place, row, (each.test, each.test + each.calibration), pool.y[where], never)
    return with_ranks(splits, where, place)


def _groups_put_back(
    place: LabelArray, group: Index, y: LabelArray, known: Sequence[HeldOut], rows: Sequence[Sequence[bytes]]
) -> LabelArray:
    """Return the splits of rows, with each group in the most protected split in which one of its rows was held out."""
    groups, first, of = np.unique(group, return_index=True, return_inverse=True)
    wanted: list[Counter[bytes]] = []
    names = [str(each).encode() for each in groups.tolist()]
    for held in ([each.test for each in known], [each.test | each.calibration for each in known]):
        hit = {
            names[at] for each, row in zip(held, rows, strict=True) for at, hashed in zip(of, row, strict=True)
            if hashed in each
        }  # fmt: skip
        wanted.append(Counter(hit))
    moved = place[first]
    _put_back(moved, names, wanted, y[first], [name not in wanted[1] for name in names])
    return moved[of]


def _put_back(
    place: LabelArray, row: Sequence[bytes], wanted: Sequence[Counter[bytes]], y: LabelArray, never: Sequence[bool]
) -> None:
    for rank, held in enumerate(wanted):
        have = Counter(each for each, at in zip(row, place.tolist(), strict=True) if at <= rank)
        free = [i for i in np.flatnonzero(place == rank).tolist() if never[i]]
        for i in sorted(np.flatnonzero(place > rank).tolist(), key=lambda i: -place[i]):  # training rows first
            if have[row[i]] >= held[row[i]]:
                continue
            have[row[i]] += 1
            other = next((j for j in free if y[j] == y[i]), None)
            if other is not None:
                free.remove(other)
                place[other] = place[i]
            place[i] = rank
