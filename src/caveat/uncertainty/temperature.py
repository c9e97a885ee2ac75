"""Federated temperature scaling in one round: likelihoods on a grid of powers add up over silos.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017: probabilities p become softmax(b log p), where b, the
inverse temperature, minimizes the negative log-likelihood of labels. The likelihood and its derivatives are sums over
inputs, which a silo computes at fixed powers. Between two powers, the sums over silos are interpolated by the
polynomial with the values and first two derivatives at both ends (quintic Hermite); its minimum is the pooled optimum
to four digits.

The likelihood assumes that a share `CONTAMINATION` of the labels is random: (1 - e) p_b(y) + e / C. Otherwise, a single
label to which a model assigns probability 0 would determine b: with it, no input moves the derivative in ln b by more
than ln((1 - e) C / e), 9.2 for ten classes. It is not convex, but a grid does not need that. Its minimum can be at a
huge power, which sharpens nearly equal probabilities that rank classes correctly, as for inputs with hardly any
evidence, and makes all errors certain, which cost no more than 9.2 nats each. If the probabilities are informative as
they are, the optimum is therefore the minimum among the usual powers.

A silo's own ln b is assumed to be normal around the federation's. The variance between silos is estimated by moments,
as in meta-analysis (DerSimonian & Laird, 1986), again from sums: at the common optimum, the silos' derivatives should
have the variance of their inputs' derivatives, and the excess measures how much silos differ.

A time that is censored in bar k has the likelihood of all later bars and half of its own (`binned.later`), sum_j w_j
p_j, instead of p_y; its derivatives in ln b are those of its logarithm, under p and under q, the share of each bar of
it.

    own = [curve(log_probs, y) for each silo]
    common, spread = agreed(sum(message(each) for each in own)).tolist()
    b = [near(each, common, spread) for each in own]
"""

import math

import torch
from torch import Tensor

from . import binned_distributions as binned
from .histograms import beside

POWERS: tuple[float, ...] = tuple(2.0 ** (k / 2) for k in range(-32, 65))
"""The 97 powers b at which silos compute their sums, 2^-16 to 2^32, equally spaced in ln b: they cover the logits of a
diverged network and probabilities that differ from 1/C only in their eighth digit."""
STEP = math.log(2) / 2
"""Distance of neighboring powers in ln b."""
USUAL = 32.0
"""Powers from 1/32 to 32 are usual; others mean that the model's probabilities hardly relate to its accuracy."""
INFORMATIVE = 0.5
"""Share of the likelihood of uniform probabilities below which probabilities are informative."""
CONTAMINATION = 1e-3
"""The share e of labels that are assumed to be random."""
SPREAD = 1.0
"""Prior standard deviation of ln b around 0: with few inputs, probabilities hardly change."""
ALONE = 0.5
"""Prior standard deviation of ln b for a silo without information from others, whose split is small."""
LEAST = 0.05
"""Minimum standard deviation of silos' ln b around the global one."""


def curve(log_probs: Tensor, y: Tensor) -> Tensor:
    """Return (4, 97) float64 sums over n inputs at each of `POWERS`.

    The rows are the negative log-likelihood of labels in nats, its first two derivatives in ln b, and the inputs'
    squared first derivatives. log_probs (n, C) are log-probabilities or logits; y (n,) are labels, from C on for times
    that are censored in bar y - C, and -1 for none. Rows with -1 are dropped, like rows with NaN or +inf, which no
    temperature corrects. A -inf is a probability of zero at every power.
    """
    known = (y >= 0) & ~log_probs.isnan().any(1) & ~(log_probs == math.inf).any(1)
    z, y = log_probs[known].double(), y[known, None]
    censored = y[:, 0] >= z.shape[1]
    if bool(censored.any()):
        after = beside(binned.later(z.shape[1]), z).double()[y[censored, 0] - z.shape[1]]
        later = torch.stack([_censored(z[censored], after, b) for b in POWERS], 1)
        return later + curve(z[~censored], y[~censored, 0])
    label = z.gather(1, y)
    possible = ~label.isneginf()
    z = z - torch.where(possible, label, 0.0)
    return torch.stack([_sums(z, y, possible, b) for b in POWERS], 1)


def _sums(z: Tensor, y: Tensor, possible: Tensor, b: float) -> Tensor:
    """Return the (4,) sums at one power, from logits relative to the label's if that is `possible`, (n, 1) bool."""
    p = (b * z).softmax(1).nan_to_num()  # NaN where no class at all is possible
    z = b * z.masked_fill(z.isneginf(), 0.0)
    mean = (p * z).sum(1, keepdim=True)
    variance = (p * (z - mean).square()).sum(1, keepdim=True)
    right = (1 - CONTAMINATION) * torch.where(possible, p.gather(1, y), 0.0)
    likelihood = right + CONTAMINATION / p.shape[1]
    weight = right / likelihood
    first = weight * mean
    second = first + weight * variance - weight * (1 - weight) * mean.square()
    return torch.stack([-likelihood.log().sum(), first.sum(), second.sum(), first.square().sum()])


def _censored(z: Tensor, weight: Tensor, b: float) -> Tensor:
    """Return the (4,) sums at one power of times censored in bars with these weights (n, C) of later bars."""
    u = b * (z - z.amax(1, keepdim=True))
    p, among = u.softmax(1), u + weight.log()
    right = (among.logsumexp(1, keepdim=True) - u.logsumexp(1, keepdim=True)).exp()
    q, u = among.softmax(1).nan_to_num(), u.masked_fill(u.isneginf(), 0.0)
    mean, part = ((each * u).sum(1, keepdim=True) for each in (p, q))
    variance, own = ((each * (u - m).square()).sum(1, keepdim=True) for each, m in ((p, mean), (q, part)))
    right = (1 - CONTAMINATION) * right
    likelihood = right + CONTAMINATION * weight.sum(1, keepdim=True) / z.shape[1]
    share, slope = right / likelihood, mean - part
    first = share * slope
    second = first + share * (variance - own) - share * (1 - share) * slope.square()
    return torch.stack([-likelihood.log().sum(), first.sum(), second.sum(), first.square().sum()])


def message(own: Tensor) -> Tensor:
    """Return (5, 97), what a silo sends of its `curve`; `agreed` needs only the sum over silos. The rows are the
    likelihood, its two derivatives, the square of the first minus its variance, and the square of the second."""
    nll, first, second, squares = own
    return torch.stack([nll, first, second, first.square() - squares, second.square()])


def impossible(sent: Tensor, inputs: int, classes: int, censored: bool = False) -> str:
    """Return why `sent` cannot be a `message` of at most `inputs` inputs with this number of classes, whose times can
    be `censored`; "" if it can.

    With L = ln(C / e) each input's likelihood is between 0 and L nats, and its first derivative between -L and L: the
    mean of b z under p is ln C below and L above, weighted. Its second is at most L + L^2 + C, because a logit b z
    below the label's adds at most exp(b z) (b z)^2 < 0.55 to the mean square. The other bounds follow from these,
    except for the sum of squared first derivatives, which is at most n L^2, and at least their squared sum divided by
    n. Of a censored time, the entropies of p and q and the weights add at most ln(4 C) < L to the first derivative.
    """
    if sent.shape != (5, len(POWERS)) or not sent.isfinite().all():
        return "invalid likelihoods"
    nll, first, second, excess, information = sent.double().cpu()
    most = (2 if censored else 1) * math.log(classes / CONTAMINATION)
    room = 1e-6 * (1 + inputs * (most + most**2 + classes))
    bend = inputs * (most + most**2 + classes)
    fits = [
        (nll >= -room) & (nll <= inputs * most + room),
        first.abs() <= inputs * most + room,
        second.abs() <= bend + room,
        (information - second.square()).abs() <= room * (1 + bend),
        excess >= first.square() - inputs * most**2 - room * (1 + inputs * most),
        excess <= first.square() * (1 - 1 / max(inputs, 1)) + room * (1 + inputs * most),
    ]
    return "" if bool(torch.stack(fits).all()) else f"likelihoods that are impossible for {inputs:,} validation inputs"


def agreed(sums: Tensor) -> Tensor:
    """Return (2,) float64: the best power b for all silos together, and the standard deviation of silos' ln b. Raises
    ValueError for sums that are not finite, or not of a message's shape."""
    if sums.shape != (5, len(POWERS)) or not sums.isfinite().all():
        raise ValueError(f"sums have shape {tuple(sums.shape)}, expected (5, {len(POWERS)}) and only finite numbers")
    sums = sums.cpu()
    b = near(sums[:3], 1.0, SPREAD)
    place = (math.log(b) - math.log(POWERS[0])) / STEP
    left = min(int(place), len(POWERS) - 2)
    excess, information = torch.lerp(sums[3:, left], sums[3:, left + 1], place - left).tolist()
    spread = math.sqrt(max(excess, 0.0) / information) if information > 0 else 0.0
    return torch.tensor([b, min(max(spread, LEAST), SPREAD)], dtype=torch.float64)


def near(own: Tensor, common: float, spread: float) -> float:
    """Return the best b for a `curve` or the first three rows of a sum of messages, from 2^-16 to 2^32. The prior of ln
    b is normal around ln `common` with standard deviation `spread`. Without inputs the result is `common`."""
    own = own.cpu()
    away = torch.tensor([math.log(b) - math.log(common) for b in POWERS], dtype=torch.float64)
    curves = own[:3] + torch.stack([away.square() / 2, away, torch.ones_like(away)]) / spread**2
    return _optimum(curves, own[0]) if own.any() else common


def _optimum(curves: Tensor, likelihood: Tensor) -> float:
    """Return the b at which (3, 97) curves and their derivatives are lowest, or at which they have a minimum among the
    usual powers, instead of a lower one at an unusually high power, if the (97,) likelihoods are informative there."""
    cost = curves[0].tolist()
    best = int(curves[0].argmin())
    if POWERS[best] > USUAL:
        most = INFORMATIVE * float(likelihood[0])  # nearly uniform probabilities
        usual = [
            k for k in range(1, len(POWERS) - 1)
            if 1 / USUAL <= POWERS[k] <= USUAL and cost[k] < min(cost[k - 1], cost[k + 1]) and likelihood[k] < most
        ]  # fmt: skip
        best = min(usual, key=cost.__getitem__, default=best)
    slope = float(curves[1, best])
    other = best - 1 if slope > 0 else best + 1
    if slope == 0 or not 0 <= other < len(POWERS):
        return POWERS[best]
    left = min(best, other)
    return POWERS[left] * math.exp(STEP * _lowest(*curves[:, left : left + 2].T.tolist()))


def _lowest(left: list[float], right: list[float]) -> float:
    """Return the minimum in [0, 1] of the quintic with these end values and derivatives; it falls from the left."""
    f, df, ddf = left[0], STEP * left[1], STEP**2 * left[2]
    rise, slope, bend = right[0] - f - df - ddf / 2, STEP * right[1] - df - ddf, STEP**2 * right[2] - ddf
    cubic, fourth, fifth = (
        10 * rise - 4 * slope + bend / 2,
        7 * slope - 15 * rise - bend,
        6 * rise - 3 * slope + bend / 2,
    )
    low, high = 0.0, 1.0
    for _ in range(50):
        t = (low + high) / 2
        falling = df + t * (ddf + t * (3 * cubic + t * (4 * fourth + t * 5 * fifth))) < 0
        low, high = (t, high) if falling else (low, t)
    return (low + high) / 2
