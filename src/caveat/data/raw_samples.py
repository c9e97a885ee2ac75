"""Pools: the samples of a source by domain or silo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .tables.reading_settings import AS_USUAL, CsvFormat, TableColumn

Array = NDArray[Any]
LabelArray = NDArray[np.int64]
Index = NDArray[np.int64]
Kind = Literal["images", "features", "tokens", "series"]
"""The kinds of inputs."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples of one domain, or of one silo if the source consists of silos."""

    x: Array
    """(N, H, W, C) uint8 images, (N, D) float32 features, (N, T) int64 token ids, or (N, T, C) float32 series. In a
    table NaN is a missing number, -1 a missing text."""
    y: LabelArray
    """(N,) class indices, -1 for held-out classes."""
    classes: tuple[str, ...]
    domain: str = ""
    """The name of the domain or silo."""
    own_test: int = 0
    """Number of samples in the source's own test part, which is last."""
    table: tuple[TableColumn, ...] = ()
    """The columns of a table as read; empty for images and for features that are ready to use."""
    csv_format: CsvFormat = AS_USUAL
    """The format of the table's files, and of files with rows to predict."""
    origin: str = ""
    """The pool's name in error messages: its file, or the silo of a user's arrays."""
    groups: Index | None = None
    """(N,) the group of each sample, such as its patient, 0, 1, ... without gaps; None without groups."""
    time: Array | None = None
    """(N,) float64, the time of each sample; None if unknown."""
    subgroup: Array | None = None
    """(N,) texts, "" if missing, that determine each sample's subgroup (`caveat.data.subgroups`); None without them."""
    value: Array | None = None
    """(N,) float64, the targets if they are quantities or times (`caveat.core.quantity`); `y` is then 0
    (`caveat.data.quantities`); else None."""

    @property
    def images(self) -> bool:
        return self.x.ndim == 4 and not getattr(self.x, "ready", False)

    @property
    def lazy(self) -> bool:
        """Whether inputs are read only when needed."""
        return not isinstance(self.x, np.ndarray)

    @property
    def tokens(self) -> bool:
        return self.x.dtype == np.int64

    @property
    def series(self) -> bool:
        return self.x.ndim == 3

    @property
    def development(self) -> int:
        """Number of samples, the first ones, that are not in the source's own test part."""
        return len(self.y) - self.own_test


@dataclass(frozen=True, eq=False)
class DataSource:
    """The content of a source."""

    pools: tuple[Pool, ...]
    given: bool = False
    """Whether each pool is a silo."""


LONGEST = 60
"""Maximum number of characters of a value in errors."""


def shown(text: str) -> str:
    """Return a text of the data for errors: quoted, escaped and truncated."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}..."


def ordered(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct names, sorted as numbers if all are whole numbers ("2" before "10"), else as text."""
    distinct = set(names)
    try:
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(distinct))
