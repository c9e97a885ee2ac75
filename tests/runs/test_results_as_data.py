"""A finished run's results as data: rows, a network as a module, figures of inputs with labels, and files' names."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import TINY, one_error, sets
from commands import caveat as command
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, roc_auc_score

import caveat
from caveat.core import ConfigurationError, DataError
from caveat.data.user_data import from_arrays
from caveat.methods import METHODS
from caveat.runs.finished_run import Run

MODEL = caveat.ModelSettings(name="mlp", width=4, features=6, hidden=6, dropout=0)


def arrays() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2, 120, 3)).astype("float32")
    return {name: (part, (part[:, 0] + part[:, 1] > 0).astype(int)) for name, part in zip("ab", x, strict=True)}


def trained(method: caveat.Method, out: Path | None = None, **given: Any) -> Run:
    training = caveat.Training(batch_size=16, optimizer="sgd", lr=0.2)
    silos = from_arrays(arrays(), classes=["well", "ill"])
    few = {name: value for name, value in (("rounds", 3), ("iterations", 1)) if hasattr(method, name)}
    method = dataclasses.replace(method, training=training, **few)  # type: ignore[type-var]
    return caveat.run(silos, method, model=MODEL, out=out, **given)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(caveat.FedAvg(), tmp_path_factory.mktemp("results") / "run")


def test_rounds_are_the_rows_of_the_file(run: Run) -> None:
    rows = run.rounds
    kept = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    assert rows == kept
    assert [(row["round"], row["silo"]) for row in rows[:4]] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_rounds_are_a_frame(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    assert pandas.DataFrame(run.rounds)["accuracy"].tolist() == [row["accuracy"] for row in run.rounds]


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.long
def test_every_method_gives_a_silo_s_network(name: str) -> None:
    alone = caveat.Uncertainty(temperature_scaling=False, familiarity=False, policy="always")
    made = trained(METHODS[name](), uncertainty=alone)
    x = made.silos["b"].test.x
    module = made.module("b")
    before = {key: value.clone() for key, value in module.state_dict().items()}
    said = made.predictor("b")(x)
    made.predictor("a")(x)  # works in the same workspace, of which this is a copy
    assert before.keys() == module.state_dict().keys()
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert not module.training
    if made.experiment.complete_method.softmax and name not in (
        "fedsr",
        "fedcr",
    ):  # which draw what their last layer is given
        torch.testing.assert_close(module(x).double().softmax(-1), said.probs, atol=1e-6, rtol=0)


def test_an_ensemble_has_no_single_network() -> None:
    ensemble = caveat.Uncertainty(source="ensemble", ensemble_size=2)
    with pytest.raises(ConfigurationError, match="an ensemble of several networks"):
        trained(caveat.FedAvg(), uncertainty=ensemble).module("a")


def test_figures_of_labelled_inputs_are_those_of_the_test_split_and_of_scikit_learn(run: Run) -> None:
    x, y = run.silos["a"].test
    found = run.evaluate(x, y, "a")
    (kept,) = (silo["test"] for silo in run.summary["silos"] if silo["name"] == "a")
    of_a_threshold = {"sensitivity", "specificity"}
    assert kept.keys() - found.keys() <= of_a_threshold
    null = kept.pop("ece_null", None)
    assert found.get("ece_null") == null
    assert {name: found[name] for name in kept if name not in of_a_threshold} == pytest.approx(
        {name: value for name, value in kept.items() if name not in of_a_threshold}
    )
    said = run.predictor("a")(x)
    assert found["accuracy"] == pytest.approx(accuracy_score(y, said.label))
    assert found["auroc"] == pytest.approx(roc_auc_score(y, said.probs[:, 1]), abs=0.002)
    assert found["confusion"] == confusion_matrix(y, said.label).tolist()
    by_name = [["well", "ill"][label] for label in y.tolist()]
    assert run.evaluate(x.numpy(), by_name, "a") == found


@pytest.mark.parametrize(
    ("y", "error", "text"),
    [
        ([0, 1], ConfigurationError, "2 labels for 24 inputs, expected one"),
        ([0, 2] * 12, DataError, r"y: unknown label 2, expected a class of the run \(well, ill\) or its number from 0"),
        (["sick"] * 24, DataError, "y: unknown label 'sick', expected a class"),
        ([[0, 1]] * 12, DataError, r"labels have shape \(12, 2\)"),
    ],
)
def test_other_labels_are_refused(run: Run, y: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run.evaluate(run.silos["a"].test.x, y, "a")


def test_files_with_labels_are_measured_on_the_command_line(run: Run, tmp_path: Path) -> None:
    x, y = run.silos["a"].test
    np.savez(tmp_path / "new.npz", x=x.numpy(), y=y.numpy())
    made = command("evaluate", run.folder, tmp_path / "new.npz", "--silo", "a")
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout) == run.evaluate(x, y, "a")
    assert "no such silo (available: a, b)" in one_error(
        command("evaluate", run.folder, tmp_path / "new.npz", "--silo", "A"), 2
    )
    np.savez(tmp_path / "bare.npz", x=x.numpy())
    told = one_error(command("evaluate", run.folder, tmp_path / "bare.npz", "--silo", "a"), 3)
    assert "no array 'y', expected one with the label" in told
    wrong = command("evaluate", run.folder, tmp_path / "new.npz", "--silo", "a", "--target", "y")
    assert "is not a table" in one_error(wrong, 2)


def test_tables_are_measured_by_their_column_of_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(1)
    rows = [f"{age},{'yes' if age > 50 else 'no'}" for age in draw.integers(20, 80, 200)]
    Path("coast.csv").write_text("\n".join(["age,ill", *rows]) + "\n")
    Path("new.csv").write_text("\n".join(["ill,age", "yes,70", "no,30", "yes,65"]) + "\n")
    tiny = sets(*TINY, "data.source=csv:coast.csv", "data.target=ill", "training.batch_size=16")
    made = command("run", *tiny, "--out", "run", "--quiet")
    assert made.exit_code == 0, made.stderr
    found = command("evaluate", "run", "new.csv", "--silo", "silo-0", "--target", "ill")
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["examples"] == 3
    assert "--target COLUMN" in one_error(command("evaluate", "run", "new.csv", "--silo", "silo-0"), 2)
    assert "new.csv has ill, age" in one_error(
        command("evaluate", "run", "new.csv", "--silo", "silo-0", "--target", "sick"), 2
    )


def test_images_are_predicted_by_name_and_measured_by_folder(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    images = {name: draw.integers(0, 256, (60, 4, 4), dtype=np.uint8) for name in "ab"}
    silos = from_arrays({name: (x, np.arange(60) % 2) for name, x in images.items()}, classes=["cat", "dog"])
    training = caveat.Training(batch_size=16)
    model = caveat.ModelSettings(name="mlp", width=4, features=6, hidden=6)
    caveat.run(silos, caveat.FedAvg(rounds=1, training=training), model=model, out=tmp_path / "run")
    for name, label in (("one", "cat"), ("two", "dog"), ("three", "dog")):
        (tmp_path / "new" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(images["a"][len(name)]).save(tmp_path / "new" / label / f"{name}.png")
    made = command("predict", tmp_path / "run", tmp_path / "new" / "dog", "--silo", "a")
    assert made.exit_code == 0, made.stderr
    assert [row["file"] for row in csv.DictReader(io.StringIO(made.stdout))] == ["three.png", "two.png"]
    found = command("evaluate", tmp_path / "run", tmp_path / "new", "--silo", "a")
    assert found.exit_code == 0, found.stderr
    assert np.sum(json.loads(found.stdout)["confusion"], 1).tolist() == [1, 2]
    (tmp_path / "new" / "dog").rename(tmp_path / "new" / "wolf")
    assert "label 'wolf', expected a class of the run (cat, dog" in one_error(
        command("evaluate", tmp_path / "run", tmp_path / "new", "--silo", "a"), 3
    )
