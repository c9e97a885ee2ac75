"""Rules in place of the mean, beside independent implementations, and how far a malicious_silo moves them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from caveat.core import Payload
from caveat.core.robust import (
    Rule,
    combined,
    geometric_weights,
    krum_weights,
    silos_needed,
    squared_distances,
)

RULES: tuple[Rule, ...] = ("median", "trimmed_mean", "geometric_median", "krum")


def payloads(count: int, seed: int = 0) -> list[Payload]:
    """Replies with two groups, a counter and an empty tensor, around 3."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "model": {
                "w": 3 + torch.randn(4, 5, generator=generator), "count": torch.tensor(k),
                "none": torch.zeros(0, 2),
            },
            "more": {"b": torch.randn(3, generator=generator, dtype=torch.float64)},
        }
        for k in range(count)
    ]  # fmt: skip


def flat(payload: Payload) -> np.ndarray:
    tensors = [t for _, group in sorted(payload.items()) for _, t in sorted(group.items()) if t.is_floating_point()]
    return torch.cat([t.double().reshape(-1) for t in tensors]).numpy()


@pytest.mark.parametrize("count", [5, 6])
def test_median_and_trimmed_mean_are_those_of_each_coordinate(count: int) -> None:
    found = payloads(count)
    values = np.stack([flat(each) for each in found])
    np.testing.assert_allclose(flat(combined("median", found, 1)), np.median(values, 0), rtol=1e-6)
    middle = np.sort(values, 0)[2:-2]
    np.testing.assert_allclose(flat(combined("trimmed_mean", found, 2)), middle.mean(0), rtol=1e-6)


def test_the_geometric_median_has_the_least_sum_of_distances() -> None:
    found = payloads(7)
    values = np.stack([flat(each) for each in found])
    least = minimize(lambda z: np.linalg.norm(values - z, axis=1).sum(), values.mean(0), tol=1e-10)
    mine = flat(combined("geometric_median", found, 1))
    assert np.linalg.norm(values - mine, axis=1).sum() <= least.fun * (1 + 1e-6)
    np.testing.assert_allclose(mine, least.x, atol=1e-3)


def test_the_geometric_median_of_replies_that_are_all_the_same_is_that_one() -> None:
    found = [payloads(1)[0] for _ in range(3)]
    np.testing.assert_allclose(flat(combined("geometric_median", found, 1)), flat(found[0]), rtol=1e-6)
    assert geometric_weights(torch.zeros(4, 4, dtype=torch.float64)) == [0.25] * 4


def test_krum_takes_the_silo_whose_nearest_others_are_nearest() -> None:
    found = payloads(7, seed=1)
    values = np.stack([flat(each) for each in found])
    apart = ((values[:, None] - values[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(found).numpy(), apart, rtol=1e-6, atol=1e-12)
    scores = [np.sort(np.delete(row, k))[: 7 - 2 - 2].sum() for k, row in enumerate(apart)]
    assert krum_weights(torch.tensor(apart), 2) == [float(k == int(np.argmin(scores))) for k in range(7)]
    assert flat(combined("krum", found, 2)).tolist() == values[int(np.argmin(scores))].tolist()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("times", [1e5, -10.0, -1e12])
def test_one_malicious_silo_of_seven_stays_within_the_others(rule: Rule, times: float) -> None:
    found = payloads(7)
    honest = np.stack([flat(each) for each in found[1:]])
    for tensors in found[0].values():
        for name, tensor in tensors.items():
            tensors[name] = tensor * times if tensor.is_floating_point() else tensor
    moved = np.linalg.norm(flat(combined(rule, found, 1)) - honest.mean(0))
    assert moved <= np.linalg.norm(honest - honest.mean(0), axis=1).max()


@pytest.mark.parametrize("rule", RULES)
def test_types_shapes_and_counters_stay(rule: Rule) -> None:
    found = payloads(5)
    after = combined(rule, found, 1)
    assert list(after) == list(found[0])
    for group, tensors in found[0].items():
        assert {name: (t.shape, t.dtype) for name, t in after[group].items()} == {
            name: (t.shape, t.dtype) for name, t in tensors.items()
        }
    assert after["model"]["count"] == 0


@pytest.mark.parametrize(("rule", "least"), [("median", 5), ("trimmed_mean", 5), ("geometric_median", 5), ("krum", 7)])
def test_too_few_replies_are_refused(rule: Rule, least: int) -> None:
    assert silos_needed(rule, 2) == least
    combined(rule, payloads(least), 2)
    with pytest.raises(ValueError, match=f"{least - 1} payloads, expected at least {least}"):
        combined(rule, payloads(least - 1), 2)
