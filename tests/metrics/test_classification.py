"""Figures of classification from sums that merge: scikit-learn's of the binned scores, near those of the exact ones."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
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
from caveat.metrics import errors, measure, merge, ood_detection, risk_coverage
from caveat.metrics.sums import bins_of, edges
from caveat.uncertainty import histograms

TOLERATED = 0.007
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
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y.numpy(), label.numpy()))
    assert found["f1"] == pytest.approx(f1_score(y.numpy(), label.numpy(), pos_label=positive))
    assert "sensitivity" not in found  # which takes a threshold


@pytest.mark.parametrize(("classes", "sure"), [(3, 0.01), (3, 3.0), (10, 0.1), (10, 8.0), (40, 1.0)])
def test_several_classes_against_scikit_learn(classes: int, sure: float) -> None:
    probs, y = several(classes, sure)
    y[y == 1] = 0  # of one class there is nothing
    present = [k for k in range(classes) if k != 1]
    sums = metrics.class_sums(predicted(probs), y)
    found, label = metrics.classification(sums), probs.argmax(1)
    assert (sums["confusion"].numpy() == confusion_matrix(y.numpy(), label.numpy(), labels=range(classes))).all()

    def mean(score: object, of: object) -> float:
        return float(np.mean([score((y == k).numpy(), of(k)) for k in present]))  # type: ignore[operator]

    for name, score in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        assert found[name] == pytest.approx(mean(score, lambda k: binned(probs, k)), abs=1e-12)
        off = abs(found[name] - mean(score, lambda k: probs[:, k].numpy()))
        assert off <= TOLERATED
        assert off <= found[f"{name}_tolerance"] + 1e-12
    assert found["f1"] == pytest.approx(
        f1_score(y.numpy(), label.numpy(), labels=present, average="macro", zero_division=0)
    )
    assert found["sensitivity"] == pytest.approx(
        recall_score(y.numpy(), label.numpy(), labels=present, average="macro")
    )
    assert found["balanced_accuracy"] == pytest.approx(found["sensitivity"])
    specificity = [recall_score((y != k).numpy(), (label != k).numpy()) for k in present]
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
    exact = {
        "auroc": roc_auc_score(y.numpy(), odds.numpy()),
        "average_precision": average_precision_score(y.numpy(), odds.numpy()),
    }
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


@pytest.mark.parametrize(("classes", "kilobytes"), [(2, 16), (10, 83), (100, 342)])
def test_sums_are_as_large_as_documented(classes: int, kilobytes: int) -> None:
    probs, y = several(classes, 1.0, n=20)
    size = sum(tensor.nbytes for tensor in metrics.class_sums(predicted(probs), y).values())
    assert round(size / 1000) == kilobytes
    assert len(edges(classes)) == bins_of(classes) + 1


# Thresholds


def by_class_histograms(probs: Tensor, y: Tensor, positive: int = 1) -> tuple[np.ndarray, np.ndarray]:
    return metrics.by_class(metrics.class_sums(predicted(probs), y), positive)[0]


@pytest.mark.parametrize("positive", [0, 1])
def test_the_threshold_of_youden_is_the_roc_curves_best(positive: int) -> None:
    probs, y = two(1.0, n=500)
    point = metrics.operating_point(*by_class_histograms(probs, y, positive))
    assert point is not None
    called = probs[:, positive] > point.threshold
    mine = called[y == positive].double().mean() - called[y != positive].double().mean()
    false, true, _ = roc_curve((y == positive).numpy(), binned(probs, positive))
    assert float(mine) == pytest.approx((true - false).max())
    assert (point.positives, point.negatives) == (int((y == positive).sum()), int((y != positive).sum()))


def test_what_is_called_positive_is_what_exceeds_the_threshold() -> None:
    calibration, test = two(1.0, n=400, seed=1), two(1.0, n=900, seed=2)
    point = metrics.operating_point(*by_class_histograms(*calibration))
    assert point is not None
    probs, y = test
    sums = metrics.class_sums(predicted(probs), y) | metrics.called(point, *by_class_histograms(probs, y))
    called = probs[:, 1].numpy() > point.threshold
    assert (sums["called"].numpy() == confusion_matrix(y.numpy(), called)).all()
    found = metrics.classification(sums)
    assert found["sensitivity"] == pytest.approx(recall_score(y.numpy(), called))
    assert found["specificity"] == pytest.approx(recall_score(y.numpy(), called, pos_label=0))


def test_a_target_for_sensitivity_holds_on_average_over_calibration_splits() -> None:
    """Split conformal prediction: over calibration splits of 12 positives, new ones are reached 9 times of 10."""
    target, reached = 0.9, []
    for seed in range(300):
        odds = torch.randn(212, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        probs = torch.stack([-odds, odds], 1).softmax(1)
        y = torch.ones(212).long()
        y[:6] = 0
        point = metrics.operating_point(*by_class_histograms(probs[:18], y[:18]), target)
        assert point is not None
        reached.append(float((probs[18:, 1] > point.threshold).double().mean()))
    # With 12 positives the lowest one is the threshold, which a new one exceeds 12 times of 13.
    assert np.mean(reached) == pytest.approx(12 / 13, abs=0.01)


def test_a_target_takes_enough_positives() -> None:
    probs, y = two(1.0, n=100)
    y[:] = 0
    y[:8] = 1
    assert metrics.operating_point(*by_class_histograms(probs, y), 0.9) is None
    y[:9] = 1
    assert metrics.operating_point(*by_class_histograms(probs, y), 0.9) is not None


def test_without_inputs_of_a_class_there_is_no_threshold() -> None:
    probs, y = two(1.0, n=30)
    assert metrics.operating_point(*by_class_histograms(probs, torch.zeros_like(y))) is None
    assert metrics.operating_point(*by_class_histograms(probs, torch.ones_like(y)), 0.9) is None


Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
NAMES = ("total", "log_evidence")


def sums(scores: Floats, wrong: Flags, name: str = "log_evidence") -> Tensors:
    """What `measure` counts for a score, and nothing else."""
    return {
        f"score.{name}": torch.stack(
            [histograms.histogram(name, torch.from_numpy(scores[rows])) for rows in (~wrong, wrong)]
        )
    }


def on_grid(scores: Floats, name: str) -> Floats:
    """Each score's bin: an exact score with the ties of the histogram."""
    return histograms.bins(name, torch.from_numpy(scores)).double().numpy()


def drawn(kind: str, n: int = 2000, seed: int = 0) -> tuple[str, Floats, Flags]:
    """Scores, and errors among them that are more likely where the score ranks high."""
    generator = np.random.default_rng(seed)
    name, scores = {
        "entropies": ("total", generator.beta(0.3, 2, n) * math.log(10)),
        "normal": ("log_evidence", -30 + 8 * generator.standard_normal(n)),
        "heavy": ("log_evidence", 100 * generator.standard_cauchy(n)),
        "skewed": ("log_evidence", generator.lognormal(4, 2, n) - 20),
    }[kind]
    place = scores.argsort().argsort() / n
    return name, scores, generator.random(n) < 0.6 * place**2


KINDS = ("entropies", "normal", "heavy", "skewed")


def by_hand(scores: Floats, wrong: Flags, orders: int = 400) -> dict[str, float]:
    """The definitions, one input after the other, ties in random order."""
    n, generator = len(scores), np.random.default_rng(0)
    aurc, augrc = [], []
    for _ in range(orders if len(np.unique(scores)) < n else 1):
        found = wrong[np.lexsort((generator.random(n), scores))].cumsum()
        aurc.append(np.mean(found / np.arange(1, n + 1)))
        augrc.append(np.trapezoid(np.concatenate([[0], found / n]), dx=1 / n))
    best = np.mean(np.sort(wrong).cumsum() / np.arange(1, n + 1))
    points = []
    for threshold in np.unique(scores):
        answered = scores <= threshold
        points.append((answered.mean(), wrong[answered].mean()))
    found = {
        "aurc": float(np.mean(aurc)),
        "eaurc": float(np.mean(aurc) - best),
        "augrc": float(np.mean(augrc)),
        "coverage_at_1": max([c for c, r in points if r <= 0.01], default=0.0),
        "coverage_at_5": max([c for c, r in points if r <= 0.05], default=0.0),
        "risk_at_80": next(r for c, r in points if c >= 0.8),
    }
    if wrong.any() and not wrong.all():
        found |= {"auroc_error": float(roc_auc_score(wrong, scores)), "fpr95_error": fpr95_by_hand(scores, wrong)}
    return found


def fpr95_by_hand(scores: Floats, positive: Flags) -> float:
    rates, recalls, _ = roc_curve(positive, scores, drop_intermediate=False)
    return float(rates[recalls >= 0.95].min())


# Errors.


@pytest.mark.parametrize("kind", KINDS)
def test_errors_on_the_grid_against_loops(kind: str) -> None:
    name, scores, wrong = drawn(kind, n=300)
    assert len(np.unique(on_grid(scores, name))) < 300, "ties are part of this test"
    expected = by_hand(on_grid(scores, name), wrong)
    found = errors(sums(scores, wrong, name), name)
    assert found.keys() == expected.keys() | {"auroc_error_tolerance"}
    for figure in expected:
        drawn_ties = figure in ("aurc", "eaurc", "augrc")
        assert found[figure] == pytest.approx(expected[figure], abs=3e-4 if drawn_ties else 1e-12), figure


@pytest.mark.parametrize("kind", KINDS)
def test_bins_hardly_change_what_exact_scores_give(kind: str) -> None:
    name, scores, wrong = drawn(kind)
    found, expected = errors(sums(scores, wrong, name), name), by_hand(scores, wrong)
    for figure in ("auroc_error", "aurc", "eaurc", "augrc"):
        assert found[figure] == pytest.approx(expected[figure], abs=0.005), figure
    assert abs(found["auroc_error"] - expected["auroc_error"]) <= found["auroc_error_tolerance"] + 1e-12 < 0.02


def test_scores_too_close_to_be_ranked_say_so() -> None:
    """Entropies of an all but uniform prediction: the exact AUROC lies within the tolerance, which is wide."""
    generator = np.random.default_rng(0)
    scores = math.log(10) - 0.01 * generator.random(1000)
    wrong = generator.random(1000) < (scores - scores.min()) / 0.02
    found = errors(sums(scores, wrong, "total"))
    assert abs(found["auroc_error"] - roc_auc_score(wrong, scores)) <= found["auroc_error_tolerance"]
    assert found["auroc_error_tolerance"] > 0.2


@pytest.mark.parametrize("name", NAMES)
def test_all_tied_scores_rank_nothing(name: str) -> None:
    wrong = np.arange(50) % 5 == 0
    found = errors(sums(np.full(50, 0.7), wrong, name), name)
    assert found["auroc_error"] == 0.5
    assert found["auroc_error_tolerance"] == 0.5
    assert found["fpr95_error"] == 1
    assert (found["aurc"], found["augrc"], found["risk_at_80"]) == pytest.approx((0.2, 0.1, 0.2))
    assert found["coverage_at_1"] == 0


def test_the_order_of_inputs_does_not_matter() -> None:
    _, scores, wrong = drawn("normal")
    scores = scores.round()
    other = np.random.default_rng(1).permutation(len(scores))
    assert errors(sums(scores, wrong), "log_evidence") == errors(sums(scores[other], wrong[other]), "log_evidence")


def test_a_perfect_score_has_the_best_areas() -> None:
    wrong = np.arange(100) >= 70
    found = errors(sums(10 * np.sinh(np.linspace(-5, 5, 100)), wrong), "log_evidence")  # no two in a bin
    assert found["auroc_error"] == 1
    assert found["fpr95_error"] == 0
    assert found["eaurc"] == pytest.approx(0, abs=1e-15)
    assert found["augrc"] == pytest.approx(0.3**2 / 2)
    assert found["coverage_at_1"] == 0.7


def test_augrc_is_its_closed_form_in_auroc_and_accuracy() -> None:
    """Traub et al., 2024: (1 - AUROC) acc (1 - acc) + (1 - acc)^2 / 2."""
    for kind in KINDS:
        name, scores, wrong = drawn(kind)
        found, error = errors(sums(scores, wrong, name), name), wrong.mean()
        expected = (1 - found["auroc_error"]) * error * (1 - error) + error**2 / 2
        assert found["augrc"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("error", [0, 1])
def test_without_two_kinds_of_answers_there_is_no_auroc(error: int) -> None:
    found = errors(sums(np.arange(20.0), np.full(20, bool(error))), "log_evidence")
    assert found == pytest.approx({
        "aurc": error, "eaurc": 0, "augrc": error / 2,
        "coverage_at_1": 1 - error, "coverage_at_5": 1 - error, "risk_at_80": error,
    })  # fmt: skip


def test_without_inputs_there_is_nothing() -> None:
    nothing = sums(np.empty(0), np.empty(0, dtype=bool))
    assert errors(nothing, "log_evidence") == {}
    assert ood_detection(nothing, nothing, "log_evidence") == {}
    assert risk_coverage(nothing, "log_evidence") == {"coverage": [], "risk": [], "max_uncertainty": []}


def test_coverage_at_risk_where_fewer_than_half_are_right() -> None:
    scores = np.arange(100.0)
    wrong = scores >= 30
    wrong[10] = True
    found = errors(sums(scores, wrong), "log_evidence")
    assert found["coverage_at_1"] == 0.10
    assert found["coverage_at_5"] == 0.30  # 1 in 30
    wrong[0] = True  # the most certain of all: risk starts at 1 and comes down to 2 in 30 only
    assert errors(sums(scores, wrong), "log_evidence")["coverage_at_5"] == 0


def test_coverage_is_the_largest_where_risk_is_not_monotone() -> None:
    wrong = np.arange(200) == 1
    assert errors(sums(np.arange(200.0), wrong), "log_evidence")["coverage_at_1"] == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_scores_beyond_the_grid_are_the_least_certain(value: float) -> None:
    for name in NAMES:
        scores, wrong = np.array([0.1, 0.5, 0.2, value]), np.array([False, False, False, True])
        found = errors(sums(scores, wrong, name), name)
        assert found["auroc_error"] == 1
        assert found["coverage_at_1"] == 0.75


def test_an_infinite_certainty_is_the_most_certain() -> None:
    found = errors(sums(np.array([-math.inf, 0.0, 3.0]), np.array([False, True, True])), "log_evidence")
    assert found["auroc_error"] == 1


def test_a_score_that_was_not_measured_is_named() -> None:
    with pytest.raises(ValueError, match="'total' was not measured; measured scores: log_evidence"):
        errors(sums(np.zeros(1), np.zeros(1, dtype=bool)))


def test_measured_predictions_are_ranked() -> None:
    """The way from predictions: an input of no class counts as an error, and more log-evidence as more certain."""
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(1, 400, 5, generator=generator)).softmax(-1)
    p = Prediction.from_samples(probs)
    p = Prediction(p.probs, p.uncertainty, p.decision, log_evidence=-20 * p.total)
    y = torch.multinomial(p.probs, 1, generator=generator).flatten()
    y[p.total > 1.3] = -1
    measured, wrong = measure(p, y), (p.label != y).numpy()
    for name in NAMES:
        found = errors(measured, name)
        assert found["auroc_error"] == pytest.approx(roc_auc_score(wrong, p.total.numpy()), abs=0.005)
        assert found["auroc_error"] > 0.6


# Outside inputs.


def in_and_out(kind: str, n_out: int, seed: int = 0) -> tuple[str, Floats, Floats]:
    name, scores, _ = drawn(kind, seed=seed)
    _, far, _ = drawn(kind, n=n_out, seed=seed + 1)
    return name, scores, far * 1.5 + 0.2


@pytest.mark.parametrize("n_out", [100, 3000])
@pytest.mark.parametrize("kind", KINDS)
def test_outside_inputs_against_scikit_learn(kind: str, n_out: int) -> None:
    name, near, far = in_and_out(kind, n_out)
    half = np.arange(len(near)) % 2 == 0
    found = ood_detection(sums(near, half, name), sums(far, np.ones(n_out, dtype=bool), name), name)
    scores, unknown = np.concatenate([near, far]), np.arange(len(near) + n_out) >= len(near)
    binned = on_grid(scores, name)
    assert found.pop("auroc_tolerance") >= abs(found["auroc"] - roc_auc_score(unknown, scores)) - 1e-12
    assert found == pytest.approx({
        "auroc": roc_auc_score(unknown, binned),
        "fpr95": fpr95_by_hand(binned, unknown),
        "aupr_out": average_precision_score(unknown, binned),
        "aupr_in": average_precision_score(~unknown, -binned),
        "share_out": n_out / len(scores),
    }, rel=1e-12)  # fmt: skip
    assert found["auroc"] == pytest.approx(roc_auc_score(unknown, scores), abs=0.005)
    # A tied block has one precision, that of its end: ties cost more here than in an AUROC.
    assert found["aupr_in"] == pytest.approx(average_precision_score(~unknown, -scores), abs=0.01)


def test_fpr95_is_taken_at_the_strictest_threshold_that_finds_enough() -> None:
    """19 of 20 outside inputs are 95 %; the last lies deep inside and need not be found."""
    far = np.append(np.arange(100.0, 119), -100)
    near = np.array([-50.0, 0, 50, 90, 150])
    found = ood_detection(sums(near, near > 0), sums(far, far > 0), "log_evidence")
    assert found["fpr95"] == 0.2  # only 150 lies at 100 or above


def test_one_kind_of_input_is_not_told_apart() -> None:
    some, none = sums(np.zeros(3), np.zeros(3, dtype=bool)), sums(np.empty(0), np.empty(0, dtype=bool))
    assert ood_detection(some, none, "log_evidence") == ood_detection(none, some, "log_evidence") == {}


# Silos, curves, quantiles.


def test_silos_merged_rank_as_silos_pooled() -> None:
    name, scores, wrong = drawn("heavy")
    silos = np.random.default_rng(0).integers(0, 7, len(scores))
    merged = merge(sums(scores[silos == k], wrong[silos == k]) for k in range(7))
    assert errors(merged, name) == errors(sums(scores, wrong), name)
    assert risk_coverage(merged, name) == risk_coverage(sums(scores, wrong), name)


def test_risk_coverage_curve() -> None:
    name, scores, wrong = drawn("normal")
    curve = risk_coverage(sums(scores, wrong), name)
    assert len(curve["coverage"]) == len(curve["risk"]) <= 100
    assert curve["coverage"][-1] == 1
    assert curve["risk"][-1] == pytest.approx(wrong.mean())
    assert (np.diff(curve["coverage"]) > 0).all()
    binned = on_grid(scores, name)
    for coverage, risk in zip(curve["coverage"], curve["risk"], strict=True):
        answered = binned <= np.quantile(binned, coverage, method="inverted_cdf")
        assert (answered.mean(), wrong[answered].mean()) == pytest.approx((coverage, risk))
    for coverage, limit in zip(curve["coverage"][:-1], curve["max_uncertainty"][:-1], strict=True):
        assert (scores <= limit).mean() == pytest.approx(coverage)


@pytest.mark.parametrize("name", ["total", "vacuity", "log_evidence", "anything"])
def test_every_score_lies_in_its_bin(name: str) -> None:
    edges = histograms.edges(name)
    assert len(edges) == histograms.BINS + 1
    assert (edges.diff() > 0).all()
    scores = torch.from_numpy(drawn("heavy")[1]).abs() / (1e4 if name in histograms.ENTROPIES else 1)
    scores = torch.cat([scores, edges, torch.tensor([-1e-17, 0.0])])
    index = histograms.bins(name, scores)
    assert ((scores <= edges[index + 1]) & ((scores > edges[index]) | (index == 0))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_quantile_is_the_upper_edge_of_the_right_bin(kind: str) -> None:
    for n in (5, 19, 20, 200):
        name, scores, _ = drawn(kind, n)
        counts = histograms.histogram(name, torch.from_numpy(scores))
        for level in (0.05, 0.5, 0.9, 0.95):
            index = math.ceil(round((n + 1) * level, 9))
            found = histograms.quantile(name, counts, level)
            if index > n:
                assert found == math.inf
                continue
            exact = np.sort(scores)[index - 1]
            assert found == float(histograms.edges(name)[1:][histograms.bins(name, torch.tensor([exact]).double())])
            assert (scores <= found).sum() >= index


def test_quantile_covers_a_new_score() -> None:
    generator, level, n = np.random.default_rng(0), 0.9, 30
    draws = torch.from_numpy(100 * generator.standard_cauchy((2000, n + 1)))
    covered = sum(float(d[-1]) <= histograms.quantile("x", histograms.histogram("x", d[:-1]), level) for d in draws)
    assert covered / 2000 > level - 3 * math.sqrt(level * (1 - level) / 2000)


def test_quantile_of_too_few_accepts_everything() -> None:
    assert histograms.quantile("total", torch.zeros(histograms.BINS), 0.5) == math.inf
    nine = histograms.histogram("total", torch.linspace(0, 1, 9))
    assert histograms.quantile("total", nine, 0.9) < 1.02  # the 9th of 9, within a bin
    assert histograms.quantile("total", nine, 0.91) == math.inf
    assert histograms.quantile("total", histograms.histogram("total", torch.full((9,), math.nan)), 0.5) == math.inf
    with pytest.raises(ValueError, match=r"level is 1\.5"):
        histograms.quantile("total", nine, 1.5)


def test_quantile_rounds_no_level_up() -> None:
    """(99 + 1) 0.07 is 7.000000000000001 in floating point, and means the 7th of 99."""
    values = torch.arange(99.0) * 10
    counts = histograms.histogram("x", values)
    assert histograms.quantile("x", counts, 0.07) == float(histograms.edges("x")[1:][histograms.bins("x", values[6:7])])


@pytest.mark.parametrize("score", ["vacuity", "epistemic"])
def test_scores_that_differ_by_orders_of_magnitude_far_below_one_are_told_apart(score: str) -> None:
    """Evidence of e^42 and e^28 leaves a vacuity of 1e-17 and 1e-11."""
    known, unknown = (10 * torch.exp(-torch.linspace(low, low + 4, 200, dtype=torch.float64)) for low in (40, 26))
    sums = [
        {f"score.{score}": torch.stack([histograms.histogram(score, s), torch.zeros(histograms.BINS)])}
        for s in (known, unknown)
    ]
    assert ood_detection(*sums, score)["auroc"] == 1
    limit = histograms.quantile(score, histograms.histogram(score, known), 0.95)
    assert float(known.quantile(0.95)) <= limit < float(unknown.min())
