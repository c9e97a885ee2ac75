"""Distances of an input to the classes of training inputs, from sums that add up over silos.

A stage of a model gives features h of an input. Silos send the number of inputs of each class, the sum of h by class,
and one matrix of second moments; from these the server computes class means and one covariance as if all rows were
pooled. An input's distance at a stage is the smallest Mahalanobis distance to a class (Lee et al., NeurIPS 2018, arXiv
1807.03888). `caveat.uncertainty.typicality` ranks distances among those of calibration inputs.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .histograms import beside

Tensors = dict[str, Tensor]
DENSITY = ("whiten", "centre", "means")
"""The names of `density`'s tensors."""
LEAST = 5
"""Number of inputs of a class that a silo needs to send its sum separately, because the sum of one row is that row."""
SHRINKAGE = 0.01
"""Minimum weight of the diagonal in a covariance."""
CONSTANT = 1e-6
"""Share of a stage's mean variance below which a feature counts as constant."""
ROUNDED = 1e-10
"""Share of its mean square below which a feature's variance is a rounding error of sums of squares."""
NEAR = 0.01
"""Share of the expected distance that is added to all distances, so that none has an extreme logarithm."""


def grouped(y: Tensor, classes: int) -> Tensor:
    """Return the class (N,) with which each of (N,) labels is counted. It is the label, or C ("other") for a label that
    fewer than `LEAST` inputs have, or -1 if "other" has fewer than `LEAST` inputs. Labels from C on, of censored times
    whose bars are unknown, are "other", too."""
    few = torch.bincount(y, minlength=classes) < LEAST
    few[classes:] = True
    other = few[y]
    return torch.where(other, classes if int(other.sum()) >= LEAST else -1, y)


def sums(h: Tensor, group: Tensor, classes: int) -> Tensors:
    """Return the sums that a silo sends of a stage's features h (N, d) of training inputs, `grouped` (N,) on the CPU.

    "counts" (C + 1,) of inputs, "totals" (C + 1, d), and "squares" (d (d + 1) / 2,), the upper triangle of the second
    moments, are float64 and add up over parts of a silo's inputs and over silos.
    """
    there = (group >= 0).nonzero()[:, 0]
    h, group = h[beside(there, h)].double(), group[there]
    counts = beside(torch.bincount(group, minlength=classes + 1).double(), h)
    totals = h.new_zeros(classes + 1, h.shape[1]).index_add_(0, beside(group, h), h)
    rows, columns = torch.triu_indices(h.shape[1], h.shape[1], device=h.device)
    return {"counts": counts, "totals": totals, "squares": (h.T @ h)[rows, columns]}


def impossible(added: Tensors, class_counts: Sequence[int]) -> str:
    """Return why `added` cannot be a silo's `sums`, given its training inputs of each class; "" if it can."""
    counts, totals, squares = (added[name].cpu().double() for name in ("counts", "totals", "squares"))
    width, known = totals.shape[-1], torch.tensor(class_counts, dtype=torch.float64)
    if counts.shape != (len(known) + 1,) or totals.shape != (len(counts), width):
        return "sums of other classes or numbers than there are"
    if squares.shape != (width * (width + 1) // 2,):
        return "second moments of other numbers than there are"
    whole = bool(((counts >= 0) & (counts == counts.floor())).all())
    if not whole or bool((counts[:-1] > known).any()) or float(counts.sum()) > float(known.sum()):
        return f"counts of more inputs of a class than the {int(known.sum()):,} training inputs that the silo reports"
    if bool((totals[counts == 0] != 0).any()) or (not counts.any() and bool((squares != 0).any())):
        return "sums of no inputs"
    if not counts.any():
        return ""
    _, covariance = moments({"counts": counts, "totals": totals, "squares": squares})
    # Subtracting means leaves rounding errors on the scale of those of the squares.
    room = 1e-6 * width * (1 + float(squares.abs().max() / counts.sum()))
    least = float(torch.linalg.eigvalsh(covariance)[0])
    return "" if least >= -room else "second moments with a negative variance"


def moments(added: Tensors) -> tuple[Tensor, Tensor]:
    """Return (K, d) means of the K classes with inputs, and (d, d) their common covariance. From the sums of all silos
    or any multiple of them. Raises ValueError if no input was counted."""
    counts, totals = added["counts"], added["totals"]
    if not counts.any():
        raise ValueError("no inputs were counted")
    width = totals.shape[1]
    squares = totals.new_zeros(width, width)
    rows, columns = torch.triu_indices(width, width, device=squares.device)
    squares[rows, columns] = added["squares"]
    squares[columns, rows] = added["squares"]
    there = counts > 0
    means = totals[there] / counts[there, None]
    covariance = (squares - means.T @ (counts[there, None] * means)) / counts.sum()
    return means, covariance


def density(added: Tensors, inputs: float) -> Tensors:
    """Return the tensors for measuring distances, from sums over `inputs` inputs or any multiple of the sums.

    "whiten" (d, d) and "centre" (d,) map features to a space in which the inputs of a class have unit covariance, and
    "means" (K, d) are the means of the classes there; float32. The covariance is shrunk towards its diagonal, by d / (d
    + n) or `SHRINKAGE`, and almost constant features get a variance of `CONSTANT` times the mean one, or of `ROUNDED`
    times their mean square if that is more.
    """
    means, covariance = moments(added)
    width = len(covariance)
    variance = covariance.diagonal().clamp_min(0)
    variance = variance + CONSTANT * variance.mean() + torch.finfo(torch.float32).tiny
    # If all are constant, their covariance consists of rounding errors of sums of squares.
    rows, columns = torch.triu_indices(width, width, device=variance.device)
    mean_squares = added["squares"][rows == columns] / added["counts"].sum()
    variance = torch.maximum(variance, ROUNDED * mean_squares)
    weight = max(SHRINKAGE, width / (width + inputs))
    deviation = variance.sqrt()
    correlation = (covariance / deviation / deviation[:, None]).fill_diagonal_(1.0) * (1 - weight)
    correlation.fill_diagonal_(1.0)
    factor = torch.linalg.cholesky(correlation)
    whiten = torch.linalg.solve_triangular(factor, torch.diag(1 / deviation), upper=False).T
    counts = added["counts"]
    center = added["totals"].sum(0) / counts.sum()
    return {"whiten": whiten.float(), "centre": center.float(), "means": ((means - center) @ whiten).float()}


def log_distances(found: Tensors, h: Tensor) -> Tensor:
    """Return (N,) float64 logarithms of the squared distances of features h (N, d) to the nearest class. Infinite for
    features that are not finite."""
    z = (h.float() - found["centre"]) @ found["whiten"]
    means = found["means"]
    square = torch.sub(z.square().sum(1, keepdim=True), z @ means.T, alpha=2) + means.square().sum(1)
    nearest = square.amin(1).double().clamp_min(0)
    return (nearest + NEAR * h.shape[1]).log().nan_to_num(nan=math.inf)


def left_out_distances(h: Tensor, group: Tensor, classes: int, folds: int) -> Tensor:
    """Return log-distances of features h (N, d), `grouped` (N,), each by the `density` of the other folds. Row i is in
    fold i % `folds`. Rows for which the other folds have no counted input are left out."""
    fold = torch.arange(len(h)) % folds
    parts = [sums(h[beside(fold == k, h)], group[fold == k], classes) for k in range(min(folds, len(h)))]
    total = {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
    found = [h.new_zeros(0, dtype=torch.float64)]
    for k, part in enumerate(parts):
        others = {name: total[name] - part[name] for name in total}
        if others["counts"].any():
            mine = h[beside(fold == k, h)]
            found.append(log_distances(density(others, float(others["counts"].sum())), mine))
    return torch.cat(found)
