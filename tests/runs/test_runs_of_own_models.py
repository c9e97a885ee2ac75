"""Runs with models of one's own in Python: what is around methods, silos' own, warm starts, what changed since."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import assert_same
from own_models import Adapted, Headless, Plain, Unusual
from own_runs import FAST, MODEL, model_of, run, three_silos
from torch import Tensor, nn

import caveat
from caveat.core import ConfigurationError, DataError, RunError
from caveat.data.silo_collection import Silos
from caveat.files import read_payload
from caveat.runs.progress import Silent


@pytest.fixture(scope="module")
def silos() -> Silos:
    return three_silos()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# Own models with everything around methods


WAYS: dict[str, dict[str, Any]] = {
    "private": {"privacy": caveat.Privacy(clip_norm=1.0, noise_multiplier=0.1)},
    "ensemble": {"uncertainty": caveat.Uncertainty(source="ensemble", ensemble_size=2)},
    "laplace": {"uncertainty": caveat.Uncertainty(source="laplace")},
    "guaranteed": {"uncertainty": caveat.Uncertainty(policy="guaranteed", risk=0.5)},
    "server": {"server": caveat.ServerOptimizer(optimizer="adam", lr=0.01)},
    "state": {"training": dataclasses.replace(FAST, optimizer_state="keep")},
}


@pytest.mark.parametrize("code", [Adapted, Unusual])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.long
def test_what_is_around_a_method_takes_own_models(
    way: str, code: type[nn.Module], silos: Silos, tmp_path: Path
) -> None:
    one, two = (run(silos, tmp_path / str(n), model=code, workers=n, **WAYS[way]) for n in (1, 2))
    assert_same(model_of(one), model_of(two))
    said = one.predictor("s0")(silos.named("s0").test.x)
    assert said.familiarity is not None
    sums = said.probs.sum(1)
    assert torch.allclose(sums, torch.ones_like(sums))


def test_members_of_an_ensemble_begin_differently_where_weights_are_drawn_and_alike_where_given(
    silos: Silos, tmp_path: Path
) -> None:
    still = caveat.Training(batch_size=16, lr=1e-12, optimizer="sgd")
    spread = {}
    for name, code in (("drawn", Plain), ("given", Plain())):
        ensemble = caveat.Uncertainty(source="ensemble", ensemble_size=2)
        found = model_of(run(silos, tmp_path / name, model=code, training=still, uncertainty=ensemble))
        weights = [tensors["head.1.weight"] for group, tensors in found.items() if "head.1.weight" in tensors]
        assert len(weights) == 2
        spread[name] = float((weights[0] - weights[1]).abs().max())
    assert spread["given"] < 1e-6 < 1e-2 < spread["drawn"]


def test_encoders_compute_in_bfloat16_and_models_without_one_are_told(silos: Silos, tmp_path: Path) -> None:
    coarse = dataclasses.replace(FAST, precision="bfloat16")
    fine = run(silos, tmp_path / "a", model=Plain)
    rough = run(silos, tmp_path / "b", model=Plain, training=coarse)
    name = "head.1.weight"
    assert not torch.equal(model_of(fine)["model"][name], model_of(rough)["model"][name])
    with pytest.raises((ConfigurationError, RunError), match=r"bfloat16' needs an encoder, but Headless has none"):
        run(silos, tmp_path / "c", model=Headless, training=coarse)


class Viewed(nn.Module):
    """Reads feature maps as they lie in memory, as much code does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.drop, self.two = nn.Conv2d(1, 8, 3, padding=1), nn.Dropout(0.2), nn.Linear(512, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.drop(self.one(x).view(len(x), -1)))
        return out


def test_modules_keep_the_layout_in_memory_that_their_code_expects(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"s{k}": (rng.integers(0, 255, (60, 8, 8), np.uint8), rng.integers(0, 2, 60)) for k in range(2)}
    assert run(caveat.data.from_arrays(arrays), tmp_path / "a", model=Viewed).summary["rounds_run"] == 2


class Certain(nn.Sequential):
    """Drops nothing, and ends in a softmax."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1))


def test_what_makes_uncertainty_useless_is_told(silos: Silos, tmp_path: Path) -> None:
    with pytest.warns(caveat.core.DataWarning) as told:
        run(silos, tmp_path / "a", model=Certain, rounds=1)
    assert [text for text in ("Certain returns probabilities", "the model has no dropout") for each in told
            if text in str(each.message)] == ["Certain returns probabilities", "the model has no dropout"]  # fmt: skip
    laplace = caveat.Uncertainty(source="laplace")
    run(silos, tmp_path / "b", model=lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)), rounds=1,
        uncertainty=laplace)  # fmt: skip


def test_a_compiled_module_is_refused_in_a_line(silos: Silos, tmp_path: Path) -> None:
    class OptimizedModule(nn.Module):  # torch.compile itself takes seconds to import
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = Plain()

        def __len__(self) -> int:
            raise TypeError("Plain does not support len()")

    with pytest.raises(ConfigurationError, match=r"Plain is compiled .torch\.compile., expected the original module"):
        run(silos, tmp_path, model=OptimizedModule())


def test_an_audit_takes_an_own_model(silos: Silos, tmp_path: Path) -> None:
    found = caveat.audit(
        silos,
        caveat.FedAvg(),
        model=Plain,
        rounds=1,
        training=FAST,
        seeds=(0, 1),
        fractions=(0.5, 1),
        out=tmp_path / "a",
    )
    assert found


# Silos' own models


def test_silos_own_models_may_be_code_and_stay_at_their_silos(silos: Silos, tmp_path: Path) -> None:
    own = (caveat.PersonalModel(factory=Unusual, silos=("s1",)), caveat.PersonalModel(factory=Adapted))
    one, two = (run(silos, tmp_path / str(n), caveat.FML(), personal=own, workers=n) for n in (1, 2))
    assert_same(model_of(one), model_of(two))
    states = {s.name: next((one.folder / "state" / "silos" / s.name).glob("*.safetensors")) for s in silos}
    assert any("token" in name for name in read_payload(states["s1"])["own"])
    assert any(name.endswith("up") for name in read_payload(states["s0"])["own"])
    model = json.loads((one.folder / "model" / "model.json").read_text())
    assert model["personal"]["s1"]["factory"] == "own_models:Unusual"


# Warm starts


def test_a_run_begins_with_the_model_of_another(silos: Silos, tmp_path: Path) -> None:
    first = run(silos, tmp_path / "a")
    still = caveat.Training(batch_size=16, lr=1e-12, optimizer="sgd")
    second = run(silos, tmp_path / "b", caveat.FedProx(), init_from=first.folder, training=still)
    for name, tensor in model_of(second)["model"].items():
        if "running" not in name and "num_batches" not in name:
            assert torch.allclose(tensor, model_of(first)["model"][name], atol=1e-6), name


@pytest.mark.parametrize(
    "method",
    [
        caveat.UEFL(extra_rounds=1, iterations=2, codewords=4),
        caveat.FedPN(layers=2, personal_steps=5),
        caveat.TrFedDis(),
    ],
    ids=str,
)
@pytest.mark.long
def test_a_plain_model_begins_one_with_more_parts(method: Any, silos: Silos, tmp_path: Path) -> None:
    first = run(silos, tmp_path / "a")
    warm, cold = run(silos, tmp_path / "b", method, init_from=first.folder), run(silos, tmp_path / "c", method)
    name = next(name for name in model_of(warm)["model"] if name.endswith("0.weight"))
    assert not torch.equal(model_of(warm)["model"][name], model_of(cold)["model"][name])
    again = run(silos, tmp_path / "d", method, init_from=first.folder, workers=2)
    assert_same(model_of(warm), model_of(again))


def test_a_model_of_other_parts_is_refused_by_name(silos: Silos, tmp_path: Path) -> None:
    first = run(silos, tmp_path / "a", model=Headless)
    with pytest.raises(
        ConfigurationError, match=r"init_from = .*: its model has 'body.* which 'fedavg' on this model lacks"
    ):
        run(silos, tmp_path / "b", init_from=first.folder)
    for wrong in (tmp_path / "nowhere", first.folder / "model"):
        with pytest.raises(ConfigurationError, match=r"init_from = .* is not a finished run"):
            run(silos, tmp_path / "b", init_from=wrong)
    damaged = first.folder / MODEL
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(ConfigurationError, match=r"model\.safetensors differs from what was written"):
        run(silos, tmp_path / "b", model=Headless, init_from=first.folder)
    assert not (tmp_path / "b").exists()


# Going on with other code


class Stop(Silent):
    """Interrupts a run after its first round."""

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "method", [caveat.FedAvg(), caveat.FedPer(), caveat.FML()], ids=lambda method: str(method.name)
)
def test_an_interrupted_run_goes_on_to_the_same_bits(method: Any, silos: Silos, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(silos, tmp_path / "a", method, progress=Stop())
    assert_same(model_of(run(silos, tmp_path / "a", method)), model_of(run(silos, tmp_path / "b", method)))


class Changed(Plain):
    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.head[0].bias, 0.1)


Changed.__module__, Changed.__qualname__ = Plain.__module__, Plain.__qualname__


def test_a_run_does_not_go_on_with_code_that_makes_something_else(silos: Silos, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(silos, tmp_path, progress=Stop())
    with pytest.raises(RunError, match="the code of the model has changed since the run started") as why:
        run(silos, tmp_path, model=Changed)
    assert len(str(why.value).splitlines()) == 1
    with pytest.raises(ConfigurationError, match=r"model.factory = 'own_models:Plain', not 'own_models:Headless'"):
        run(silos, tmp_path, model=Headless)
    run(silos, tmp_path)


class Whole(nn.Module):
    """Neither names parts nor draws at random."""

    scale, training_scale = 1.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 6), nn.Linear(6, 3)
        nn.init.zeros_(self.two.weight)  # as many begin: nothing before it shows in what they say

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.one(x).relu() * (self.training_scale if self.training else self.scale))
        return out


class Scaled(Whole):
    scale = 1.01


class Trained(Whole):
    training_scale = 1.01


class Random(Whole):
    """Says something else each time, in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.training * float(np.random.normal())


for code in (Scaled, Trained):
    code.__name__, code.__qualname__ = Whole.__name__, Whole.__qualname__


@pytest.mark.parametrize("changed", [Scaled, Trained], ids=["evaluation", "training"])
def test_code_that_computes_something_else_is_noticed_though_its_parts_are_the_same(
    changed: type[nn.Module], silos: Silos, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(silos, tmp_path, model=Whole, progress=Stop())
    with pytest.raises(RunError, match=r"has changed since the run started: .* or outputs differ"):
        run(silos, tmp_path, model=changed)
    run(silos, tmp_path, model=Whole)


@pytest.mark.filterwarnings("ignore:the model has no dropout")
def test_code_that_draws_at_random_is_compared_by_its_parts(silos: Silos, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(silos, tmp_path, model=Random, progress=Stop())
    assert json.loads((tmp_path / "run.json").read_text())["code"]["says"][1] == []
    run(silos, tmp_path, model=Random)


def test_models_of_silos_that_are_swapped_are_noticed(silos: Silos, tmp_path: Path) -> None:
    one, two = Plain(), Plain()  # in files both are "own_models:Plain"
    own = [(caveat.PersonalModel(factory=a, silos=("s1",)), caveat.PersonalModel(factory=b))
           for a, b in ((one, two), (two, one))]  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run(silos, tmp_path, caveat.FML(), personal=own[0], progress=Stop())
    with pytest.raises(RunError, match="the code of the model has changed"):
        run(silos, tmp_path, caveat.FML(), personal=own[1])


@pytest.mark.parametrize("damage", ["", "{}", '{"schema": 1, "spec": {}, "engine": {}}'])
def test_what_the_code_made_cannot_be_lost_or_changed(damage: str, silos: Silos, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(silos, tmp_path, progress=Stop())
    kept = (tmp_path / "run.json").read_bytes()
    if damage:
        (tmp_path / "run.json").write_text(damage)
    else:
        (tmp_path / "run.json").unlink()
    with pytest.raises((DataError, RunError), match=r"run\.json|the code of the model"):
        run(silos, tmp_path)
    (tmp_path / "run.json").write_bytes(kept)
    run(silos, tmp_path)


# Runs that come to nothing


class Sour(nn.Module):
    """Says NaN of inputs as they are trained on, and numbers of those by which it is tried."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) * (float("nan") if self.training else 1)
        return out


@pytest.mark.filterwarnings("ignore:the model has no dropout")
@pytest.mark.parametrize(("code", "lr"), [(Sour, 0.01), (Plain, 1e4)])
def test_numbers_that_are_none_end_a_run_in_one_line(
    code: type[nn.Module], lr: float, silos: Silos, tmp_path: Path
) -> None:
    training = caveat.Training(batch_size=16, lr=lr, optimizer="sgd")
    with pytest.raises(RunError, match=r"training diverged; try a lower training.lr") as why:
        run(silos, tmp_path, model=code, training=training, rounds=4)
    assert len(str(why.value).splitlines()) == 1
