"""Quantiles that keep their promise for finitely many scores.

Every score here is higher where a model is less certain.
"""

from __future__ import annotations

import math
import warnings

from torch import Tensor


def finite_sample_quantile(scores: Tensor, level: float) -> float:
    """The ceil((n + 1) level)-th smallest of scores (n,): a new score is at most this with probability >= `level`.

    That is split conformal prediction's threshold (Vovk, Gammerman & Shafer, 2005), for a new score exchangeable
    with the n. Where the index exceeds n, i.e. n < level / (1 - level), the result is +inf, the threshold that
    accepts everything: so few scores bound none. NaN scores are dropped with a warning, and the promise is then
    about scores that are not NaN. Raises ValueError for a level outside (0, 1].
    """
    if not 0 < level <= 1:
        raise ValueError(f"level is {level}, but must lie in (0, 1]")
    ordered = _without_nan(scores).sort().values
    index = conformal_index(len(ordered), level)
    return float(ordered[index - 1]) if index <= len(ordered) else math.inf


def conformal_index(n: int, level: float) -> int:
    """ceil((n + 1) level), from 1: which of n ordered scores a new one exceeds with probability 1 - level at most."""
    # The slack undoes rounding: 100 * 0.07 is a hair above 7, and must not become 8.
    return max(math.ceil((n + 1) * level * (1 - 1e-12)), 1)


def _without_nan(scores: Tensor) -> Tensor:
    """The scores in float64, in which float32 scores compare as they did."""
    scores = scores.double()
    missing = scores.isnan()
    if missing.any():
        warnings.warn(f"dropped {int(missing.sum())} of {len(scores)} scores that are NaN", stacklevel=3)
    return scores[~missing]
