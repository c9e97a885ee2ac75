"""Metrics of times to an event: values of scikit-survival 0.24 on the same numbers, with ties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from caveat import metrics
from caveat.core import Prediction
from caveat.core.quantity import Times, observed
from caveat.metrics.survival import at, brier, concordance, kaplan_meier
from caveat.uncertainty.statistical_tests import detected

I = np.arange(40)  # noqa: E741
TIMES = torch.tensor(np.round(1 + 37 * np.abs(np.sin(1.7 * I + 0.3)), 0))
EVENT = torch.tensor((I * 7 % 5) < 3)
RISK = torch.tensor(np.round(np.cos(1.7 * I) * 3 + np.sin(I), 1))
GRID = torch.linspace(4, 28, 9, dtype=torch.float64)
SURVIVAL = torch.exp(-torch.outer(torch.exp(RISK / 5), GRID) / 40)
Y = torch.where(EVENT, TIMES, -TIMES)


def test_curves_are_those_of_scikit_survival() -> None:
    times, found = kaplan_meier(TIMES, EVENT)
    assert times[:6].tolist() == [1, 5, 6, 7, 10, 12]
    wanted = [1.0, 0.9743589743589743, 0.9480249480249481, 0.9216909216909217, 0.8953568953568953, 0.8682248682248682]
    assert found[:6].tolist() == pytest.approx(wanted, abs=1e-12)
    _, found = kaplan_meier(TIMES, EVENT, censoring=True)
    wanted = [0.975, 0.9493421052631579, 0.9493421052631579, 0.9493421052631579, 0.9214202786377709, 0.9214202786377709]
    assert found[:6].tolist() == pytest.approx(wanted, abs=1e-12)
    assert at(times, found, torch.tensor([0.5, 1.0, 5.5])).tolist() == pytest.approx([1, *wanted[:2]])


def test_c_indices_are_those_of_scikit_survival() -> None:
    right, total = concordance(TIMES, EVENT, RISK)
    assert float(right / total) == pytest.approx(0.5033112582781457, abs=1e-12)
    chance = at(*kaplan_meier(TIMES, EVENT, censoring=True), TIMES)
    weight = torch.where(TIMES < 30, chance.square().reciprocal(), 0.0)
    right, total = concordance(TIMES, EVENT, RISK, weight)
    assert float(right / total) == pytest.approx(0.4755173145525059, abs=1e-12)


def test_brier_scores_are_those_of_scikit_survival() -> None:
    found = brier(TIMES, EVENT, SURVIVAL, GRID, kaplan_meier(TIMES, EVENT, censoring=True))
    wanted = [0.012199211408778965, 0.08051511924110119, 0.11746291746693402, 0.14200816484644427, 0.19089216583627286,
              0.20524440853998058, 0.22387368059554644, 0.24314307465236773, 0.27073971375578254]  # fmt: skip
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)
    assert float(torch.trapezoid(found, GRID) / 24) == pytest.approx(0.16807612422011597, abs=1e-12)


def test_sums_add_up_and_know_the_reference() -> None:
    target = Times.of([Y])
    found = replace(Prediction.from_samples(target.reference.expand(1, 40, -1)), target=target)
    sums = metrics.measure(found, Y)
    figures = metrics.figures(sums)
    assert figures["c_index"] == 0.5  # equal risks
    assert figures["crps"] == pytest.approx(figures["reference_crps"])
    assert figures["d_calibration"] > 0.9  # the curve is that of the same inputs
    assert float(sums["pit"].sum()) == pytest.approx(40)
    halves = [metrics.measure(found.part(rows), Y[rows]) for rows in (torch.arange(20), torch.arange(20, 40))]
    both = metrics.merge(halves)
    assert float(both["events"]) == float(sums["events"]) == float(EVENT.sum())
    assert float(both["pit"].sum()) == pytest.approx(40)
    assert float(metrics.measure(found.part(torch.arange(0)), Y[:0])["crps"]) == 0


def test_the_power_of_d_calibration() -> None:
    """With this root mean square deviation of ten shares, four of five tests at 5 % reject."""
    events, generator = 200, np.random.default_rng(0)
    share = 0.1 * (1 + detected(events) * np.array([1, -1] * 5))
    counts = generator.multinomial(events, share, size=4000)
    rejected = (((counts - events / 10) ** 2).sum(1) / (events / 10) > 16.919).mean()
    assert rejected == pytest.approx(0.8, abs=0.03)
    assert observed(torch.tensor([-0.0, 0.0]))[1].tolist() == [False, True]
