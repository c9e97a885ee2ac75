"""What clipping and noise (`caveat.wrappers.private`) amount to: epsilon of (epsilon, delta)-differential privacy.

Two runs are neighbours if they differ in one silo, whose updates in all rounds are zero in one of them: a clipped
update moves the sum by the clip at most. If they differ in one row of a silo that takes part in both, its update is
clipped in both and may point the other way: the sum moves by twice the clip, as if there were half the noise. Rounds
are composed by Renyi differential privacy (Mironov, CSF 2017), by Google's `dp-accounting`; no amplification by
sampling is counted, since everybody may know who took part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from ..core import ConfigurationError


def epsilon(noise: float, rounds_replies: Sequence[int], silos: int, delta: float) -> float:
    """Epsilon of a silo towards whoever sees the sums only: users of the model, and the other silos.

    `rounds_replies` are the numbers of replies, the silo's own included, in each round of training that the silo took
    part in; `noise` and `silos` are those of `Private`, `delta` is between 0 and 1. Another silo knows its own noise,
    so that m replies hide each other with that of m - 1. Infinite if a round had no noise, 0 if there was none.
    Raises ConfigurationError for a delta out of range, and if `dp-accounting` is not installed.
    """
    return composed((noise * math.sqrt((replies - 1) / silos) for replies in rounds_replies), delta)


def epsilon_against_server(noise: float, rounds: int, silos: int, delta: float) -> float:
    """Epsilon of a silo towards a server that sees each update by itself, after `rounds` orders carried out."""
    return composed([noise / math.sqrt(silos)] * rounds, delta)


def composed(multipliers: Iterable[float], delta: float) -> float:
    """Epsilon of Gaussian mechanisms with these noise multipliers, one after another."""
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta = {delta}: expected a number between 0 and 1")
    counted = Counter(multipliers)
    if any(multiplier <= 0 for multiplier in counted):
        return math.inf
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise ConfigurationError('epsilon needs dp-accounting: pip install "caveat[privacy]"') from error
    accountant = RdpAccountant()
    for multiplier, rounds in counted.items():
        accountant.compose(GaussianDpEvent(multiplier), rounds)
    return float(accountant.get_epsilon(delta))
