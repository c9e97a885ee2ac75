"""How near an input is to a silo's own training inputs, in the input features of a model's last linear layer.

This is the distance to the nearest training input, of features on the unit sphere (Sun et al., Out-of-Distribution
Detection with Deep Nearest Neighbors, ICML 2022, arXiv 2204.06507, with k = 1). Features of training inputs stay at the
silo.
"""

import math

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from .histograms import beside

SCORE = "novel"
"""The name of the score among `Prediction.scores`."""
MOST_ROWS = 2000
"""Maximum number of training inputs whose features a silo keeps; of more inputs, it keeps a random sample."""
NEAR = 1e-3
"""Number that is added to squared distances, hundreds of times their rounding errors, to avoid extreme logarithms."""
STEP = 1e-3
"""Log-distances are rounded to multiples of this, so they do not depend on how many inputs are processed at once."""
BLOCK = 2**18
"""Maximum number of distances that are computed at once, so that they stay in a processor's cache."""


def sampled(inputs: int) -> Tensor:
    """Return the positions, ascending, of the training inputs whose features a silo keeps, given their number."""
    if inputs <= MOST_ROWS:
        return torch.arange(inputs)
    return torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))[:MOST_ROWS].sort().values


def directions(h: Tensor) -> Tensor:
    """Return features (N, d) on the unit sphere, float32; features that are all 0 stay 0."""
    length: Tensor = torch.linalg.vector_norm(h.float(), dim=1, keepdim=True)
    return h.float() / length.clamp_min(1e-12)


@wrap_torch_function(lambda rows, h: (rows, h))
def log_distances(rows: Tensor, h: Tensor) -> Tensor:
    """Return (N,) float64 logarithms of the distances of features h (N, d) to the nearest of `directions` (m, d).
    Infinite for features that are not finite, and without rows."""
    parts = torch.split(h, max(1, BLOCK // max(1, len(rows))))
    return torch.cat([log_distances_directly(rows, part) for part in parts])


def log_distances_directly(rows: Tensor, h: Tensor) -> Tensor:
    """Return `log_distances` up to rounding, of all inputs at once."""
    if not len(rows):
        return torch.full((len(h),), math.inf, dtype=torch.float64, device=h.device)
    own = directions(h)
    near = torch.addmm(rows.square().sum(1) / 2, own, rows.T, beta=-1).amax(1)
    square = (own.square().sum(1) - 2 * near).double().clamp_min(0)
    return (((square + NEAR).log() / 2 / STEP).round() * STEP).nan_to_num(nan=math.inf)


def left_out_log_distances(rows: Tensor, folds: int) -> Tensor:
    """Return (m,) log-distances of rows (m, d), each to the nearest row of another fold: row i is in fold i % `folds`.
    They are finite with two rows or more; with fewer, the result is empty."""
    fold = torch.arange(len(rows)) % folds
    parts = [beside(fold == k, rows) for k in range(min(folds, len(rows)))] if len(rows) > 1 else []
    return torch.cat([rows.new_zeros(0).double(), *(log_distances(rows[~part], rows[part]) for part in parts)])
