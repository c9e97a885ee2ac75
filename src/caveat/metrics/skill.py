"""The skill of a silo's predictions: compared with chance, the most frequent class, and a ridge classifier.

A comparison is a triple of sums: what was observed, what is expected without skill, and the variance of the observed
number in that case. Triples of several silos add up. Silos are thus strata of one test, so it is no skill to know how
frequent classes are at a silo.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core import Data, Prediction, Tensors
from ..uncertainty.distributions import Array, ranks

ROWS, FEATURES = 500, 4096
"""Maximum numbers of training inputs and of features that the ridge classifier uses."""
RIDGE = 1.0
"""Its penalty, in mean eigenvalues of the inputs' products."""
DECIMALS = 6
"""Decimals to which scores are rounded before they are ranked, because smaller differences come from rounding."""
NO_EVIDENCE = 0.9
"""Vacuity above which an input has hardly any evidence."""
PAIRED, RANKED = ("majority", "reference"), ("ranking", "errors")
"""Comparisons of two predictions of the same inputs, and comparisons of ranks."""
Flags = npt.NDArray[np.bool_]


def skill(prediction: Prediction, data: Data, train: Data) -> Tensors:
    """Return the comparisons (3,) float64 of the predictions of N inputs with labels, all 0 for N = 0.

    agreement: correct predictions, compared with permuted labels. ranking: pairs of an input of a class and one of
    another class that the probability of the class ranks correctly, ties half, over all classes (of two, the second
    one). errors: pairs of a wrong and a correct prediction of which the wrong one has the higher total uncertainty.
    majority: of the inputs that only one of the prediction and the most frequent class of `train` gets right, those
    that the prediction gets right; reference: the same for `ridge_labels`.

    Also `inputs` (), the number N; for predictions with vacuity `no_evidence` (), how many inputs have hardly any; for
    predictions with sets `in_sets` (C,), how many sets hold each class.
    """
    probs, label, y = (each.cpu().numpy() for each in (prediction.probs.double(), prediction.label, data.y))
    right, classes = label == y, probs.shape[1]
    with np.errstate(divide="ignore"):
        odds = np.log(probs) - np.log1p(-probs)
    ranking = [_ranked(odds[:, k], y == k) for k in ([1] if classes == 2 else np.unique(y))]
    frequent = int(torch.bincount(train.y, minlength=1).argmax())
    guessed = ridge_labels(train, data.x, classes)
    found = {
        "agreement": _agreement(y, label),
        "ranking": np.sum([np.zeros(3), *ranking], 0),
        "errors": _ranked(prediction.total.cpu().numpy(), ~right),
        "majority": _paired(right, y == frequent),
        "reference": np.zeros(3) if guessed is None else _paired(right, guessed == y),
        "inputs": np.array(float(len(y))),
    }
    if "vacuity" in prediction.uncertainty:
        found["no_evidence"] = np.array(float((prediction.uncertainty["vacuity"] > NO_EVIDENCE).sum()))
    if prediction.sets is not None:
        found["in_sets"] = prediction.sets.sum(0).cpu().numpy()
    return {name: torch.from_numpy(each).double() for name, each in found.items()}


def _agreement(y: npt.NDArray[np.int64], label: npt.NDArray[np.int64]) -> Array:
    """Return how often labels agree, with mean and variance over permutations: those of a contingency table's trace."""
    n = len(y)
    if n < 2:
        return np.zeros(3)
    own, predicted = (np.bincount(each, minlength=int(max(y.max(), label.max())) + 1) for each in (y, label))
    cells = own * predicted / n
    variance = (cells * (n - own) * (n - predicted)).sum() / n + cells.sum() ** 2 - (cells**2).sum()
    return np.array([(y == label).sum(), cells.sum(), variance / (n - 1)])


def _ranked(scores: Array, positive: Flags) -> Array:
    """Return the pairs of a positive and another input that are ranked correctly, with mean and variance without skill.

    The Mann-Whitney statistic, with the variance of tied ranks.
    """
    n, own = len(scores), int(positive.sum())
    pairs = own * (n - own)
    if not pairs:
        return np.zeros(3)
    scores = scores.round(DECIMALS)
    ties = np.unique(scores, return_counts=True)[1].astype(float)
    observed = ranks(scores)[positive].sum() - own * (own + 1) / 2
    return np.array([observed, pairs / 2, pairs / 12 * (n + 1 - (ties**3 - ties).sum() / (n * (n - 1)))])


def _paired(right: Flags, other: Flags) -> Array:
    """Return how many inputs only the first gets right, with mean and variance if either is as likely to."""
    differing = (right != other).sum()
    return np.array([(right & ~other).sum(), differing / 2, differing / 4])


def ridge_labels(train: Data, x: Tensor, classes: int) -> npt.NDArray[np.int64] | None:
    """Return the labels (N,) of inputs by ridge regression on the classes of training inputs; None for token ids.

    A cheap classifier of a silo's own data, without settings and randomness. Of more than 4,096 features it uses means
    of consecutive ones.
    """
    if not x.is_floating_point() or not len(train):
        return None
    count = min(len(train), ROWS)
    part = train.part(torch.arange(count) * len(train) // count)  # evenly spaced
    known = _features(part.x)
    center = known.mean(0)
    known = known - center
    target = torch.nn.functional.one_hot(part.y.cpu(), classes).double()
    products = known @ known.T
    products.diagonal().add_(RIDGE * products.diagonal().mean().clamp_min(1e-12))
    weights = known.T @ torch.linalg.solve(products, target - target.mean(0))
    scores = [(_features(each) - center) @ weights + target.mean(0) for each in torch.split(x, ROWS)]
    found: npt.NDArray[np.int64] = torch.cat(scores).argmax(1).numpy()
    return found


def _features(x: Tensor) -> Tensor:
    flat = x.flatten(1).double().cpu()
    return flat if flat.shape[1] <= FEATURES else torch.nn.functional.adaptive_avg_pool1d(flat, FEATURES)
