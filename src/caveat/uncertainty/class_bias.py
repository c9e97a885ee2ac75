"""A bias per class for each silo, shrunk towards 0 the less silos differ, from sums that add up over silos.

Vector scaling (Guo et al., On Calibration of Modern Neural Networks, ICML 2017) adds a number per class to the logits,
which corrects a model for a silo with other class frequencies than those it was trained on. Here a silo's numbers are
normal around 0, with a standard deviation estimated from the inputs of all silos (DerSimonian & Laird, 1986): without a
bias, the derivative of a silo's log-likelihood in each number should have the variance of its inputs' derivatives, and
the excess measures how much silos differ. Models that fit their silos get a width of 0, and no bias.

    own = [message(log_probs, y) for each silo]
    sd = width(sum(own))
    bias = [fitted(log_probs, y, sd) for each silo]
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

WIDEST = 2.0
"""Maximum standard deviation of a silo's numbers."""
NARROWEST = 0.02
"""Standard deviation below which there is no bias."""
FAINTEST = -30.0
"""Lower bound to which log-probabilities are clipped."""
STEPS = 50
"""Maximum number of Newton steps; a few are enough."""


def usable(log_probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (n, C) and labels of rows with a label and no NaN: float64, clipped to `FAINTEST`."""
    known = (y >= 0) & ~log_probs.isnan().any(1) & ~(log_probs == math.inf).any(1)
    return log_probs[known].double().clamp_min(FAINTEST), y[known]


def message(log_probs: Tensor, y: Tensor) -> Tensor:
    """Return what a silo sends, (2,) float64, summed over classes: the squared derivatives of the log-likelihood in the
    numbers minus their variance, and the squared curvatures. Inputs are from `usable`."""
    p = log_probs.softmax(1)
    away = F.one_hot(y, p.shape[1]) - p
    excess = away.sum(0).square() - away.square().sum(0)
    return torch.stack([excess.sum(), (p * (1 - p)).sum(0).square().sum()])


def impossible(sent: Tensor, inputs: int) -> str:
    """Return why `sent` cannot be a `message` of at most `inputs` inputs; "" if it can. An input's derivatives have a
    squared norm of at most 2, and its curvatures sum to at most 1, each at most 1 / 4."""
    if sent.shape != (2,) or not sent.isfinite().all():
        return "invalid sums over classes"
    excess, curvature = sent.tolist()
    room = 1e-6 * (1 + inputs**2)
    fits = -2 * inputs - room <= excess <= 2 * inputs**2 + room and -room <= curvature <= inputs**2 / 4 + room
    return "" if fits else f"sums over classes that are impossible for {inputs:,} validation inputs"


def width(sums: Tensor) -> float:
    """Return the standard deviation of the silos' numbers, 0 to `WIDEST`, from the sum of messages."""
    excess, curvature = sums.tolist()
    return min(math.sqrt(max(excess, 0.0) / curvature), WIDEST) if curvature > 0 else 0.0


def fitted(log_probs: Tensor, y: Tensor, sd: float) -> Tensor | None:
    """Return the (C,) numbers with the largest posterior density, float64; None without inputs, and for sd below
    `NARROWEST`. Inputs are from `usable`.

    Damped Newton steps from 0 converge, because the function is convex (Nesterov & Nemirovskii, 1994).
    """
    if sd < NARROWEST or not len(y):
        return None
    classes = log_probs.shape[1]
    bias = torch.zeros(classes, dtype=torch.float64)
    counts, prior = torch.bincount(y, minlength=classes), torch.eye(classes, dtype=torch.float64) / sd**2
    for _ in range(STEPS):
        p = (log_probs + bias).softmax(1)
        slope = p.sum(0) - counts + bias / sd**2
        step = torch.linalg.solve(p.sum(0).diag() - p.T @ p + prior, slope)
        decrement = math.sqrt(float(slope @ step))
        bias = bias - step / (1 + decrement)
        if decrement < 1e-9:
            break
    return bias
