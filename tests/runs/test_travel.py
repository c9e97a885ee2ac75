"""A finished run is a model that travels: elsewhere, without any data, it predicts the same to the last bit."""

from __future__ import annotations

import csv
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import federations
import numpy as np
import pytest
import torch
from torch import Tensor

import caveat
from caveat import METHODS, Prediction, Run
from caveat.config import load
from caveat.core import Method
from caveat.data import Silos, noted_inputs
from caveat.runs.configured import start
from caveat.runs.local import LocalRun
from caveat.runs.spec import spec_of

MLP = caveat.ModelSettings(name="mlp", width=4, features=4, hidden=4)
QUICK: dict[str, Any] = {"local_epochs": 1, "batch_size": 16, "lr": 0.01}
SETS = [
    "rounds=1", "data.target=ill", "model.name=mlp", "model.width=4", "model.features=4", "model.hidden=4",
    "training.local_epochs=1", "training.batch_size=16", "uncertainty.mc_samples=2", "uncertainty.sets=0.8",
    "evaluation.every=10", "beside=[]", "data.source=csv:coast.csv,hill.csv",
]  # fmt: skip
FEW = {
    "uefl": ["method.iterations=2", "method.extra_rounds=1", "method.codewords=4"],
    "fedpn": ["method.layers=1", "method.personal_epochs=1"],
}
NEW = [["61", "", "yes"], ["", "3.5", "no"], ["34", "-1", "perhaps"], ["52", "2", ""]]


def rows(name: str, generator: np.random.Generator, words: tuple[str, ...]) -> None:
    with open(name, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "value", "smokes", "ill"])
        for i in range(60):
            age, value = generator.integers(20, 80), round(float(generator.normal(2, 3)), 2)
            missing = generator.random() < 0.1
            word = words[generator.integers(len(words))]
            writer.writerow([age, "" if missing else value, word, "yes" if (value > 2) ^ (i % 9 == 0) else "no"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a run begins in, with tables; and beside it one with new rows, where it is to go."""
    (tmp_path / "home").mkdir()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    generator = np.random.default_rng(0)
    rows("coast.csv", generator, ("yes", "no", "before"))
    rows("hill.csv", generator, ("no", "yes"))
    with open("../away/new.csv", "w", newline="") as file:
        csv.writer(file).writerows([["age", "value", "smokes"], *NEW])
    return tmp_path / "home"


def moved(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run, where there are none of the data that it was made of."""
    away = home.parent / "away"
    shutil.move(home / "run", away / "model")
    shutil.rmtree(home)
    monkeypatch.chdir(away)
    return Path("model")


def with_data(folder: Path, *sets: str) -> Run:
    """The run of a configuration, as it is where it was made."""
    config = load(None, [*SETS, *sets])
    start(config, folder)
    return Run(LocalRun(spec=spec_of(config), folder=folder, silos=caveat.data.load(config.data, config.seed)))


def tensors(found: Prediction) -> dict[str, Tensor]:
    """All numbers of a prediction."""
    named = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    flat = {k: v for k, v in named.items() if isinstance(v, Tensor)}
    return flat | found.uncertainty | found.scores


def assert_same(found: Prediction, expected: Prediction) -> None:
    one, other = tensors(found), tensors(expected)
    assert one.keys() == other.keys()
    assert "probs" in one
    for name in one:
        assert torch.equal(one[name], other[name]), name
    assert found.input_notes == expected.input_notes


@pytest.mark.filterwarnings("ignore::caveat.core.DataWarning")
@pytest.mark.parametrize("sets", [
    *([f"method.name={name}", *FEW.get(name, ())] for name in METHODS if name != "ditto"),
    ["method.name=fedavg", "uncertainty.source=ensemble", "uncertainty.members=2"],
    ["method.name=fedper", "uncertainty.source=laplace", "uncertainty.policy=switch"],
    ["method.name=apfl", "uncertainty.policy=guaranteed", "uncertainty.risk=0.5", "uncertainty.per=silo"],
    ["method.name=fedavg", "privacy.clip=1.0", "server.optimizer=adam"],
], ids=" ".join)  # fmt: skip
def test_a_run_of_the_command_line_predicts_the_same_without_data(
    sets: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, inputs = with_data(home / "run", *sets), home.parent / "away" / "new.csv"
    names = before.silos.names
    expected = {name: before.predictor(name)(noted_inputs(inputs, before.silos, name)) for name in names}
    answers = {name: before.answers(name)(noted_inputs(inputs, before.silos, name)) for name in names}
    after = caveat.load(moved(home, monkeypatch))
    assert list(after.preparation.names) == names
    for name in names:
        given = noted_inputs("new.csv", after.preparation, name)
        assert_same(after.predictor(name)(given), expected[name])
        found = after.answers(name)(given)
        assert found.keys() == answers[name].keys()
        for model, answer in answers[name].items():
            assert_same(found[model], answer)
    assert expected[names[0]].input_notes[2] == "unseen category of smokes"


def features(seed: int = 0) -> Silos:
    draw = np.random.default_rng(seed)
    return caveat.data.from_arrays({f"silo-{k}": (draw.normal(size=(60, 4)), np.arange(60) % 3) for k in range(2)})


def called(method: Method, out: Path | str, silos: Silos | None = None, **given: Any) -> Run:
    few = {name: value for name, value in (("rounds", 1), ("iterations", 2)) if hasattr(method, name)}
    method = dataclasses.replace(method, **few)  # type: ignore[type-var]
    uncertainty = caveat.Uncertainty(mc_samples=getattr(method, "mc_samples", 20), sets=0.8)
    known = {"model": MLP, "every": 10, "uncertainty": uncertainty}
    return caveat.run(silos or features(), method, out=out, **known | given)


@pytest.mark.parametrize("method", federations.METHODS, ids=repr)
def test_a_call_in_python_is_opened_without_data(method: Method, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = called(method, "run")
    x = before.silos[0].test.x.numpy()
    expected = before.predictor("silo-1")(x)
    after = caveat.load(moved(home, monkeypatch))
    assert_same(after.predictor("silo-1")(x), expected)
    assert after.experiment.complete_method == before.experiment.complete_method
    assert after.summary == caveat.load("model").summary
