"""Quantiles that keep their promise for finitely many scores, and ranks that put two models' scores on one scale.

Every score here is higher where a model is less certain.
"""

from __future__ import annotations

import math
import warnings

import torch
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


def ranks(reference: Tensor, scores: Tensor) -> Tensor:
    """(#{reference < score} + 1) / (m + 1), the ranks (n,) in (0, 1], float64, of scores (n,) among a reference (m,).

    A smaller score has a rank as small or smaller and equal scores have equal ranks, so that scores of different
    models, each ranked among its own scores of the validation split, share one scale. Ties count as surer, not as
    less sure: a model that is equally and utterly sure of half of its inputs answers them at the smallest limit,
    where the other definition would have it answer nothing below 0.5. A NaN score has rank 1, like a score above the
    whole reference, and so has every score where the reference is empty. NaN in the reference is dropped with a
    warning.
    """
    ordered = _without_nan(reference).sort().values
    below = torch.searchsorted(ordered, scores.double().contiguous())
    return ((below.double() + 1) / (len(ordered) + 1)).masked_fill(scores.isnan(), 1.0)


def _without_nan(scores: Tensor) -> Tensor:
    """The scores in float64, in which float32 scores compare as they did."""
    scores = scores.double()
    missing = scores.isnan()
    if missing.any():
        warnings.warn(f"dropped {int(missing.sum())} of {len(scores)} scores that are NaN", stacklevel=3)
    return scores[~missing]
