"""An MLflow model that abstains; needs onnxruntime and NumPy only."""

import json
import re
from typing import Any

import mlflow.pyfunc
import numpy as np
import onnxruntime

TRUTH = {"true": 1, "false": 0}


def same_value(text: str) -> Any:
    """Return a number or truth value as a number, and other texts, such as codes with a leading zero, unchanged."""
    if text.lower() in TRUTH:
        return TRUTH[text.lower()]
    try:
        value = text if re.fullmatch(r"0\d+|.*_.*", text) else float(text)
    except ValueError:
        return text
    return value if value == value else text


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
        categories = column.get("categories")
        found = np.full(len(values), np.nan if categories is None else -1.0)
        for row, (value, absent) in enumerate(zip(values, values.isna(), strict=True)):
            text = str(value).strip()
            marks = [text, same_value(text)]
            if absent or text.lower() in self.about["missing_texts"] or set(marks) & set(column.get("missing", ())):
                continue
            if categories is not None:
                found[row] = self.code(marks, column)
                continue
            try:
                found[row] = TRUTH[text.lower()] if text.lower() in TRUTH else float(text)
            except ValueError:
                found[row] = np.inf
            if not abs(found[row]) <= np.finfo(np.float32).max:
                expected = "expected a finite number or an empty cell"
                raise ValueError(f"row {row}: the value of {column['name']!r}, {expected}") from None
        return found

    def code(self, marks: list[Any], column: dict[str, Any]) -> int:
        """Return the code of a category: the code after the last if the model has not seen it, and the next one if the
        data dictionary does not allow it."""
        for mark in marks:
            for code, category in enumerate(column["categories"]):
                if mark in (category, same_value(category)):
                    return code
        allowed = column.get("values")
        known = allowed is None or any(mark in (each, same_value(each)) for each in allowed for mark in marks)
        return len(column["categories"]) + (0 if known else 1)

    def notes(self, raw: Any) -> Any:
        """Return (N,) notes on rows whose predictions are unreliable; "" for other rows."""
        notes: list[list[str]] = [[] for _ in raw]
        absent = np.isnan(raw)
        for i, column in enumerate(self.about["columns"]):
            name, values = column["name"], raw[:, i]
            outside = np.zeros(len(raw), bool)
            if column.get("range"):
                low, high = np.array(column["range"], np.float32)
                outside = (values < low) | (values > high)
            elif "categories" in column:
                absent[:, i] |= values == -1
                outside = (values == len(column["categories"]) + 1) & bool(column.get("values"))
            if column.get("outside") == "missing":
                absent[:, i] |= outside
            if "categories" in column:
                trained = [code for code, text in enumerate(column["categories"]) if text not in column["unseen"]]
                for row in np.flatnonzero(~np.isin(values, trained) & ~absent[:, i] & ~outside):
                    notes[row].append(f"unseen category of {name}")
            for row in np.flatnonzero(outside & ~absent[:, i]):
                notes[row].append(f"{name} is not {column['allowed']}")
        for row in np.flatnonzero(absent.all(axis=1)):
            notes[row].insert(0, "all values missing")
        return np.array(["; ".join(each) for each in notes])


mlflow.models.set_model(Abstaining())
