"""Temperature scaling around a method: what is fitted on which split, what leaves a silo, and who has none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from federations import flat
from scipy.optimize import minimize_scalar
from told import agreed
from torch import Tensor, nn

from caveat.core import Answers, Data, Decision, Payload, Prediction, Round, SiloContext, State
from caveat.methods import FedAvg
from caveat.uncertainty.temperature import CONTAMINATION, LEAST
from caveat.wrappers.error_guarantee_policy import Guaranteed
from caveat.wrappers.privacy import Private
from caveat.wrappers.temperature_scaling import TemperatureScaled
from caveat.wrappers.uncertainty_settings import Uncertainty


@dataclass(frozen=True)
class Overconfident(FedAvg):
    """A model at hand whose logits are the inputs, four times too large."""

    def init_server(self, context: SiloContext) -> State:
        return {}

    def schedule(self) -> Iterable[Round]:
        return []

    def broadcast(self, server: State) -> Payload:
        return {}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        return {Decision.GLOBAL: Prediction.from_samples((4 * x.double()).softmax(-1)[None])}


def logit_sites(*counts: int, at: str = "validation") -> list[SiloContext]:
    """Silos of inputs that are logits, labels drawn from them, in one split; none in the other."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(sum(counts), 4, generator=generator)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator).flatten()
    none = Data(logits[:0], y[:0])
    parts = zip(logits.split(counts), y.split(counts), strict=True)
    return [
        SiloContext(
            f"silo-{k}", none, **({"validation": none, "calibration": none} | {at: Data(*part)}), module=nn.Identity()
        )
        for k, part in enumerate(parts)
    ]


def test_temperature_is_the_optimum_of_all_validation_splits_pooled() -> None:
    sites = logit_sites(50, 250, 600)
    method = TemperatureScaled(Overconfident())
    server, states = agreed(method, sites)
    x, y = (torch.cat([each.validation[part] for each in sites]) for part in (0, 1))
    log_probs = (4 * x.double()).log_softmax(-1)

    def nll(log_b: float) -> float:
        right = (log_probs * torch.tensor(log_b).exp()).softmax(-1)[torch.arange(900), y]
        return -float(((1 - CONTAMINATION) * right + CONTAMINATION / 4).log().sum()) + log_b**2 / 2

    best = minimize_scalar(nll, bounds=(-5, 3), method="bounded", options={"xatol": 1e-10})
    found, spread = (method.outcome(server)[name] for name in ("temperature", "temperature_spread"))
    assert isinstance(found, dict)
    assert 1 / found["global"] == pytest.approx(float(torch.tensor(best.x).exp()), rel=1e-4)
    assert isinstance(spread, dict)
    assert LEAST <= spread["global"] < 0.2  # labels of all silos are drawn alike
    newcomer = method.predict(method.broadcast(server), {}, sites[0], x[:5])
    torch.testing.assert_close(newcomer.probs, (log_probs[:5] / found["global"]).softmax(-1))
    torch.testing.assert_close(newcomer.uncalibrated, log_probs[:5].exp())
    assert (newcomer.total >= newcomer.aleatoric).all()
    own = [method.power(Decision.GLOBAL, method.broadcast(server), states[each.id]) for each in sites]
    assert all(b != 1 / found["global"] for b in own)
    assert own == pytest.approx([1 / found["global"]] * 3, rel=0.1)


def test_calibration_labels_are_left_to_promises() -> None:
    method = Uncertainty(policy="guaranteed", familiarity=False).around(Overconfident())
    assert isinstance(method, Guaranteed)
    tempered = method.base
    assert isinstance(tempered, TemperatureScaled)
    sites = logit_sites(300, at="calibration")
    server, _ = agreed(tempered, sites)
    assert tempered.outcome(server)["temperature"] == {"global": 1.0}


def test_all_that_a_temperature_takes_is_one_message_of_sums_that_count_silos_alike() -> None:
    method = TemperatureScaled(Overconfident())
    (step,) = method.schedule()
    assert (step.name, step.linear, step.trains, step.everyone) == ("temperature", "silos", False, True)
    (place,) = logit_sites(30)
    update, state = method.measure(method.broadcast(method.init_server(place)), {}, place)
    assert update.examples == 1
    sent = flat(update.payload)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in sent.items()} == {
        "likelihood/global": ((5, 97), torch.float64)
    }
    assert state["likelihood"]["global"].shape == (4, 97)


def test_a_silo_without_inputs_to_fit_takes_the_federations_temperature() -> None:
    sites = logit_sites(200, 0)
    method = TemperatureScaled(Overconfident())
    server, states = agreed(method, sites)
    found = method.outcome(server)["temperature"]
    assert isinstance(found, dict)
    power = method.power(Decision.GLOBAL, method.broadcast(server), states["silo-1"])
    assert power == pytest.approx(1 / found["global"], rel=1e-12)
    assert 0.2 < power < 0.3


def test_under_privacy_a_silo_fits_its_own_temperature_and_sends_nothing() -> None:
    method = Uncertainty(familiarity=False).around(
        Private(Overconfident(), clip_norm=1.0, noise_multiplier=1.0, silos=3)
    )
    assert isinstance(method, TemperatureScaled)
    places = logit_sites(200, 3)
    server, states = agreed(method, places)
    update, _ = method.measure(method.broadcast(server), {}, places[0])
    assert flat(update.payload) == {}
    assert "temperature" not in method.outcome(server)
    few, many = (method.power(Decision.GLOBAL, method.broadcast(server), states[name]) for name in ("silo-1", "silo-0"))
    assert 0.2 < many < 0.35
    assert many < few < 1


def test_of_a_large_federation_those_are_asked_that_a_round_asks() -> None:
    for silos, everyone in ((99, True), (100, False)):
        method = Uncertainty(source="laplace").around(FedAvg(rounds=1), silos)
        assert [step.everyone for step in method.schedule()] == [False, everyone, everyone, everyone]
