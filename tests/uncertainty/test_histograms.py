"""Bins of scores: fine towards 0 and towards the largest value, the same for every silo."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.metrics import roc_auc_score

from caveat.core import Prediction
from caveat.metrics import errors, measure
from caveat.uncertainty import histograms

Floats = npt.NDArray[np.float64]
NAMES = ("total", "aleatoric", "epistemic", "vacuity", "conflict", "logit_variance", "log_evidence", "unfamiliar")
UNIT = np.random.default_rng(0).random(4000)


def width(name: str, value: float, classes: int | None = None) -> float:
    edges = histograms.edges(name, classes)
    index = int(histograms.bins(name, torch.tensor([value], dtype=torch.float64), classes))
    return float(edges[index + 1] - edges[index])


@pytest.mark.parametrize("classes", [None, 2, 10, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_there_are_as_many_bins_for_every_score_and_number_of_classes(name: str, classes: int | None) -> None:
    edges = histograms.edges(name, classes)
    assert edges.shape == (histograms.BINS + 1,)
    assert (edges.diff() > 0).all()
    assert (float(edges[0]), float(edges[-1])) == (-math.inf, math.inf)
    inside = torch.tensor([0.3, 0.1, 0.6, float(edges[-2])], dtype=torch.float64)
    index = histograms.bins(name, inside, classes)
    assert ((inside > edges[index]) & (inside <= edges[index + 1])).all()
    assert histograms.histogram(name, inside, classes).sum() == 4


@pytest.mark.parametrize(
    ("name", "classes", "scores"),
    [
        ("total", 10, 10 ** (UNIT - 8)),
        ("total", None, 10 ** (UNIT - 8)),
        ("epistemic", 3, 10 ** (6 * UNIT - 22)),
        ("total", 10, math.log(10) - 1e-3 * UNIT),
        ("aleatoric", 2, math.log(2) - 10 ** (-9 + 4 * UNIT)),
        ("vacuity", None, 1 - 10 ** (-9 + 6 * UNIT)),
        ("vacuity", None, 10 ** (-22 + 20 * UNIT)),
        ("logit_variance", None, 10 ** (-9 + 14 * UNIT)),
        ("log_evidence", None, -400 + 8 * np.random.default_rng(1).standard_normal(4000)),
        ("log_evidence", None, -2000 + 7000 * UNIT),
        ("unfamiliar", None, -5 + 55 * UNIT**3),
    ],
)
def test_scores_next_to_their_ends_are_ranked(name: str, classes: int | None, scores: Floats) -> None:
    """As well as without bins; the earlier ones, coarse but at 0, made .50 of most of these."""
    wrong = np.random.default_rng(2).random(len(scores)) < 0.6 * (scores.argsort().argsort() / len(scores)) ** 2
    by_outcome = [histograms.histogram(name, torch.from_numpy(scores[rows]), classes) for rows in (~wrong, wrong)]
    found = errors({f"score.{name}": torch.stack(by_outcome)}, name)
    exact = roc_auc_score(wrong, scores)
    assert exact > 0.75
    assert found["auroc_error"] == pytest.approx(exact, abs=0.002)
    assert abs(found["auroc_error"] - exact) <= found["auroc_error_tolerance"] < 0.025
    assert found["coverage_at_5"] > 0.2


def test_predictions_are_counted_in_the_bins_of_their_classes() -> None:
    """Three classes whose probabilities differ in the fourth digit: the entropies lie within 1e-7 of ln 3."""
    generator = torch.Generator().manual_seed(0)
    prediction = Prediction.from_samples((1e-4 * torch.randn(1, 600, 3, generator=generator).double()).softmax(-1))
    assert (math.log(3) - prediction.total).max() < 1e-6
    wrong = torch.rand(600, generator=generator) < prediction.total.argsort().argsort() / 600
    y = torch.where(wrong, (prediction.label + 1) % 3, prediction.label)
    exact = roc_auc_score(wrong.numpy(), prediction.total.numpy())
    assert errors(measure(prediction, y))["auroc_error"] == pytest.approx(exact, abs=0.004)
    assert exact > 0.7


@pytest.mark.parametrize("name", NAMES)
def test_measured_bins_are_those_of_thresholds_added_up(name: str) -> None:
    scores = torch.from_numpy(UNIT - 0.5)
    edges, count = histograms.measured_edges(name), histograms.measured_bins(name)
    assert (len(edges), float(edges[0]), float(edges[-1])) == (count + 1, -math.inf, math.inf)
    found = histograms.coarser(histograms.histogram(name, scores), count)
    within = [int(((scores > low) & (scores <= high)).sum()) for low, high in pairwise(edges)]
    assert found.tolist() == within


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_bins_shrink_with_what_is_missing_to_the_largest_entropy(classes: int) -> None:
    most = math.log(classes)
    for missing in (1e-5, 1e-3, 0.1):
        assert width("total", most - missing * most, classes) < 0.012 * missing * most
        assert width("total", missing * most, classes) < 0.012 * missing * most
    assert width("total", most / 2, classes) < 0.003 * most


@pytest.mark.parametrize(("name", "most"), [("total", math.log(10)), ("vacuity", 1.0)])
def test_the_largest_score_has_a_finite_upper_edge(name: str, most: float) -> None:
    """Or a threshold among predictions that say nothing would accept what is not a number."""
    scores = torch.full((30,), most, dtype=torch.float64)
    limit = histograms.quantile(name, histograms.histogram(name, scores, 10), 0.9, 10)
    assert most <= limit < most * (1 + 1e-8)
    assert int(histograms.bins(name, torch.tensor([math.nan]), 10)) == histograms.BINS - 1


def test_unfamiliar_inputs_are_told_apart_near_the_familiar_ones_and_far_off() -> None:
    assert width("unfamiliar", 0.0) < 0.0072
    for value in (-5.0, 5.0, 50.0):
        assert width("unfamiliar", value) < 0.0075 * abs(value)
