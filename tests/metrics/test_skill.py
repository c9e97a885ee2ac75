"""Comparisons of predictions with chance, the most frequent class and a ridge classifier."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from caveat.core import Data, Prediction
from caveat.metrics import skill
from caveat.metrics.skill import _agreement, _ranked, _ranking, predictable, ridge_labels


def drawn(n: int = 60, classes: int = 3, seed: int = 0) -> tuple[Prediction, Data, Data]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    y = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(1, n, classes, generator=generator) + torch.nn.functional.one_hot(y, classes)
    return Prediction.from_logits(logits), Data(x, y), Data(x + 0.1, (x[:, 0] > 0.5).long())


def test_triples_are_mean_and_variance_over_permutations() -> None:
    random = np.random.default_rng(0)
    y, label = random.integers(0, 4, 30), random.integers(0, 3, 30)
    draws = [(random.permutation(y) == label).sum() for _ in range(5000)]
    assert _agreement(y, label)[1:] == pytest.approx([np.mean(draws), np.var(draws)], rel=0.05)
    scores, wrong = random.integers(0, 5, 30).astype(float), random.random(30) < 0.3
    pairs = [_ranked(scores, random.permutation(wrong))[0] for _ in range(5000)]
    assert _ranked(scores, wrong)[1:] == pytest.approx([np.mean(pairs), np.var(pairs)], rel=0.05)
    odds, classes = random.normal(size=(30, 3)).round(1), random.integers(0, 3, 30)
    every = [_ranking(odds - odds.mean(1, keepdims=True), random.permutation(classes))[0] for _ in range(2000)]
    expected = _ranking(odds - odds.mean(1, keepdims=True), classes)[1:]
    assert expected == pytest.approx([np.mean(every), np.var(every)], rel=0.1)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_bound_of_how_predictable_labels_are_holds(classes: int) -> None:
    """Labels without relation to inputs: the variance is not too small, although halves are used twice."""
    generator, z = torch.Generator().manual_seed(0), []
    for _ in range(400):
        x, y = torch.randn(80, 5, generator=generator), torch.randint(classes, (80,), generator=generator)
        observed, expected, variance = predictable(Data(x, y), classes)
        z.append((observed - expected) / variance**0.5)
    assert np.mean(z) == pytest.approx(0, abs=0.2)
    assert 0.8 < np.std(z) < 1.1


def test_classes_that_a_half_lacks_are_not_asked_about() -> None:
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    alone = torch.zeros(20).long()
    alone[0] = 1
    assert predictable(Data(x, alone), 2).tolist() == [0, 0, 0]
    y = torch.arange(20) // 2 % 2
    observed, expected, _ = predictable(Data(x + 100 * y[:, None], y), 2)
    assert (observed, expected) == (50, 25)  # each half has 5 inputs of either class, all ranked correctly
    assert predictable(Data(torch.ones(20, 3).long(), y), 2).tolist() == [0, 0, 0]


@pytest.mark.parametrize("classes", [2, 3])
def test_ranks_are_those_of_scikit_learn(classes: int) -> None:
    prediction, data, train = drawn(classes=classes)
    found, y, probs = skill(prediction, data, train), data.y.numpy(), prediction.probs.numpy()
    own = [(y == k).sum() for k in range(classes)][classes == 2 :]
    areas = [roc_auc_score(y == k, probs[:, k]) for k in range(classes)][classes == 2 :]
    pairs = [n * (60 - n) for n in own]
    assert float(found["ranking"][0]) == pytest.approx(np.dot(areas, pairs))
    assert float(found["ranking"][1]) == pytest.approx(sum(pairs) / 2)
    wrong = (prediction.label != data.y).numpy()
    area = roc_auc_score(wrong, prediction.total.numpy())
    assert float(found["errors"][0] / found["errors"][1] / 2) == pytest.approx(area)


def test_baselines_are_compared_on_inputs_that_only_one_gets_right() -> None:
    prediction, data, train = drawn()
    found, right = skill(prediction, data, train), prediction.label == data.y
    assert found["majority"].tolist()[0] == int((right & (data.y != 0)).sum())
    guessed = torch.from_numpy(ridge_labels(train, data.x, 3))
    only, differing = int((right & (guessed != data.y)).sum()), int((right != (guessed == data.y)).sum())
    assert found["reference"].tolist() == [only, differing / 2, differing / 4]


def test_the_ridge_classifier_is_that_of_scikit_learn() -> None:
    _, data, train = drawn()
    x = train.x.double() - train.x.double().mean(0)
    model = Ridge(alpha=float((x @ x.T).diagonal().mean())).fit(x, np.eye(3)[train.y])
    expected = model.predict(data.x.double() - train.x.double().mean(0)).argmax(1)
    assert ridge_labels(train, data.x, 3).tolist() == expected.tolist()


def test_token_ids_have_no_ridge_classifier() -> None:
    prediction, data, train = drawn()
    ids = Data(torch.ones_like(data.x).long(), data.y)
    assert skill(prediction, ids, Data(ids.x, train.y))["reference"].tolist() == [0, 0, 0]
