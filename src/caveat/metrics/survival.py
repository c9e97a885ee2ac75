"""Sums that a silo sends about predictions of times to an event, and metrics from sums.

Only pairs of inputs of the same silo are compared, so the C-index of several silos together is computed over all these
pairs. Weights that correct for censoring come from the Kaplan-Meier curve of censoring of the silo's evaluated inputs
(inverse probability of censoring weighting). The reference is the Kaplan-Meier curve of all silos' training inputs.
"""

import torch
from torch import Tensor

from ..core import Prediction, Tensors
from ..core.quantity import Times, observed
from ..uncertainty import binned_distributions as binned
from ..uncertainty.histograms import beside

BINS = 10
"""Bins of predicted probabilities for D-calibration."""
GRID = 101
"""Number of times at which the Brier score is computed."""
REACHED = 0.9
"""Share of inputs whose observed times weighted sums include."""
TIED = 1e-8
"""Difference below which risks are tied."""
BLOCK = 1024
"""Maximum number of events whose pairs are compared at once."""


def kaplan_meier(times: Tensor, event: Tensor, censoring: bool = False) -> tuple[Tensor, Tensor]:
    """Return the different times (K,) and the probabilities (K,) of a later event (Kaplan & Meier, 1958), or of a later
    censoring, which comes after an event at the same time."""
    found, of = torch.unique(times.double(), return_inverse=True)
    events, all_ = (torch.bincount(of[rows], minlength=len(found)).double() for rows in (event, event | ~event))
    at_risk = all_.flip(0).cumsum(0).flip(0)
    falls = (all_ - events) / (at_risk - events).clamp_min(1) if censoring else events / at_risk
    return found, (1 - falls).cumprod(0)


def at(times: Tensor, curve: Tensor, wanted: Tensor) -> Tensor:
    """Return the values (M,) at wanted times (M,) of a step function: (K,) values from times (K,) on, and 1 before."""
    place = torch.searchsorted(times, wanted.double().contiguous(), right=True)
    return torch.cat([curve.new_ones(1), curve])[place]


def concordance(times: Tensor, event: Tensor, risk: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the weights of concordant and of comparable pairs, for Harrell's C-index (Harrell et al., JAMA 1982).

    A pair is comparable if one event is known to be earlier, and concordant if its risk (N,) is higher; equal risks
    count half. For Uno's C-index (Uno et al., Stat. Med. 2011), `weight` (N,) is 1 / G(t)^2 of the earlier event.
    """
    weight = torch.ones_like(times, dtype=torch.float64) if weight is None else weight
    right = total = times.new_zeros((), dtype=torch.float64)
    for rows in torch.split(event.nonzero()[:, 0], BLOCK):
        t, higher = times[rows, None], risk[rows, None] - risk
        pair = ((times > t) | ((times == t) & ~event)).double()
        score = torch.where(higher.abs() <= TIED, 0.5, (higher > 0).double())
        right, total = right + weight[rows] @ (pair * score).sum(1), total + weight[rows] @ pair.sum(1)
    return right, total


def brier(times: Tensor, event: Tensor, survival: Tensor, grid: Tensor, censoring: tuple[Tensor, Tensor]) -> Tensor:
    """Return (M,) Brier scores of survival (N, M) at the times of the grid (M,), weighted by the curve of censoring
    (Graf et al., Stat. Med. 1999)."""
    return _weighted(times, event, survival, grid, censoring).mean(0)


def _weighted(times: Tensor, event: Tensor, survival: Tensor, grid: Tensor, censoring: tuple[Tensor, Tensor]) -> Tensor:
    """Return (N, M) weighted squared errors of survival."""
    known, later = (at(*censoring, each) for each in (times, grid))
    known, later = (torch.where(each > 0, each, torch.inf) for each in (known, later))
    case = ((times[:, None] <= grid) & event[:, None]) / known[:, None]
    return survival.square() * case + (1 - survival).square() * (times[:, None] > grid) / later


def _last(times: Tensor, target: Times) -> float:
    """Return the time until which weighted sums include inputs."""
    return min(float(times.quantile(REACHED, interpolation="lower")), target.end) if len(times) else 0.0


def survival_contributions(probs: Tensor, y: Tensor, target: Times) -> Tensors:
    """Return (N,) float64 values whose mean is the integrated Brier score, given the curve of censoring."""
    times, event = observed(y)
    last = _last(times, target)
    grid = torch.linspace(0, last, GRID, dtype=torch.float64)
    censoring = kaplan_meier(times, event, censoring=True)
    errors = _weighted(times, event, target.survival(probs, grid), grid, censoring)
    return {"integrated_brier": torch.trapezoid(errors, grid, dim=1) / last if last else errors[:, 0]}


def survival_sums(prediction: Prediction, y: Tensor, target: Times) -> Tensors:
    """Return additive sums of N predictions of times for observed times y (N,), float64.

    `events`; `concordant` and `comparable` pairs, also weighted (`weighted_...`); `crps`, the integral of the weighted
    Brier score, and `integrated_brier`, its mean, times N, both of the reference, too; `surprise` (minus the
    log-likelihood in nats); `spread`; `pit` (10,), the histogram of the probabilities F(t) of earlier events, in which
    a censored time counts for all later probabilities (D-calibration, Haider et al., JMLR 2020). Weights are large
    where few inputs are left, so weighted sums end at the time that a tenth of the inputs reach, or at `end`. For
    predictions with lower bounds: how many are at most the observed time (`covered`), and the sum of the bounds
    (`bound`).
    """
    probs, (times, event) = prediction.probs.double(), observed(y.double())
    censoring = kaplan_meier(times, event, censoring=True)
    chance, risk = at(*censoring, times), -target.mean(probs)
    last = _last(times, target)
    weight = torch.where((chance > 0) & (times <= last), chance.square().reciprocal(), 0.0)
    right, total = concordance(times, event, risk)
    weighted_right, weighted_total = concordance(times, event, risk, weight)
    found = {
        "events": event.sum().double(), "concordant": right, "comparable": total,
        "weighted_concordant": weighted_right, "weighted_comparable": weighted_total,
        "surprise": -binned.likelihood(probs, target.bar(y)).clamp_min(1e-12).log().sum(),
        "spread": target.spread(probs).sum(), "pit": _probabilities(target, probs, times, event),
    }  # fmt: skip
    grid = torch.linspace(0, last, GRID, dtype=torch.float64, device=probs.device)
    for prefix, each in (("", probs), ("reference_", beside(target.reference, probs).expand(len(probs), -1))):
        survival = target.survival(each, grid)
        scores = brier(times, event, survival, grid, censoring) if len(times) else torch.zeros_like(grid)
        integral = len(times) * torch.trapezoid(scores, grid)
        found |= {
            f"{prefix}crps": integral,
            f"{prefix}integrated_brier": integral / last if last else len(times) * scores[0],
        }
    if prediction.interval is not None:
        low = prediction.interval[:, 0]
        found |= {"covered": (low <= times).sum().double(), "bound": low.sum()}
    return found


def _probabilities(target: Times, probs: Tensor, times: Tensor, event: Tensor) -> Tensor:
    """Return the histogram (10,) of F(t): a time that is censored, or after `end`, is uniform from F(t) to 1."""
    found, known = target.cdf(probs, times), event & (times < target.end)
    counts = torch.bincount((found[known] * BINS).long().clamp_max(BINS - 1), minlength=BINS).double()
    start = torch.arange(BINS, dtype=torch.float64, device=probs.device) / BINS
    after = found[~known, None].clamp_max(1 - 1e-9)
    return counts + (((start + 1 / BINS - after).clamp(0, 1 / BINS)) / (1 - after)).sum(0)


def survival_figures(sums: Tensors, n: float) -> dict[str, float]:
    """Return the metrics of n inputs: `c_index` (Harrell's) and `c_index_uno`, if there are comparable pairs; crps in
    the unit of time, and the integrated Brier score, both also for the reference; `events`; `d_calibration`, the
    p-value of the test that F(t) is uniform; and the mean lower bound `interval_low` with its coverage."""
    value = {name: float(each) for name, each in sums.items() if each.ndim == 0}
    found = {"events": value["events"]}
    for name, prefix in (("c_index", ""), ("c_index_uno", "weighted_")):
        if value[f"{prefix}comparable"] > 0:
            found[name] = value[f"{prefix}concordant"] / value[f"{prefix}comparable"]
    means = ("crps", "integrated_brier", "reference_crps", "reference_integrated_brier", "spread")
    found |= {name: value[name] / n for name in means} | {"nll": value["surprise"] / n}
    expected = n / BINS
    statistic = (sums["pit"] - expected).square().sum() / expected
    found["d_calibration"] = float(torch.special.gammaincc(torch.tensor((BINS - 1) / 2.0), statistic.float() / 2))
    if "covered" in value:
        found |= {"interval_coverage": value["covered"] / n, "interval_low": value["bound"] / n}
    return found
