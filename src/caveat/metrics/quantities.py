"""Sums that a silo sends about predictions of a quantity, and metrics from sums.

The reference is the distribution of all silos' training targets, which ignores the input: its median, mean and bars.
"""

import math

import torch
from torch import Tensor

from ..core import Prediction, Tensors
from ..core.quantity import Times
from .survival import survival_contributions, survival_figures, survival_sums

PIT_BINS = 10
"""Bins of the histogram of F(y), which is uniform if predicted distributions F are calibrated (Dawid, 1984)."""
MEANS = {
    "absolute": "mae", "crps": "crps", "spread": "spread", "reference_absolute": "reference_mae",
    "reference_crps": "reference_crps",
}  # fmt: skip
"""Sums whose means are metrics, and the names of the metrics."""
ROOTS = {"squared": "rmse", "reference_squared": "reference_rmse"}
"""Sums whose root mean is a metric, and the names of the metrics."""


def quantity_sums(prediction: Prediction, y: Tensor) -> Tensors:
    """Return additive sums of N predictions of a quantity for targets y (N,), float64.

    Errors of medians (`absolute`) and of means (`squared`), `crps`, `surprise` (minus the log-density in nats, in units
    of the bars' whole width), `spread`, and the same errors of the reference; `pit` (10,), the histogram of F(y). For
    predictions with intervals: how many contain the target (`covered`), how many are finite (`bounded`), and the sum of
    the widths of the finite ones. For times, see `survival_sums`.
    """
    if (target := prediction.target) is None:
        raise ValueError("expected a prediction of a quantity, not of classes")
    if isinstance(target, Times):
        return survival_sums(prediction, y, target)
    probs, y = prediction.probs.double(), y.double()
    known = target.reference.to(probs.device)
    pit = (target.cdf(probs, y) * PIT_BINS).long().clamp_max(PIT_BINS - 1)
    found = {
        "absolute": (prediction.value - y).abs().sum(),
        "squared": (prediction.mean - y).square().sum(),
        "crps": target.crps(probs, y).sum(),
        "surprise": target.surprise(probs.clamp_min(1e-12), y).sum(),
        "spread": target.spread(probs).sum(),
        "reference_absolute": (target.quantile(known, 0.5) - y).abs().sum(),
        "reference_squared": (target.mean(known) - y).square().sum(),
        "reference_crps": target.crps(known.expand(len(y), -1), y).sum(),
        "pit": torch.bincount(pit, minlength=PIT_BINS).double(),
    }
    if prediction.interval is not None:
        low, high = prediction.interval.unbind(1)
        bounded = (high - low).isfinite()
        found |= {
            "covered": ((low <= y) & (y <= high)).sum().double(),
            "bounded": bounded.sum().double(),
            "width": (high - low)[bounded].sum(),
        }
    return found


def quantity_contributions(prediction: Prediction, y: Tensor) -> Tensors:
    """Return, by metric, (N,) float64 values of N inputs with targets y (N,), whose mean is the metric (for rmse, the
    metric plus the input's influence, see `contributions`): crps, mae, rmse, spread, interval_coverage and, if all are
    finite, interval_width. For times, see `survival_contributions`."""
    if (target := prediction.target) is None:
        raise ValueError("expected a prediction of a quantity, not of classes")
    probs, y = prediction.probs.double().cpu(), y.double().cpu()
    if isinstance(target, Times):
        found = survival_contributions(probs, y, target)
    else:
        squared = (prediction.mean.cpu() - y).square()
        rmse = squared.mean().sqrt()
        found = {
            "crps": target.crps(probs, y),
            "mae": (prediction.value.cpu() - y).abs(),
            "rmse": rmse + (squared - rmse.square()) / (2 * rmse.clamp_min(1e-300)),
        }
    found["spread"] = target.spread(probs)
    if prediction.interval is not None:
        low, high = prediction.interval.cpu().unbind(1)
        y = y.abs() if isinstance(target, Times) else y
        found["interval_coverage"] = ((low <= y) & (y <= high)).double()
        ends = {"interval_low": low} if isinstance(target, Times) else {"interval_width": high - low}
        found |= {name: each for name, each in ends.items() if bool(each.isfinite().all())}
    return found


def quantity_figures(sums: Tensors, n: float) -> dict[str, float]:
    """Return the metrics of n inputs: mae, rmse, crps and spread, in the unit of the target; nll, minus the log-density
    in nats; the errors of the reference; `interval_coverage` and, if all are finite, the mean `interval_width`. For
    times, see `survival_figures`."""
    if "comparable" in sums:
        return survival_figures(sums, n)
    found = {name: float(sums[each]) / n for each, name in MEANS.items()}
    found |= {name: math.sqrt(max(float(sums[each]), 0.0) / n) for each, name in ROOTS.items()}
    found["nll"] = float(sums["surprise"]) / n
    if "covered" in sums:
        found["interval_coverage"] = float(sums["covered"]) / n
        if float(sums["bounded"]) == n:
            found["interval_width"] = float(sums["width"]) / n
    return found
