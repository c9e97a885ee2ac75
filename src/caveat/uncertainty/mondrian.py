"""Guarantees by subgroup: which rows of counts, thresholds and limits an input belongs to.

A guarantee for all inputs together says nothing about a part of them: a subgroup with more errors is covered less, and
another one more. So each subgroup with enough calibration inputs has its own counts and thresholds (Mondrian conformal
prediction: Vovk, Lindsay, Nouretdinov & Gammerman, Mondrian Confidence Machine, 2003). A smaller subgroup is pooled
with the next larger one, and so on until the pool has enough, so every guarantee is tested on the inputs that it
covers. Only the numbers of calibration inputs decide which subgroups are pooled; labels and scores do not.

Row 0 of counts, thresholds and limits is for all inputs, with or without a subgroup, and row 1 + g for subgroup g.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def sizes(subgroup: Tensor | None, subgroups: int) -> Tensor:
    """Return (G,) float64: how many of (N,) inputs are in each subgroup; -1 means none."""
    if subgroup is None or not subgroups:
        return torch.zeros(subgroups, dtype=torch.float64)
    return torch.bincount(subgroup[subgroup >= 0].cpu(), minlength=subgroups).double()


def pools(counts: Tensor, least: int) -> Tensor:
    """Return (G,) int64: the pool of each subgroup, as the number of the pool's first subgroup, from (G,) counts.

    Subgroups are pooled, smallest first, until they have `least` inputs together; a remainder with fewer joins the pool
    before it.
    """
    order = sorted(range(len(counts)), key=lambda g: (float(counts[g]), g))
    found: list[list[int]] = []
    total = float(least)
    for g in order:
        if total >= least:
            found.append([])
            total = 0.0
        found[-1].append(g)
        total += float(counts[g])
    if total < least and len(found) > 1:
        rest = found.pop()
        found[-1] += rest
    pool = torch.zeros(len(counts), dtype=torch.long)
    for members in found:
        pool[members] = min(members)
    return pool


def pooled(numbers: Tensor, pool: Tensor) -> Tensor:
    """Return numbers by row (1 + G, ...), with the sum over each pool in the row of its first subgroup. The rows of its
    other subgroups are zero."""
    found = torch.zeros_like(numbers)
    found[0] = numbers[0]
    found[1:].index_add_(0, pool.to(numbers.device), numbers[1:])
    return found


def rows(subgroup: Tensor | None, pool: Tensor) -> Tensor | None:
    """Return (N,) int64: the row of each input's pool, 0 without a subgroup; None if no input has one."""
    if subgroup is None or not len(pool):
        return None
    pool = pool.to(subgroup.device)
    return torch.where(subgroup >= 0, 1 + pool[subgroup.clamp_min(0)], 0)


def by_row(numbers: Tensor, row: Tensor | None) -> Tensor:
    """Return a scalar per input, (N,), from numbers by row (R,): the number of row 0 if no input has a subgroup."""
    return numbers[0] if row is None else numbers.to(row.device)[row]


def members(pool: Tensor, names: Sequence[str]) -> dict[int, list[str]]:
    """Return the names of the subgroups of each pool."""
    found: dict[int, list[str]] = {}
    for name, first in zip(names, pool.tolist(), strict=True):
        found.setdefault(first, []).append(name)
    return found
