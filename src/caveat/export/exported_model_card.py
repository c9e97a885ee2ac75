"""The model card of an exported model, in Markdown: its use, inputs, outputs, metrics, guarantees and limits."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .._version import __version__
from ..core import Reason, SiloId
from ..core.quantity import Quantity
from ..data.tables.allowed_values import FORBIDDEN
from ..files.schema import SiloRecord
from ..runs.finished_run import Run
from ..uncertainty.novelty import MOST_ROWS
from .exported_function import RawInputs
from .exported_metadata import (
    DECISIONS,
    described_output,
    figure_text,
    inputs,
    measured,
    promises,
    recorded,
    sizes,
    task,
)
from .recorded_program import Program

USE = {
    "onnx": """```python
import numpy, onnxruntime

session = onnxruntime.InferenceSession("{name}")
outputs = [output.name for output in session.get_outputs()]
found = dict(zip(outputs, session.run(outputs, {{"inputs": x}})))  # x: {array}
answered = found["decision"] != 2
```""",
    "torch": """```python
import torch

model = torch.export.load("{name}").module()
found = model(x)  # x: {array}, as a tensor
answered = found["decision"] != 2
```""",
    "mlflow": """```python
import mlflow

model = mlflow.pyfunc.load_model("{name}")
found = model.predict(x)  # x: {array}
answered = found["decision"] != 2
```""",
}


def card(run: Run, silo: SiloId, format: str, name: str, program: Program) -> str:
    """Return the card in Markdown, with Hugging Face's fields; the owner of the data adds a license."""
    raw, record = RawInputs(run.preparation, silo), recorded(run.experiment, silo)[1]
    promised = promises(run.experiment, silo, program.outputs)
    parts = [
        _head(run, silo, format, raw, record),
        f"# {run.experiment.method.name} at silo `{silo}`\n\n"
        f"Exported by caveat {__version__} from a federated run, with preprocessing, model, temperature, familiarity, "
        "thresholds and decision. It abstains from inputs on which it should not be trusted.",
        "## Use\n\n" + _use(format, name, raw),
        "## Inputs\n\n" + "\n".join(described_inputs(raw)),
        "## Outputs\n\n" + "\n".join(_outputs(run, silo, program)),
        "## Metrics\n\n" + _figures(record, run.preparation.target),
        "## Guarantees\n\n" + "\n".join(f"- {each}" for each in promised),
        "## Limits\n\n" + LIMITS,
        "## Privacy\n\n" + "\n".join(_reveals(raw, record, program)),
    ]
    return "\n\n".join(parts) + "\n"


def _head(run: Run, silo: SiloId, format: str, raw: RawInputs, record: SiloRecord | None) -> str:
    library = {"onnx": "onnx", "torch": "pytorch", "mlflow": "mlflow"}[format]
    lines = [
        "---", f"library_name: {library}", f"pipeline_tag: {task(raw)}",
        "tags: [caveat, federated-learning, uncertainty-quantification, selective-prediction]", "model-index:",
        f"- name: {json.dumps(f'{run.experiment.method.name}, {silo}')}", "  results:", "  - task:",
        f"      type: {task(raw)}", "    dataset:", f"      name: {json.dumps(f'test split of silo {silo}')}",
        "      type: private", "    metrics:",
    ]  # fmt: skip
    metrics = measured(record)
    for name, value in metrics.items():
        lines += [f"    - type: {name}", f"      value: {value:.6g}"]
    return "\n".join([*(lines if metrics else lines[:4]), "---"])


def _use(format: str, name: str, raw: RawInputs) -> str:
    array = f"{str(raw.dtype).removeprefix('torch.')} {_shape(('N', *raw.shape))}"
    if format == "mlflow" and raw.kind == "table":
        array = "a DataFrame with these columns, texts for categories"
    return USE[format].format(name=name, array=array)


def _shape(sizes: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def described_inputs(raw: RawInputs) -> Iterator[str]:
    about = inputs(raw)
    size = " of this size" if raw.kind == "images" else ""
    yield f"`inputs`, {about['dtype']} {_shape(tuple(about['shape']))}: raw {raw.kind}{size}."
    if raw.kind == "table":
        yield f"Columns in this order; missing values: {about['missing']}.\n"
        for column in about["columns"]:
            categories = column.get("categories")
            names = ", ".join(f"{i} {json.dumps(text, ensure_ascii=False)}" for i, text in enumerate(categories or ()))
            told = f"{'a number' if categories is None else names}{_allowed(column)}"
            yield f"- `{column['name']}`: {told}"


def _allowed(column: Mapping[str, Any]) -> str:
    """Return what the data dictionary allows in a column."""
    if "allowed" not in column:
        return f", {column['unit']}" if "unit" in column else ""
    code = f" (code {len(column['categories']) + FORBIDDEN})" if "categories" in column else ""
    other = f"other values {'count as missing' if column['outside'] == 'missing' else 'are not answered'}{code}"
    return f", {column['allowed']}; {other}"


def _outputs(run: Run, silo: SiloId, program: Program) -> Iterator[str]:
    target = run.experiment.target(silo)
    for name, value in program.outputs.items():
        kind = str(value.dtype).removeprefix("torch.")
        shape = tuple("N" if size == -1 else size for size in sizes(value.shape))
        yield f"- `{name}`, {kind} {_shape(shape)}: {described_output(name, target).partition(') ')[2]}"
    if target is None:
        yield "\nClasses: " + ", ".join(f"{i} {name}" for i, name in enumerate(run.preparation.classes)) + "."
    else:
        yield f"\nEdges of bars: {', '.join(f'{edge:.6g}' for edge in target.edges)}."
    yield "\nDecisions: " + "; ".join(f"{int(code)} {text}" for code, text in DECISIONS.items()) + "."
    yield "\nReasons: " + ", ".join(f"{int(reason)} {reason.name.lower()}" for reason in Reason) + "."


def _figures(record: SiloRecord | None, target: Quantity | None) -> str:
    found = measured(record)
    if record is None or not found:
        return "The run has no metrics of this silo."
    rows = [f"| {figure_text(name, target)} | {value:.4g} |" for name, value in found.items()]
    head = f"Metrics on the {record.n_test} inputs of the silo's own test split:\n\n" if record.n_test else ""
    return "\n".join([f"{head}| metric | value |", "| --- | ---: |", *rows])


LIMITS = (
    "This is the silo's model at the end of the run; it does not learn from its inputs. Results differ from the run by "
    "rounding (probabilities by 1e-5); a label, decision or p-value differs only close to a tie or threshold. Images "
    "must have the size above; categories are passed as numbers. Abstention only helps if somebody acts on it."
)


def _reveals(raw: RawInputs, record: SiloRecord | None, program: Program) -> Iterator[str]:
    yield "Whoever has the file can read its content. In addition to the weights of the silo's model, it contains:\n"
    if "typicality" in program.outputs:
        count = "" if record is None or record.n_calibration is None else f" {record.n_calibration}"
        yield (
            f"- distances of the silo's{count} calibration inputs from the classes at each stage of the model, "
            "one number per stage, rounded to 1e-4 of a log-distance, and the uncertainties of their answers, rounded "
            "to 0.01 %; no inputs, labels or features. Whoever has an input can test whether one like it, up to this "
            "rounding, is among them;"
        )
        yield "- class means and covariance factors of these stages over the federation's training inputs;"
    if "nearness" in program.outputs:
        yield (
            f"- the inputs of the model's last layer for at most {MOST_ROWS:,} of the silo's training inputs, scaled "
            "to length 1, from which training inputs may be recognized or reconstructed, and the distances of "
            "calibration inputs to the nearest of them;"
        )
    if raw.kind == "table":
        yield (
            "- medians, means and standard deviations of the silo's numeric columns, and all categories of its table;"
        )
    if raw.kind == "images":
        yield "- the normalization constants of images;"
    yield "- the silo's temperature and thresholds, each computed from its validation or calibration split;"
    if raw.preparation.target is None:
        yield "- the names of classes and of the silo, and the metrics in this card."
    else:
        yield (
            "- the ends of the bars, and the means and shares of all silos' training targets in each bar; the silo's "
            "name and the metrics in this card."
        )
