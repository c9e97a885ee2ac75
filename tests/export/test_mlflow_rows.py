"""A model that MLflow serves takes rows of a table as `caveat predict` takes them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table_runs import DICTIONARY, table

from caveat import Run, export_model
from caveat.core import DataError, Decision, Reason
from caveat.data.new_inputs import noted_inputs

pandas = pytest.importorskip("pandas")
pyfunc = pytest.importorskip("mlflow.pyfunc")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore:. of 2 inputs are unlike the training inputs")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Any]]:
    folder = tmp_path_factory.mktemp("served")
    with warnings.catch_warnings(action="ignore"):
        run = table(folder)
        export_model(run, "coast", "mlflow", folder / "model")
        yield run, pyfunc.load_model(str(folder / "model"))


def frame(**columns: Any) -> Any:
    return pandas.DataFrame({"age": [61.0, 34.0], "value": [2.0, 3.5], "smokes": ["no", "before"]} | columns)


TAKEN = {
    "as trained": lambda: frame(),
    "whole numbers": lambda: frame(age=[61, 34], value=np.array([2, 3], np.int64)),
    "small whole numbers": lambda: frame(age=np.array([61, 34], np.uint8)),
    "whole numbers or none": lambda: frame(age=pandas.array([61, None], dtype="Int64")),
    "float32": lambda: frame(age=np.array([61, np.nan], np.float32)),
    "objects": lambda: frame(age=pandas.Series([61, None], dtype=object)),
    "numbers as text": lambda: frame(age=["61", "34.5"]),
    "categories": lambda: frame(smokes=pandas.Categorical(["no", "before"])),
    "missing categories": lambda: frame(smokes=pandas.Categorical(["no", None])),
    "texts or none": lambda: frame(smokes=pandas.array(["no", None], dtype="string")),
    "texts that are missing": lambda: frame(smokes=["?", "N/A"], value=["", "na"]),
    "a column of none": lambda: frame(value=[None, None], smokes=[None, None]),
    "nothing at all": lambda: frame(age=[61.0, None], value=[None, None], smokes=["no", None]),
    "an unseen category": lambda: frame(smokes=["no", "sometimes"]),
    "a number for a category": lambda: frame(smokes=[1, 2.0]),
    "another order": lambda: frame()[["smokes", "value", "age"]],
    "one column more": lambda: frame(weight=[80, 70]),
    "another index": lambda: frame().set_index(np.array([7, 9])),
}


@pytest.mark.parametrize("name", TAKEN)
def test_rows_are_taken_and_noted_as_by_predict(name: str, served: tuple[Run, Any], tmp_path: Path) -> None:
    run, model = served
    rows = TAKEN[name]()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    expected = noted_inputs(tmp_path / "rows.csv", run.preparation, "coast")
    answered = run.predictor("coast")(expected)
    found = model.predict(rows)
    np.testing.assert_allclose(found["probs"], answered.probs.numpy(), atol=1e-5)
    assert found["decision"].tolist() == answered.decision.tolist()
    assert found["notes"].tolist() == list(expected.notes)


def test_what_is_unlike_training_is_marked(served: tuple[Run, Any]) -> None:
    notes = served[1].predict(frame(smokes=["sometimes", None], age=[1, None], value=None))["notes"].tolist()
    assert notes == ["unseen category of smokes", "all values missing"]


def test_a_column_that_lacks_and_a_value_that_is_no_number_are_named(served: tuple[Run, Any], tmp_path: Path) -> None:
    run, model = served
    for rows, text in (
        (frame().drop(columns="age"), "age"),
        (frame(value=["1.5", "high"]), "the value of 'value', expected a finite number or an empty cell"),
        (frame(value=[1.5, np.inf]), "the value of 'value', expected a finite number or an empty cell"),
    ):
        rows.to_csv(tmp_path / "rows.csv", index=False)
        with pytest.raises(DataError, match=text) as told:
            noted_inputs(tmp_path / "rows.csv", run.preparation, "coast")
        with pytest.raises(Exception, match=text) as raised:
            model.predict(rows)
        assert not any(value in str(each.value) for each in (told, raised) for value in ("high", "inf"))


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Any]]:
    folder = tmp_path_factory.mktemp("declared")
    with warnings.catch_warnings(action="ignore"):
        run = table(folder, DICTIONARY, words=("1", "2", "3"))
        export_model(run, "coast", "mlflow", folder / "model")
        yield run, pyfunc.load_model(str(folder / "model"))


WHY = {
    "as declared": ({"smokes": ["1", "2"]}, ["none", "none"], ["", ""]),
    "numbers for categories": ({"smokes": [1, 2.0]}, ["none", "none"], ["", ""]),
    "another spelling": ({"smokes": ["1.0", "02"]}, ["none", "outside"], ["", "smokes is not among 1, 2, 3, 4"]),
    "a number outside": ({"age": [61, 610], "smokes": 1}, ["none", "outside"], ["", "age is not from 0 to 100 years"]),
    "a category outside": ({"smokes": [1, 9]}, ["none", "outside"], ["", "smokes is not among 1, 2, 3, 4"]),
    "a category that was not seen": ({"smokes": [1, 4]}, ["none", "none"], ["", "unseen category of smokes"]),
    "outside and missing": ({"value": [300.0, -9], "smokes": 1}, ["none", "none"], ["", ""]),
    "nothing": ({"age": None, "value": [1, -9], "smokes": [1, None]}, ["none", "empty"], ["", "all values missing"]),
}


@pytest.mark.parametrize("name", WHY)
def test_rows_outside_of_the_dictionary_abstain_and_the_others_are_answered(
    name: str, declared: tuple[Run, Any], tmp_path: Path
) -> None:
    run, model = declared
    columns, reasons, notes = WHY[name]
    rows = frame(**columns)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    expected = noted_inputs(tmp_path / "rows.csv", run.preparation, "coast")
    for answered in (run.predictor("coast")(expected), run.predictor("coast")(rows)):
        unusable = torch.where(answered.reason >= Reason.OUTSIDE, answered.reason, 0).tolist()
        assert [Reason(code).name.lower() for code in unusable] == reasons
        assert (answered.decision == Decision.ABSTAIN).tolist() == [each != "none" for each in reasons]
        assert list(answered.input_notes) == notes
    found = model.predict(rows)
    np.testing.assert_allclose(found["probs"], answered.probs.numpy(), atol=1e-5)
    assert found["notes"].tolist() == notes
    assert (found["reason"].tolist(), found["decision"].tolist()) == (
        answered.reason.tolist(), answered.decision.tolist()
    )  # fmt: skip


def test_the_file_has_the_dictionary_and_what_it_promises(declared: tuple[Run, Any]) -> None:
    run, model = declared
    about = {name: json.loads(model.metadata.metadata[name]) for name in ("inputs", "promises", "n_calibration")}
    age, value, smokes = about["inputs"]["columns"]
    assert (age["unit"], age["range"], age["outside"]) == ("years", [0, 100], "abstain")
    assert (value["missing"], value["outside"]) == ([-9], "missing")
    assert smokes["values"] == ["1", "2", "3", "4"]
    assert about["n_calibration"] == run.summary["silos"][0]["n_calibration"]
    assert any(each.startswith("All p-values") for each in about["promises"])
    assert model.metadata.metadata["false_alarm_rate"] == "0.05"
