"""The skill of predictions, compared with chance, always predicting the most frequent class, and a ridge classifier.

A comparison is a triple of sums: the observed number, its expectation without skill, and its variance without skill.
Triples of several silos add up. Silos are thus strata of one test, so knowing the class frequencies of a silo is not
skill.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core import Data, Prediction, Tensors
from ..uncertainty.dirichlet import NO_EVIDENCE
from ..uncertainty.statistical_tests import Array, ranks

ROWS, FEATURES = 500, 4096
"""Maximum numbers of training inputs and of features that the ridge classifier uses."""
RIDGE = 1.0
"""Penalty of the ridge classifier, in units of the mean eigenvalue of the inputs' Gram matrix."""
DECIMALS = 6
"""Decimals to which scores are rounded before they are ranked, because smaller differences come from rounding."""
Flags = npt.NDArray[np.bool_]


def skill(prediction: Prediction, data: Data, train: Data) -> Tensors:
    """Return the comparisons (3,) float64 of the predictions of N inputs with labels, all 0 for N = 0.

    agreement: correct predictions, compared with permuted labels. ranking: pairs of an input of a class and an input of
    another class that the class's probability ranks correctly (ties count half), over all classes (of two classes, for
    the second only). predictable: the same for training inputs, ranked by a ridge classifier fitted to the other half.
    errors: pairs of a wrong and a correct prediction in which the wrong one has the higher total uncertainty. majority:
    of the inputs that only the prediction or only the most frequent class of `train` gets right, how many the
    prediction gets right; reference: the same, compared with `ridge_labels`.

    The result also has `inputs` (), the number N; for predictions with vacuity `no_evidence` (), the number of inputs
    with hardly any evidence; for predictions with sets `in_sets` (C,), how many sets contain each class.
    """
    probs, label, y = (each.cpu().numpy() for each in (prediction.probs.double(), prediction.label, data.y))
    right, classes = label == y, probs.shape[1]
    with np.errstate(divide="ignore"):
        odds = np.log(probs) - np.log1p(-probs)
    frequent = int(torch.bincount(train.y, minlength=1).argmax())
    guessed = ridge_labels(train, data.x, classes)
    found = {
        "agreement": _agreement(y, label),
        "ranking": _ranking(odds, y),
        "predictable": predictable(train, classes),
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


def _permuted(values: Array, y: npt.NDArray[np.int64]) -> Array:
    """Return the sum over inputs of `values` (N, C) of their classes, with its mean and variance over permutations. The
    variance of a linear permutation statistic is from Hoeffding (1951)."""
    n = len(y)
    if n < 2:
        return np.zeros(3)
    counts = np.bincount(y, minlength=values.shape[1])
    row = values @ counts / n
    apart = values - row[:, None] - values.mean(0) + row.mean()
    return np.array([values[np.arange(n), y].sum(), row.sum(), (apart**2 @ counts).sum() / (n - 1)])


def _agreement(y: npt.NDArray[np.int64], label: npt.NDArray[np.int64]) -> Array:
    """Return how often labels agree, with mean and variance over permutations."""
    return _permuted(np.eye(int(max(y.max(initial=0), label.max(initial=0))) + 1)[label], y)


def _ranking(scores: Array, y: npt.NDArray[np.int64]) -> Array:
    """Return the pairs of an input of a class and another input that scores (N, C) rank correctly (ties count half):
    the Mann-Whitney statistics of all classes, or of the second of two, with the variance of their sum."""
    if scores.shape[1] == 2:
        return _ranked(scores[:, 1], y == 1)
    present = [k for k in np.unique(y) if (y == k).sum() < len(y)]
    if not present:
        return np.zeros(3)
    each = np.stack([ranks(scores[:, k].round(DECIMALS)) for k in present], 1)
    own = np.bincount(y)[present]
    return _pairs(_permuted(each, np.searchsorted(present, y)), own)


def _ranked(scores: Array, positive: Flags) -> Array:
    """Return the pairs of a positive and another input that are ranked correctly: one Mann-Whitney statistic."""
    own = int(positive.sum())
    if not own * (len(scores) - own):
        return np.zeros(3)
    each = np.stack([np.zeros(len(scores)), ranks(scores.round(DECIMALS))], 1)
    return _pairs(_permuted(each, positive.astype(np.int64)), np.array([own]))


def _pairs(sums: Array, own: npt.NDArray[np.int64]) -> Array:
    """Return Mann-Whitney statistics from sums of the ranks of inputs; `own` are the classes' numbers of inputs."""
    least = (own * (own + 1) / 2).sum()
    return np.array([sums[0] - least, sums[1] - least, sums[2]])


def _paired(right: Flags, other: Flags) -> Array:
    """Return how many inputs only the first gets right, with mean and variance if both are equally good."""
    differing = (right != other).sum()
    return np.array([(right & ~other).sum(), differing / 2, differing / 4])


def ridge_labels(train: Data, x: Tensor, classes: int) -> npt.NDArray[np.int64] | None:
    """Return the labels (N,) of inputs by ridge regression on the classes of training inputs; None for token ids.

    This is a cheap classifier on a silo's own data, without settings and randomness. If there are more than 4,096
    features, it uses means of consecutive features.
    """
    if not x.is_floating_point() or not len(train):
        return None
    known, y = _known(train)
    scores = _ridge(known, y, classes)
    each = [scores(_features(part)).argmax(1) for part in torch.split(x, ROWS)]
    found: npt.NDArray[np.int64] = torch.cat(each).numpy()
    return found


def predictable(train: Data, classes: int) -> Array:
    """Return how well each half of the training inputs is ranked by the ridge classifier of the other half. Without
    skill, the two halves give almost the same result, so the variance is twice the sum of both."""
    if not train.x.is_floating_point() or len(train) < 4:
        return np.zeros(3)
    known, y = _known(train)
    each = []
    for half in (torch.arange(len(y)) % 2 == 0, torch.arange(len(y)) % 2 == 1):
        asked = half & torch.isin(y, y[~half])  # the other half says nothing about classes that it lacks
        scores = _ridge(known[~half], y[~half], classes)
        each.append(_ranking(scores(known[asked]).numpy(), y[asked].numpy()))
    observed, expected, variance = np.sum(each, 0)
    return np.array([observed, expected, 2 * variance])


def _known(train: Data) -> tuple[Tensor, Tensor]:
    """Return features and labels of at most `ROWS` training inputs, evenly spaced."""
    count = min(len(train), ROWS)
    part = train.part(torch.arange(count) * len(train) // count)
    return _features(part.x), part.y.cpu()


def _ridge(known: Tensor, y: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    """Return a function from features (M, D) to scores (M, C), by ridge regression on the classes of `known`."""
    center = known.mean(0)
    known = known - center
    target = torch.nn.functional.one_hot(y, classes).double()
    products = known @ known.T
    products.diagonal().add_(RIDGE * products.diagonal().mean().clamp_min(1e-12))
    weights = known.T @ torch.linalg.solve(products, target - target.mean(0))
    return lambda features: (features - center) @ weights + target.mean(0)


def _features(x: Tensor) -> Tensor:
    flat = x.flatten(1).double().cpu()
    return flat if flat.shape[1] <= FEATURES else torch.nn.functional.adaptive_avg_pool1d(flat, FEATURES)
