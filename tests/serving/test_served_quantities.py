"""A served quantity or time has the values of `caveat predict`, and outcomes outside of intervals are watched."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import caveat, one_error

import caveat as library
from caveat import Run, export_model
from caveat.export.exported_metadata import recorded
from caveat.export.wrong_outcomes import Promised
from caveat.files import read
from caveat.files.schema import WatchFile
from caveat.serving.app import service
from caveat.serving.inference_thread import AnsweringThread, AnswerLog, Served
from caveat.serving.served_model import OnnxModel, RunModel, ServedModel
from caveat.serving.watch import Watch

testclient = pytest.importorskip("fastapi.testclient")
pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.filterwarnings("ignore::caveat.core.DataWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FIGURES = {
    "quantity": ("value", "mean", "low", "high", "spread"),
    "time": ("median", "low", "risk_5", "spread"),
}
TRAINING = library.Training(lr=0.01, batch_size=32, local_epochs=2)


def table(path: Path, predict: str, seed: int, rows: int = 160, shift: float = 0) -> Path:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    y = np.abs(5 + 3 * x[:, 0] + rng.normal(size=rows)) + shift
    died = [f",{int(each)}" for each in rng.random(rows) < 0.6] if predict == "time" else [""] * rows
    lines = [f"{a:.3f},{b:.3f},{t:.3f}{d}" for (a, b), t, d in zip(x, y, died, strict=True)]
    path.write_text("\n".join(["a,b,days" + ",died" * (predict == "time"), *lines]) + "\n")
    return path


@pytest.fixture(scope="module", params=["quantity", "time"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    paths = [table(folder / f"{name}.csv", request.param, seed) for seed, name in enumerate(("north", "south"))]
    more = {"event": "died", "horizons": (5.0,)} if request.param == "time" else {}
    with warnings.catch_warnings(action="ignore"):
        silos = library.data.from_files(*paths, target="days", predict=request.param, **more)
        return library.run(silos, library.FedAvg(rounds=5, training=TRAINING), out=folder / "run")


@contextmanager
def asked(model: ServedModel, watch: Watch | None = None, audit: Path | None = None) -> Iterator[Any]:
    worker = AnsweringThread([Served("stay", model, watch)], None if audit is None else AnswerLog(audit))
    with testclient.TestClient(service(worker), "http://localhost:8000") as client:
        yield client


def kind(run: Run) -> str:
    return str(run.preparation.target.predicts)


@pytest.mark.parametrize("exported", [False, True])
def test_answers_are_those_of_predict(run: Run, exported: bool, nowhere: Path) -> None:
    model: ServedModel = RunModel(run, "north")
    if exported:
        model = OnnxModel(export_model(run, "north", out=nowhere / "m.onnx", training_features=True))
    inputs = table(nowhere / "rows.csv", kind(run), 7, 12)
    assert caveat("predict", run.folder, inputs, "--silo", "north", "--out", "p.csv").exit_code == 0
    wanted = list(csv.DictReader(Path("p.csv").read_text().splitlines()))
    rows = [{name: float(row[name]) for name in "ab"} for row in csv.DictReader(inputs.read_text().splitlines())]
    names = FIGURES[kind(run)]
    with asked(model, audit=nowhere / "audit.jsonl") as client:
        told = client.post("/predict", json={"rows": rows}).json()
        outputs = client.post("/invocations", json={"dataframe_records": rows}).json()["predictions"]
        tensors = [{"name": k, "shape": [12], "datatype": "FP64", "data": [row[k] for row in rows]} for k in "ab"]
        found = client.post("/v2/models/stay/infer", json={"inputs": tensors}).json()["outputs"]
    assert any("with a probability of at least 0.9" in each for each in told["promises"])
    for i, (answer, row) in enumerate(zip(told["answers"], wanted, strict=True)):
        assert tuple(answer)[: len(names)] == names
        for name in names:
            value = float("inf") if answer[name] is None else answer[name]
            assert value == pytest.approx(float(row[name]), abs=1e-4, rel=1e-4), name
            assert outputs[name][i] == answer[name]
        assert (answer["decision"], answer["reason"]) == (row["decision"], row["reason"])
        assert answer["typicality"] == pytest.approx(float(row["typicality"]), abs=1e-8)
        assert not {"label", "probabilities"} & answer.keys()
    assert set(names) <= {each["name"] for each in found}
    line = json.loads((nowhere / "audit.jsonl").read_text().splitlines()[0])
    assert line[names[0]] == told["answers"][0][names[0]]


@pytest.mark.parametrize("exported", [False, True])
def test_outcomes_outside_of_intervals_are_misses(run: Run, exported: bool, tmp_path: Path) -> None:
    model: ServedModel = RunModel(run, "north")
    if exported:
        model = OnnxModel(export_model(run, "north", out=tmp_path / "stay.onnx"))
    assert model.promised is not None
    assert (round(model.promised.risk, 9), model.promised.ranked_among) == (0.1, model.n_calibration)
    rows = [{"a": a, "b": 0.5} for a in (-1.0, 0.0, 1.0)]
    state = tmp_path / "state.json"
    watch = Watch.opened(state, model, 0.01)
    with asked(model, watch) as client:
        told = client.post("/predict", json={"rows": rows}).json()
        low = [each["low"] for each in told["answers"]]
        given = [{"id": told["id"], "row": 0, "label": max(low[0], 0) + 0.01}]
        given += [{"id": told["id"], "row": 1, "label": 1000}, {"id": told["id"], "row": 1, "label": 3}]
        assert client.post("/outcomes", json={"outcomes": given}).json() == {"counted": 2, "not_counted": [2]}
        refused = client.post("/outcomes", json={"outcomes": [{"id": told["id"], "row": 2, "label": "long"}]}).json()
    assert "row 0, column 'label', expected a finite number" in refused["error"]
    watch.save(state)
    kept = Watch.opened(state, model, 0.01)
    misses = int(kind(run) == "quantity")  # no time is above a lower bound
    assert (kept.monitors["outcomes"].t, int(kept.record().monitors["outcomes"]["errors"])) == (2, misses)
    assert len(kept.answered) == 1
    assert kept.add_outcome(told["id"], 2, low[2] - 0.01)
    assert int(kept.record().monitors["outcomes"]["errors"]) == misses + 1


def test_watch_raises_an_alarm_if_intervals_miss(run: Run, nowhere: Path) -> None:
    watch = ("watch", run.folder, "rows.csv", "--silo", "north", "--target", "days", "--state", "state.json")
    table(nowhere / "rows.csv", kind(run), 3, 40)
    done = caveat(*watch)
    assert done.exit_code == 0, done.output
    assert "outcomes: 40 counted" in done.stdout
    if kind(run) == "quantity":
        table(nowhere / "rows.csv", "quantity", 4, 40, shift=30)
        assert "ALARM of outcomes" in caveat(*watch).stdout
        assert {each.monitor for each in read(nowhere / "state.json", WatchFile).alarms} == {"outcomes"}
    (nowhere / "rows.csv").write_text((nowhere / "rows.csv").read_text() + "1,1,long" + ",1" * (kind(run) == "time"))
    assert "'long'" in one_error(caveat(*watch), 3)


def test_a_guarantee_is_about_the_tolerance_and_answered_inputs() -> None:
    found = {"value": np.array([5.0, 5.0]), "decision": np.array([0, 2]), "low": np.array([1.0, 1.0])}
    assert Promised(0.2, 2.0).wrong(found, np.array([7.5, 7.5])) == [True, None]
    assert Promised(0.2, 2.0).wrong(found, np.array([6.5, 6.5])) == [False, None]
    assert Promised(0.1, ranked_among=20).wrong(found, np.array([0.5, 7.5])) == [True, False]


def test_a_silo_without_its_own_quantile_promises_nothing(run: Run) -> None:
    assert Promised.of(*recorded(run.experiment, "north")) is not None
    summary, record = recorded(run.experiment, "north")
    few = record.model_copy(update={"n_calibration": 8})
    assert Promised.of(summary, few) is None
