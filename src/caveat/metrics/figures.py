"""The figures that sums stand for. One that is undefined is absent, never zero and never NaN."""

from collections.abc import Mapping

import torch

from ..core import Decision, Tensors
from .calibration import ece, ece_classwise

HIGHER_IS_BETTER = frozenset({
    "accuracy", "coverage", "answered_accuracy",
    "auroc_error", "coverage_at_1", "coverage_at_5", "auroc", "aupr_out", "aupr_in",
    "average_precision", "sensitivity", "specificity", "f1", "balanced_accuracy",
})  # fmt: skip
LOWER_IS_BETTER = frozenset({
    "nll", "brier", "ece", "ece_classwise", "fpr95_error", "aurc", "eaurc", "augrc", "risk_at_80", "fpr95",
})  # fmt: skip


def figures(sums: Tensors) -> dict[str, float]:
    """Means per example, and calibration errors.

    An input whose label is no class of the model counts as wrong in `accuracy`, and not at all in the nll, the
    Brier score and the calibration errors. `coverage` is the share of inputs that were answered rather than
    abstained from, and `answered_accuracy` the accuracy among those; `unfamiliar` is the share that was called so.
    `set_coverage` is the share of inputs whose prediction set holds their label, and `set_size` the mean number of
    classes in a set.
    """
    value = {name: float(t) for name, t in sums.items() if t.ndim == 0}
    n, known, answered = value["examples"], value["known"], value["answered"]
    found = {"accuracy": value["correct"] / n} if n else {}
    if known:
        found |= {name: value[name] / known for name in ("nll", "brier")}
        found |= {"ece": ece(sums), "ece_classwise": ece_classwise(sums)}
    if n:
        found |= {name: value[name] / n for name in ("entropy", "aleatoric", "epistemic")}
        found["coverage"] = answered / n
        found |= {"unfamiliar": value["unfamiliar"] / n} if "unfamiliar" in value else {}
    if "set_sizes" in sums and n:
        sizes = sums["set_sizes"]
        found["set_size"] = float(sizes @ torch.arange(len(sizes), dtype=sizes.dtype)) / n
        found |= {"set_coverage": value["covered"] / known} if known else {}
    if answered:
        found["answered_accuracy"] = value["answered_correct"] / answered
    return found


def decisions(sums: Tensors) -> dict[str, float]:
    """The share of each decision; empty without examples."""
    if not sums["examples"]:
        return {}
    shares = (sums["decisions"] / sums["examples"]).tolist()
    return {decision.name.lower(): shares[decision] for decision in Decision}


def across(per_silo: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Figures over silos: `mean`, in which every silo counts once, and `worst`, of those with a better side.

    A silo in which a figure is undefined is left out of that figure alone.
    """
    names = dict.fromkeys(name for found in per_silo.values() for name in found)
    values = {name: [found[name] for found in per_silo.values() if name in found] for name in names}
    ends = dict.fromkeys(HIGHER_IS_BETTER, min) | dict.fromkeys(LOWER_IS_BETTER, max)
    return {
        "mean": {name: sum(each) / len(each) for name, each in values.items()},
        "worst": {name: ends[name](each) for name, each in values.items() if name in ends},
    }
