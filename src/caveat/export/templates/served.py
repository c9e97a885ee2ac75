"""An MLflow model that abstains; needs onnxruntime and NumPy only."""

import json
from typing import Any

import mlflow.pyfunc
import numpy as np
import onnxruntime


class Abstaining(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined]
    """Predict from an array, or from a DataFrame with category names; returns a dictionary of arrays."""

    def load_context(self, context: Any) -> None:
        path = context.artifacts["model"]
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["inputs"])

    # The signature gives the types of inputs; without a type hint MLflow would warn.
    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> dict[str, Any]:
        names = [output.name for output in self.session.get_outputs()]
        found = self.session.run(names, {"inputs": self.inputs(model_input)})
        return dict(zip(names, found, strict=True))

    def inputs(self, given: Any) -> Any:
        if "columns" not in self.about or not hasattr(given, "columns"):
            return np.ascontiguousarray(given, dtype=self.about["dtype"])
        return np.stack([self.column(given, column) for column in self.about["columns"]], axis=1)

    def column(self, given: Any, column: dict[str, Any]) -> Any:
        values = given[column["name"]]
        if "categories" not in column:
            return values.to_numpy(dtype=np.float32)
        codes = {text: code for code, text in enumerate(column["categories"])}
        return np.array([codes.get(value, -1) for value in values], dtype=np.float32)


mlflow.models.set_model(Abstaining())
