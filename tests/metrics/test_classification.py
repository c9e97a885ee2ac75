"""Figures of classification from sums that merge: scikit-learn's of the binned scores, near those of the exact ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    recall_score,
    roc_auc_score,
    roc_curve,
)
from torch import Tensor

from caveat import metrics
from caveat.core import Prediction, Tensors
from caveat.metrics.sums import bins_of, edges

TOLERATED = 0.002
"""How far figures may be from those of exact scores."""


def predicted(probs: Tensor) -> Prediction:
    return Prediction.from_samples(probs[None])


def two(sure: float, n: int = 3000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities (n, 2) with log-odds of about `sure`, and labels that go with them."""
    generator = torch.Generator().manual_seed(seed)
    odds = sure * torch.randn(n, generator=generator, dtype=torch.float64)
    y = (odds / sure + torch.randn(n, generator=generator, dtype=torch.float64) > 0.5).long()
    return torch.stack([torch.zeros_like(odds), odds], 1).softmax(1), y


def several(classes: int, sure: float, n: int = 4000, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    y = (2 * logits + torch.randn(n, classes, generator=generator, dtype=torch.float64)).argmax(1)
    return (sure * logits).softmax(1), y


def binned(probs: Tensor, column: int) -> np.ndarray:
    """The bin of each probability, found in another way than `class_sums` does."""
    classes = probs.shape[1]
    against = probs[:, 1 - column] if classes == 2 else 1 - probs[:, column]
    odds = (probs[:, column].log() - against.log()).numpy()
    if classes == 2 and column == 0:
        return -np.searchsorted(edges(2)[1:-1].numpy(), -odds, side="left")
    return np.searchsorted(edges(classes)[1:-1].numpy(), odds, side="left")


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("sure", [1e-3, 0.05, 1.0, 8.0])
def test_two_classes_against_scikit_learn(sure: float, positive: int) -> None:
    probs, y = two(sure)
    found = metrics.classification(metrics.class_sums(predicted(probs), y), positive)
    is_positive, scores = (y == positive).numpy(), probs[:, positive].numpy()
    bins = binned(probs, positive)
    assert found["auroc"] == pytest.approx(roc_auc_score(is_positive, bins), abs=1e-12)
    assert found["average_precision"] == pytest.approx(average_precision_score(is_positive, bins), abs=1e-12)
    for name, score in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        exact = score(is_positive, scores)
        assert abs(found[name] - exact) <= found[f"{name}_tolerance"] + 1e-12 <= TOLERATED
    label = probs.argmax(1)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, label))
    assert found["f1"] == pytest.approx(f1_score(y, label, pos_label=positive))
    assert "sensitivity" not in found  # which takes a threshold


@pytest.mark.parametrize(("classes", "sure"), [(3, 0.01), (3, 3.0), (10, 0.1), (10, 8.0), (40, 1.0)])
def test_several_classes_against_scikit_learn(classes: int, sure: float) -> None:
    probs, y = several(classes, sure)
    y[y == 1] = 0  # of one class there is nothing
    present = [k for k in range(classes) if k != 1]
    sums = metrics.class_sums(predicted(probs), y)
    found, label = metrics.classification(sums), probs.argmax(1)
    assert (sums["confusion"].numpy() == confusion_matrix(y, label, labels=range(classes))).all()

    def mean(score: object, of: object) -> float:
        return float(np.mean([score((y == k).numpy(), of(k)) for k in present]))  # type: ignore[operator]

    for name, score in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        assert found[name] == pytest.approx(mean(score, lambda k: binned(probs, k)), abs=1e-12)
        off = abs(found[name] - mean(score, lambda k: probs[:, k].numpy()))
        assert off <= TOLERATED
        assert off <= found[f"{name}_tolerance"] + 1e-12
    assert found["f1"] == pytest.approx(f1_score(y, label, labels=present, average="macro", zero_division=0))
    assert found["sensitivity"] == pytest.approx(recall_score(y, label, labels=present, average="macro"))
    assert found["balanced_accuracy"] == pytest.approx(found["sensitivity"])
    specificity = [recall_score(y != k, label != k) for k in present]
    assert found["specificity"] == pytest.approx(np.mean(specificity))


@pytest.mark.parametrize("classes", [2, 5])
def test_merged_sums_are_those_of_all_inputs_in_any_order(classes: int) -> None:
    probs, y = two(1.0) if classes == 2 else several(classes, 1.0)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    cuts = [order[:7], order[7:2000], order[2000:]]
    whole = metrics.class_sums(predicted(probs), y)
    for parts in (cuts, cuts[::-1]):
        merged = metrics.merge(metrics.class_sums(predicted(probs[part]), y[part]) for part in parts)
        assert all(torch.equal(merged[name], whole[name]) for name in whole)
        assert metrics.classification(merged) == metrics.classification(whole)


def test_a_tolerance_holds_where_bins_tie_much() -> None:
    """Scores that bins hardly tell apart: the tolerance is what says so."""
    generator = torch.Generator().manual_seed(0)
    odds = 40 + 0.5 * torch.rand(2000, generator=generator, dtype=torch.float64)
    y = (torch.rand(2000, generator=generator) < 0.1).long()
    probs = torch.stack([-odds, torch.zeros_like(odds)], 1).softmax(1)
    found = metrics.classification(metrics.class_sums(predicted(probs), y))
    exact = {"auroc": roc_auc_score(y, odds), "average_precision": average_precision_score(y, odds)}
    for name, value in exact.items():
        assert found[f"{name}_tolerance"] > TOLERATED
        assert abs(found[name] - value) <= found[f"{name}_tolerance"]


def test_ties_count_half() -> None:
    found = metrics.classification(metrics.class_sums(predicted(torch.full((10, 2), 0.5)), torch.arange(10) % 2))
    assert (found["auroc"], found["auroc_tolerance"], found["average_precision"]) == (0.5, 0.5, 0.5)


def separated(n: int = 60) -> tuple[Tensors, Tensor, Tensor]:
    y = torch.arange(2 * n) % 2
    p = torch.where(y == 1, 0.8, 0.3).double() + torch.linspace(-0.05, 0.05, 2 * n, dtype=torch.float64)
    probs = torch.stack([1 - p, p], 1)
    return metrics.class_sums(predicted(probs), y), probs, y


def test_perfect_separation() -> None:
    sums, _, _ = separated()
    found = metrics.classification(sums)
    assert {found[name] for name in ("auroc", "average_precision", "balanced_accuracy", "f1")} == {1.0}
    assert (found["auroc_tolerance"], found["average_precision_tolerance"]) == (0, 0)
    point = metrics.operating_point(*metrics.by_class(sums)[0])
    assert point is not None
    assert 0.35 < point.threshold < 0.75


@pytest.mark.parametrize("classes", [2, 3])
def test_what_needs_a_class_that_is_absent_is_absent(classes: int) -> None:
    probs = torch.rand(20, classes, generator=torch.Generator().manual_seed(0)).double().softmax(1)
    for label in range(classes):
        sums = metrics.class_sums(predicted(probs), torch.full((20,), label))
        found = metrics.classification(sums, positive=1)
        assert set(found) == ({"f1"} if classes == 3 or label == 1 else set())
    assert metrics.classification(metrics.class_sums(predicted(probs[:0]), torch.zeros(0).long())) == {}


def test_labels_that_are_no_class_count_nowhere() -> None:
    probs, y = two(1.0, n=50)
    unknown = torch.cat([y, torch.full((5,), -1)])
    found = metrics.class_sums(predicted(torch.cat([probs, probs[:5]])), unknown)
    expected = metrics.class_sums(predicted(probs), y)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_too_many_classes_have_no_sums() -> None:
    probs, y = several(101, 1.0, n=20)
    assert metrics.class_sums(predicted(probs), y) == {}


@pytest.mark.parametrize(("classes", "kilobytes"), [(2, 66), (10, 328), (100, 1128)])
def test_sums_are_as_large_as_documented(classes: int, kilobytes: int) -> None:
    probs, y = several(classes, 1.0, n=20)
    size = sum(tensor.nbytes for tensor in metrics.class_sums(predicted(probs), y).values())
    assert round(size / 1000) == kilobytes
    assert len(edges(classes)) == bins_of(classes) + 1


# Thresholds


def histograms(probs: Tensor, y: Tensor, positive: int = 1) -> tuple[np.ndarray, np.ndarray]:
    return metrics.by_class(metrics.class_sums(predicted(probs), y), positive)[0]


@pytest.mark.parametrize("positive", [0, 1])
def test_the_threshold_of_youden_is_the_roc_curves_best(positive: int) -> None:
    probs, y = two(1.0, n=500)
    point = metrics.operating_point(*histograms(probs, y, positive))
    assert point is not None
    called = probs[:, positive] > point.threshold
    mine = called[y == positive].double().mean() - called[y != positive].double().mean()
    false, true, _ = roc_curve((y == positive).numpy(), binned(probs, positive))
    assert float(mine) == pytest.approx((true - false).max())
    assert (point.positives, point.negatives) == (int((y == positive).sum()), int((y != positive).sum()))


def test_what_is_called_positive_is_what_exceeds_the_threshold() -> None:
    calibration, test = two(1.0, n=400, seed=1), two(1.0, n=900, seed=2)
    point = metrics.operating_point(*histograms(*calibration))
    assert point is not None
    probs, y = test
    sums = metrics.class_sums(predicted(probs), y) | metrics.called(point, *histograms(probs, y))
    called = probs[:, 1].numpy() > point.threshold
    assert (sums["called"].numpy() == confusion_matrix(y, called)).all()
    found = metrics.classification(sums)
    assert found["sensitivity"] == pytest.approx(recall_score(y, called))
    assert found["specificity"] == pytest.approx(recall_score(y, called, pos_label=0))


def test_a_target_for_sensitivity_holds_on_average_over_calibration_splits() -> None:
    """Split conformal prediction: over calibration splits of 12 positives, new ones are reached 9 times of 10."""
    target, reached = 0.9, []
    for seed in range(300):
        odds = torch.randn(212, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        probs = torch.stack([-odds, odds], 1).softmax(1)
        y = torch.ones(212).long()
        y[:6] = 0
        point = metrics.operating_point(*histograms(probs[:18], y[:18]), target)
        assert point is not None
        reached.append(float((probs[18:, 1] > point.threshold).double().mean()))
    # With 12 positives the lowest one is the threshold, which a new one exceeds 12 times of 13.
    assert np.mean(reached) == pytest.approx(12 / 13, abs=0.01)


def test_a_target_takes_enough_positives() -> None:
    probs, y = two(1.0, n=100)
    y[:] = 0
    y[:8] = 1
    assert metrics.operating_point(*histograms(probs, y), 0.9) is None
    y[:9] = 1
    assert metrics.operating_point(*histograms(probs, y), 0.9) is not None


def test_without_inputs_of_a_class_there_is_no_threshold() -> None:
    probs, y = two(1.0, n=30)
    assert metrics.operating_point(*histograms(probs, torch.zeros_like(y))) is None
    assert metrics.operating_point(*histograms(probs, torch.ones_like(y)), 0.9) is None
