"""Groups of samples that belong together, such as the rows of a patient, and the order of samples in time.

With groups, splits are drawn by group: all samples of a group are in one split of one silo. Training and validation
keep all samples. The calibration and the test split keep one random sample of each group, so a group counts once in
guarantees and in test metrics. If groups are independent and new ones come from the same population, these samples and
a random sample of a new group are exchangeable: guarantees from n calibration groups hold as for n independent samples.
This is "subsampling once" of Dunn, Wasserman and Ramdas, Distribution-Free Prediction Sets for Two-Layer Hierarchical
Models (JASA 2023, arXiv 1809.07441); see also Lee, Barber and Willett, Distribution-Free Inference with Hierarchical
Data (2023, arXiv 2306.06342), whose weights of 1 / (size of the group) use all samples, but do not sum to counts over
silos and allow no exact binomial test. As a cost, the other samples of those groups are in no split, and a guarantee is
about a random sample of a new group, not about all of its samples at once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from ..core import DataError, SiloId
from ..core.settings import check_type
from .checks import plain_array
from .raw_samples import Array, Index, LabelArray, Pool
from .tables.cell_formats import number, same_value

LEAST = 4
"""Minimum number of groups of a silo: one for each split."""


def numbered(values: Iterable[str]) -> Index:
    """Return the group (N,) of each value, 0, 1, ..., equal for equal numbers: 7.0, as pandas writes it, is 7."""
    texts = list(values)
    same, codes = {text: same_value(text) for text in set(texts)}, dict[object, int]()
    return np.fromiter((codes.setdefault(same[text], len(codes)) for text in texts), np.int64)


def unit_count(pool: Pool) -> int:
    """Return the number of units of a draw."""
    return len(pool.y) if pool.groups is None else int(pool.groups.max()) + 1


def unit_labels(pool: Pool) -> LabelArray:
    """Return the label of each unit of a draw: a sample's label, or the rarest label in a group."""
    if pool.groups is None:
        return pool.y
    known = pool.y >= 0
    common = np.argsort(np.argsort(np.bincount(pool.y[known], minlength=len(pool.classes)), kind="stable"))
    rank = np.where(known, common[pool.y], len(common))
    rarest = np.full(unit_count(pool), len(common))
    np.minimum.at(rarest, pool.groups, rank)
    found: LabelArray = np.append(np.argsort(common), -1)[rarest]
    return found


def unit_times(pool: Pool) -> Array | None:
    """Return the time of each unit of a draw (for a group, the time of its last sample); None if unknown."""
    if pool.groups is None or pool.time is None:
        return pool.time
    last = np.full(unit_count(pool), -math.inf)
    np.maximum.at(last, pool.groups, pool.time)
    return last


def samples_of(pool: Pool, units: Index) -> Index:
    """Return the positions of all samples of some units, ascending for groups."""
    if pool.groups is None:
        return units
    chosen = np.zeros(unit_count(pool), bool)
    chosen[units] = True
    return np.flatnonzero(chosen[pool.groups])


def one_per_group(pool: Pool, index: Index, rng: np.random.Generator) -> Index:
    """Return one random position of each group among `index`; without groups, return `index`."""
    if pool.groups is None:
        return index
    order = rng.permutation(index)
    return np.sort(order[np.unique(pool.groups[order], return_index=True)[1]])


def whole_groups(pool: Pool, splits: Mapping[str, Index]) -> dict[str, Index]:
    """Return splits with all samples of their groups, including groups represented by one sample."""
    return {name: at if pool.groups is None else samples_of(pool, pool.groups[at]) for name, at in splits.items()}


def check_groups(pool: Pool) -> None:
    """Raise DataError for too few groups for four splits."""
    if pool.groups is not None and (count := unit_count(pool)) < LEAST:
        raise DataError(
            f"{_named(pool)}: {count} groups in {len(pool.y)} samples, expected at least {LEAST}, one for each split"
        )


def own_parts(pool: Pool) -> tuple[Index, Index]:
    """Return the units in the source's training part, and the units in its test part. Raises DataError for a group in
    both parts."""
    if pool.groups is None:
        development, test = np.split(np.arange(len(pool.y)), [pool.development])
        return development, test
    train, test = np.unique(pool.groups[: pool.development]), np.unique(pool.groups[pool.development :])
    if len(both := np.intersect1d(train, test)):
        raise DataError(
            f"{_named(pool)}: {len(both)} groups are in both the training and the test part; expected each group in "
            "one part. Pass all samples as one part, and caveat draws the splits by group"
        )
    return train, test


def _named(pool: Pool) -> str:
    return pool.origin or (f"silo {pool.domain!r}" if pool.domain else "data")


def times(texts: Sequence[object], decimal: str = ".") -> Array | int:
    """Return times (N,) float64 from numbers, or from ISO 8601 dates such as 2024-03-31, with or without a time of day.
    If a text is neither, or not of the same kind as the first one, return its position."""
    found = np.empty(len(texts))
    read = _date if number(str(texts[0]), decimal) is None else partial(number, decimal=decimal)
    for row, text in enumerate(texts):
        value = read(str(text))
        if value is None or not math.isfinite(value):
            return row
        found[row] = value
    return found


def _date(text: str) -> float | None:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def placed(pools: Sequence[Pool], groups: Mapping[SiloId, Any] | None, time: Mapping[SiloId, Any] | None) -> list[Pool]:
    """Return the pools with the group and the time of each sample. Raise DataError for missing and invalid values."""
    if groups is not None:
        values = per_sample(pools, groups, "groups")
        pools = [replace(pool, groups=numbered(each)) for pool, each in zip(pools, values, strict=True)]
    if time is not None:
        values = per_sample(pools, time, "time")
        pools = [replace(pool, time=_times(each, pool.origin)) for pool, each in zip(pools, values, strict=True)]
    return list(pools)


def _times(values: Array, origin: str) -> Array:
    found = times(values.tolist())
    if isinstance(found, int):
        raise DataError(
            f"{origin}: time of sample {found} is {values[found]}, expected dates such as 2024-03-31 for all samples, "
            "or finite numbers for all"
        )
    return found


def per_sample(
    pools: Sequence[Pool], given: Mapping[SiloId, Any], called: str, missing_allowed: bool = False
) -> list[Array]:
    """Return (N,) texts, one per sample, for each pool, or the values if they may be missing. Raises DataError for
    another number of values, and for missing values that are not allowed."""
    check_type(given, Mapping, called, "a mapping from the silos' names to a value for each sample")
    if differing := sorted({pool.domain for pool in pools} ^ set(given), key=str):
        raise DataError(
            f"silo {differing[0]!r} is in only one of `silos` and `{called}`, expected the same silos in both"
        )
    found = []
    for pool in pools:
        values = plain_array(given[pool.domain], f"{pool.origin}: {called}")
        if values.shape != (len(pool.y),):
            raise DataError(
                f"{pool.origin}: {called} with shape {values.shape}, expected ({len(pool.y)},), one value per sample"
            )
        if missing_allowed:
            found.append(values)
            continue
        texts = values.astype(str)
        if len(missing := np.flatnonzero(np.isin(texts, ("nan", "None", "NaT", "<NA>", "")))):
            raise DataError(
                f"{pool.origin}: sample {missing[0]} has no value in {called}, expected one for each sample"
            )
        found.append(texts)
    return found
