"""Corrections of p-values against worked examples, and the rate that they promise by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from caveat.uncertainty.multiplicity import benjamini_hochberg, holm

NAN = math.nan


@pytest.mark.parametrize(
    ("ps", "expected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # 0.04 alone would stay 0.04: monotone
        ([0.01, NAN, 0.03], [0.02, NAN, 0.03]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.2, 0.2, 0.2], [0.6, 0.6, 0.6]),
        ([0.3], [0.3]),
        ([NAN], [NAN]),
        ([], []),
    ],
)
def test_holm(ps: list[float], expected: list[float]) -> None:
    assert holm(ps) == pytest.approx(expected, nan_ok=True)


def test_discoveries_of_a_worked_example() -> None:
    """The first example of Benjamini & Hochberg (1995): four of fifteen at 5 %."""
    p = torch.tensor([0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
                      0.6528, 0.7590, 1.0000])  # fmt: skip
    assert benjamini_hochberg(p.flip(0), 0.05).flip(0).tolist() == [True] * 4 + [False] * 11
    assert not benjamini_hochberg(p[5:], 0.05).any()
    assert benjamini_hochberg(torch.zeros(0), 0.05).shape == (0,)


def test_a_small_share_of_the_discoveries_among_conformal_p_values_is_false() -> None:
    random, shares, power = np.random.default_rng(0), [], []
    for _ in range(300):
        known, new = random.normal(size=200), random.normal(size=50) + 4 * (np.arange(50) < 10)
        p = torch.from_numpy((1 + (known >= new[:, None]).sum(1)) / 201)
        found = benjamini_hochberg(p, 0.1)
        shares.append(float(found[10:].sum()) / max(int(found.sum()), 1))
        power.append(float(found[:10].double().mean()))
    assert np.mean(shares) <= 0.1 + 2 * np.std(shares) / math.sqrt(300)
    assert np.mean(power) > 0.8
