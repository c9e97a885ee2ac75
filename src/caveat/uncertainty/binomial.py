"""Exact bounds on an error rate from a number of errors, and how many answers they take."""

import math
from functools import cache

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from .distributions import beta_quantile, negative_binomial_quantile


def clopper_pearson_upper(errors: Tensor, answered: Tensor, delta: float) -> Tensor:
    """The exact upper bound at level `delta` on an error rate, from `errors` of `answered`; float64, same shape.

    Clopper & Pearson (1934), one-sided: the rate at which so few errors have probability delta. It is 1 where all
    are wrong or nothing was answered. Raises ValueError for delta outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, but must lie in (0, 1)")
    e, a = np.asarray(errors, dtype=np.float64), np.asarray(answered, dtype=np.float64)
    right = a - e
    return torch.as_tensor(np.where(right > 0, beta_quantile(1 - delta, e + 1, np.maximum(right, 1)), 1.0))


def bounded(errors: Tensor, answered: Tensor, risk: float, delta: float) -> Tensor:
    """Whether Clopper and Pearson's bound is at most `risk`: bool, same shape; never where nothing was answered.

    By the definition of the bound, without finding it: so few errors have a probability of at most delta if the rate
    is `risk`.
    """
    e, a = np.asarray(errors, dtype=np.float64), np.asarray(answered, dtype=np.float64)
    right = a - e
    # P(Binomial(a, risk) <= e), as an incomplete beta function.
    return torch.as_tensor((right > 0) & (betainc(np.maximum(right, 1), e + 1, 1 - risk) <= delta))


@cache
def answers_needed(errors: int, risk: float, delta: float) -> int:
    """The fewest answers, `errors` of them wrong, whose Clopper-Pearson bound is at most `risk`.

    The bound is at most `risk` when Binomial(answers, risk) <= errors has probability at most delta: when the number
    of right answers before error number errors + 1, negative binomial, is rarely so large.
    """
    return errors + 1 + negative_binomial_quantile(1 - delta, errors + 1, risk)


SURE = 0.1
"""The share of inputs for which `inputs_needed` says what it takes where no limit is known to be good enough."""


def inputs_needed(counts: Tensor, total: int, risk: float, delta: float) -> tuple[int, float]:
    """About how many inputs a promise takes in place of `total`, and the share of them that it would answer.

    Of all limits of counts (2, J), answered and wrong, with clearly fewer errors than `risk` promises (one error
    added, and a tenth of the risk left), it takes the one that answers most, and multiplies its answers and errors
    until the bound at level `delta` is at most `risk`. Where there is no such limit, what the surest `SURE` of inputs
    would take if one of them were wrong. An estimate from few inputs, for a sentence and not for a test.
    """
    answered, errors = np.asarray(counts, dtype=np.float64)
    able = np.flatnonzero((answered > 0) & (errors + 1 <= 0.9 * risk * answered))
    if len(able):
        a, e = answered[able[-1]], errors[able[-1]] + 1
        factors = np.geomspace(1, 1000, 121)
        # Whole numbers, since a bound is of counts.
        enough = bounded(torch.tensor(np.ceil(factors * e)), torch.tensor(np.floor(factors * a)), risk, delta).numpy()
        if enough.any():
            return _rounded(total * factors[np.argmax(enough)]), float(a / total)
    return _rounded(answers_needed(1, risk, delta) / SURE), SURE


def _rounded(number: float) -> int:
    """Upwards, to two digits."""
    unit = int(10 ** max(math.floor(math.log10(number)) - 1, 0))
    return math.ceil(number / unit) * unit
