"""Comparison of silos: the content of each table column at each silo, and the silos that do not fit the others."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import DataError, SiloId
from .raw_samples import Array, Pool, shown
from .setting_lines import assignment
from .tables.cell_formats import same_value
from .tables.column_refusals import TELLING
from .tables.reading_settings import TableColumn
from .tables.warnings import marks_of, named_like_id, sampled, without

FEWEST = 10
"""Minimum number of values of a silo for a comparison."""
MOST_SILOS = 200
"""Maximum number of silos that are compared."""
FACTOR = 2.0
"""Minimum ratio of medians for which values are assumed to have different units."""
CENTER = (0.1, 0.9)
"""Quantiles that bound central values, which do not overlap if units differ."""
MAGNITUDES = 4
"""Minimum difference of magnitudes, as powers of two, for which values are assumed to have different units."""
SHARED = 0.5
"""Minimum fraction of values in shared categories, at one of two silos."""
FEWEST_TEXTS = 3
"""Minimum number of texts of two silos for a comparison: if each has one, such as its country, they may differ."""
NAMED = 6
"""Maximum number of silos, or of texts, in a message."""


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
        """The silo's name, missing values, and "range" and "median", or "counts", as plain values."""
        made: dict[str, Any] = {"name": self.silo, "missing": self.missing}
        if self.quantiles:
            low, _, median, _, high = (float(f"{value:.7g}") for value in self.quantiles)  # they are float32
            made |= {"range": [low, high], "median": median}
        return made | ({"counts": dict(self.counts)} if self.counts else {})

    @property
    def told(self) -> str:
        """The median with the silo's name."""
        return f"{self.quantiles[2]:.3g} at {self.silo}" if self.quantiles else f"none at {self.silo}"


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
    """Return the silos whose values differ in units or spellings from the values of more than half of the other silos.
    Texts are compared only with silos that mostly share theirs: if every silo has its own texts, none is odd."""
    compared = [each for each in found if each.rows - each.missing >= FEWEST]
    if not 1 < len(compared) <= MOST_SILOS or _are_codes({text for each in compared for text in each.counts}):
        return []
    apart = np.array([[_apart(one, other) for other in compared] for one in compared])
    many = 2 * apart.sum(1) > len(compared) - 1
    for row in np.flatnonzero(many):
        others = apart[row]
        many[row] = not compared[row].counts or apart[others][:, others].mean() < SHARED
    return [each.silo for each, odd in zip(compared, many, strict=True) if odd]


def unlike_texts(texts: Mapping[SiloId, Collection[str]]) -> list[SiloId]:
    """Return the silos whose texts mostly differ from the others', like `unlike`, from the texts alone."""
    return unlike([ColumnAtSilo(silo, FEWEST, 0, counts=dict.fromkeys(each, 1)) for silo, each in texts.items()])


def _are_codes(texts: Collection[str]) -> bool:
    """Return whether texts are numbers, or so many that silos may well have different ones, such as wards."""
    return len(texts) > TELLING or (bool(texts) and all(not isinstance(same_value(text), str) for text in texts))


def _apart(one: ColumnAtSilo, other: ColumnAtSilo) -> bool:
    if one.quantiles and other.quantiles:
        (_, low, median, high, _), (_, least, usual, most, _) = one.quantiles, other.quantiles
        less, more = sorted((abs(median), abs(usual)))
        return (low > most or high < least) and more >= FACTOR * less
    if len(one.counts) + len(other.counts) < FEWEST_TEXTS or not one.counts or not other.counts:
        return False
    both = one.counts.keys() & other.counts.keys()
    shares = (sum(each.counts[name] for name in both) / sum(each.counts.values()) for each in (one, other))
    return max(shares) < SHARED


def remark(name: str, found: Sequence[ColumnAtSilo], odd: Sequence[SiloId], label: bool = False) -> str:
    """Return a sentence on the silos that do not fit, with the values of the other silos, and the key that converts the
    values of the first silo that does not fit."""
    if found[0].quantiles or not any(each.counts for each in found):
        shown_first = [each for each in found if each.silo in odd] + [each for each in found if each.silo not in odd]
        told = "; ".join(each.told for each in shown_first[:NAMED]) + "; ..." * (len(shown_first) > NAMED)
        zero = ", and a 0 that means missing must be empty" * any(each.quantiles[2:3] == (0,) for each in shown_first)
        key = f"data.files.{odd[0]}.rename_columns.{name} = {{ factor = NUMBER }}"
        return (
            f"column {shown(name)}: medians are {told}: if units differ, convert the values (with a file per silo: "
            f"{key}){zero}"
        )
    (first,) = (each for each in found if each.silo == odd[0])
    others = set[str]().union(*(each.counts for each in found if _apart(first, each)))
    return spelled_apart(name, odd[0], set(first.counts), others, label)


def spelled_apart(
    name: str,
    silo: SiloId,
    texts: Collection[str],
    others: Collection[str],
    label: bool = False,
    own: str | None = None,
) -> str:
    """Return a sentence on a silo's texts that other silos lack, with the key that converts them. `own` is the column's
    name in the silo's file, if it has another."""
    mine, theirs = sorted(set(texts) - set(others)) or sorted(texts), sorted(set(others) - set(texts))
    # The likely meaning of a text is the only text of others with the same initial.
    codes = dict[str, str]()
    for text in mine:
        alike = [other for other in theirs if _initial(other) == _initial(text)]
        codes[text] = alike[0] if len(alike) == 1 and alike[0] not in codes.values() else "MEANING"
    keys = (
        " and ".join(assignment(f"label_codes\n{code}", meaning) for code, meaning in codes.items())
        if label
        else assignment(
            f"rename_columns\n{own or name}", ({} if own in (None, name) else {"name": name}) | {"codes": codes}
        )
    )
    what = "labels" if label else f"column {shown(name)}"
    return (
        f"{what}: silo {silo!r} has {_listed(mine)}, others have {_listed(theirs)}: if they mean the same, set {keys}"
    )


def _initial(text: str) -> str:
    """Return the first letter of a text, of no for 0 and of yes for 1."""
    return {"0": "n", "1": "y"}.get(text, text[:1].casefold())


def check_spellings(labels: Mapping[SiloId, Collection[str]], declared: Collection[str]) -> None:
    """Raise DataError if a silo shares no label with silos that share theirs, as with another spelling of the same
    classes; unless all labels are declared as classes."""
    every = sorted(set[str]().union(*labels.values()))
    for silo in unlike_texts(labels)[:1]:
        others = set[str]().union(*(each for name, each in labels.items() if name != silo))
        if others.isdisjoint(labels[silo]) and not set(every) <= set(declared):
            told = spelled_apart("", silo, labels[silo], others, label=True)
            raise DataError(f"{told}; if the labels are {len(every)} classes, set {assignment('classes', every)}")


def magnitude(values: Array) -> int | None:
    """Return the exponent of the power of two nearest to the median absolute number; None for too few numbers, or if
    the median is 0."""
    known = np.abs(values[~np.isnan(values)].astype(np.float64))
    median = float(np.median(known)) if len(known) >= FEWEST else 0
    return round(math.log2(median)) if median else None


def other_unit(name: str, silo: SiloId, own: int, others: int, named: str | None = None) -> str:
    """Return a sentence on a silo whose magnitude differs from the other silos'; `named` is the column's name in the
    file."""
    key = f"data.rename_columns.{named or name} = {{ factor = NUMBER }}"
    return (
        f"column {shown(name)}: the median of silo {silo!r} is near {2.0**own:g}, of others near {2.0**others:g}: if "
        f"units differ, set {key}"
    )


def lacks_most(texts: Collection[str], agreed: Collection[str]) -> bool:
    """Return whether a silo lacks half of the texts of all silos, and at least two, as with other spellings."""
    lacking = len(set(agreed) - set(texts))
    return len(texts) > 1 and lacking >= max(2, len(texts)) and not _are_codes(agreed)


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(map(shown, texts[:NAMED])) + ", ..." * (len(texts) > NAMED)


def remarks(pools: Sequence[Pool]) -> Iterator[str]:
    """Yield a sentence for each column in which some silo does not fit the others, and for the labels. Columns with
    names of identifiers are skipped, because ids differ between silos."""
    some = [sampled(len(pool.y)) for pool in pools]
    for i, column in enumerate(pools[0].table):
        if named_like_id(column.name) or len(column.categories or ()) > TELLING:
            continue
        values = {pool.domain: pool.x[rows, i] for pool, rows in zip(pools, some, strict=True)}
        marks = marks_of(np.concatenate([*values.values()])) if column.categories is None else []
        found = at_silos(column, without(values, marks))  # marks have a separate warning
        if odd := unlike(found):
            yield remark(column.name, found, odd)
    labels = at_silos(TableColumn("", pools[0].classes), {pool.domain: pool.y for pool in pools})
    if odd := unlike(labels):
        yield remark("", labels, odd, label=True)
