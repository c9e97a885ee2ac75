"""Warnings about table columns that are probably not features, and about rows that nearly repeat other rows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..raw_samples import Array, Index, LabelArray, Pool, shown
from ..setting_lines import assignment

HEAD = 1000
"""Number of rows that are checked before all rows are."""
EXACT = 1 << 24
"""Above this number, float32 cannot represent every whole number."""
FEWEST = 20
"""Minimum number of rows of a silo for which all-different numbers are unusual."""
IDS = frozenset({"id", "ids", "identifier", "uid", "uuid", "guid", "pid", "mrn", "ssn", "nhs"})
WHOSE = frozenset({
    "patient", "patients", "subject", "subjects", "person", "participant", "individual", "animal", "device", "visit",
    "encounter", "admission", "customer", "user", "household",
})  # fmt: skip
NUMBERS = frozenset({"no", "nr", "num", "number", "code", "key", "name"})
TELL_APART = 10
"""Minimum number of different values, at some silo, of a column that looks like a group."""
REPEATS = 0.05
"""Minimum fraction of rows that repeat a value of a column that looks like a group."""
MARKS = (*(-float(digits) for digits in ("1", "7", "8", "9", "88", "99", "888", "999", "8888", "9999", "99999")),
         *map(float, ("99", "99.9", "888", "999", "999.9", "8888", "9999", "99999", "999999")))  # fmt: skip
"""Numbers that often mean a missing value."""
MARKS_32 = frozenset(map(np.float32, MARKS))
MOST_LOOKED_AT = 20_000
"""Number of sampled rows if quantiles and frequencies of a sample suffice."""
FEWEST_OTHERS = 5
"""Minimum number of different values in addition to a number that may mean a missing value."""
ANCHORS, NEIGHBORS = 200, 40
"""Number of rows whose distances are measured, and of nearest rows."""
MOST_ROWS, MOST_NUMBERS, MOST_SILOS, MOST_COLUMNS = 50_000, 2_000_000, 3, 32
"""Limits of the search for repeated rows: rows, numbers in them, silos, and directions of a random projection."""
FINE = 0.2
"""Minimum fraction of different values in a column that is used for distances."""
BY_CHANCE, MANY = 0.05, 0.3
"""Fraction of rows that nearly repeat another by chance, and the minimum fraction for a warning."""
SHOWN = 5


def _words(column: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", column).lower().strip("_").split("_")


def named_like_id(column: str) -> bool:
    """Return whether a column has a name of identifiers, such as patient_id, MRN, SubjectNo or visit."""
    words = _words(column)
    alone = len(words) == 1 and words[0].removesuffix("id") in WHOSE
    return alone or words[-1] in IDS or (words[0] in WHOSE and words[-1] in NUMBERS)


def repeats(silos: Iterable[str], values: Iterable[str]) -> bool:
    """Return whether the values of a column repeat within silos, like values of groups."""
    known: dict[str, set[str]] = {}
    rows = 0
    for silo, value in zip(silos, values, strict=True):
        known.setdefault(silo, set()).add(value)
        rows += 1
    distinct = [len(each) for each in known.values()]
    return max(distinct, default=0) >= TELL_APART and rows - sum(distinct) >= REPEATS * rows


def unusual_columns(pools: Sequence[Pool]) -> Iterator[str]:
    """Yield a warning for each unusual property of the columns of tables."""
    at_some: dict[str, list[str]] = {}
    for i, column in enumerate(pools[0].table):
        values = [pool.x[:, i] for pool in pools]
        leave_out = assignment(f"rename_columns\n{column.name}", False)
        if all(_like_ids(each, column.name) for each in values):
            yield (f"column {shown(column.name)} has a different value in every row, like ids: remove it, {leave_out}")
            continue
        if _copies(values, [pool.y for pool in pools]):
            yield (
                f"column {shown(column.name)} determines the label in every row, like a copy of it: remove it, "
                f"{leave_out}"
            )
            continue
        held = {pool.domain: each for pool, each in zip(pools, values, strict=True)}
        marks = marks_of(np.concatenate(values)) if column.categories is None else []
        if marks:
            yield missing_marks(column.name, marks, held)
        constant = [silo for silo, each in held.items() if _constant(each) and silo not in _full_of(marks, held)]
        if constant and len(constant) < len(pools):
            at_some[column.name] = constant
    if at_some:
        named = [f"{shown(name)} ({_listed(silos)})" for name, silos in at_some.items()]
        yield f"columns with one value at some silos, but not at others: {_listed(named)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _like_ids(values: Array, name: str) -> bool:
    """Return whether whole numbers or codes differ in all rows, and are dense, numerous, or named like ids."""
    head, count = values[:HEAD], len(values)
    if count < FEWEST or not (np.floor(head) == head).all():
        return False
    different = 0.5 if abs(head).max() >= EXACT else 1
    if len(np.unique(head)) < different * len(head) or not (np.floor(values) == values).all():
        return False
    dense = float(values.max()) - float(values.min()) < 2 * count
    named = named_like_id(name) or _words(name)[-1] in NUMBERS
    return (dense or count >= HEAD or named) and len(np.unique(values)) >= different * count


def _copies(values: Sequence[Array], labels: Sequence[LabelArray]) -> bool:
    """Return whether each class has a single value that no other class has, at every silo with several classes."""
    several = [(x, y) for x, y in zip(values, labels, strict=True) if len(y) >= FEWEST and (y[:1] != y).any()]
    return bool(several) and all(_one_to_one(x[:HEAD], y[:HEAD]) and _one_to_one(x, y) for x, y in several)


def _one_to_one(x: Array, y: LabelArray) -> bool:
    classes, first = np.unique(y, return_index=True)
    own = x[first]
    return len(np.unique(own)) == len(own) and bool((own[np.searchsorted(classes, y)] == x).all())


def missing_marks(name: str, marks: Sequence[float | int], values: Mapping[str, Array]) -> str:
    """Return a warning about numbers of a column that look like marks of missing values, from its values by silo."""
    key = assignment(f"rename_columns\n{name}", {"missing": marks})
    counts = {silo: (int(_among(each, marks).sum()), len(each)) for silo, each in values.items()}
    held = sorted(((silo, *of) for silo, of in counts.items() if of[0]), key=lambda each: each[2] - each[1] > 0)
    told = [f"{f'all {of:,}' if count == of else f'{count:,} of {of:,}'} of {silo}" for silo, count, of in held]
    total, rows = (sum(each[i] for each in counts.values()) for i in (0, 1))
    where = f" ({_listed(told)})" if len(counts) > 1 else ""
    return (
        f"column {shown(name)} has {', '.join(f'{mark:g}' for mark in marks)} in {total:,} of {rows:,} rows{where}, "
        "far from all other values: if that means missing, set "
        f"{key}{', or data.missing for all columns' * (0 not in marks)}"
    )


def without(values: Mapping[str, Array], marks: Sequence[float | int]) -> dict[str, Array]:
    """Return the values of a column by silo, with NaN instead of `marks`."""
    none = np.float32(np.nan)
    return {silo: np.where(_among(each, marks), none, each) if marks else each for silo, each in values.items()}


def _full_of(marks: Sequence[float | int], values: Mapping[str, Array]) -> list[str]:
    """Return the silos whose values are all marks."""
    return [silo for silo, each in values.items() if marks and len(each) and _among(each, marks).all()]


def _among(values: Array, marks: Sequence[float | int]) -> Array:
    found: Array = np.isin(values, np.array(marks, np.float32))
    return found


def marks_of(values: Array) -> list[float | int]:
    """Return the lowest and the highest numbers of a column that look like marks of missing values, ascending."""
    found = list[float | int]()
    for end in (np.fmin, np.fmax):
        outer = [each for each in MARKS_32 if (each < 0) == (end is np.fmin)]
        mark = end.reduce(values)
        while mark in outer and _is_mark(mark, values):
            found.append(int(mark) if float(mark).is_integer() else round(float(mark), 1))
            values = values[values != mark]
            mark = end.reduce(values)
    if np.fmin.reduce(values) == 0 and _is_never_near_zero(values):
        found.append(0)
    return sorted(found)


def sampled(rows: int) -> Index | slice:
    """Return the positions of `MOST_LOOKED_AT` random rows, or of all rows if there are no more."""
    return slice(None) if rows <= MOST_LOOKED_AT else np.random.default_rng(0).integers(rows, size=MOST_LOOKED_AT)


def _some(values: Array) -> Array:
    """Return the `sampled` numbers of a column, without marks and missing values."""
    some = values[sampled(len(values))]
    return some[~(np.isnan(some) | np.isin(some, np.array([*MARKS_32])))]


def _is_mark(mark: np.float32, values: Array) -> bool:
    """Return whether the lowest or highest number occurs several times and is far from all others except marks."""
    some = _some(values)
    if np.count_nonzero(values == mark) < 2 or len(np.unique(some[:HEAD])) < FEWEST_OTHERS:
        return False
    low, inner_low, inner_high, high = np.quantile(some, (0, 0.1, 0.9, 1))
    ends = values[values < inner_low] if mark < 0 else values[values > inner_high]
    ends = ends[~np.isin(ends, np.array([*MARKS_32]))]
    if mark < 0:
        return low >= 0 and bool((ends >= 0).all())
    high = max(high, ends.max(initial=high))
    return bool(mark - high >= max(2 * (inner_high - inner_low), (high - low) / 4))


def _is_never_near_zero(values: Array) -> bool:
    """Return whether all numbers other than repeated zeros are far from zero, as blood pressures are."""
    some = _some(values)
    some = some[some != 0]
    if np.count_nonzero(values == 0) < 2 or len(np.unique(some[:HEAD])) < FEWEST_OTHERS:
        return False
    low = np.min(values, where=values > 0, initial=np.inf)
    return bool(low >= 0.3 * np.median(some) and low >= 10 * np.diff(np.unique(some)).min())


def _constant(values: Array) -> bool:
    first = values[:1]
    return bool((values == first).all() or np.isnan(values).all())


def nearly_repeated(pools: Sequence[Pool]) -> str:
    """Return a warning if the rows (N, D) of a silo have no groups, but many nearly repeat another row; "" if not."""
    if any(pool.groups is not None or _has_group(pool) for pool in pools):
        return ""
    for pool in pools[:MOST_SILOS]:
        numbers = [i for i, column in enumerate(pool.table) if column.categories is None]
        most = min(MOST_ROWS, MOST_NUMBERS // pool.x.shape[1])
        x = pool.x[:most, numbers] if pool.table else pool.x[:most]
        if (share := _repeated(x.astype(np.float32))) >= MANY:
            named = f"silo {pool.domain!r}" if pool.domain else pool.origin or "data"
            return (
                f"{named}: about {share:.0%} of the rows nearly repeat another, like rows of one patient or device: "
                "if so, name their column in data.groups (in Python groups=), so they share a split and count "
                "once in each guarantee"
            )
    return ""


def _has_group(pool: Pool) -> bool:
    """Return whether a column named like an id has repeated values, for which there is a warning already."""
    ids = [i for i, column in enumerate(pool.table) if named_like_id(column.name)]
    return any(len(np.unique(pool.x[:, i])) <= (1 - REPEATS) * len(pool.y) for i in ids)


def _repeated(x: Array) -> float:
    """Return the fraction of rows whose nearest neighbor is closer than almost all would be by chance.

    Locally, rows of a smooth density in q dimensions are uniform: (distance to the nearest / distance to the k-th)**q
    is the minimum of k - 1 uniform numbers, and log 2 / log(distance to the k-th / distance to the k/2-th) estimates q
    (Levina and Bickel, 2004). Equal rows are ignored: they share a split anyway.
    """
    if len(x) < ANCHORS:
        return 0
    x = x[:, [len(np.unique(column)) >= FINE * len(column) for column in x[:HEAD].T]]
    if x.shape[1] < 2:
        return 0
    with np.errstate(all="ignore"):  # very large numbers
        x = np.where(np.isnan(x), np.nanmean(x, axis=0), x)
        x = (x - x.mean(axis=0)) / x.std(axis=0)
    if not np.isfinite(x).all():
        return 0
    rng = np.random.default_rng(0)
    if x.shape[1] > MOST_COLUMNS:
        x = x @ rng.normal(size=(x.shape[1], MOST_COLUMNS)).astype(np.float32)
    squares, near = (x**2).sum(axis=1), []
    for rows in np.split(rng.choice(len(x), ANCHORS, replace=False), ANCHORS // 25):
        both = squares[rows][:, None] + squares
        apart = both - 2 * x[rows] @ x.T
        apart[apart <= 1e-6 * both] = np.inf
        near.append(np.sort(np.partition(apart, NEIGHBORS, axis=1)[:, :NEIGHBORS], axis=1))
    found = np.sqrt(np.concatenate(near))
    found = found[np.isfinite(found[:, -1])]
    if not len(found) or (wide := np.median(np.log(found[:, -1] / found[:, NEIGHBORS // 2 - 1]))) <= 0:
        return 0
    limit = (1 - (1 - BY_CHANCE) ** (1 / (NEIGHBORS - 1))) ** (wide / np.log(2))
    return float((found[:, 0] < limit * found[:, -1]).mean())
