"""Histograms of uncertainty scores over fixed bins, which add up over silos.

The bins do not depend on data: they are fine where differences of a score matter most, near its smallest and its
largest value, and coarse far out. A bin includes its upper edge but not its lower one, so the threshold "at most this
edge" accepts whole bins, and a quantile reported as an upper edge keeps its coverage. Scores in the same bin are tied.

Quantiles are valid for finite samples. Every score is higher if a model is less certain.
"""

import math
import warnings
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def finite_sample_quantile(scores: Tensor, level: float) -> float:
    """Return the ceil((n + 1) level)-th smallest of scores (n,), which a new score does not exceed with a probability
    of at least `level`.

    This is split conformal prediction's threshold (Vovk, Gammerman & Shafer, 2005), for a new score exchangeable with
    these scores. If the index exceeds n, i.e. n < level / (1 - level), the result is +inf, the threshold that accepts
    everything. NaN scores are dropped with a warning, and the guarantee is then about scores that are not NaN. Raises
    ValueError for a level outside (0, 1].
    """
    if not 0 < level <= 1:
        raise ValueError(f"level is {level}, but must lie in (0, 1]")
    ordered = _without_nan(scores).sort().values
    index = conformal_index(len(ordered), level)
    return float(ordered[index - 1]) if index <= len(ordered) else math.inf


def conformal_index(n: int, level: float) -> int:
    """Return ceil((n + 1) level), at least 1: the position of the ordered score that bounds a new score with this
    probability."""
    # The slack absorbs rounding: 100 * 0.07 is slightly above 7, and must not become 8.
    return max(math.ceil((n + 1) * level * (1 - 1e-12)), 1)


def _without_nan(scores: Tensor) -> Tensor:
    """Return the scores that are not NaN, in float64, which keeps the order of float32 scores."""
    scores = scores.double()
    missing = scores.isnan()
    if missing.any():
        warnings.warn(f"dropped {int(missing.sum())} of {len(scores)} scores that are NaN", stacklevel=3)
    return scores[~missing]


def beside(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor on the device of another one, without waiting for the copy if that is safe."""
    return tensor.to(other.device, non_blocking=other.is_cuda)


BINS = 4096
"""Number of bins of a histogram."""
ENTROPIES = frozenset({"total", "aleatoric", "epistemic"})
"""Scores from 0 to ln C nats for C classes. Confident predictions are near 0, at all orders of magnitude, and
predictions of uninformative models agree with ln C in several digits."""
SHARES = frozenset({"vacuity", "conflict", "nonconformity"})
"""Scores from 0 to 1: evidence of e^50 leaves a vacuity of 1e-22, and evidence of 1e-9 one of 1 - 1e-9. Nonconformity
of a number is above 1 beyond all bars."""
POSITIVE = frozenset({"logit_variance", "surprise", "spread"})
"""Scores of at least 0, of any order of magnitude; surprise is -log p of a class."""
EVIDENCE = frozenset({"log_evidence"})
"""Sums of logarithms over features: hundreds or thousands of nats, of which a few nats distinguish inputs."""


@cache
def edges(name: str, classes: int | None = None) -> Tensor:
    """Return (4097,) float64: the ascending edges of a score's bins, for predictions with `classes` classes.

    Widths of bins for entropies in nats, vacuity and conflict, whose largest value M is ln C or 1: 1.1 % of the score
    from 1e-8 M, in the middle .3 % of M, and above that 1.1 % of the distance to M, down to 1e-6 M; outside that range
    5 %, from 1e-24 M and up to 1e-12 from M. Without `classes` entropies have no largest value: .6 % of the score from
    1e-8 to 20, 9 % from 1e-24. `logit_variance`, `spread`, surprise: 1.2 % from 1e-12 to a million, 9 % from 1e-24 and
    to 1e12. Log-evidence, of either sign: 0.04 nats near 0, further out 0.4 % up to 10,000 nats, then 2.3 % up to a
    million. All other scores, of either sign and any size: 0.007 near 0, further out 0.7 % of the score, up to a
    million on either side. The outermost edges are infinite: the first and the last bin contain all scores beyond.
    """
    if name in SHARES:
        inner = _bounded(1.0)
    elif name in ENTROPIES:
        inner = _bounded(math.log(max(classes, 2))) if classes else _steps((1e-24, 1e-8, 20), (400, 3696)).exp()
    elif name in POSITIVE:
        inner = _steps((1e-24, 1e-12, 1e6, 1e12), (300, 3600, 196)).exp()
    elif name in EVIDENCE:
        near, far = _asinh(10.0, 1e4, 1850), _steps((1e4, 1e6), (198,)).exp()[1:]
        inner = torch.cat([-far.flip(0), near, far])
    else:
        inner = _asinh(1.0, 1e6, BINS // 2)
    inner[0], inner[-1] = -math.inf, math.inf
    return inner


def _bounded(most: float) -> Tensor:
    """Return edges from 0 to `most`, equally far apart in ln(x / (most - x)) except at the ends, and some above it."""
    logit = torch.cat([_steps((1e-24, 1e-8, 1e6), (700, 3000))[:-1], _steps((1e6, 1e12), (250,))])
    # Computed from the nearer end for full precision.
    within = torch.where(logit < 0, most * logit.sigmoid(), most - most * (-logit).sigmoid())
    # Scores exceed `most` only by rounding, or if a method uses one of these names for another score.
    beyond = _steps((1 + 1e-9, 1e6), (BINS - len(within),)).exp() * most
    return torch.cat([within, beyond])


def _steps(ends: Sequence[float], counts: Sequence[int]) -> Tensor:
    """Return logarithms that divide each of several consecutive ranges into a number of equal steps."""
    parts = [
        torch.linspace(math.log(a), math.log(b), count + 1, dtype=torch.float64)[i > 0 :]
        for i, (a, b, count) in enumerate(zip(ends, ends[1:], counts, strict=False))
    ]
    return torch.cat(parts)


def _asinh(unit: float, most: float, count: int) -> Tensor:
    """Return (2 count + 1,) numbers from -most to most, equally far apart in asinh(x / unit)."""
    return unit * torch.sinh(torch.arange(-count, count + 1, dtype=torch.float64) * (math.asinh(most / unit) / count))


def measured_bins(name: str) -> int:
    """Return the number of bins in which silos count a score of test inputs, for metrics of its ranking.

    Fewer bins reveal less about single inputs, and change metrics by less than their standard errors
    (`benchmarks/coarse_bins.py`). Log-evidence has the most bins, because scores of hundreds of nats may differ by a
    few.
    """
    return BINS // (2 if name in EVIDENCE else 4 if name == "total" else 8)


def measured_edges(name: str, classes: int | None = None) -> Tensor:
    """Return the ascending edges of the `measured_bins`, float64."""
    return edges(name, classes)[:: BINS // measured_bins(name)]


def coarser(counts: Tensor, count: int) -> Tensor:
    """Return (..., count): the counts (..., 4096) of a histogram, with neighboring bins added up."""
    return counts.view(*counts.shape[:-1], count, -1).sum(-1)


def bins(name: str, values: Tensor, classes: int | None = None) -> Tensor:
    """Return (N,) int64: the bin of each of (N,) scores. NaN counts as the least certain."""
    found = values.double().nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
    return torch.bucketize(found, beside(edges(name, classes)[1:-1], found))


def histogram(name: str, values: Tensor, classes: int | None = None) -> Tensor:
    """Return (4096,) float64: how many of (N,) scores lie in each bin."""
    return torch.bincount(bins(name, values, classes), minlength=BINS).double()


def quantile(name: str, counts: Tensor, level: float, classes: int | None = None) -> float:
    """Return the upper edge of the bin that contains the ceil((n + 1) level)-th smallest of the n scores in (4096,)
    `counts`.

    A new score that is exchangeable with those counted lies at or below it with a probability of at least `level`
    (split conformal prediction). The edge is infinite if n is too small for that, n < level / (1 - level), or if the
    score lies beyond the grid. Raises ValueError for a level outside 0 to 1.
    """
    if not 0 <= level <= 1:
        raise ValueError(f"level is {level}, but must lie in [0, 1]")
    n = int(counts.sum())
    index = conformal_index(n, level)
    if index > n:
        return math.inf
    return float(edges(name, classes)[1:][int((counts.cumsum(0) < index).sum())])
