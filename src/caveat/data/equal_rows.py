"""Equal rows of a table: all of them are in one split, so no test row equals a training row."""

import logging

import numpy as np

from .lazy_rows import row_parts
from .raw_samples import Array, Index, LabelArray, Pool
from .splits import PROTECTED, Splits, ranks, with_ranks

LEAST_KEPT = 0.9
"""Minimum fraction of training rows left after grouping equal rows; with less, rows are assumed equal by chance."""
MOST_EQUAL = 10
"""Maximum number of equal rows that are kept together. More equal rows do not belong to one person. If one split had
all of them, calibration rows would not be drawn like new inputs."""
APART = (
    "{} rows equal a row of a more protected split and are not moved: either too few rows would be left "
    "to train on, or data.duplicates = 'drawn'"
)
logger = logging.getLogger(__name__)


def together(pool: Pool, splits: Splits) -> Splits:
    """Move equal rows of a table, label included, into the most protected split that has one of them.

    Splits without shared rows do not change. Nothing changes, with a log message, if too few rows would be left to
    train on: the rows of such a table do not identify a person.
    """
    where, drawn, place = _protected(pool, splits)
    before, after = (np.bincount(each, minlength=len(PROTECTED)) for each in (drawn, place))
    if after[-1] < LEAST_KEPT * before[-1] or bool(((after == 0) & (before > 0)).any()):
        logger.warning("%s: %s", pool.origin or pool.domain, APART.format(int((place != drawn).sum())))
        return splits
    return splits if np.array_equal(place, drawn) else with_ranks(splits, where, place)


def apart(pool: Pool, splits: Splits) -> str:
    """Return a note on rows that equal a row of a more protected split, or ""."""
    _, drawn, place = _protected(pool, splits)
    count = int((place != drawn).sum())
    return APART.format(count) if count else ""


def _protected(pool: Pool, splits: Splits) -> tuple[Index, LabelArray, LabelArray]:
    """Return all positions, the rank of each row's split, and the rank of the most protected split with an equal row.
    The second rank is the first one for rows that are too frequent."""
    where = np.concatenate([splits[name] for name in PROTECTED])
    drawn, group = ranks(splits), _alike(pool, where)
    first = np.full(len(where), len(PROTECTED))
    np.minimum.at(first, group, drawn)
    frequent = np.bincount(group)[group] > MOST_EQUAL
    return where, drawn, np.where(frequent, drawn, first[group])


def _alike(pool: Pool, where: Index) -> LabelArray:
    """Return the group (N,) of equal rows with equal targets, that is, of rows with equal 128-bit hashes."""
    target = pool.y.astype(np.uint64) if pool.value is None else pool.value.astype(np.float64).view(np.uint64)
    odd = np.random.default_rng(0).integers(1 << 63, size=(pool.x.shape[1] + 1, 2), dtype=np.uint64) * 2 + 1
    rows = np.concatenate([_hashes(part, odd[1:]) for part in row_parts(pool.x)])[where]
    rows += odd[0] * target[where, None]
    _, group = np.unique(rows.view([("", np.uint64)] * 2), return_inverse=True)
    return group.reshape(-1)


def _hashes(rows: Array, odd: Array) -> Array:
    """Return (N, 2) uint64: sums of the bits of rows (N, D) times odd numbers (D, 2)."""
    # Bits, not numbers, because missing values must be equal; -0 becomes 0.
    found = np.zeros((len(rows), 2), np.uint64)
    for column, factors in zip(rows.T, odd, strict=True):
        found += np.ascontiguousarray(column + np.float32(0)).view(np.uint32).astype(np.uint64)[:, None] * factors
    return found
