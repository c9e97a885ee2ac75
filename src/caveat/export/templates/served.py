"""An MLflow model that abstains; needs onnxruntime and NumPy only."""

import json
from typing import Any

import mlflow.pyfunc
import numpy as np
import onnxruntime


class Abstaining(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined]
    """Predict from an array, or for a table from a DataFrame with category names; returns a dictionary of arrays."""

    def load_context(self, context: Any) -> None:
        path = context.artifacts["model"]
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["inputs"])

    # The signature gives the types of inputs; without a type hint MLflow would warn.
    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> dict[str, Any]:
        names = [output.name for output in self.session.get_outputs()]
        raw = self.inputs(model_input)
        found = dict(zip(names, self.session.run(names, {"inputs": raw}), strict=True))
        return found | {"notes": self.notes(raw)} if "columns" in self.about else found

    def inputs(self, given: Any) -> Any:
        if "columns" not in self.about or not hasattr(given, "columns"):
            return np.ascontiguousarray(given, dtype=self.about["dtype"])
        for column in self.about["columns"]:
            if column["name"] not in given.columns:
                raise ValueError(f"no column {column['name']!r}, expected the columns that the model was trained on")
        columns = [self.column(given[column["name"]], column) for column in self.about["columns"]]
        return np.stack(columns, axis=1).astype(np.float32)

    def column(self, values: Any, column: dict[str, Any]) -> Any:
        """Return (N,) numbers, or codes of categories: -1 if missing, the code after the last if unknown."""
        codes = {text: code for code, text in enumerate(column["categories"])} if "categories" in column else None
        found = np.full(len(values), np.nan if codes is None else -1.0)
        for row, (value, absent) in enumerate(zip(values, values.isna(), strict=True)):
            if absent or str(value).strip().lower() in self.about["missing_texts"]:
                continue
            if codes is not None:  # pandas converts whole numbers if one of their column is missing
                texts = [str(value), str(int(value))] if isinstance(value, float) and value % 1 == 0 else [str(value)]
                found[row] = next((codes[text] for text in texts if text in codes), len(codes))
                continue
            try:
                found[row] = float(value)
            except (TypeError, ValueError):
                found[row] = np.inf
            if not abs(found[row]) <= np.finfo(np.float32).max:
                name = column["name"]
                expected = "expected a finite number or an empty cell"
                raise ValueError(f"row {row}: {name!r} is {value!r}, {expected}") from None
        return found

    def notes(self, raw: Any) -> Any:
        """Return (N,) notes on rows whose predictions are unreliable; "" for other rows."""
        notes: list[list[str]] = [[] for _ in raw]
        absent = np.isnan(raw)
        for i, column in enumerate(self.about["columns"]):
            if "categories" in column:
                absent[:, i] |= raw[:, i] == -1
                trained = [code for code, text in enumerate(column["categories"]) if text not in column["unseen"]]
                for row in np.flatnonzero(~np.isin(raw[:, i], trained) & ~absent[:, i]):
                    notes[row].append(f"unseen category of {column['name']}")
        for row in np.flatnonzero(absent.all(axis=1)):
            notes[row].insert(0, "all values missing")
        return np.array(["; ".join(each) for each in notes])


mlflow.models.set_model(Abstaining())
