"""A model that MLflow serves takes rows of a table as `caveat predict` takes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_exports import table

from caveat import Run, export_model
from caveat.core import DataError
from caveat.data.inputs import noted_inputs

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
        (frame(value=["1.5", "high"]), "'value' is 'high', expected a finite number or an empty cell"),
        (frame(value=[1.5, np.inf]), "'value' is '?inf'?, expected a finite number or an empty cell"),
    ):
        rows.to_csv(tmp_path / "rows.csv", index=False)
        with pytest.raises(DataError, match=text):
            noted_inputs(tmp_path / "rows.csv", run.preparation, "coast")
        with pytest.raises(Exception, match=text):
            model.predict(rows)
