"""The page of a quantity flags a coverage only beyond the chance of its calibration and its test inputs."""

from __future__ import annotations

import numpy as np
import pytest

from caveat.files.schema import SiloRecord
from caveat.html.run.quantity import _coverage


@pytest.mark.parametrize("silos", [1, 10])
def test_a_valid_interval_is_rarely_flagged(silos: int) -> None:
    """Coverage at one silo, given its 50 calibration inputs, is beta distributed around 90 %."""
    random, flagged, runs = np.random.default_rng(0), 0, 400
    for _ in range(runs):
        shares = random.binomial(500, random.beta(46, 5, silos)) / 500
        flagged += any(flag(share, silos) for share in shares)
    assert flagged / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_a_low_coverage_is_flagged() -> None:
    assert flag(0.7, 10)
    assert not flag(0.88, 1)


def flag(coverage: float, silos: int) -> bool:
    test = {"interval_coverage": coverage}
    silo = SiloRecord.model_validate({"name": "a", "n_test": 500, "n_calibration": 50, "test": test})
    return bool(_coverage(silo, 0.9, silos).flag)
