"""Four disjoint splits per silo, drawn from a seed, with equal rows in one split, and the record of the splits.

The units of a draw are samples, or groups of them (`caveat.data.groups`).
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..core import AugmentedData, Data, DataError, Silo
from .lazy_rows import in_parts, row_parts
from .raw_samples import Array, Index, LabelArray, Pool
from .settings import Split
from .tables.cell_formats import number
from .tables.reading_settings import TableColumn

NAMES = ("train", "validation", "calibration", "test")
PROTECTED = ("test", "calibration", "validation", "train")
"""The splits, in decreasing order of protection from training."""
LEAST_KEPT = 0.9
"""Minimum fraction of training rows left after grouping equal rows; with less, rows are assumed equal by chance."""
MOST_EQUAL = 10
"""Maximum number of equal rows that are kept together. More are a frequent record, not one person's. If one split had
all of them, calibration rows would not be drawn like new inputs."""
HASH = 16
"""Bytes of a keyed hash."""
APART = (
    "{} rows equal a row of a more protected split and are not moved: either too few rows would be left "
    "to train on, or data.duplicates = 'drawn'"
)
logger = logging.getLogger(__name__)
Splits = Mapping[str, Index]
"""Positions in a pool, per split."""
Rearrange = Callable[[Pool, Splits], Splits]
"""Changes the splits of a pool after they are drawn."""


def draw_parts(count: int, sizes: Sequence[int], rng: np.random.Generator, time: Array | None = None) -> list[Index]:
    """Return positions among `count` units for parts of the given sizes, at random or in the order of `time`. Remaining
    positions are dropped.

    Parts are not stratified by class. Guarantees need calibration and test rows that are drawn like new inputs,
    whatever the training rows are. Stratified parts have the training rows' class frequencies, which a model of a small
    silo has learned, so its errors there are fewer than its errors on new inputs.
    """
    order = rng.permutation(count) if time is None else np.argsort(time, kind="stable")
    return [np.sort(order[end - size : end]) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]


def reserve_test(count: int, share: float, rng: np.random.Generator, time: Array | None = None) -> tuple[Index, Index]:
    """Return positions among `count` units for development and for testing, for a source without a test part."""
    test = min(max(1, round(count * share)), count - 1)
    development, held_out = draw_parts(count, (count - test, test), rng, time)
    return development, held_out


def development_splits(
    count: int, split: Split, silo: str, rng: np.random.Generator, time: Array | None = None
) -> dict[str, Index]:
    """Return positions of the train, validation and calibration splits among the `count` units of a silo that are not
    in its test split."""
    sizes = split.sizes(count)
    if sizes[0] < 1:
        raise DataError(f"silo {silo!r}: {count} samples, expected at least 3 in addition to the test split")
    return dict(zip(NAMES, draw_parts(count, sizes, rng, time), strict=False))


def hashes(silo: Silo) -> dict[str, str]:
    """Return the SHA-256 of the positions of each split and stream, as little-endian int64 bytes."""
    return {name: hashlib.sha256(at.numpy().astype("<i8").tobytes()).hexdigest() for name, at in silo.indices.items()}


def splits_record(silos: Iterable[Silo], classes: int = 0) -> dict[str, object]:
    """Return the content of `splits.json`: each silo's domain, and the size, class counts and hashes of each of its
    splits and streams. Splits of quantities have no class counts. Counts cover at least `classes` classes, and all
    classes that some silo has."""
    silos = list(silos)
    largest = (int(getattr(silo, name).y.max()) for silo in silos for name in NAMES if len(getattr(silo, name)))
    classes = max(classes, 1 + max(largest))
    return {
        silo.name: {"domain": silo.domain, **_splits(silo, classes), **_streams(silo.streams, classes)}
        for silo in silos
    }


def _content(data: Data) -> str:
    digest = hashlib.sha256()
    for part in in_parts(data.x):
        digest.update(part.contiguous().numpy().tobytes())
    digest.update(data.y.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _splits(silo: Silo, classes: int) -> dict[str, object]:
    digest = hashes(silo)
    return {
        name: {
            **(_sizes(getattr(silo, name), classes) if not silo.values else {"examples": len(getattr(silo, name))}),
            **({"sha256": digest[name]} if name in digest else {}),
            "content_sha256": _content(getattr(silo, name)),
            **_augmented(getattr(silo, name)),
            **_subgroups(silo, name),
        }
        for name in NAMES
    }


def _subgroups(silo: Silo, name: str) -> dict[str, object]:
    if name not in silo.subgroups:
        return {}
    return {"subgroups_sha256": hashlib.sha256(silo.subgroups[name].numpy().astype("<i8").tobytes()).hexdigest()}


def _augmented(data: Data) -> dict[str, object]:
    return {"augment": list(data.names)} if isinstance(data, AugmentedData) else {}


def _streams(streams: Mapping[str, Data], classes: int) -> dict[str, object]:
    entries = {name: _sizes(data, classes) | {"content_sha256": _content(data)} for name, data in streams.items()}
    return {"streams": entries} if entries else {}


def _sizes(data: Data, classes: int) -> dict[str, object]:
    return {"examples": len(data), "class_counts": torch.bincount(data.y[data.y >= 0], minlength=classes).tolist()}


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
    return splits if np.array_equal(place, drawn) else _split(splits, where, place)


def apart(pool: Pool, splits: Splits) -> str:
    """Return a note on rows that equal a row of a more protected split, or ""."""
    _, drawn, place = _protected(pool, splits)
    count = int((place != drawn).sum())
    return APART.format(count) if count else ""


def _protected(pool: Pool, splits: Splits) -> tuple[Index, LabelArray, LabelArray]:
    """Return all positions, the split of each, and the most protected split with an equal row."""
    where = np.concatenate([splits[name] for name in PROTECTED])
    drawn, group = _places(splits), _alike(pool, where)
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
    """Move rows that were in test or calibration before back there, so they are never trained on.

    Each row swaps with a row of the same label that was never held out, as long as there is one, so sizes do not
    change. Nothing changes if all rows are in their earlier split or in the test split. Rows identified by columns that
    the table no longer has are not recognized.
    """
    names = {column.name for column in pool.table}
    known = [each for each in known if bool(each.columns) == bool(names) and set(each.columns) <= names]
    where, place = np.concatenate([splits[name] for name in PROTECTED]), _places(splits)
    hashes = {each.columns: keyed(contents(pool, each.columns), key) for each in known}
    rows = [[hashes[each.columns][i] for i in where.tolist()] for each in known]
    if pool.groups is not None:
        return _split(splits, where, _groups_put_back(place, pool.groups[where], pool.y[where], known, rows))
    once = [each.test.keys() | each.calibration.keys() for each in known]
    never = [not any(row[i] in held for row, held in zip(rows, once, strict=True)) for i in range(len(where))]
    for each, row in zip(known, rows, strict=True):
        _put_back(place, row, (each.test, each.test + each.calibration), pool.y[where], never)
    return _split(splits, where, place)


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


def _places(splits: Splits) -> LabelArray:
    return np.repeat(np.arange(len(PROTECTED)), [len(splits[name]) for name in PROTECTED])


def _split(splits: Splits, where: Index, place: LabelArray) -> Splits:
    found = {name: where[place == rank] for rank, name in enumerate(PROTECTED)}
    return {name: at if np.array_equal(found[name], at) else np.sort(found[name]) for name, at in splits.items()}
