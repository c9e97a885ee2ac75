"""The sums that a silo sends, and how those of several silos are put together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..core import Decision, Prediction, Tensors
from ..uncertainty import histograms
from .calibration import calibration_sums


def measure(prediction: Prediction, y: Tensor) -> Tensors:
    """The additive sums of N predictions for labels `y` (N,), float64.

    A label of -1 is no class of the model: whatever is predicted for such an input is wrong, and there is no
    likelihood of its label. `known` counts the others, over which go nll (nats), brier (over all classes, range
    0 to 2) and the bins of `calibration_sums`. Over all N go: examples, correct, entropies (nats), the counts of
    each decision and quadrant, how many were answered rather than abstained from and how many of those were correct,
    for predictions with sets those of `_sets`, where they have a familiarity how many inputs were called `unfamiliar`,
    and for every score that the prediction offers `score.NAME`, (2, 4096): the histograms over
    `uncertainty.histograms` for as many classes, of the correct and of the wrong.
    """
    probs = prediction.probs.double()
    if not probs.isfinite().all():
        raise FloatingPointError(
            "probabilities are not finite: the model has diverged; try a lower training.lr, or less noise of [privacy]"
        )
    correct = prediction.label == y
    answered = prediction.decision != Decision.ABSTAIN
    known = y >= 0
    return {
        "examples": torch.tensor(len(y), dtype=torch.float64),
        "known": known.sum().double(),
        "correct": correct.sum().double(),
        "answered": answered.sum().double(),
        "answered_correct": (answered & correct).sum().double(),
        **_proper_scores(probs[known], y[known]),
        "entropy": prediction.total.double().sum(),
        "aleatoric": prediction.aleatoric.double().sum(),
        "epistemic": prediction.epistemic.double().sum(),
        "quadrants": _quadrants(prediction),
        "decisions": torch.bincount(prediction.decision, minlength=len(Decision)).double(),
        **calibration_sums(probs[known], y[known]),
        **_sets(prediction, y),
        **({} if prediction.familiarity is None else {"unfamiliar": prediction.alarmed.sum().double()}),
        **{
            f"score.{name}": _by_outcome(name, values, correct, probs.shape[1])
            for name, values in prediction.scores.items()
        },
    }


def _sets(prediction: Prediction, y: Tensor) -> Tensors:
    """Where predictions have sets: how many sets hold the label, and how many there are of each size."""
    if prediction.sets is None:
        return {}
    known = y >= 0
    held = prediction.sets[known].gather(1, y[known][:, None])
    sizes = torch.bincount(prediction.sets.sum(1), minlength=prediction.sets.shape[1] + 1)
    return {"covered": held.sum().double(), "set_sizes": sizes.double()}


def _quadrants(prediction: Prediction) -> Tensor:
    """(2, 2) counts: whose answer, GLOBAL or LOCAL, and whether it was abstained from."""
    cell = 2 * prediction.answerer + (prediction.decision == Decision.ABSTAIN)
    return torch.bincount(cell, minlength=4).view(2, 2).double()


def _proper_scores(probs: Tensor, y: Tensor) -> Tensors:
    likelihood = probs[torch.arange(len(y), device=y.device), y]
    target = torch.nn.functional.one_hot(y, probs.shape[1])
    return {
        "nll": -likelihood.clamp_min(torch.finfo(torch.float64).tiny).log().sum(),
        "brier": (probs - target).square().sum(),
    }


def _by_outcome(name: str, values: Tensor, correct: Tensor, classes: int) -> Tensor:
    return torch.stack([histograms.histogram(name, values[rows], classes) for rows in (correct, ~correct)])


def merge(parts: Iterable[Tensors]) -> Tensors:
    """The sums of several silos together. The parts stay as they are.

    Raises ValueError where there are none, and where they are not sums of the same things: other names, or
    another number of classes.
    """
    total: Tensors = {}
    for part in parts:
        if not total:
            total = {name: tensor.clone() for name, tensor in part.items()}
            continue
        if part.keys() != total.keys():
            raise ValueError(f"sums of different things: {sorted(part.keys() ^ total.keys())} are not in all parts")
        for name, tensor in part.items():
            if tensor.shape != total[name].shape:
                raise ValueError(f"{name}: shapes {tuple(total[name].shape)} and {tuple(tensor.shape)} do not add up")
            total[name] += tensor
    if not total:
        raise ValueError("no sums to merge")
    return total
