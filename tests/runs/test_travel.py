"""A finished run is a model that travels: elsewhere, without any data, it predicts the same to the last bit."""

from __future__ import annotations

import csv
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import caveat as command
from federations import METHODS as SMALL
from sampled import sampled
from torch import Tensor, nn

import caveat
from caveat import FML, METHODS, FedAvg, FedBN, Prediction, Run
from caveat.config import load
from caveat.core import CaveatError, ConfigurationError, DataError, Method, RunError
from caveat.core.settings import frozen_settings
from caveat.data import Data, Silo
from caveat.data.new_inputs import noted_inputs
from caveat.data.silo_collection import Silos
from caveat.nn.custom_model import KNOWN
from caveat.runs.local_run import LocalRun
from caveat.runs.spec import spec_of
from caveat.runs.start import start


class Plain(nn.Module):
    """A model of one's own, or an encoder of one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.out = nn.Linear(4, 5), nn.Dropout(0.1), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.drop(self.body(x).relu()))
        return out


@frozen_settings
class Mine(FedAvg):
    """A method of one's own."""

    mu: float = 0.1


MLP = caveat.ModelSettings(name="mlp", width=4, features=4, hidden=4)
PLAIN = caveat.Uncertainty(mc_samples=2, temperature_scaling=False, familiarity=False)
FAST = caveat.Training(batch_size=16, lr=0.01)
SETS = [
    "rounds=1", "data.target=ill", "model.name=mlp", "model.width=4", "model.features=4", "model.hidden=4",
    "training.local_epochs=1", "training.batch_size=16", "uncertainty.mc_samples=2", "uncertainty.set_coverage=0.8",
    "evaluation.every=10", "baselines=[]", "data.source=csv:coast.csv,hill.csv",
]  # fmt: skip
FEW = {
    "uefl": ["method.iterations=2", "method.extra_rounds=1", "method.codewords=4"],
    "fedpn": ["method.layers=1", "method.personal_epochs=1", "method.personal_steps=5"],
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
    *(
        pytest.param([f"method.name={each.values[0]}", *FEW.get(each.values[0], ())], marks=each.marks)
        for each in sampled(name for name in METHODS if name != "myditto")
    ),
    ["method.name=fedavg", "uncertainty.source=ensemble", "uncertainty.ensemble_size=2"],
    ["method.name=fedper", "uncertainty.source=laplace", "uncertainty.policy=switch"],
    ["method.name=apfl", "uncertainty.policy=guaranteed", "uncertainty.risk=0.5", "uncertainty.guarantee_scope=silo"],
    ["method.name=fedavg", "privacy.clip_norm=1.0", "server.optimizer=adam"],
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
    uncertainty = caveat.Uncertainty(mc_samples=getattr(method, "mc_samples", 20), set_coverage=0.8)
    plain = getattr(method, "training", FAST).optimizer == "sgd"  # which some methods need
    known = {"model": MLP, "training": None if plain else FAST, "every": 10, "uncertainty": uncertainty}
    return caveat.run(silos or features(), method, out=out, **known | given)


@pytest.mark.parametrize("method", sampled(SMALL), ids=repr)
def test_a_call_in_python_is_opened_without_data(method: Method, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = called(method, "run")
    x = before.silos[0].test.x.numpy()
    expected = before.predictor("silo-1")(x)
    after = caveat.load(moved(home, monkeypatch))
    assert_same(after.predictor("silo-1")(x), expected)
    assert after.experiment.complete_method == before.experiment.complete_method
    assert after.summary == caveat.load("model").summary


OWN: dict[str, Any] = {
    "frozen": {"model": caveat.ModelSettings(encoder=Plain, frozen=True, hidden=4)},
    "personal": {
        "personal": [
            caveat.PersonalModel(name="mlp", width=3, features=4, hidden=4, silos=("silo-1",)),
            caveat.PersonalModel(name="mlp", width=5, features=4, hidden=4),
        ]
    },
    "laplace": {"uncertainty": caveat.Uncertainty(source="laplace", mc_samples=5)},
    "ensemble": {"uncertainty": caveat.Uncertainty(source="ensemble", ensemble_size=2, mc_samples=2)},
    "guaranteed": {
        "uncertainty": caveat.Uncertainty(policy="guaranteed", guarantee_scope="domain", risk=0.5, confidence_level=0.6,
                                          mc_samples=2)
    },
    "optimiser, privacy, newcomers": {
        "server": caveat.ServerOptimizer(optimizer="adam"), "privacy": caveat.Privacy(clip_norm=1.0),
        "newcomers": ["silo-1"], "participation": 0.5, "min_silos": 1, "splits": ("test",), "n_silos": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_whatever_a_call_was_given_is_opened(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAVEAT_CACHE", str(home.parent / "cache"))
    before = called(FML() if name == "personal" else FedAvg(), "run", **OWN[name])
    x = before.silos[0].test.x
    expected = before.predictor("silo-0")(x)
    model = moved(home, monkeypatch)
    after = caveat.load(model, model=Plain) if name == "frozen" else caveat.load(model)
    assert_same(after.predictor("silo-0")(x), expected)
    with pytest.raises(DataError, match=r"only the program that made this run has the data: call caveat\.run again"):
        after.compute({"n": lambda prediction, y: len(y)})


def test_a_silo_that_took_no_part_needs_its_data(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Familiarity of its inputs is by what its model says of its own, which no round has asked."""
    before = with_data(home / "run", "method.name=fedavg", "federation.newcomers=['hill']")
    x = before.silos[0].test.x
    expected = before.predictor("coast")(x)
    assert_same(caveat.load("run").predictor("hill")(x), before.predictor("hill")(x))
    after = caveat.load(moved(home, monkeypatch))
    assert_same(after.predictor("coast")(x), expected)
    with pytest.raises(
        DataError, match=r"silo 'hill' did not take part in the rounds after training, .* cannot be read: "
    ):
        after.predictor("hill")(x)


def test_code_of_one_s_own_is_given_and_compared(home: Path) -> None:
    before = called(FedAvg(), "run", model=Plain)
    x = before.silos[0].test.x
    KNOWN.clear()
    with pytest.raises(ConfigurationError, match=r"import code: name the code yourself, .* caveat\.load\(RUN, model="):
        caveat.load("run")
    assert_same(caveat.load("run", model=Plain).predictor("silo-0")(x), before.predictor("silo-0")(x))
    with pytest.raises(RunError, match="has changed since the run started"):
        caveat.load("run", model=lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)))
    KNOWN.clear()


def test_a_method_of_one_s_own_has_to_be_known(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = called(Mine(mu=0.5), "run")
    with pytest.raises(ConfigurationError, match=r"run is a run of the method 'Mine', which is not built in"):
        caveat.load("run")
    monkeypatch.setattr(METHODS, "_added", {"mine": Mine})
    x = before.silos[0].test.x
    after = caveat.load("run")
    assert after.experiment.method == before.experiment.method
    assert_same(after.predictor("silo-0")(x), before.predictor("silo-0")(x))
    monkeypatch.setattr(METHODS, "_added", {"mine": type("Mine", (FedBN,), {})})
    with pytest.raises(ConfigurationError, match=r"mu: FedBN has no such setting|it is another method"):
        caveat.load("run")


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_the_same_call_returns_what_is_finished_and_writes_nothing(home: Path) -> None:
    first, before = called(FedAvg(), "run"), contents(Path("run"))
    again = called(FedAvg(), "run", workers=2)
    x = features()[0].test.x
    assert_same(again.predictor("silo-0")(x), first.predictor("silo-0")(x))
    assert again.summary == first.summary
    assert again.silos[0].test.y.equal(first.silos[0].test.y)
    for method, more, told in (
        (FedAvg(), {"seed": 1}, "has a finished run with seed = 0, not 1; make the same call to load it"),
        (FedBN(), {}, "has a finished run with method.name = 'fedavg'"),
        (FedAvg(), {"reset": ["silo-0"]}, "is finished, and its model was trained with these states"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            called(method, "run", **more)
    with pytest.raises(RunError, match="the data have changed since the run started"):
        called(FedAvg(), "run", features(1))
    assert contents(Path("run")) == before


@pytest.mark.parametrize("place", ["run.json", "splits.json", "preparation.json", "model/model.safetensors"])
def test_damage_of_a_call_s_folder_is_named(home: Path, place: str) -> None:
    called(FedAvg(), "run")
    file = Path("run", place)
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(DataError, match=f"{place} differs from what was written"):
        caveat.load("run").predictor("silo-0")
    file.unlink()
    with pytest.raises(CaveatError, match=f"{place}|is not a run"):
        caveat.load("run").predictor("silo-0")
    with pytest.raises(CaveatError, match=f"{place}|holds"):
        called(FedAvg(), "run").predictor("silo-0")


def test_an_unfinished_call_says_how_it_goes_on(home: Path) -> None:
    called(FedAvg(), "run")
    Path("run/summary.json").unlink()
    with pytest.raises(ConfigurationError, match=r"run is not finished; continue with the same call of caveat\.run"):
        caveat.load("run")


def test_a_population_is_kept_as_a_number(home: Path) -> None:
    def silo(number: int, name: str) -> Silo:
        draw = torch.Generator().manual_seed(number)
        x, y = torch.randn(20, 4, generator=draw), torch.arange(20) % 2
        return Silo(name, "", *(Data(x, y) for _ in range(4)))

    many = caveat.data.population(1_000, silo, ("no", "yes"))
    before = called(FedAvg(), "run", many, participation=0.002, n_silos=2, uncertainty=PLAIN)
    assert Path("run/preparation.json").stat().st_size < 1000
    after = caveat.load("run")
    x = torch.randn(3, 4)
    assert_same(after.predictor("silo-999")(x), before.predictor("silo-999")(x))
    with pytest.raises(ConfigurationError, match="no silo 'silo-1000'"):
        after.predictor("silo-1000")


def test_the_command_line_opens_a_call_and_data_are_read_where_they_are_asked_for(home: Path) -> None:
    called(FedAvg(), "run")
    np.savez("new.npz", x=np.zeros((3, 4), np.float32))
    said = command("predict", "run", "new.npz", "--silo", "silo-1")
    assert said.exit_code == 0, said.stderr
    assert len(said.stdout.splitlines()) == 4
    assert "no such silo; did you mean silo-1?" in command("predict", "run", "new.npz", "--silo", "silo1").stderr
    before = with_data(home / "other", "method.name=fedavg")
    after = caveat.load("other")
    assert after.silos.names == before.silos.names
    assert after.compute({"n": lambda prediction, y: float(len(y))})["mean"]["n"] > 1
    Path("hill.csv").unlink()
    with pytest.raises(DataError, match=r"other: the data of the run, .* cannot be read: .*hill\.csv"):
        caveat.load("other").silos  # noqa: B018
