"""Figures against independent formulas, and the law that silos merged are silos pooled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

from caveat.core import Decision, Prediction
from caveat.metrics import across, decisions, ece_null, figures, measure, merge, reliability


def predictions(n: int, seed: int = 0, classes: int = 4) -> tuple[Prediction, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(3, n, classes, generator=generator).double()
    y = torch.randint(classes, (n,), generator=generator)
    return Prediction.from_samples(logits.softmax(-1)), y


def part(p: Prediction, rows: slice | torch.Tensor) -> Prediction:
    evidence = None if p.log_evidence is None else p.log_evidence[rows]
    return Prediction(p.probs[rows], {k: v[rows] for k, v in p.uncertainty.items()}, p.decision[rows], evidence)


def mixed(n: int, seed: int = 0) -> tuple[Prediction, torch.Tensor]:
    """Predictions with everything that sums may be asked for: unknown classes, abstentions, log-evidence."""
    p, y = predictions(n, seed)
    generator = torch.Generator().manual_seed(seed)
    y[torch.rand(n, generator=generator) < 0.2] = -1
    decision = torch.randint(len(Decision), (n,), generator=generator)
    evidence = 50 * torch.randn(n, generator=generator).double()
    return Prediction(p.probs, p.uncertainty, decision, evidence), y


def ece_by_hand(confidence: np.ndarray, right: np.ndarray) -> float:
    expected = 0.0
    for low, high in zip(np.arange(15) / 15, np.arange(1, 16) / 15, strict=True):
        inside = (confidence >= low) & (confidence < high)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return expected


def test_figures_against_scikit_learn() -> None:
    p, y = predictions(500)
    f = figures(measure(p, y))
    assert f["accuracy"] == pytest.approx(float((p.label == y).double().mean()))
    assert f["nll"] == pytest.approx(log_loss(y, p.probs, labels=range(4)))
    assert f["brier"] == pytest.approx(brier_score_loss(y, p.probs, labels=range(4), scale_by_half=False))
    for name, values in p.uncertainty.items():
        assert f[{"total": "entropy"}.get(name, name)] == pytest.approx(float(values.mean()))
    assert (f["coverage"], f["answered_accuracy"]) == (1, f["accuracy"])


def test_calibration_errors_against_a_loop_over_bins() -> None:
    p, y = predictions(500)
    f = figures(measure(p, y))
    assert f["ece"] == pytest.approx(ece_by_hand(p.probs.max(-1).values.numpy(), (p.label == y).numpy()))
    by_class = [ece_by_hand(p.probs[:, c].numpy(), (y == c).numpy()) for c in range(4)]
    assert f["ece_classwise"] == pytest.approx(np.mean(by_class))


def test_classwise_error_sees_what_the_top_label_hides() -> None:
    """Two classes swapped below a correct top label: the top label is calibrated, two classes are not."""
    probs = torch.tensor([[0.6, 0.4, 0.0]]).expand(10, 3)
    sums = measure(Prediction.from_samples(probs[None]), torch.tensor([0] * 6 + [2] * 4))
    f = figures(sums)
    assert f["ece"] == pytest.approx(0, abs=1e-6)
    assert f["ece_classwise"] == pytest.approx(0.8 / 3)


def test_one_class_probability_of_one_is_in_the_last_bin() -> None:
    sums = measure(Prediction.from_samples(torch.tensor([[[1.0, 0.0]]])), torch.tensor([0]))
    assert reliability(sums)["count"] == [0.0] * 14 + [1.0]
    assert sums["class_bin_correct"][0].tolist() == [0.0] * 14 + [1.0]


@pytest.mark.parametrize("seed", range(5))
def test_silos_merged_are_silos_pooled(seed: int) -> None:
    p, y = mixed(301, seed)
    cuts = np.sort(np.random.default_rng(seed).integers(0, 301, 6))  # with silos that are empty now and then
    silos = [slice(low, high) for low, high in zip([0, *cuts], [*cuts, 301], strict=True)]
    parts, pooled = [measure(part(p, rows), y[rows]) for rows in silos], measure(p, y)
    for merged in (merge(parts), merge(reversed(parts)), merge([merge(parts[:3]), merge(parts[3:])])):
        assert merged.keys() == pooled.keys()
        for name, tensor in pooled.items():
            counted = torch.equal(tensor, tensor.round())
            torch.testing.assert_close(merged[name], tensor, rtol=0 if counted else 1e-12, atol=0)
        assert figures(merged) == pytest.approx(figures(pooled), rel=1e-12)


def test_merging_changes_nothing_that_is_merged() -> None:
    p, y = predictions(10)
    one = measure(p, y)
    before = {name: t.clone() for name, t in one.items()}
    merge([one, one])
    assert all(torch.equal(one[name], before[name]) for name in one)


def test_sums_of_different_things_are_not_merged() -> None:
    p, y = predictions(10)
    q, z = mixed(10)
    with pytest.raises(ValueError, match=r"score\.log_evidence"):
        merge([measure(p, y), measure(q, z)])
    with pytest.raises(ValueError, match=r"class_bin_count: shapes \(4, 15\) and \(1, 15\)"):
        merge([measure(p, y), measure(*predictions(10, classes=1))])
    with pytest.raises(ValueError, match="no sums"):
        merge([])


def test_an_input_of_no_class_is_wrong_and_has_no_likelihood() -> None:
    p, y = mixed(200)
    known = y >= 0
    all_, some = measure(p, y), measure(part(p, known), y[known])
    assert int(all_["known"]) == int(known.sum()) < 200
    for name in ("nll", "brier", "ece", "ece_classwise"):
        assert figures(all_)[name] == pytest.approx(figures(some)[name], rel=1e-12)
    assert figures(all_)["accuracy"] == pytest.approx(float((p.label == y).double().mean()))
    assert figures(all_)["entropy"] == pytest.approx(float(p.total.mean()))
    assert sum(decisions(all_).values()) == pytest.approx(1)
    for name in (name for name in all_ if name.startswith("score.")):
        assert torch.equal(all_[name][0], some[name][0])
        assert int((all_[name][1] - some[name][1]).sum()) == int((~known).sum())


def test_where_no_label_is_a_class_there_is_no_calibration() -> None:
    p, y = predictions(20)
    sums = measure(p, torch.full_like(y, -1))
    uncertain = {"entropy", "aleatoric", "epistemic"}
    assert figures(sums).keys() == {"accuracy", "coverage", "answered_accuracy", *uncertain}
    assert figures(sums)["accuracy"] == 0
    assert ece_null(sums) == {}


def test_nothing_measured_has_no_figures() -> None:
    p, y = predictions(20)
    sums = measure(part(p, slice(0, 0)), y[:0])
    assert figures(sums) == {}
    assert decisions(sums) == {}


def test_what_is_answered_is_counted_apart() -> None:
    p, _ = predictions(5)
    y = p.label.clone()
    y[1] = (y[1] + 1) % 4
    y[4] = -1
    p.decision[:] = torch.tensor([Decision.LOCAL, Decision.GLOBAL, Decision.GLOBAL, Decision.ABSTAIN, Decision.ABSTAIN])
    f = figures(measure(p, y))
    assert (f["accuracy"], f["coverage"], f["answered_accuracy"]) == pytest.approx((3 / 5, 3 / 5, 2 / 3))
    p.decision[:] = Decision.ABSTAIN
    f = figures(measure(p, y))
    assert f["coverage"] == 0
    assert "answered_accuracy" not in f


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


def test_across_silos_an_undefined_figure_counts_for_nobody() -> None:
    silos = {"a": {"accuracy": 0.5, "nll": 1.0, "entropy": 2.0}, "b": {"accuracy": 0.9, "entropy": 1.0}}
    found = across(silos)
    assert found["mean"] == pytest.approx({"accuracy": 0.7, "nll": 1.0, "entropy": 1.5})
    assert found["worst"] == {"accuracy": 0.5, "nll": 1.0}  # an entropy has no better side
    assert across({}) == {"mean": {}, "worst": {}}


def test_probabilities_that_are_not_finite_are_said_to_be_so() -> None:
    p, y = predictions(5)
    p.probs[2, 1] = torch.nan
    with pytest.raises(FloatingPointError, match="probabilities are not finite: the model has diverged"):
        measure(p, y)
