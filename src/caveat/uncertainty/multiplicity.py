"""Corrections of p-values for many tests."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method (1979), in the given order: the family-wise error rate is at most the
    threshold, under any dependence. NaN stays NaN and is not counted.
    """
    order = sorted((i for i, p in enumerate(ps) if not math.isnan(p)), key=lambda i: ps[i])
    corrected, largest = [math.nan] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * ps[i]))
        corrected[i] = largest
    return corrected


def benjamini_hochberg(p: Tensor, rate: float) -> Tensor:
    """Return (N,) bool: the discoveries of Benjamini & Hochberg (1995) among p-values (N,), of which an expected share
    of at most `rate` is false.

    Valid for conformal p-values that share their calibration inputs (Bates et al., Annals of Statistics 2023).
    """
    ordered, count = p.double().sort().values, len(p)
    passing = ordered <= rate * torch.arange(1, count + 1, dtype=torch.float64, device=p.device) / max(count, 1)
    if not passing.any():
        return torch.zeros_like(p, dtype=torch.bool)
    return p.double() <= ordered[passing.nonzero()[-1, 0]]
