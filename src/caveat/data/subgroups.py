"""Subgroups of samples, such as sexes or ages, that have their own guarantees.

`data.subgroups` names a column, which can also be a feature. Its values are the subgroups; numbers are binned by edges,
which are declared or at quantiles of all silos' training rows. "Groups" (`caveat.data.groups`) are rows that belong
together, such as the rows of a patient; a subgroup is a part of the population.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import ConfigurationError, DataError, DataWarning, Silo, SiloId
from ..core.text import listed
from .groups import per_sample
from .raw_samples import Array, Index, LabelArray, Pool, ordered, shown
from .tables.cell_formats import number, same_value
from .tables.encoding import Encoder
from .tables.files import Sheet, missing
from .tables.frames import FrameSheet, is_frame
from .tables.harmonize import declared_rows

MOST = 20
"""Maximum number of subgroups: each needs its own calibration inputs."""
NAMED = 6
"""Maximum number of subgroups, or of values, in a message."""
ARRAY = "subgroup"
"""The name of subgroups that are passed as an array."""


@dataclass(frozen=True)
class Subgrouping:
    """The rule by which values of a column become subgroups; by default, each distinct value is a subgroup."""

    column: str = ARRAY
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    quantiles: int | None = None

    def __post_init__(self) -> None:
        given = {"values": self.values, "edges": self.edges, "quantiles": self.quantiles}
        if len(several := [f"data.subgroup_{key}" for key, value in given.items() if value]) > 1:
            raise ConfigurationError(f"{' and '.join(several)} are set, expected only one of them", several[0])
        if list(self.edges) != sorted(set(self.edges)) or not all(map(math.isfinite, self.edges)):
            raise ConfigurationError(
                f"data.subgroup_edges = {list(self.edges)}: expected finite numbers in increasing order",
                "data.subgroup_edges",
            )
        if len({same_value(value) for value in self.values}) < len(self.values):
            raise ConfigurationError(
                f"data.subgroup_values = {list(self.values)}: expected different values", "data.subgroup_values"
            )
        if max(len(self.values), len(self.edges) + 1, self.quantiles or 0) > MOST:
            raise ConfigurationError(f"data.subgroups: expected at most {MOST} subgroups", "data.subgroups")

    def fitted(self, pools: Sequence[Pool], training: Iterable[tuple[Pool, Index]] = ()) -> "Subgroups":
        """Return the subgroups of all pools; quantiles are computed over the training samples of all silos. Raises
        DataError for too many values, and for values that are not numbers if edges or quantiles are set."""
        if self.values or self.edges:
            return Subgroups(self.column, self.values, self.edges)
        if self.quantiles:
            numbers = np.concatenate([numbers_of(_cells(pool)[index], pool, self.column) for pool, index in training])
            levels = np.arange(1, self.quantiles) / self.quantiles
            known = numbers[~np.isnan(numbers)]
            edges = np.unique(np.quantile(known, levels, method="higher")) if len(known) else known
            edges = edges[edges > known.min(initial=np.inf)]  # no number is below the lowest
            if not len(edges):
                raise DataError(
                    f"data.subgroup_quantiles = {self.quantiles}: {self.column!r} has no quantile above its lowest "
                    "number, so all rows would be in one bin; set data.subgroup_edges"
                )
            return Subgroups(self.column, (), tuple(edges.tolist()))
        texts = sorted({text for pool in pools for text in np.unique(_cells(pool)).tolist() if not missing(text)})
        found = ordered(list({same_value(text): text for text in reversed(texts)}.values()))
        if not 1 <= len(found) <= MOST:
            raise DataError(
                f"data.subgroups = {self.column!r} has {len(found)} different values, expected 1 to {MOST}; set "
                "data.subgroup_edges or data.subgroup_quantiles for a column of numbers"
            )
        return Subgroups(self.column, found)


@dataclass(frozen=True)
class Subgroups:
    """The subgroups of a federation: values of a column, or the bins between edges."""

    column: str
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each subgroup, such as "sex = f" or "50 <= age < 65"."""
        if not self.edges:
            return tuple(f"{self.column} = {value}" for value in self.values)
        ends = [f"{edge:g}" for edge in self.edges]
        inner = [f"{low} <= {self.column} < {high}" for low, high in pairwise(ends)]
        return (f"{self.column} < {ends[0]}", *inner, f"{self.column} >= {ends[-1]}")

    def codes(self, texts: Array, where: str = "") -> LabelArray:
        """Return the subgroup (N,) of each text, -1 for a missing or unknown one. Raises DataError for text instead of
        a number."""
        if self.edges:
            numbers = _numbers(texts, where, self.column)
            known = np.searchsorted(np.array(self.edges), numbers, side="right")
            return np.where(np.isnan(numbers), -1, known)
        place = {same_value(value): i for i, value in enumerate(self.values)}
        codes = {text: -1 if missing(text) else place.get(same_value(text), -1) for text in set(texts.tolist())}
        return np.fromiter((codes[text] for text in texts.tolist()), np.int64, len(texts))

    def of_sheet(self, sheet: Sheet, encoder: Encoder, silo: SiloId = "") -> Tensor | None:
        """Return the subgroups (N,) of a file's rows; None if the file does not have the column."""
        made = declared_rows(sheet, encoder.csv_format.of(sheet.path.stem, silo))
        if self.column not in made.columns:
            return None
        return torch.from_numpy(self.codes(np.array(list(made.column(self.column)), object), str(sheet.path)))

    def of_rows(self, rows: Any, encoder: Encoder) -> Tensor | None:
        """Return the subgroups (N,) of a frame's rows, or of raw rows (N, D) of a table; None without the column."""
        if is_frame(rows):
            return self.of_sheet(FrameSheet(rows, "", "inputs"), encoder)
        names = [column.name for column in encoder.table]
        if self.column not in names:
            return None
        at = names.index(self.column)
        values, categories = np.asarray(rows)[:, at], encoder.table[at].categories
        if categories is None:
            cells = [str(value) for value in values.astype(np.float32)]
        else:
            cells = [categories[int(code)] if 0 <= code < len(categories) else "" for code in values.tolist()]
        return torch.from_numpy(self.codes(np.array(cells, object), "inputs"))


def given(subgroups: Subgroups | None, values: Any, count: int) -> Tensor:
    """Return the subgroup (N,) int64 of each of `count` inputs, from an array or list of values (None if unknown).
    Raises DataError for another number of values, and without subgroups."""
    if subgroups is None:
        raise DataError("subgroups were passed, but the silos were trained without data.subgroups")
    array = np.asarray(values, dtype=object)
    if array.shape != (count,):
        raise DataError(f"subgroups have shape {array.shape}, expected ({count},), one value per input")
    return torch.from_numpy(subgroups.codes(texts_of(array), "inputs"))


def texts_of(values: Array) -> Array:
    """Return values (N,) as texts, "" for None and NaN."""
    found = ["" if value is None or value != value else _text(value) for value in values.tolist()]
    return np.array(found, dtype=object)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def numbers_of(texts: Array, pool: Pool, column: str) -> Array:
    """Return the numbers (N,) of a pool's cells, NaN for missing ones. Raise DataError for other text."""
    return _numbers(texts, pool.origin or pool.domain, column)


def _numbers(texts: Array, where: str, column: str) -> Array:
    known = {text: math.nan if missing(text) else number(text) for text in set(texts.tolist())}
    if wrong := next((text for text in texts.tolist() if known[text] is None), None):
        prefix = f"{where}: " if where else ""
        raise DataError(
            f"{prefix}data.subgroups = {column!r} has the value {shown(wrong)}, expected numbers, which are binned"
        )
    return np.array([known[text] for text in texts.tolist()], np.float64)


def _cells(pool: Pool) -> Array:
    if pool.subgroup is None:
        raise DataError(f"{pool.origin or pool.domain}: no subgroups, expected one per sample at all silos")
    return pool.subgroup


def splits_of(subgroups: Subgroups, pool: Pool, indices: Mapping[str, Index]) -> dict[str, Tensor]:
    """Return the subgroup (N,) int64 of each sample of each split of a pool."""
    codes = subgroups.codes(_cells(pool), pool.origin or pool.domain)
    return {split: torch.from_numpy(codes[index]) for split, index in indices.items()}


def warn_of_empty(subgroups: Subgroups, silos: Iterable[Silo], pools: Sequence[Pool]) -> None:
    """Warn of subgroups without samples: values may be written differently."""
    found = {code for silo in silos for of in silo.subgroups.values() for code in of.tolist()}
    if empty := [name for code, name in enumerate(subgroups.names) if code not in found]:
        texts = {text for pool in pools for text in _cells(pool).tolist() if not missing(text)}
        told = f"no sample is in {listed(list(map(shown, empty)), NAMED)}: data.subgroups = {subgroups.column!r} has "
        warnings.warn(told + listed(list(map(shown, ordered(list(texts)))), NAMED), DataWarning, stacklevel=3)


def with_subgroups(pools: Sequence[Pool], subgroups: Mapping[SiloId, Any] | None) -> list[Pool]:
    """Add the subgroup of each sample to pools of a user's arrays. Raise DataError for wrong numbers of values."""
    if subgroups is None:
        return list(pools)
    values = per_sample(pools, subgroups, "subgroups", missing_allowed=True)
    return [replace(pool, subgroup=texts_of(each)) for pool, each in zip(pools, values, strict=True)]


def of_arrays(subgroups: Mapping[SiloId, Any] | None, subgrouping: Subgrouping | None) -> Subgrouping | None:
    """Return the subgrouping of a user's values. Raises ConfigurationError for a subgrouping without values."""
    if subgroups is None and subgrouping is not None:
        raise ConfigurationError("subgrouping was passed without subgroups, the values of the samples", "subgrouping")
    return None if subgroups is None else subgrouping or Subgrouping()
