"""Figures against independent formulas, and the law that silos merged are silos pooled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from caveat.metrics import decisions, ece_null, figures, measure, merge, rank
from caveat.prediction import Decision, Prediction


def predictions(n: int, seed: int = 0, classes: int = 4) -> tuple[Prediction, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(3, n, classes, generator=generator).double()
    y = torch.randint(classes, (n,), generator=generator)
    return Prediction.from_samples(logits.softmax(-1)), y


def part(p: Prediction, rows: slice) -> Prediction:
    return Prediction(p.probs[rows], {k: v[rows] for k, v in p.uncertainty.items()}, p.decision[rows])


def test_figures_against_scikit_learn() -> None:
    p, y = predictions(500)
    f = figures(measure(p, y))
    assert f["accuracy"] == pytest.approx(float((p.label == y).double().mean()))
    assert f["nll"] == pytest.approx(log_loss(y, p.probs, labels=range(4)))
    assert f["brier"] == pytest.approx(brier_score_loss(y, p.probs, labels=range(4), scale_by_half=False))
    assert f["entropy"] == pytest.approx(f["aleatoric"] + f["epistemic"])


def test_ece_against_a_loop_over_bins() -> None:
    p, y = predictions(500)
    top, right = p.probs.max(-1).values.numpy(), (p.label == y).numpy()
    expected = 0.0
    for low, high in zip(np.arange(15) / 15, np.arange(1, 16) / 15, strict=True):
        inside = (top >= low) & (top < high)
        if inside.any():
            expected += inside.mean() * abs(top[inside].mean() - right[inside].mean())
    assert figures(measure(p, y))["ece"] == pytest.approx(expected)


def test_silos_merged_are_silos_pooled() -> None:
    p, y = predictions(301)
    cuts = [slice(0, 7), slice(7, 100), slice(100, 301)]
    merged, pooled = merge(measure(part(p, c), y[c]) for c in cuts), measure(p, y)
    assert merged.keys() == pooled.keys()
    for name in pooled:
        torch.testing.assert_close(merged[name], pooled[name])


def test_merging_changes_nothing_that_is_merged() -> None:
    p, y = predictions(10)
    one = measure(p, y)
    before = {name: t.clone() for name, t in one.items()}
    merge([one, one])
    assert all(torch.equal(one[name], before[name]) for name in one)


def test_augrc_is_the_area_under_the_generalised_risk_coverage_curve() -> None:
    """Against the curve itself: P(error and accepted) over coverage, ties accepted in random order."""
    p, y = predictions(400)
    wrong, u = (p.label != y).numpy(), p.total.round(decimals=1).numpy()
    p.uncertainty["total"] = torch.from_numpy(u)
    n, areas = len(u), []
    generator = np.random.default_rng(0)
    for _ in range(300):
        order = np.lexsort((generator.random(n), u))
        joint = np.concatenate([[0], np.cumsum(wrong[order]) / n])
        areas.append(np.trapezoid(joint, dx=1 / n))
    r = rank(p, y)
    assert r["augrc"] == pytest.approx(np.mean(areas), abs=1e-3)
    assert r["auroc_error"] == pytest.approx(roc_auc_score(wrong, u))


def test_ranking_is_absent_where_there_is_nothing_to_rank() -> None:
    p, _ = predictions(20)
    assert rank(p, p.label) == {}
    assert rank(p, (p.label + 1) % 4) == {}


def test_null_band_of_ece_holds_for_a_perfect_model() -> None:
    """A model whose labels are drawn from its own probabilities exceeds `upper` in about 5 % of cases."""
    exceeded = 0
    for seed in range(200):
        p, _ = predictions(200, seed)
        y = torch.multinomial(p.probs, 1, generator=torch.Generator().manual_seed(seed)).flatten()
        sums = measure(p, y)
        null = ece_null(sums, draws=200)
        assert 0 < null["mean"] < null["upper"]
        exceeded += figures(sums)["ece"] > null["upper"]
    assert 0 < exceeded < 24  # 10 expected; 24 is the 99.99 % quantile


def test_certain_and_wrong_is_finite() -> None:
    p = Prediction.from_samples(torch.tensor([[[1.0, 0.0]]]))
    assert np.isfinite(figures(measure(p, torch.tensor([1])))["nll"])


def test_decisions_are_shares() -> None:
    p, y = predictions(4)
    p.decision[:] = torch.tensor([Decision.LOCAL, Decision.LOCAL, Decision.GLOBAL, Decision.ABSTAIN])
    assert decisions(measure(p, y)) == {"local": 0.5, "global": 0.25, "abstain": 0.25}
