"""Linear pooling of two models' probabilities, with weights from sums that add up over silos.

The blend is w p + (1 - w) q, with the local model's probabilities p and the global model's q (Stone, The Opinion Pool,
1961). The negative log-likelihood of labels is convex in w, and silos send it on a grid of weights. The sum over silos
gives the federation's weight. A silo's weight fits its own labels and `STRENGTH` labels that prefer the federation's
weight: it is the mode of a posterior with a beta distribution around the federation's weight as the prior.

As for temperatures, a share `CONTAMINATION` of labels is assumed to be random, so a single label that both models
consider impossible does not determine the weight.
"""

import math

import torch
from torch import Tensor

from . import binned_distributions as binned
from .temperature import CONTAMINATION

WEIGHTS = 41
"""Number of weights of the local model, evenly spaced from 0 to 1, at which silos compute their likelihood."""
STRENGTH = 5.0
"""Number of labels for which the federation's weight counts at a silo, chosen by `benchmarks/policies.py`."""


def weights() -> Tensor:
    """Return the weights (41,) float64."""
    return torch.linspace(0, 1, WEIGHTS, dtype=torch.float64)


def curve(local: Tensor, other: Tensor, y: Tensor) -> Tensor:
    """Return (41,) float64, the negative log-likelihood in nats of labels (n,) under blends with each of the `weights`.
    `local` and `other` (n, C) are probabilities. Rows with NaN in either, and labels of -1, are left out. Labels
    from C on are of times censored in bar y - C."""
    known = (y >= 0) & local.isfinite().all(1) & other.isfinite().all(1)
    mine, theirs = (binned.likelihood(p[known].double(), y[known])[:, None] for p in (local, other))
    share = weights().to(mine.device)
    right = share * mine + (1 - share) * theirs
    return -((1 - CONTAMINATION) * right + CONTAMINATION / local.shape[1]).log().sum(0)


def impossible(sent: Tensor, inputs: int, classes: int) -> str:
    """Return why `sent` cannot be a `curve` of at most `inputs` inputs with this number of classes; "" if it can."""
    if sent.shape != (WEIGHTS,) or not sent.isfinite().all():
        return "invalid likelihoods"
    sent = sent.double().cpu()
    room = 1e-6 * (1 + inputs * math.log(classes / CONTAMINATION))
    convex = sent[:-2] - 2 * sent[1:-1] + sent[2:] >= -room
    within = (sent >= -room) & (sent <= inputs * math.log(classes / CONTAMINATION) + room)
    return "" if bool(within.all() and convex.all()) else f"likelihoods that are impossible for {inputs:,} inputs"


def shared_weight(summed: Tensor) -> float:
    """Return the weight with the smallest loss for all silos, from the sum of their curves; 0.5 without inputs."""
    return _best(summed, 0.5, 0.0) if bool(summed.any()) else 0.5


def own_weight(own: Tensor, shared: float, strength: float = STRENGTH) -> float:
    """Return a silo's weight in [0, 1], from its `curve` and the `shared` weight; without inputs, `shared`."""
    return _best(own, shared, strength) if bool(own.any()) else shared


def _best(curve: Tensor, shared: float, strength: float) -> float:
    """Return the weight with the smallest loss on a curve and `strength` labels; if tied, the nearest to `shared`."""
    total, grid = curve.cpu(), weights()
    if strength:
        for share, of in ((shared, grid), (1 - shared, 1 - grid)):
            total = total - strength * torch.xlogy(torch.tensor(share, dtype=torch.float64), of)
    least = total <= total.min() + 1e-9
    return float(grid[(grid - shared).abs().masked_fill(~least, torch.inf).argmin()])
