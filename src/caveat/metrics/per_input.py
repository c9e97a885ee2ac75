"""The contribution of every input to a metric, for intervals and tests that treat inputs as a random sample."""

import torch
from torch import Tensor

from ..core import Decision, Prediction, Tensors
from .calibration import BINS


def contributions(prediction: Prediction, y: Tensor) -> Tensors:
    """Return, by metric, (N,) float64 values of N inputs with labels y (N,), which are all classes of the model.

    For metrics that are means over inputs (accuracy, nll, brier, entropy, aleatoric, epistemic, coverage, unfamiliar,
    novel, unsure, set_coverage, set_size), these are the inputs' values. For ece, auroc_error, aurc and augrc, they are
    the metric plus the input's influence on it (Hampel, 1974): their mean is the metric, up to the binning of scores,
    and for many inputs the variance of their mean is the variance of the metric. auroc_error is absent unless there are
    both wrong and right answers.
    """
    probs, rows = prediction.probs.double().cpu(), torch.arange(len(y))
    y, right = y.cpu(), (prediction.label == y).double().cpu()
    target = torch.nn.functional.one_hot(y, probs.shape[1])
    score = prediction.total.double().cpu()
    found = {
        "accuracy": right,
        "nll": -probs[rows, y].clamp_min(torch.finfo(torch.float64).tiny).log(),
        "brier": (probs - target).square().sum(1),
        "ece": _ece(probs.max(1).values, right),
        "entropy": score,
        "aleatoric": prediction.aleatoric.double().cpu(),
        "epistemic": prediction.epistemic.double().cpu(),
        "coverage": (prediction.decision != Decision.ABSTAIN).double().cpu(),
        "aurc": _aurc(score, 1 - right),
        "augrc": _augrc(score, 1 - right),
    }
    if 0 < right.sum() < len(y):
        found["auroc_error"] = _auroc(score, right.bool())
    if prediction.typicality is not None:
        found["unfamiliar"] = prediction.is_unfamiliar.double().cpu()
        found["novel"] = prediction.is_novel.double().cpu()
        found["unsure"] = prediction.is_unsure.double().cpu()
    if prediction.sets is not None:
        sets = prediction.sets.double().cpu()
        found |= {"set_coverage": sets[rows, y], "set_size": sets.sum(1)}
    return found


def _ece(confidence: Tensor, right: Tensor) -> Tensor:
    """Return the gaps of inputs, with the sign of the gap of their bin."""
    gaps, bins = confidence - right, (confidence * BINS).long().clamp_max(BINS - 1)
    return gaps * torch.zeros(BINS, dtype=gaps.dtype).index_add(0, bins, gaps).sign()[bins]


def _below(values: Tensor, among: Tensor) -> Tensor:
    """Return the share of `among` below each value, counting ties half."""
    ordered = among.sort().values
    return (torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)) / (2 * len(among))


def _auroc(score: Tensor, right: Tensor) -> Tensor:
    """DeLong, DeLong & Clarke-Pearson, 1988; wrong and right answers are weighted so that the mean is the AUROC."""
    placed = torch.where(right, 1 - _below(score, score[~right]), _below(score, score[right]))
    share, found = right.double().mean(), placed[right].mean()
    return found + (placed - found) / torch.where(right, share, 1 - share)


def _augrc(score: Tensor, wrong: Tensor) -> Tensor:
    """Return contributions to the share of pairs of inputs whose second is wrong and more certain than the first."""
    some = score[wrong.bool()]
    found = wrong * (1 - _below(score, score))
    return found + (_below(score, some) * len(some) / len(score) if len(some) else 0) - found.mean()


def _aurc(score: Tensor, wrong: Tensor) -> Tensor:
    """Return contributions to the mean risk over coverages k/n: its derivatives with respect to the weights of inputs.

    With ranks r by score, the metric is the mean of e_i (1/r_i + ... + 1/n) for errors e; an input also dilutes the
    risk at all coverages from its own on. Inputs with equal scores share their mean.
    """
    order = score.argsort(stable=True)
    errors, groups = wrong[order], torch.unique_consecutive(score[order], return_inverse=True)[1]
    ranks = torch.arange(1, len(score) + 1, dtype=torch.float64)
    errors_of = _group_means(errors, groups)
    harmonic = _group_means((1 / ranks).flip(0).cumsum(0).flip(0), groups)
    diluted = _group_means((errors_of / ranks).flip(0).cumsum(0).flip(0), groups)
    return torch.empty_like(score).index_put_((order,), errors * harmonic + errors.mean() - diluted)


def _group_means(values: Tensor, groups: Tensor) -> Tensor:
    """Return for each value the mean of its group."""
    sums = torch.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=values.dtype).index_add(0, groups, values)
    return (sums / torch.bincount(groups))[groups]
