"""The sums that a silo sends, how sums of several silos are merged, and metrics from sums.

Sums by class: confusion counts, and histograms of probabilities. A class is ranked by the log-odds of its probability
p, ln(p / (1 - p)). The bins do not depend on data. They are finest at log-odds of -ln(C - 1), the output of an
uninformative model of C classes, and widen in proportion to the distance from there. Undefined metrics are absent,
never zero or NaN. `contributions` is for intervals and tests that treat inputs as a random sample.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from ..core import Decision, Prediction, Tensors
from ..uncertainty import histograms
from ..uncertainty.histograms import beside
from .calibration import BINS, calibration_sums, ece, ece_classwise
from .quantities import quantity_contributions, quantity_figures, quantity_sums


def measure(prediction: Prediction, y: Tensor, scores: bool = True) -> Tensors:
    """Return additive sums of N predictions for labels `y` (N,), float64.

    A label of -1 is not a class of the model: every prediction for such an input is wrong, and its label has no
    likelihood. `known` counts the other inputs, over which nll (nats), brier (over all classes, range 0 to 2) and the
    bins of `calibration_sums` are summed. Sums over all N inputs: examples, correct, entropies (nats), the counts of
    each decision and quadrant, how many were answered and how many of the answers were correct; for predictions with
    sets the sums of `_sets`, and with alarms how many inputs were called `unfamiliar`, `novel` and `unsure`. Unless
    `scores` is false, every score of the prediction has `score.NAME`, (2, B): its counts in the bins of
    `uncertainty.histograms.measured_edges`, for correct and for wrong predictions.

    For a quantity, y are its values, and `quantity_sums` replace the labels' sums; scores are not split by errors.
    """
    probs = prediction.probs.double()
    if not probs.isfinite().all():
        raise FloatingPointError(
            "probabilities are not finite: the model has diverged; try a lower training.lr, or less noise in [privacy]"
        )
    answered = prediction.decision != Decision.ABSTAIN
    if prediction.target is not None:
        return {
            "examples": torch.tensor(len(y), dtype=torch.float64),
            "answered": answered.sum().double(),
            "entropy": prediction.total.double().sum(),
            "aleatoric": prediction.aleatoric.double().sum(),
            "epistemic": prediction.epistemic.double().sum(),
            "quadrants": _quadrants(prediction),
            "decisions": torch.bincount(prediction.decision, minlength=len(Decision)).double(),
            **quantity_sums(prediction, y),
            **_alarms(prediction),
            **(_scores(prediction, torch.ones_like(answered)) if scores else {}),
        }
    correct = prediction.label == y
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
        **_alarms(prediction),
        **(_scores(prediction, correct) if scores else {}),
    }


def _scores(prediction: Prediction, correct: Tensor) -> Tensors:
    """Return the histograms (2, B) of each score for correct and for wrong predictions."""
    classes, found = prediction.probs.shape[1], dict[str, Tensor]()
    for name, values in prediction.scores.items():
        counts = torch.stack([histograms.histogram(name, values[rows], classes) for rows in (correct, ~correct)])
        found[f"score.{name}"] = histograms.coarser(counts, histograms.measured_bins(name))
    return found


def _alarms(prediction: Prediction) -> Tensors:
    if prediction.typicality is None:
        return {}
    named = {"unfamiliar": prediction.is_unfamiliar, "novel": prediction.is_novel, "unsure": prediction.is_unsure}
    return {name: alarms.sum().double() for name, alarms in named.items()}


def subgroup_sums(prediction: Prediction, y: Tensor, subgroups: int) -> Tensors:
    """Return the sums of `measure` without scores by subgroup, (G, ...), omitting inputs without a subgroup."""
    of = prediction.subgroup
    parts = [torch.zeros_like(y, dtype=torch.bool) if of is None else of == g for g in range(subgroups)]
    found = [measure(prediction.part(rows), y[rows], scores=False) for rows in parts]
    return {name: torch.stack([sums[name].double() for sums in found]) for name in found[0]}


def subgroup_figures(sums: Tensors, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the number of inputs and the metrics of each subgroup with inputs, by name, from sums by subgroup."""
    each = {name: {kind: tensor[g] for kind, tensor in sums.items()} for g, name in enumerate(names)}
    return {name: {"examples": float(own["examples"]), **figures(own)} for name, own in each.items()
            if own["examples"]}  # fmt: skip


def _sets(prediction: Prediction, y: Tensor) -> Tensors:
    """Return, for predictions with sets, how many sets contain the label, and how many sets there are of each size."""
    if prediction.sets is None:
        return {}
    known = y >= 0
    held = prediction.sets[known].gather(1, y[known][:, None])
    sizes = torch.bincount(prediction.sets.sum(1), minlength=prediction.sets.shape[1] + 1)
    return {"covered": held.sum().double(), "set_sizes": sizes.double()}


def _quadrants(prediction: Prediction) -> Tensor:
    """Return (2, 2) counts: which model answered, GLOBAL or LOCAL, and whether the prediction abstains."""
    cell = 2 * prediction.answered_by + (prediction.decision == Decision.ABSTAIN)
    return torch.bincount(cell, minlength=4).view(2, 2).double()


def _proper_scores(probs: Tensor, y: Tensor) -> Tensors:
    likelihood = probs[torch.arange(len(y), device=y.device), y]
    target = torch.nn.functional.one_hot(y, probs.shape[1])
    return {
        "nll": -likelihood.clamp_min(torch.finfo(torch.float64).tiny).log().sum(),
        "brier": (probs - target).square().sum(),
    }


def merge(parts: Iterable[Tensors]) -> Tensors:
    """Return the merged sums of several silos. The parts are not modified. Raises ValueError without parts, and for
    parts that differ in names or in the number of classes."""
    total: Tensors = {}
    for part in parts:
        if not total:
            total = {name: tensor.clone() for name, tensor in part.items()}
            continue
        if part.keys() != total.keys():
            raise ValueError(f"parts have different sums: {sorted(part.keys() ^ total.keys())} are not in all parts")
        for name, tensor in part.items():
            if tensor.shape != total[name].shape:
                raise ValueError(
                    f"{name}: shapes {tuple(total[name].shape)} and {tuple(tensor.shape)}, expected equal shapes"
                )
            total[name] += tensor
    if not total:
        raise ValueError("no sums to merge")
    return total


MOST_CLASSES = 100
"""Models with more classes have no class sums, which grow with the number of classes, or with its square."""
BINS_OF_TWO, BINS_OF_MORE, BINS_IN_ALL = 2048, 1024, 32_768
"""Number of bins of the histogram for two classes, the number per class for more classes, and its maximum over all
classes together."""


def bins_of(classes: int) -> int:
    """Return the number of bins: 2,048 for two classes, 1,024 for up to 32, fewer for more (327 for 100)."""
    return BINS_OF_TWO if classes == 2 else min(BINS_OF_MORE, BINS_IN_ALL // classes)


@cache
def edges(classes: int) -> Tensor:
    """Return (B + 1,) float64: the edges of the bins of log-odds, ascending.

    A bin includes its upper edge but not its lower one; the outermost edges are infinite. For two classes, edges are
    symmetric about 0, where bins are 1.2e-5 wide; elsewhere they are 1.2 % of their distance from 0 wide, up to 60. For
    more classes, a quarter of the bins is below -ln(C - 1), where almost all inputs belong to other classes, so
    precision is hardly affected; above, bins are 1.2 % of their distance from there wide (with up to 32 classes), and
    1.2e-4 next to it.
    """
    count = bins_of(classes)
    below, unit, farthest = (count // 2, 1e-3, 60.0) if classes == 2 else (count // 4, 1e-2, 45.0)
    whole = math.asinh(farthest / unit)
    steps = torch.arange(count + 1, dtype=torch.float64) - below
    steps = torch.where(steps < 0, steps * (whole / below), steps * (whole / (count - below)))
    found = unit * torch.sinh(steps) - math.log(classes - 1)
    found[0], found[-1] = -math.inf, math.inf
    return found


def class_sums(prediction: Prediction, y: Tensor) -> Tensors:
    """Return additive sums of N predictions for labels `y` (N,); empty for more than 100 classes and for quantities.

    `confusion` (C, C) float64: how often inputs of a class (row) had a class (column) as the most probable one. `ranks`
    (R, 2, B) int32: per class, the histograms of its log-odds for inputs of other classes and for its own; of two
    classes only those of the second (R = 1), because those of the first are their mirror image. Inputs with label -1
    are omitted.
    """
    if prediction.target is not None:
        return {}
    known = y >= 0
    probs, label, y = prediction.probs.double()[known], prediction.label[known], y[known]
    classes = probs.shape[1]
    if classes > MOST_CLASSES:
        return {}
    confusion = torch.bincount(y * classes + label, minlength=classes**2).view(classes, classes)
    return {"confusion": confusion.double(), "ranks": _ranks(probs, y)}


def _ranks(probs: Tensor, y: Tensor) -> Tensor:
    classes = probs.shape[1]
    ranked = torch.arange(1 if classes == 2 else 0, classes, device=y.device)
    # With two classes, the other class's probability is more exact than the difference from 1.
    against = probs[:, :1] if classes == 2 else 1 - probs
    odds = probs[:, ranked].log() - against.clamp_min(0).log()
    count = bins_of(classes)
    bins = torch.bucketize(odds.contiguous(), beside(edges(classes)[1:-1], odds))
    cell = (2 * torch.arange(len(ranked), device=y.device) + (y[:, None] == ranked).long()) * count + bins
    return torch.bincount(cell.flatten(), minlength=2 * count * len(ranked)).view(len(ranked), 2, count).int()


HIGHER_IS_BETTER = frozenset({
    "accuracy", "coverage", "answered_accuracy",
    "c_index", "c_index_uno", "auroc_error", "coverage_at_1", "coverage_at_5", "auroc", "aupr_out", "aupr_in",
    "average_precision", "sensitivity", "specificity", "f1", "balanced_accuracy",
})  # fmt: skip
LOWER_IS_BETTER = frozenset({
    "nll", "brier", "ece", "ece_classwise", "fpr95_error", "aurc", "eaurc", "augrc", "risk_at_80", "fpr95",
    "mae", "rmse", "crps", "integrated_brier", "interval_width",
})  # fmt: skip
UNBOUNDED = frozenset({"nll", "mae", "rmse", "crps", "interval_width"})
"""Metrics of both sets that have no upper bound."""


def figures(sums: Tensors) -> dict[str, float]:
    """Return means over examples, and calibration errors.

    An input whose label is not a class of the model counts as wrong in `accuracy`, and is excluded from the nll, the
    Brier score and the calibration errors. `coverage` is the share of inputs that were answered, and
    `answered_accuracy` the accuracy on these; `unfamiliar`, `novel` and `unsure` are the shares with these alarms.
    `set_coverage` is the share of inputs whose prediction set contains their label, and `set_size` the mean number of
    classes in a set. For a quantity, see `quantity_figures`.
    """
    value = {name: float(t) for name, t in sums.items() if t.ndim == 0}
    n, known, answered = value["examples"], value.get("known", 0.0), value["answered"]
    quantity = "crps" in sums
    found = {} if not n else quantity_figures(sums, n) if quantity else {"accuracy": value["correct"] / n}
    if known:
        found |= {name: value[name] / known for name in ("nll", "brier")}
        found |= {"ece": ece(sums), "ece_classwise": ece_classwise(sums)}
    if n:
        found |= {name: value[name] / n for name in ("entropy", "aleatoric", "epistemic")}
        found["coverage"] = answered / n
        found |= {name: value[name] / n for name in ("unfamiliar", "novel", "unsure") if name in value}
    if "set_sizes" in sums and n:
        sizes = sums["set_sizes"]
        found["set_size"] = float(sizes @ torch.arange(len(sizes), dtype=sizes.dtype)) / n
        found |= {"set_coverage": value["covered"] / known} if known else {}
    if answered and not quantity:
        found["answered_accuracy"] = value["answered_correct"] / answered
    return found


def decisions(sums: Tensors) -> dict[str, float]:
    """Return the share of each decision; empty without examples."""
    if not sums["examples"]:
        return {}
    shares = (sums["decisions"] / sums["examples"]).tolist()
    return {decision.name.lower(): shares[decision] for decision in Decision}


def across(per_silo: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return metrics over silos: `mean`, with equal weights, and `worst`, for metrics with a better direction. A silo
    for which a metric is undefined is excluded from that metric only."""
    names = dict.fromkeys(name for found in per_silo.values() for name in found)
    values = {name: [found[name] for found in per_silo.values() if name in found] for name in names}
    ends = dict.fromkeys(HIGHER_IS_BETTER, min) | dict.fromkeys(LOWER_IS_BETTER, max)
    return {
        "mean": {name: sum(each) / len(each) for name, each in values.items()},
        "worst": {name: ends[name](each) for name, each in values.items() if name in ends},
    }


def contributions(prediction: Prediction, y: Tensor) -> Tensors:
    """Return, by metric, (N,) float64 values of N inputs with labels y (N,), which are all classes of the model.

    For metrics that are means over inputs (accuracy, nll, brier, entropy, aleatoric, epistemic, coverage, unfamiliar,
    novel, unsure, set_coverage, set_size), the values are those of the inputs. For ece, auroc_error, aurc and augrc,
    they are the metric plus the input's influence on it (Hampel, 1974): their mean is the metric, up to the binning of
    scores, and for many inputs the variance of their mean is the variance of the metric. auroc_error is absent unless
    there are both wrong and right answers. For a quantity, y are its values; see `quantity_contributions`.
    """
    if prediction.target is not None:
        return quantity_contributions(prediction, y)
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
    """Return contributions to the AUROC (DeLong, DeLong & Clarke-Pearson, 1988), weighted so that it is their mean."""
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
