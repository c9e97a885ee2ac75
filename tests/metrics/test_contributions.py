"""Contributions of inputs: their mean is the metric, and they are its derivatives by the weights of inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caveat.core import Prediction
from caveat.metrics import contributions, errors, figures, measure


def drawn(n: int, seed: int = 0) -> tuple[Prediction, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn((n, 3), generator=generator, dtype=torch.float64)
    probs = logits.softmax(1)
    y = torch.multinomial((0.7 * logits).softmax(1), 1, generator=generator)[:, 0]
    return Prediction.from_samples(probs[None]), y


def measured(prediction: Prediction, y: torch.Tensor) -> dict[str, float]:
    sums = measure(prediction, y)
    return figures(sums) | errors(sums)


def test_the_mean_of_the_contributions_is_the_metric() -> None:
    prediction, y = drawn(400)
    expected, found = measured(prediction, y), contributions(prediction, y)
    assert {"accuracy", "nll", "brier", "ece", "entropy", "auroc_error", "aurc", "augrc"} <= found.keys() <= {*expected}
    for name, values in found.items():
        assert values.shape == (400,)
        assert float(values.mean()) == pytest.approx(expected[name], abs=2e-3), name  # scores are binned there


def test_ties_share_their_contributions() -> None:
    probs = torch.tensor([[0.8, 0.2]] * 6 + [[0.6, 0.4]] * 4, dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 0, 0, 1, 0, 0, 1, 1])
    prediction = Prediction.from_samples(probs[None])
    expected, found = measured(prediction, y), contributions(prediction, y)
    for name in ("auroc_error", "aurc", "augrc"):
        assert float(found[name].mean()) == pytest.approx(expected[name])
        assert found[name][:5].unique().numel() == 1
    turned = contributions(Prediction.from_samples(probs.flip(0)[None]), y.flip(0))
    assert torch.allclose(turned["aurc"].flip(0), found["aurc"])


def test_contributions_are_what_leaving_an_input_out_changes() -> None:
    prediction, y = drawn(300, 1)
    found, whole, n = contributions(prediction, y), measured(prediction, y), len(y)
    for name in ("ece", "auroc_error", "aurc", "augrc"):
        without = []
        for left in range(0, n, 10):
            kept = torch.arange(n) != left
            part = Prediction.from_samples(prediction.probs[kept][None])
            without.append((whole[name] - measured(part, y[kept])[name]) * (n - 1))
        influence = (found[name] - found[name].mean())[::10].numpy()
        assert np.corrcoef(influence, without)[0, 1] > 0.98, name
        assert np.std(influence) == pytest.approx(np.std(without), rel=0.15), name


def test_the_variance_of_a_metric_is_that_of_the_mean_contribution() -> None:
    draws = [drawn(400, seed) for seed in range(300)]
    for name in ("nll", "auroc_error", "aurc", "augrc"):
        values = [measured(*each)[name] for each in draws]
        told = np.mean([float(contributions(*each)[name].var()) / 400 for each in draws[:100]])
        assert np.var(values) == pytest.approx(told, rel=0.25), name


def test_without_errors_there_is_no_auroc() -> None:
    prediction, _ = drawn(20)
    found = contributions(prediction, prediction.label)
    assert "auroc_error" not in found
    assert found["aurc"].tolist() == found["augrc"].tolist() == [0.0] * 20
