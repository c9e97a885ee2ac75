"""Linear pooling of two models' probabilities, with weights from sums that add up over silos.

The blend is w p + (1 - w) q of the local model's probabilities p and the global ones q (Stone, The Opinion Pool, 1961).
The negative log-likelihood of labels is convex in w, and silos send it on a grid of weights. The sum over silos gives
the federation's weight. A silo's own weight fits its own labels and `STRENGTH` labels that prefer the federation's
weight: the mode of a posterior whose prior is a beta distribution around it.

As for temperatures, a share `CONTAMINATION` of labels is taken to be drawn at random, so one label to which both models
give no chance does not decide.
"""

import math

import torch
from torch import Tensor

from .temperature import CONTAMINATION

WEIGHTS = 41
"""Number of weights of the local model, evenly spaced from 0 to 1, at which silos compute their likelihood."""
STRENGTH = 5.0
"""Number of labels that the federation's weight counts as at a silo, chosen by `benchmarks/policies.py`."""


def weights() -> Tensor:
    """Return the weights (41,) float64."""
    return torch.linspace(0, 1, WEIGHTS, dtype=torch.float64)


def curve(local: Tensor, other: Tensor, y: Tensor) -> Tensor:
    """Return (41,) float64, the negative log-likelihood in nats of labels (n,) under blends with each of the `weights`.

    `local` and `other` (n, C) are probabilities. Rows with NaN in either are left out, and so are labels of -1.
    """
    known = (y >= 0) & local.isfinite().all(1) & other.isfinite().all(1)
    mine, theirs = (p[known].double().gather(1, y[known, None]) for p in (local, other))
    share = weights().to(mine.device)
    right = share * mine + (1 - share) * theirs
    return -((1 - CONTAMINATION) * right + CONTAMINATION / local.shape[1]).log().sum(0)


def impossible(sent: Tensor, inputs: int, classes: int) -> str:
    """Return why this cannot be a `curve` of so many inputs, or fewer, with so many classes; "" if it can."""
    if sent.shape != (WEIGHTS,) or not sent.isfinite().all():
        return "likelihoods that are none"
    sent = sent.double().cpu()
    room = 1e-6 * (1 + inputs * math.log(classes / CONTAMINATION))
    convex = sent[:-2] - 2 * sent[1:-1] + sent[2:] >= -room
    within = (sent >= -room) & (sent <= inputs * math.log(classes / CONTAMINATION) + room)
    return "" if bool(within.all() and convex.all()) else f"likelihoods that {inputs:,} inputs cannot come to"


def shared_weight(summed: Tensor) -> float:
    """Return the weight of least loss for all silos together, from the sum of their curves; 0.5 without inputs."""
    return _best(summed, 0.5, 0.0) if bool(summed.any()) else 0.5


def own_weight(own: Tensor, shared: float, strength: float = STRENGTH) -> float:
    """Return a silo's weight in [0, 1], from its `curve` and the federation's weight, which it is without inputs."""
    return _best(own, shared, strength) if bool(own.any()) else shared


def _best(curve: Tensor, shared: float, strength: float) -> float:
    """Return the weight with the least sum of a curve and `strength` labels; of equal ones the nearest to `shared`."""
    total, grid = curve.cpu(), weights()
    if strength:
        for share, of in ((shared, grid), (1 - shared, 1 - grid)):
            total = total - strength * torch.xlogy(torch.tensor(share, dtype=torch.float64), of)
    least = total <= total.min() + 1e-9
    return float(grid[(grid - shared).abs().masked_fill(~least, torch.inf).argmin()])
