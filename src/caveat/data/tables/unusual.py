"""Warnings about table columns that are hardly meant as features, and about silos that write categories differently."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ..pools import Array, LabelArray, Pool, shown
from .advice import TELLING, assignment
from .formats import same_value

HEAD = 1000
"""Rows that are looked at before all are."""
EXACT = 1 << 24
"""From here on float32 does not hold every whole number."""
FEWEST = 20
"""Fewest rows of a silo in which different numbers are remarkable."""
LIKE_ID = re.compile(r"(^|[^a-z])(id|ids|nr|no|number|index|key|mrn|patient|subject|row|unnamed)([^a-z]|$)|\wI[Dd]$")
SHOWN = 5


def unusual_columns(pools: Sequence[Pool]) -> Iterator[str]:
    """Yield a line for each unusual thing about the columns of tables."""
    at_some: dict[str, list[str]] = {}
    for i, column in enumerate(pools[0].table):
        values = [pool.x[:, i] for pool in pools]
        leave_out = assignment(f"rename_columns\n{column.name}", False)
        if all(_like_ids(each, column.name) for each in values):
            yield (f"column {shown(column.name)} has another value in every row, as ids do: leave it out, {leave_out}")
            continue
        if _copies(values, [pool.y for pool in pools]):
            yield (
                f"column {shown(column.name)} tells the label in every row, as a copy of it does: leave it out, "
                f"{leave_out}"
            )
            continue
        constant = [pool.domain for pool, each in zip(pools, values, strict=True) if _constant(each)]
        if constant and len(constant) < len(pools):
            at_some[column.name] = constant
        elif column.categories is not None and (told := _spelled_apart(pools, i)):
            yield told
    if at_some:
        named = [f"{shown(name)} ({_listed(silos)})" for name, silos in at_some.items()]
        yield f"columns with one value at some silos, but not at others: {_listed(named)}"
    if told := _labels_apart(pools):
        yield told


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _like_ids(values: Array, name: str) -> bool:
    """Return whether whole numbers, or codes, differ in all rows, and are dense, many, or named like ids."""
    head, count = values[:HEAD], len(values)
    if count < FEWEST or not (np.floor(head) == head).all():
        return False
    different = 0.5 if abs(head).max() >= EXACT else 1
    if len(np.unique(head)) < different * len(head) or not (np.floor(values) == values).all():
        return False
    dense = float(values.max()) - float(values.min()) < 2 * count
    named = LIKE_ID.search(name) or LIKE_ID.search(name.lower())
    return bool(dense or count >= HEAD or named) and len(np.unique(values)) >= different * count


def _copies(values: Sequence[Array], labels: Sequence[LabelArray]) -> bool:
    """Return whether each class has one value of its own, at every silo that has several classes."""
    several = [(x, y) for x, y in zip(values, labels, strict=True) if len(y) >= FEWEST and (y[:1] != y).any()]
    return bool(several) and all(_one_to_one(x[:HEAD], y[:HEAD]) and _one_to_one(x, y) for x, y in several)


def _one_to_one(x: Array, y: LabelArray) -> bool:
    classes, first = np.unique(y, return_index=True)
    own = x[first]
    return len(np.unique(own)) == len(own) and bool((own[np.searchsorted(classes, y)] == x).all())


def _constant(values: Array) -> bool:
    first = values[:1]
    return bool((values == first).all() or np.isnan(values).all())


def _spelled_apart(pools: Sequence[Pool], i: int) -> str:
    """Return a line if most rows of a silo have categories that no other silo has."""
    column = pools[0].table[i]
    names = column.categories or ()
    counts = [np.bincount(pool.x[:, i].astype(np.int64) + 1, minlength=len(names) + 1)[1:] for pool in pools]
    found = _apart(pools, names, np.array(counts))
    if not found:
        return ""
    silo, own, others = found
    key = assignment(f"files\n{silo}\nrename_columns\n{column.name}", {"codes": _example(own, others)})
    return f"column {shown(column.name)}: {_only(silo, own, others)}; if they mean the same, set such as {key}"


def _labels_apart(pools: Sequence[Pool]) -> str:
    names = pools[0].classes
    counts = np.array([np.bincount(pool.y, minlength=len(names)) for pool in pools])
    found = _apart(pools, names, counts)
    if not found:
        return ""
    silo, own, others = found
    (code, meaning), *_ = _example(own, others).items()
    key = assignment(f"files\n{silo}\nlabel_codes\n{code}", meaning)
    return f"labels: {_only(silo, own, others)}; if they mean the same, set such as {key}"


def _example(own: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """Return one text and what it may mean: a text of others with the same initial."""
    pairs = {a: b for a in own for b in others if a[:1].casefold() == b[:1].casefold()}
    code = next(iter(pairs), own[0])
    return {code: pairs.get(code, "MEANING")}


def _only(silo: str, own: Sequence[str], others: Sequence[str]) -> str:
    return (
        f"only silo {silo!r} has {_listed([shown(text) for text in own])}, others have "
        f"{_listed([shown(text) for text in others])}"
    )


def _apart(pools: Sequence[Pool], names: Sequence[str], counts: Array) -> tuple[str, list[str], list[str]] | None:
    """Return the first silo whose rows mostly have texts that only it has, these, and those of others."""
    if len(pools) < 2 or not 2 < len(names) <= TELLING or all(not isinstance(same_value(name), str) for name in names):
        return None
    alone = (counts > 0).sum(axis=0) == 1
    for pool, own in zip(pools, counts, strict=True):
        mine = alone & (own > 0)
        others = (counts.sum(axis=0) > 0) & (own == 0)
        if mine.sum() > 1 and others.sum() > 1 and own[mine].sum() >= own.sum() / 2:
            return (
                pool.domain,
                [names[k] for k in np.flatnonzero(mine).tolist()],
                [names[k] for k in np.flatnonzero(others).tolist()],
            )
    return None
