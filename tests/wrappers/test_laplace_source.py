"""The posterior of the last layer around any method, and the choice of a source of uncertainty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from federations import ADAM, METHODS, Federation
from torch import Tensor, nn

import caveat
from caveat.core import ConfigurationError, Decision, Method, Prediction
from caveat.files import read_ledger
from caveat.methods import FML, FedAvg, FedBN, FedPer, FedPN, Local
from caveat.nn.stage_features import last_layer
from caveat.uncertainty import laplace
from caveat.wrappers.alarms import Familiar
from caveat.wrappers.base import find
from caveat.wrappers.ensembles import Ensemble, Snapshots
from caveat.wrappers.laplace import Laplace, named
from caveat.wrappers.privacy import Private


def finished(method: Method, folder: Path) -> Federation:
    federation = Federation(method, folder)
    federation.run()
    return federation


def seen(federation: Federation, base: Method, silo: str, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each model at a silo: the layer's weight, hidden units with a 1 beside them, logits; by the model's parts."""
    down, state = federation.method.broadcast(federation.server), federation.states()[silo]
    found = []
    for _, module in base.loaded(down, state, federation.place.context(silo)):
        module.eval()
        with torch.no_grad():
            hidden = module.head.hidden(module.encoder(x))  # type: ignore[union-attr,operator]
        layer = module.head[-1]  # type: ignore[index]
        weight = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().clone()
        hidden = torch.cat([hidden, torch.ones(len(x), 1)], 1)
        found.append((weight, hidden, hidden @ weight.T))
    return found


# The last layer's posterior


@pytest.mark.parametrize("base", [FedAvg(rounds=2, training=ADAM), FedBN(rounds=2, training=ADAM)])
def test_the_posterior_of_a_shared_layer_is_that_of_all_training_inputs_pooled(base: FedAvg, tmp_path: Path) -> None:
    federation = finished(Laplace(base), tmp_path)
    silos = federation.place.silos
    parts = [seen(federation, base, name, silo.train.x)[0] for name, silo in silos.items()]
    hidden, logits = (torch.cat([part[i] for part in parts]) for i in (1, 2))
    expected = laplace.posterior(laplace.sums(hidden, logits), parts[0][0])
    found = named(base.models[0], federation.server["laplace"])
    torch.testing.assert_close(found["prior"], expected["prior"], rtol=1e-4, atol=0)
    one, other = (laplace.direction_variances(each, parts[0][1]).sum(-1) for each in (found, expected))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=0)
    assert not any(state.get("laplace") for state in federation.states().values())


@pytest.mark.parametrize(
    ("base", "model"),
    [
        (FedPer(rounds=2, training=ADAM), Decision.LOCAL),
        (Local(rounds=2, training=ADAM), Decision.LOCAL),
        (Private(FedAvg(rounds=2, training=ADAM), clip_norm=1.0, noise_multiplier=0.3, silos=3), Decision.GLOBAL),
    ],
)
def test_the_curvature_of_what_is_not_shared_stays_at_its_silo(base: Method, model: Decision, tmp_path: Path) -> None:
    federation = finished(Laplace(base), tmp_path)
    assert federation.done[-1].step.name == "curvature"
    assert not federation.done[-1].replies.mean("curvature")
    assert list(federation.server["laplace"]) == ["ready"]
    for name, silo in federation.place.silos.items():
        weight, hidden, logits = seen(federation, base, name, silo.train.x)[0]
        expected = laplace.posterior(laplace.sums(hidden, logits), weight)
        kept = named(model, federation.states()[name]["laplace"])
        torch.testing.assert_close(kept["prior"], expected["prior"], rtol=1e-4, atol=0)


def test_of_two_models_each_layer_has_its_posterior(tmp_path: Path) -> None:
    """FML's own models are of other architectures, so that their layers are of other sizes too."""
    federation = finished(Laplace(FML(rounds=2, training=ADAM)), tmp_path)
    assert {name.split(".")[0] for name in federation.server["laplace"]} == {"ready", "global"}
    kept = [state["laplace"]["local.inputs"].shape for state in federation.states().values()]
    assert kept == [(9, 9), (5, 5), (9, 9)]


def test_a_silo_that_missed_the_round_takes_the_curvature_of_its_own_data(tmp_path: Path) -> None:
    federation = finished(Laplace(FedPer(rounds=2, training=ADAM)), tmp_path)
    silo = federation.place.silos["silo-1"]
    down, state = federation.method.broadcast(federation.server), federation.states()["silo-1"]
    without = {group: tensors for group, tensors in state.items() if group != "laplace"}
    one, other = (
        federation.method.predict(down, each, federation.place.context("silo-1"), silo.test.x)
        for each in (state, without)
    )
    torch.testing.assert_close(one.scores, other.scores)


def test_what_it_takes_for_that_is_no_stage_of_an_answer(tmp_path: Path) -> None:
    """Familiarity is read off the passes that answers are made of."""
    federation = finished(Familiar(Laplace(FedPer(rounds=2, training=ADAM))), tmp_path)
    silo = federation.place.silos["silo-1"]
    down, state = federation.method.broadcast(federation.server), federation.states()["silo-1"]
    without = {group: tensors for group, tensors in state.items() if group != "laplace"}
    one, other = (
        federation.method.predict(down, each, federation.place.context("silo-1"), silo.test.x)
        for each in (state, without)
    )
    assert one.familiarity is not None
    torch.testing.assert_close(one.familiarity, other.familiarity)
    torch.testing.assert_close(one.scores, other.scores)


def test_until_there_is_a_posterior_the_method_answers_by_itself(tmp_path: Path) -> None:
    base = FedAvg(rounds=2, training=ADAM)
    federation = Federation(Laplace(base), tmp_path)
    federation.run(stop=1)
    context, x = federation.place.context("silo-0"), federation.place.silos["silo-0"].test.x
    down, state = federation.method.broadcast(federation.server), federation.states()["silo-0"]
    found = federation.method.predict(down, state, context, x)
    torch.testing.assert_close(found.scores, base.predict(down, state, context, x).scores)


def test_a_prediction_is_of_its_input_and_the_posterior_alone(tmp_path: Path) -> None:
    federation = finished(Laplace(FedAvg(rounds=2, training=ADAM)), tmp_path)
    down, context = federation.method.broadcast(federation.server), federation.place.context("silo-0")
    x = torch.randn(1100, 2)

    def ask(part: Tensor) -> Prediction:
        return federation.method.predict(down, {"model": {}}, context, part)

    together, before = ask(x), torch.get_rng_state()
    alone = [ask(x[i : i + 1]) for i in (0, 499, 500, 1099)]
    assert torch.equal(torch.get_rng_state(), before)
    for i, one in zip((0, 499, 500, 1099), alone, strict=True):
        torch.testing.assert_close(one.probs[0], together.probs[i])
        for name, values in one.scores.items():
            torch.testing.assert_close(values[0], together.score(name)[i])
    assert together.score("logit_variance").min() > 0


def test_far_inputs_have_larger_variances_of_logits(tmp_path: Path) -> None:
    federation = finished(Laplace(FedAvg(rounds=2, training=ADAM)), tmp_path)
    down, context = federation.method.broadcast(federation.server), federation.place.context("silo-0")
    x = federation.place.silos["silo-0"].test.x
    near, far = (federation.method.predict(down, {"model": {}}, context, each) for each in (x, 20 * x))
    assert far.score("logit_variance").median() > 3 * near.score("logit_variance").median()


class Pooled(nn.Module):
    """A model whose last step is no layer: the mean of what a layer says of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("module", [Pooled(), nn.Sequential(nn.Flatten(), nn.Linear(8, 3), nn.ReLU()), nn.Flatten()])
def test_models_that_end_in_something_else_are_refused(module: nn.Module) -> None:
    with pytest.raises(ConfigurationError, match="needs a model that ends in a linear layer"):
        last_layer(module, torch.randn(5, 2, 4))


def test_the_last_layer_is_found_behind_dropout_and_without_a_bias() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False), nn.Dropout(0.5)).train()
    x = torch.randn(5, 4)
    layer = last_layer(module, x)
    assert layer.name == "2"
    assert layer.weight.shape == (3, 6)
    torch.testing.assert_close(layer.hidden @ layer.weight.T, layer.logits)
    assert not module[2]._forward_hooks


# Settings


def test_a_source_is_put_around_a_method() -> None:
    assert find(caveat.Uncertainty(source="laplace", mc_samples=7).around(FedAvg()), Laplace) == Laplace(FedAvg(), 7)
    assert find(caveat.Uncertainty(source="ensemble").around(FedPN(), seed=3), Ensemble) == Ensemble(FedPN(), 5, 3)
    assert find(caveat.Uncertainty(source="snapshots").around(FedAvg()), Snapshots) == Snapshots(FedAvg(), 5)
    for source in (None, "own", "dropout"):
        method = caveat.Uncertainty(source=source).around(FedAvg())
        assert find(method, Laplace) is find(method, Ensemble) is None


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_methods_with_uncertainty_of_their_own_refuse_what_they_cannot_be_asked(method: Method) -> None:
    for source in ("dropout", "laplace"):
        settings = caveat.Uncertainty(source=source)
        if not method.softmax:
            with pytest.raises(ConfigurationError, match=f"source = '{source}' does not fit"):
                settings.around(method)
            assert settings.fitting(method) == caveat.Uncertainty()
        else:
            settings.around(method)


def test_a_subclass_that_answers_in_another_way_has_no_last_layer_to_ask() -> None:
    class Flat(FedAvg):
        def ask(self, module: nn.Module, x: Tensor, whose: Decision) -> Prediction:
            return Prediction.from_samples(torch.ones(1, len(x), 3) / 3, whose)

    with pytest.raises(ConfigurationError, match="does not fit 'flat'"):
        caveat.Uncertainty(source="laplace").around(Flat())


def test_the_variance_of_logits_can_be_limited() -> None:
    settings = caveat.Uncertainty(source="laplace", policy="switch", score="logit_variance")
    assert settings.around(FedAvg()).score == "logit_variance"  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigurationError, match="not a score of 'fedavg', expected one of unfamiliar, epistemic, aleatoric, total"
    ):
        caveat.Uncertainty(policy="switch", score="logit_variance").around(FedAvg())
    assert settings.fitting(FedBN()) == settings
    assert settings.fitting(FedPN()) == caveat.Uncertainty(policy="switch")


# Whole runs


@pytest.mark.parametrize("source", ["laplace", "ensemble", "snapshots"])
def test_a_run_says_what_its_predictions_are_uncertain_by(source: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    silos = caveat.data.from_arrays({f"silo-{k}": (draw.normal(size=(120, 4)), np.arange(120) % 3) for k in range(2)})
    settings = caveat.Uncertainty(source=source, ensemble_size=None if source == "laplace" else 2)
    run = caveat.run(silos, FedAvg(), rounds=2, uncertainty=settings, out=tmp_path / "run")
    found = run.summary["source"]
    assert found["name"] == source
    prediction = run.predictor("silo-1")(silos.named("silo-1").test.x)
    rounds = [message.t for message in read_ledger(tmp_path / "run" / "ledger.jsonl").messages if not message.split]
    if source != "laplace":
        assert found["ensemble_size"] == 2
        trained = {
            message.t for message in read_ledger(tmp_path / "run" / "ledger.jsonl").messages if message.phase == "train"
        }
        assert trained == (set(range(4)) if source == "ensemble" else {0, 1})
        assert (prediction.epistemic > 0).any()
    else:
        assert found["prior_precision"]["global"] > 0
        assert {0, 1, 2} <= set(rounds)
        assert "logit_variance" in prediction.scores
