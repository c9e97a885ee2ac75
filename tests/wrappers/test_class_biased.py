"""Biases of classes around a method: what leaves a silo, who has one, and that likelihoods improve by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_temperature_scaling import Overconfident
from told import agreed
from torch import Tensor, nn

import caveat
from caveat.core import ConfigurationError, Data, Decision, SiloContext
from caveat.methods import FedAvg, Local
from caveat.uncertainty.class_bias import WIDEST
from caveat.wrappers.temperature_scaling import ClassBiased, TemperatureScaled
from caveat.wrappers.uncertainty_settings import Uncertainty


def silos_of(apart: float, count: int = 6, n: int = 300) -> tuple[list[SiloContext], Tensor]:
    """Silos whose inputs are a quarter of a model's logits, labels drawn from them with a bias of the silo's own."""
    generator = torch.Generator().manual_seed(0)
    biases = apart * torch.randn(count, 4, generator=generator)
    found = []
    for k, bias in enumerate(biases):
        logits = 2 * torch.randn(n, 4, generator=generator)
        y = torch.multinomial((logits + bias).softmax(1), 1, generator=generator).flatten()
        none, all_ = Data(logits[:0], y[:0]), Data(logits, y)
        found.append(SiloContext(f"silo-{k}", none, validation=all_, calibration=none, module=nn.Identity()))
    return found, biases


def test_a_silo_gets_its_own_bias_from_two_sums_more() -> None:
    silos, biases = silos_of(0.8)
    method = ClassBiased(Overconfident())
    server, states = agreed(method, silos)
    update, _ = method.measure(method.broadcast(server), {}, silos[0])
    assert {group: {name: tuple(each.shape) for name, each in of.items()} for group, of in update.payload.items()} == {
        "likelihood": {"global": (5, 97)},
        "bias_sums": {"global": (2,)},
    }
    (step,) = method.schedule()
    assert step.sums is not None
    assert 0.5 < method.outcome(server)["class_bias"]["global"] <= WIDEST  # type: ignore[index]
    down, x = method.broadcast(server), silos[0].validation.x
    for silo, bias in zip(silos, biases, strict=True):
        power = method.power(Decision.GLOBAL, down, states[silo.id])
        found = method.bias(Decision.GLOBAL, power, down, states[silo.id])
        assert found is not None
        torch.testing.assert_close(found - found.mean(), (bias - bias.mean()).double(), atol=0.35, rtol=0)
    plain = TemperatureScaled(Overconfident()).predict(down, {}, silos[0], x)
    newcomer = method.predict(down, {}, silos[0], x)
    torch.testing.assert_close(newcomer.probs, plain.probs)


def test_silos_that_are_alike_get_none() -> None:
    silos, _ = silos_of(0.0)
    method = ClassBiased(Overconfident())
    server, states = agreed(method, silos)
    down, x = method.broadcast(server), silos[0].validation.x
    biased, plain = (
        each.predict(down, states["silo-0"], silos[0], x) for each in (method, TemperatureScaled(Overconfident()))
    )
    torch.testing.assert_close(biased.probs, plain.probs, atol=0.06, rtol=0)


def test_it_is_refused_where_nothing_is_sent_and_left_out_for_baselines() -> None:
    asked = Uncertainty(class_bias=True)
    with pytest.raises(ConfigurationError, match=r"class_bias = true needs sums over validation labels .* 'local'"):
        asked.around(Local())
    with pytest.raises(ConfigurationError, match=r"no effect with uncertainty\.temperature_scaling = false"):
        Uncertainty(class_bias=True, temperature_scaling=False)
    assert asked.fitting(Local()).class_bias is None
    assert asked.fitting(FedAvg()).class_bias


def test_a_run_with_silos_of_other_classes_is_better_with_it(tmp_path: Path) -> None:
    """One model for silos that have half of the classes each: a bias tells them apart."""
    rng = np.random.default_rng(0)
    arrays = {}
    for k in range(4):
        y = rng.choice(4, 300, p=np.roll([0.45, 0.45, 0.05, 0.05], k))
        x = rng.normal(size=(300, 2)) + np.stack([y % 2, y // 2], 1)
        arrays[f"s{k}"] = x.astype(np.float32), y
    found = []
    for biased in (None, True):
        run = caveat.run(
            caveat.data.from_arrays(arrays), caveat.FedAvg(), rounds=5, model=caveat.ModelSettings(name="mlp"),
            uncertainty=caveat.Uncertainty(class_bias=biased, familiarity=False), training=caveat.Training(lr=0.01),
        )  # fmt: skip
        found.append(run.summary["mean"])
        assert ("class_bias" in run.summary) == bool(biased)
    assert found[1]["nll"] < 0.9 * found[0]["nll"]
    assert found[1]["accuracy"] > found[0]["accuracy"] + 0.03
