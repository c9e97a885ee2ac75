"""The library in Python: what a call refuses before anything runs, and what an interrupted one continues to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import caveat
from caveat.config import Evaluation, Federation
from caveat.config.settings import ENGINES
from caveat.core import ConfigurationError, DataError, Method
from caveat.data.silo_collection import Silos
from caveat.runs.progress import Silent

SMALL: dict[str, Any] = {"rounds": 3, "model": caveat.ModelSettings(name="mlp", width=8, features=4, hidden=8)}


@pytest.fixture(scope="module")
def silos() -> Silos:
    draw = np.random.default_rng(0)
    return caveat.data.from_arrays({f"silo-{k}": (draw.normal(size=(120, 4)), np.arange(120) % 3) for k in range(3)})


@pytest.fixture(scope="module")
def run(silos: Silos) -> caveat.Run:
    return caveat.run(silos, caveat.FedAvg(), **SMALL)


class Stop(Silent):
    def round(self, number: int, *rest: object) -> None:
        raise KeyboardInterrupt


def interrupted(silos: Silos, out: Path, method: caveat.FedAvg | None = None, **given: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        caveat.run(silos, method or caveat.FedAvg(), out=out, progress=Stop(), **SMALL | given)


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        (caveat.FedAvg(), {"seed": 1}, "seed = 0, not 1"),
        (caveat.FedBN(), {}, "method.name = 'fedavg', not 'fedbn'"),
        (caveat.FedAvg(training=caveat.Training(lr=0.01)), {}, "training.lr = 0.001, not 0.01"),
        (caveat.FedAvg(), {"rounds": 5}, "rounds = 3, not 5"),
        (caveat.FedAvg(), {"model": caveat.ModelSettings(name="mlp")}, "model.width = 8, not None"),
        (caveat.FedAvg(), {"participation": 0.5}, "federation.participation = 1.0, not 0.5"),
        (caveat.FedAvg(), {"newcomers": ["silo-2"]}, "federation.newcomers = \\[\\], not \\['silo-2'\\]"),
    ],
)
def test_an_interrupted_call_is_not_continued_by_another_one(
    silos: Silos, tmp_path: Path, method: caveat.FedAvg, given: dict[str, Any], said: str
) -> None:
    interrupted(silos, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match=said):
        caveat.run(silos, method, out=tmp_path, **SMALL | given)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_same_call_continues_whatever_the_workers(silos: Silos, run: caveat.Run, tmp_path: Path) -> None:
    interrupted(silos, tmp_path)
    found = caveat.run(silos, caveat.FedAvg(), out=tmp_path, workers=2, **SMALL)
    assert found.summary["silos"] == run.summary["silos"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"participation": 2.0}, "participation = 2.0: must be at most 1"),
        ({"participation": 0.0}, "participation = 0.0: must be greater than 0"),
        ({"participation": float("nan")}, "participation = nan: must be"),
        ({"min_silos": 0}, "min_silos = 0: must be at least 1"),
        ({"min_silos": 4}, "min_silos = 4, but there are 3 silos"),
        ({"seed": -1}, "seed = -1: must be a whole number, at least 0"),
        ({"seed": 0.5}, "seed = 0.5: must be a whole number"),
        ({"workers": 0}, "workers = 0: must be at least 1"),
        ({"every": 0}, "every = 0: must be at least 1"),
        ({"every": None}, "every = None: must be a valid integer"),
        ({"rounds": 0}, "rounds = 0: must be greater than 0"),
        ({"model": "mlp"}, "model = 'mlp': expected a caveat.ModelSettings"),
        ({"uncertainty": "switch"}, "uncertainty = 'switch': expected a caveat.Uncertainty"),
        ({"n_silos": 0}, "n_silos = 0: must be at least 1"),
        ({"newcomers": "silo-1"}, "newcomers = 'silo-1': expected a list"),
    ],
)
def test_values_that_a_configuration_refuses_are_refused(
    silos: Silos, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^(federation.)?{said}"):
        caveat.run(silos, caveat.FedAvg(), out=tmp_path / "run", **SMALL | given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fedavg", caveat.FedAvg, None])
def test_a_method_is_an_object(silos: Silos, method: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected an object, such as"):
        caveat.run(silos, method)


def test_silos_are_silos() -> None:
    with pytest.raises(ConfigurationError, match="silos has type dict, expected Silos"):
        caveat.run({"a": 1}, caveat.FedAvg())  # type: ignore[arg-type]
    with pytest.raises(DataError, match="silo 1: expected a string as the name"):
        caveat.data.from_arrays({1: (np.zeros((9, 2)), np.zeros(9, int))})  # type: ignore[dict-item]


def test_a_seed_of_numpy_is_the_same_seed(silos: Silos, run: caveat.Run) -> None:
    assert caveat.run(silos, caveat.FedAvg(), seed=np.int64(0), **SMALL).summary["silos"] == run.summary["silos"]  # type: ignore[arg-type]


def test_predictors_take_lists_and_say_what_they_do_not_take(run: caveat.Run) -> None:
    predict, x = run.predictor("silo-0"), run.silos[0].test.x
    assert torch.equal(predict(x.tolist()).probs, predict(x).probs)
    for wrong in (x[:0], x[:, :3], x[0], x[:0].numpy()):
        with pytest.raises(DataError, match=r"inputs have shape .*expected \(N, 4\)|expected at least one"):
            predict(wrong)
    with pytest.raises(DataError, match="float64, expected"):
        predict(x.double())
    with pytest.raises(DataError, match="inputs: rows of different lengths"):
        predict([[1.0], [1.0, 2.0]])


def test_rows_of_a_table_are_numbers(tmp_path: Path) -> None:
    lines = [f"{k / 60 - (k % 2)},{'xyz'[k % 3]},{k % 2},{'ab'[k // 90]}" for k in range(180)]
    (tmp_path / "t.csv").write_text("\n".join(["number,category,label,silo", *lines]))
    silos = caveat.data.load(
        caveat.data.DataSettings(source=f"csv:{tmp_path / 't.csv'}", target="label", silo_column="silo"), 0
    )
    predict = caveat.run(silos, caveat.FedAvg(training=caveat.Training(batch_size=8)), **SMALL).predictor("a")
    assert predict(np.array([[0.1, 0], [np.nan, 2]])).probs.isfinite().all()
    for wrong in (np.array([[0.1, "x"]], dtype=object), [[0.1, "x"]], [[None, 1]], [[np.inf, 0]]):
        with pytest.raises(DataError, match="expected finite numbers"):
            predict(wrong)
    with pytest.raises(DataError, match="expected at least one"):
        predict(np.zeros((0, 2)))


@pytest.mark.parametrize("policy", ["always", "switch", "guaranteed"])
@pytest.mark.parametrize(
    "method",
    [caveat.FedAvg(), caveat.FML(), caveat.FedPN(layers=2, personal_steps=5), caveat.TrFedDis()],
    ids=lambda m: m.name,
)
def test_no_model_is_trusted_with_what_is_no_number(silos: Silos, method: Method, policy: Any) -> None:
    found = caveat.run(silos, method, uncertainty=caveat.Uncertainty(policy=policy), **SMALL | {"rounds": 1})
    x = found.silos[0].test.x[:4].clone()
    plain = found.predictor("silo-0")(x)
    x[1:3] = torch.nan
    with_nan = found.predictor("silo-0")(x)
    assert not with_nan.probs[1:3].isfinite().all()
    assert with_nan.decision[1:3].tolist() == [caveat.Decision.ABSTAIN] * 2
    assert torch.equal(with_nan.decision[[0, 3]], plain.decision[[0, 3]])


def test_nothing_of_the_data_is_printed(run: caveat.Run) -> None:
    silo = run.silos[0]
    assert repr(run) == f"Run({str(run.folder)!r}, fedavg, 3 silos)"
    assert repr(run.silos) == "Silos(3 silos, inputs (4,), 3 classes)"
    assert repr(silo.train) == f"Data({len(silo.train)} of (4,))"
    assert "tensor" not in repr(silo)
    assert "tensor" not in repr(run.experiment)
    assert "tensor" not in repr(silo.context(torch.nn.Identity()))


@pytest.mark.parametrize("left", ["state/other", "splits.json", "grid.json", "silo.json"])
def test_a_folder_of_something_else_is_not_continued(silos: Silos, tmp_path: Path, left: str) -> None:
    (tmp_path / left).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="is not the folder of a call's run"):
        caveat.run(silos, caveat.FedAvg(), out=tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == [left.partition("/")[0]]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        caveat.run(silos, caveat.FedAvg(), out=tmp_path / "file", **SMALL)


@dataclass(frozen=True)
class Odd(caveat.FedAvg):
    odd: Any = None


@pytest.mark.parametrize("odd", [Path("x"), {1, 2}, float("inf"), {(1, 2): 3}, print])
def test_fields_that_cannot_be_written_are_refused_before_anything_runs(silos: Silos, tmp_path: Path, odd: Any) -> None:
    with pytest.raises(ConfigurationError, match="the fields of 'odd' must be plain values"):
        caveat.run(silos, Odd(odd=odd), out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_method_of_ones_own_is_continued_with_its_fields(silos: Silos, tmp_path: Path) -> None:
    interrupted(silos, tmp_path, Odd(odd=(1, (2, None))))
    with pytest.raises(ConfigurationError, match=r"method.odd = \[1, \[2, None\]\], not \[1, \[3, None\]\]"):
        caveat.run(silos, Odd(odd=(1, (3, None))), out=tmp_path, **SMALL)
    caveat.run(silos, Odd(odd=(1, (2, None))), out=tmp_path, **SMALL)


@dataclass(frozen=True)
class Bare(Method):
    """A method without the usual fields."""


class NoDataclass(Method): ...


@pytest.mark.parametrize("method", [Bare(), NoDataclass()])
@pytest.mark.parametrize("given", [{"rounds": 3}, {"training": caveat.Training()}])
def test_a_method_without_such_a_field_is_named(silos: Silos, method: Method, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} was passed, but {method.name!r} has no field"):
        caveat.run(silos, method, **given)


def test_what_a_call_without_a_folder_has_computed_is_not_lost(
    silos: Silos, run: caveat.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt) as stopped:
        caveat.run(silos, caveat.FedAvg(), progress=Stop(), **SMALL)
    (folder,) = tmp_path.iterdir()
    assert f"continue with the same call and out={str(folder)!r}" in stopped.value.__notes__[0]
    assert caveat.run(silos, caveat.FedAvg(), out=folder, **SMALL).summary["silos"] == run.summary["silos"]


def test_mc_samples_take_effect_wherever_they_are_said(silos: Silos) -> None:
    def method(**given: Any) -> Any:
        return caveat.run(silos, **SMALL | {"rounds": 1} | given).experiment.method

    assert method(method=caveat.FedAvg(), uncertainty=caveat.Uncertainty(mc_samples=3)).mc_samples == 3
    assert method(method=caveat.FedAvg(mc_samples=5), uncertainty=caveat.Uncertainty(policy="always")).mc_samples == 5
    assert method(method=caveat.FedAvg(mc_samples=5)).mc_samples == 5
    with pytest.raises(ConfigurationError, match=r"mc_samples = 5 and uncertainty.mc_samples = 3; set only one"):
        method(method=caveat.FedAvg(mc_samples=5), uncertainty=caveat.Uncertainty(mc_samples=3))


@pytest.mark.parametrize("function", [caveat.run, caveat.audit])
@pytest.mark.parametrize(("name", "value"), [("participation", 7), ("min_silos", 4), ("rounds", 0), ("workers", 0)])
def test_runs_and_audits_refuse_the_same_values(silos: Silos, function: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} = {value}") as refused:
        function(silos, caveat.FedAvg(), **{name: value})
    assert len(str(refused.value).splitlines()) == 1


def test_a_call_in_python_takes_the_keys_of_a_configuration() -> None:
    """Every key of `[federation]` and `[evaluation]` that means something on one machine."""
    others = {key for (_, key), (engine, _) in ENGINES.items() if engine == "flower"}
    keys = {field.name for cls in (Federation, Evaluation) for field in fields(cls)} - others
    arguments = inspect.signature(caveat.run).parameters
    assert keys <= set(arguments)
    assert arguments["participation"].default == 1.0
    assert set(inspect.signature(caveat.audit).parameters) - set(arguments) == {"seeds", "fractions"}


def test_an_argument_that_there_is_none_of_is_a_type_error(silos: Silos) -> None:
    for function in (caveat.run, caveat.audit):
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'round'"):
            function(silos, caveat.FedAvg(), round=3)  # type: ignore[call-arg]


def test_nothing_is_left_of_a_refused_call(silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError):
        caveat.run(silos, caveat.FedAvg(), newcomers=["nobody"], **SMALL)
    assert not any(tmp_path.iterdir())


def test_what_a_run_does_is_logged(silos: Silos, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="caveat"):
        caveat.run(silos, caveat.FedAvg(), out=tmp_path / "run", **SMALL)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
    assert "fedavg from round 0" in caplog.text
    assert "finished after 3 training rounds" in caplog.text


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda silos: caveat.run(silos, caveat.FedAvg(), out=3, **SMALL), "out has type int, expected a path"),
        (lambda silos: caveat.run(silos, caveat.FedAvg(), out="x" * 300, **SMALL), "File name too long"),
        (lambda silos: caveat.run(silos, caveat.FML(), personal=3, **SMALL), "personal = 3: expected a list of"),
        (
            lambda silos: caveat.run(silos, caveat.FML(), personal=["x"], **SMALL),
            "personal = ['x']: expected a list of",
        ),
        (lambda silos: caveat.run(silos, caveat.FedAvg(), splits=["test", "test"], **SMALL), "contains 'test' twice"),
        (
            lambda silos: caveat.run(silos, caveat.FedAvg(), seed=10**5000, **SMALL),
            "with too many digits: must be a whole",
        ),
        (
            lambda silos: caveat.run(silos, caveat.FedAvg(), seed="x" * 9000, **SMALL),
            "(9,002 characters): must be a whole",
        ),
        (lambda silos: caveat.run(silos, caveat.FedAvg(), **SMALL | {"rounds": 10**30}), "must be at most 1000000"),
        (lambda silos: caveat.run(silos, caveat.FedAvg(), **SMALL | {"workers": 10**9}), "must be at most 1024"),
        (lambda silos: caveat.load(None), "folder has type NoneType, expected a path"),
        (lambda silos: caveat.load("x" * 5000), "File name too long"),
        (lambda silos: caveat.load("gone"), "gone: no such folder"),
        (lambda silos: caveat.audit(silos, caveat.FedAvg(), seeds=3), "seeds = 3: expected a list"),
        (lambda silos: caveat.audit(silos, caveat.FedAvg(), seeds=[float("nan")]), "seeds = nan: must be a whole"),
        (
            lambda silos: caveat.audit(silos, caveat.FedAvg(), fractions=["x"]),
            "shares = ['x']: expected a list of numbers",
        ),
        (
            lambda silos: caveat.audit(silos, caveat.FedAvg(), fractions=[float("nan"), 1]),
            "fractions: nan is not a fraction",
        ),
        (lambda silos: caveat.audit(silos, caveat.FedAvg(), out=3), "out has type int, expected a path"),
    ],
)
def test_arguments_of_another_type_are_one_line(call: Callable[[Silos], object], told: str, silos: Silos) -> None:
    with pytest.raises(ConfigurationError) as caught:
        call(silos)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
