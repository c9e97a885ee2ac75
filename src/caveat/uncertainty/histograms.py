"""Histograms of uncertainty scores over fixed bins, so that those of several silos add up.

The bins never depend on data: they are equally wide in asinh, fine where scores are dense and coarse far out.
A bin holds its upper edge and not its lower one, so that the threshold "at most this edge" accepts whole bins,
and a quantile that is reported as an upper edge keeps its coverage. A histogram knows the order of two scores
unless they share a bin; there they are tied.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from .quantiles import conformal_index

BINS = 4096
"""Bins of a histogram."""
SMALL = frozenset({"total", "aleatoric", "conflict"})
"""Scores from 0 to 1 or a few nats, most of them near 0."""
TINY = frozenset({"epistemic", "vacuity"})
"""Scores from 0 to a few nats whose order of magnitude says most: evidence of e^50 leaves 1e-22 of them."""


@cache
def edges(name: str) -> Tensor:
    """(4097,) float64: the edges of the bins of a score, ascending.

    Entropies in nats, and conflict: 3e-7 apart at 0, further out 0.3 % of the score, up to 20. Epistemic uncertainty
    and vacuity: 1.4 % of the score from 1e-24 to 20. All others, of either sign and any size: 0.007 apart at 0,
    further out 0.7 % of the score, up to a million on either side. The outermost edges are infinite, since the first
    and the last bin hold what lies beyond.
    """
    if name in TINY:
        inner = torch.logspace(-24, math.log10(20), BINS + 1, dtype=torch.float64)
    elif name in SMALL:
        inner = 1e-4 * torch.sinh(torch.arange(BINS + 1, dtype=torch.float64) * (math.asinh(20 / 1e-4) / BINS))
    else:
        steps = torch.arange(-BINS // 2, BINS // 2 + 1, dtype=torch.float64)
        inner = torch.sinh(steps * (2 * math.asinh(1e6) / BINS))
    inner[0], inner[-1] = -math.inf, math.inf
    return inner


def bins(name: str, values: Tensor) -> Tensor:
    """(N,) int64: the bin of each of (N,) scores. A score that is not a number counts as the least certain."""
    return torch.bucketize(
        values.double().nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf), edges(name)[1:-1]
    )


def histogram(name: str, values: Tensor) -> Tensor:
    """(4096,) float64: how many of (N,) scores lie in each bin."""
    return torch.bincount(bins(name, values), minlength=BINS).double()


def quantile(name: str, counts: Tensor, level: float) -> float:
    """The upper edge of the bin that holds the ceil((n + 1) level)-th smallest of the n scores in (4096,) `counts`.

    A new score that is exchangeable with those counted lies at or below it with a probability of at least `level`
    (split conformal prediction). Infinite where n is too small for that, n < level / (1 - level), and where the
    score lies beyond the grid. Raises ValueError for a level outside 0 to 1.
    """
    if not 0 <= level <= 1:
        raise ValueError(f"level = {level}, expected 0 to 1")
    n = int(counts.sum())
    index = conformal_index(n, level)
    if index > n:
        return math.inf
    return float(edges(name)[1:][int((counts.cumsum(0) < index).sum())])
