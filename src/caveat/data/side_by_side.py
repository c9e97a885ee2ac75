"""Silos side by side: what a column of a table holds at each, and which silos do not fit the others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import SiloId
from .pools import Array, TableColumn, shown

FEWEST = 10
"""Minimum number of values of a silo to be compared."""
MOST_SILOS = 200
"""Maximum number of silos that are compared."""
FACTOR = 2.0
"""Minimum ratio of medians at which values are taken to be in other units."""
CENTER = (0.1, 0.9)
"""Quantiles between which values are central; those of other units do not overlap."""
SHARED = 0.5
"""Minimum fraction of values in shared categories, at one of two silos."""
NAMED = 6
"""Maximum number of silos in a message."""


class ColumnAtSilo(NamedTuple):
    """A column at one silo."""

    silo: SiloId
    rows: int
    missing: int
    quantiles: tuple[float, ...] = ()
    """Lowest, lower central, median, upper central and highest number; empty for categories and without values."""
    counts: Mapping[str, int] = {}
    """Values per category."""

    @property
    def plain(self) -> dict[str, Any]:
        """The silo's name, missing values, and "range" and "median", or "counts", as JSON has them."""
        made: dict[str, Any] = {"name": self.silo, "missing": self.missing}
        if self.quantiles:
            low, _, median, _, high = (float(f"{value:.7g}") for value in self.quantiles)  # they are float32
            made |= {"range": [low, high], "median": median}
        return made | ({"counts": dict(self.counts)} if self.counts else {})

    @property
    def told(self) -> str:
        """The median, or the most frequent categories, with the silo's name."""
        often = sorted(self.counts, key=lambda name: -self.counts[name])
        values = f"{self.quantiles[2]:.3g}" if self.quantiles else ", ".join(map(shown, often[:3]))
        return f"{values}{', ...' * (len(often) > 3)} at {self.silo}"


def at_silos(column: TableColumn, values: Mapping[SiloId, Array]) -> list[ColumnAtSilo]:
    """Return a column at each silo, from its raw values (N,): numbers, NaN if missing, or codes, -1 if missing."""
    return [_at(column, silo, each) for silo, each in values.items()]


def _at(column: TableColumn, silo: SiloId, values: Array) -> ColumnAtSilo:
    if column.categories is None:
        known = values[~np.isnan(values)].astype(np.float64)
        found = np.quantile(known, [0, CENTER[0], 0.5, CENTER[1], 1]).tolist() if len(known) else ()
        return ColumnAtSilo(silo, len(values), len(values) - len(known), tuple(found))
    counts = np.bincount(values[values >= 0].astype(int), minlength=len(column.categories))
    named = {name: int(count) for name, count in zip(column.categories, counts, strict=False) if count}
    return ColumnAtSilo(silo, len(values), int((values < 0).sum()), counts=named)


def unlike(found: Sequence[ColumnAtSilo]) -> list[SiloId]:
    """Return the silos whose values differ from those of more than half of the others: units, or spellings."""
    compared = [each for each in found if each.rows - each.missing >= FEWEST]
    if not 1 < len(compared) <= MOST_SILOS:
        return []
    apart = np.array([[_apart(one, other) for other in compared] for one in compared])
    return [one.silo for one, count in zip(compared, apart.sum(1), strict=True) if 2 * count > len(compared) - 1]


def _apart(one: ColumnAtSilo, other: ColumnAtSilo) -> bool:
    if one.quantiles and other.quantiles:
        (_, low, median, high, _), (_, least, usual, most, _) = one.quantiles, other.quantiles
        less, more = sorted((abs(median), abs(usual)))
        return (low > most or high < least) and more >= FACTOR * less
    if not one.counts or not other.counts:
        return False
    both = one.counts.keys() & other.counts.keys()
    shares = (sum(each.counts[name] for name in both) / sum(each.counts.values()) for each in (one, other))
    return max(shares) < SHARED


def remark(name: str, found: Sequence[ColumnAtSilo], odd: Sequence[SiloId], label: bool = False) -> str:
    """Return a sentence on the silos that do not fit, with what the others hold."""
    first = [each for each in found if each.silo in odd] + [each for each in found if each.silo not in odd]
    told = "; ".join(each.told for each in first[:NAMED]) + "; ..." * (len(first) > NAMED)
    what = f"{'labels' if label else 'column'} {shown(name)}"
    if found[0].quantiles:
        zero = ", and a 0 that means missing must be empty" * any(each.quantiles[2:3] == (0,) for each in first)
        key = f"data.files.{odd[0]}.rename_columns.{name} = {{ factor = NUMBER }}"
        return f"{what}: medians are {told}: if units differ, convert the values (with a file per silo: {key}){zero}"
    return f"{what}: the most frequent values are {told}: if they mean the same, write them alike"


def remarks(table: Sequence[TableColumn], rows: Mapping[SiloId, Array]) -> Iterator[str]:
    """Yield a sentence for each column of numbers in which some silo does not fit the others, from raw rows (N, D).

    `unusual_columns` does so for categories, and names the key that merges them.
    """
    for i, column in enumerate(table):
        if column.categories is not None:
            continue
        found = at_silos(column, {silo: each[:, i] for silo, each in rows.items()})
        if odd := unlike(found):
            yield remark(column.name, found, odd)
