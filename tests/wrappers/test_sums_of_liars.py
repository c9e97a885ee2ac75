"""Sums that silos send after training: what no inputs come to is told from what any inputs do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from caveat.core import Decision
from caveat.core.silo import SiloInfo
from caveat.methods import FedAvg
from caveat.uncertainty import familiarity, laplace, temperature
from caveat.uncertainty.selective_risk import GRID, policy_counts
from caveat.wrappers.choice_policies import Switched
from caveat.wrappers.error_guarantee_policy import Guaranteed
from caveat.wrappers.laplace import Laplace, prefixed
from caveat.wrappers.prediction_sets import Conformal
from caveat.wrappers.temperature_scaling import TemperatureScaled

N, C = 40, 3
CARD = SiloInfo("hill", "", {"train": N, "validation": N, "calibration": N, "test": N}, (20, 15, 5))
BASE = FedAvg()


def labels(seed: int, classes: int = C, n: int = N) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "usual": lambda z: z,
    "sure": lambda z: 1e3 * z,
    "sure beyond all": lambda z: 1e30 * z,
    "alike": lambda z: 0 * z,
    "impossible classes": lambda z: z.masked_fill(z < 0, -torch.inf),
    "one class": lambda z: torch.cat([z[:, :1] + 50, z[:, 1:]], 1),
    "log-probabilities": lambda z: (5 * z).log_softmax(1),
}


@pytest.mark.parametrize("classes", [2, 3, 1000])
@pytest.mark.parametrize("kind", LOGITS)
def test_likelihoods_of_any_model_are_counted(kind: str, classes: int) -> None:
    for seed in range(5):
        z = torch.randn(N, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for n in (0, 1, 7, N):
            y = labels(seed, classes, n)
            sent = temperature.message(temperature.curve(LOGITS[kind](z[:n]), y))
            assert temperature.impossible(sent, n, classes) == ""
            assert temperature.impossible(sent, N, classes) == ""  # labels may be unknown


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("times", [-1.0, 1e3])
def test_likelihoods_that_no_inputs_come_to_are_not(row: int, times: float) -> None:
    z = torch.randn(N, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sent = temperature.message(temperature.curve(z, labels(1)))
    sent[row] *= times
    if times < 0 and row in (1, 2):  # the derivative of other inputs
        return
    assert "impossible for 40 validation inputs" in TemperatureScaled(BASE).wrong(
        {"likelihood": {"global": sent}}, CARD
    )


def test_likelihoods_of_more_inputs_than_a_silo_has_are_not_counted() -> None:
    z = torch.zeros(50 * N, C, dtype=torch.float64)
    z[:, 0] = 100.0  # all wrong, and sure of it
    sent = temperature.message(temperature.curve(z, torch.ones(50 * N, dtype=torch.long)))
    assert "impossible for" in TemperatureScaled(BASE).wrong({"likelihood": {"global": sent}}, CARD)


def described(scale: float = 1.0) -> dict[str, Tensor]:
    y = torch.cat([torch.full((count,), c) for c, count in enumerate(CARD.class_counts)])
    h = 3 + scale * torch.randn(N, 6, generator=torch.Generator().manual_seed(2))
    return familiarity.sums(h, familiarity.grouped(y, C), C)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
def test_sums_of_numbers_of_any_size_are_counted(scale: float) -> None:
    assert familiarity.impossible(described(scale), CARD.class_counts) == ""
    zeros = {name: torch.zeros_like(each) for name, each in described().items()}
    assert familiarity.impossible(zeros, CARD.class_counts) == ""


@pytest.mark.parametrize(
    ("name", "times", "why"),
    [("counts", 2.0, "more inputs of a class"), ("counts", -1.0, "more inputs of a class"),
     ("counts", 0.5, "more inputs of a class"), ("counts", 0.0, "no inputs"),
     ("squares", -1.0, "negative variance"), ("squares", 0.1, "negative variance"),
     ("totals", 100.0, "negative variance")],
)  # fmt: skip
def test_sums_of_other_inputs_than_a_silo_has_are_not(name: str, times: float, why: str) -> None:
    sums = described()
    assert why in familiarity.impossible(sums | {name: sums[name] * times}, CARD.class_counts)


def test_curvature_is_that_of_training_inputs() -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.cat([torch.randn(N, 5, generator=generator), torch.ones(N, 1)], 1)
    for scale in (0.0, 1.0, 100.0):
        sent = laplace.sums(hidden, scale * torch.randn(N, C, generator=generator))
        sums = prefixed(Decision.GLOBAL, sent | {"weight": torch.zeros(C, 6)})
        wrong = Laplace(BASE).wrong
        assert wrong({"curvature": sums}, CARD) == ""
        assert "examples" in wrong({"curvature": sums | {"global.examples": torch.tensor(41.0)}}, CARD)
        assert "inputs" in wrong({"curvature": sums | {"global.inputs": -sums["global.inputs"]}}, CARD)
        more = sums | {"global.outputs": sums["global.outputs"] + 20 * torch.eye(C, dtype=torch.float64)}
        assert "outputs" in wrong({"curvature": more}, CARD)


def test_histograms_hold_no_more_inputs_than_the_split_has() -> None:
    counts = torch.zeros(4096, dtype=torch.float64)
    counts[7] = N
    survey, count = Guaranteed(BASE).wrong_survey, Guaranteed(BASE).wrong_count
    cases = ((Conformal(BASE).wrong, "sets", "surprise"), (Switched(BASE).wrong, "decision", "scores"),
             (survey, "decision", "scores.global"))  # fmt: skip
    for wrong, group, name in cases:
        assert wrong({group: {name: counts}}, CARD) == ""
        for bad in (counts + 1, -counts, counts * 0.99):
            assert "are not counts of at most 40 inputs" in wrong({group: {name: bad}}, CARD)
    rank = torch.rand(N, generator=torch.Generator().manual_seed(4)).clamp_min(1e-3)
    honest = policy_counts(None, rank, None, rank > 0.5)
    inputs = torch.tensor([float(N)]).double()
    assert count({"decision": {"counts": honest[None], "inputs": inputs}}, CARD) == ""
    for wrong_inputs in (inputs + 1, inputs - 1, -inputs, inputs[:0]):
        told = {"counts": honest[None], "inputs": wrong_inputs}
        assert "impossible with 40 calibration inputs" in count({"decision": told}, CARD)
    assert honest.shape == (2, GRID)
    for bad in (honest * 2, honest.flip(0) + honest, honest.flip(1), -honest):
        assert "impossible with 40 calibration inputs" in count(
            {"decision": {"counts": bad[None], "inputs": inputs}}, CARD
        )
