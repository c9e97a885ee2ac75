"""Federated temperature scaling, exact, from four sums per silo and round.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017: divide logits by one temperature T. The negative
log-likelihood is convex in the inverse temperature b = 1 / T, and it and its two derivatives are sums over inputs:
silos send sums, the server takes Newton steps, and the result is the optimum on the pooled inputs. Plain Newton
overshoots where the likelihood is flat, hence the safeguards in `advance`.

    state = start()
    while not converged(state):
        b = proposal(state)                                     # to the silos
        state = advance(state, sum(statistics(log_probs, y, b) for each silo))
    b = proposal(state)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOWEST, HIGHEST = 1e-3, 1e3
"""Range of b."""
ROUNDS = 25
"""Most rounds of measuring."""
TOLERANCE = 1e-6
"""Relative Newton step that is the last; the error that it leaves is about its square."""

SearchState = dict[str, Tensor]
"""Scalars, float64: `b` to measure at next; the bracket `low`, `high` of the optimum, 0 and inf while unknown; the
lowest `nll` so far; the last `gradient`; `rounds` done; `converged`, 0 or 1."""


def statistics(log_probs: Tensor, y: Tensor, b: float) -> Tensor:
    """(4,) float64 [n, nll, d nll / db, d2 nll / db2] of softmax(b log_probs), summed over n inputs; nll in nats.

    log_probs (n, K) are log-probabilities or logits, y (n,) labels, -1 for none: such rows are left out. A -inf
    stays a probability of zero at every b; if it is the label's, where every b were infinitely wrong, it is taken as
    the logarithm of the smallest number of the dtype, the least that a probability rounded to zero can stand for.
    Raises ValueError for NaN or +inf.
    """
    if log_probs.isnan().any() or (log_probs == math.inf).any():
        raise ValueError("log_probs hold NaN or +inf: the model's predictions are not finite")
    known = y >= 0
    z, y = log_probs[known].double(), y[known, None]
    dtype = torch.finfo(log_probs.dtype)
    smallest = math.log(dtype.tiny) + math.log(dtype.eps)
    label = z.gather(1, y)
    z = z.scatter(1, y, torch.where(label.isneginf(), smallest, label))
    # Relative to the label's: differences are taken before they are weighted, so that nothing cancels.
    z = z - z.gather(1, y)
    nll, p = (b * z).logsumexp(1), (b * z).softmax(1)
    z = z.masked_fill(z.isneginf(), 0.0)
    mean = (p * z).sum(1, keepdim=True)
    variance = (p * (z - mean).square()).sum(1)
    return torch.stack([known.sum().double(), nll.sum(), mean.sum(), variance.sum()])


def start() -> SearchState:
    """The state before the first round: b = 1, the model as it is."""
    return _state(b=1.0, low=0.0, high=math.inf, nll=math.inf, gradient=math.inf, rounds=0, converged=False)


def proposal(state: SearchState) -> float:
    """The b to measure at next, and once converged, the result."""
    return float(state["b"])


def converged(state: SearchState) -> bool:
    """Whether nothing more needs to be measured."""
    return bool(state["converged"])


def advance(state: SearchState, sums: Tensor) -> SearchState:
    """The next state, from `statistics` at `proposal(state)` summed over silos.

    A Newton step, unless it leaves the bracket, follows one that made the nll rise, or follows one that left more
    than a quarter of the gradient: then the bracket is halved on the log scale, or its end is measured where that is
    not known to lie beyond the optimum. Where the nll only falls (every label is its row's maximum) b goes to the
    end of its range; where it is flat (no inputs, or zeros wherever it matters) b stays. Ends after at most `ROUNDS`
    rounds. Raises ValueError for sums that are not four finite numbers.
    """
    if sums.shape != (4,) or not sums.isfinite().all():
        raise ValueError(f"sums are {sums.tolist()}, not the four finite sums of `statistics`")
    b, low, high, lowest, last = (float(state[name]) for name in ("b", "low", "high", "nll", "gradient"))
    _, nll, gradient, curvature = sums.tolist()
    rounds = int(state["rounds"]) + 1
    low, high = (b, high) if gradient < 0 else (low, b)
    step = -gradient / curvature if curvature > 0 else math.copysign(math.inf, -gradient)
    crossed = gradient * last < 0
    slow = not crossed and abs(gradient) > abs(last) / 4
    if gradient == 0:
        target = b
    elif abs(step) <= TOLERANCE * b or (low < b + step < high and nll <= lowest and not slow):
        target = b + step
    else:
        target = math.sqrt(low * high)
    target = min(max(target, LOWEST), HIGHEST)
    done = abs(target - b) <= TOLERANCE * b or rounds == ROUNDS
    return _state(target, low, high, min(nll, lowest), gradient, rounds, done)


def _state(b: float, low: float, high: float, nll: float, gradient: float, rounds: int, converged: bool) -> SearchState:
    values = {"b": b, "low": low, "high": high, "nll": nll, "gradient": gradient, "rounds": rounds}
    return {name: torch.tensor(float(value), dtype=torch.float64) for name, value in values.items()} | {
        "converged": torch.tensor(float(converged), dtype=torch.float64)
    }
