"""What an exported model says of itself: metadata in the file, and the model card beside it."""

import json
from collections.abc import Iterator
from typing import Any

from .._version import __version__
from ..core import Decision, SiloId
from ..data.tables.files import MISSING
from ..files.reading import read, sum_of
from ..files.schema.summary import SiloRecord, Summary
from ..runs.answering import AnsweringRun
from ..runs.initial_model import MODEL
from ..runs.local import Run
from .predictor import RawInputs
from .program import Program, Size

DECISIONS = {
    Decision.GLOBAL: "global: the label is the federation's model's",
    Decision.LOCAL: "local: the label is the silo's own model's",
    Decision.ABSTAIN: "abstain: the label is not to be relied on",
}
OUTPUTS = {
    "probs": "(N, C) probability of each class",
    "label": "(N,) the most probable class, a number of `classes`",
    "decision": "(N,) what to do with it, a number of `decisions`",
    "answered_by": "(N,) whose model the label is of, 0 or 1, abstained from or not",
    "familiarity": "(N,) p-value in (0, 1] of the input being like the silo's own; low is unlike",
    "sets": "(N, C) whether a class is in the set that holds the true one as often as promised",
    "total": "(N,) nats, entropy of probs",
    "aleatoric": "(N,) nats, the part that the data are to blame for",
    "epistemic": "(N,) nats, the part that the model is to blame for",
    "unfamiliar": "(N,) the larger, the less the input is like the silo's own",
    "log_evidence": "(N,) logarithm of the evidence; larger is more certain",
}
"""What outputs are; every other output is an uncertainty by the name that the method gives it, larger less certain."""
TASKS = {"images": "image-classification", "table": "tabular-classification", "features": "tabular-classification",
         "tokens": "text-classification", "series": "other"}  # fmt: skip
"""Hugging Face's names of tasks."""
FIGURES = {
    "accuracy": "share of right labels", "nll": "negative log-likelihood, nats", "ece": "expected calibration error",
    "auroc_error": "AUROC of the uncertainty for errors", "coverage": "share of inputs answered",
    "answered_accuracy": "share of right labels among those", "unfamiliar": "share of inputs called unfamiliar",
    "set_coverage": "share of sets with the true class", "set_size": "classes per set",
}  # fmt: skip
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


def metadata(run: AnsweringRun, silo: SiloId, program: Program) -> dict[str, str]:
    """Texts and JSON by name."""
    about: dict[str, Any] = {
        "decisions": {str(int(decision)): text for decision, text in DECISIONS.items()},
        "inputs": inputs(RawInputs(run.preparation, silo)),
        "outputs": {name: OUTPUTS.get(name, "(N,) an uncertainty of the method") for name in program.outputs},
    }
    return {
        "caveat": __version__,
        "method": run.method.name,
        "silo": silo,
        "model_sha256": str(sum_of(run.folder / MODEL).sha256),
        "classes": json.dumps(list(run.preparation.classes), ensure_ascii=False),
    } | {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()}


def inputs(raw: RawInputs) -> dict[str, Any]:
    """What inputs are, and of a table what its columns are."""
    found: dict[str, Any] = {
        "name": "inputs", "kind": raw.kind, "dtype": str(raw.dtype).removeprefix("torch."),
        "shape": ["N", *raw.shape],
    }  # fmt: skip
    if raw.kind == "table":
        trained = {column.name: column.categories or () for column in raw.encoder.layout.columns}
        found["columns"] = []
        for column in raw.encoder.table:
            found["columns"].append({"name": column.name})
            if column.categories is not None:
                unseen = [text for text in column.categories if text not in trained[column.name]]
                found["columns"][-1] |= {"categories": list(column.categories), "unseen": unseen}
        found["missing_texts"] = sorted(MISSING)
        found["missing"] = "NaN; of categories also -1; a text is the number of its category, from 0"
    return found


def sizes(shape: tuple[int | Size, ...]) -> list[int]:
    """A shape in which the batch is -1."""
    return [-1 if isinstance(size, Size) else size for size in shape]


def card(run: Run, silo: SiloId, format: str, name: str, program: Program) -> str:
    """The card in Markdown, with the fields of Hugging Face in front; a license is for whoever owns the data."""
    summary = read(run.folder / "summary.json", Summary)
    raw = RawInputs(run.preparation, silo)
    record = next((each for each in summary.silos if each.name == silo), None)
    parts = [
        _head(run, silo, format, raw, record),
        f"# {run.experiment.method.name}, as silo `{silo}` has it\n\n"
        f"Exported by caveat {__version__} from a federated run: the preparation of inputs, the model, its "
        "temperature, how familiar an input is, thresholds and decision are all in it. It says when not to trust it.",
        "## Use\n\n" + _use(format, name, raw),
        "## What goes in\n\n" + "\n".join(_inputs(raw)),
        "## What comes out\n\n" + "\n".join(_outputs(run, program)),
        "## How good it was\n\n" + _figures(record),
        "## What is promised\n\n" + "\n".join(_promises(summary, record, program)),
        "## Limits\n\n" + LIMITS,
        "## What this file reveals\n\n" + "\n".join(_reveals(raw, record, program)),
    ]
    return "\n\n".join(parts) + "\n"


def _head(run: Run, silo: SiloId, format: str, raw: RawInputs, record: SiloRecord | None) -> str:
    library = {"onnx": "onnx", "torch": "pytorch", "mlflow": "mlflow"}[format]
    lines = [
        "---", f"library_name: {library}", f"pipeline_tag: {TASKS[raw.kind]}",
        "tags: [caveat, federated-learning, uncertainty-quantification, selective-prediction]", "model-index:",
        f"- name: {json.dumps(f'{run.experiment.method.name}, {silo}')}", "  results:", "  - task:",
        f"      type: {TASKS[raw.kind]}", "    dataset:", f"      name: {json.dumps(f'test split of silo {silo}')}",
        "      type: private", "    metrics:",
    ]  # fmt: skip
    metrics = _measured(record)
    for name, value in metrics.items():
        lines += [f"    - type: {name}", f"      value: {value:.6g}"]
    return "\n".join([*(lines if metrics else lines[:4]), "---"])


def _measured(record: SiloRecord | None) -> dict[str, float]:
    figures = {} if record is None else record.test.model_dump()
    return {name: float(figures[name]) for name in FIGURES if figures.get(name) is not None}


def _use(format: str, name: str, raw: RawInputs) -> str:
    array = f"{str(raw.dtype).removeprefix('torch.')} {_shape(('N', *raw.shape))}"
    if format == "mlflow" and raw.kind == "table":
        array = "a DataFrame with these columns, texts for categories"
    return USE[format].format(name=name, array=array)


def _shape(sizes: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def _inputs(raw: RawInputs) -> Iterator[str]:
    about = inputs(raw)
    size = ", of this size already" if raw.kind == "images" else ""
    yield f"`inputs`, {about['dtype']} {_shape(tuple(about['shape']))}: {raw.kind}{size}, as they were collected."
    if raw.kind == "table":
        yield f"A column each, in this order; missing is {about['missing']}.\n"
        for column in about["columns"]:
            categories = column.get("categories")
            names = ", ".join(f"{i} {json.dumps(text, ensure_ascii=False)}" for i, text in enumerate(categories or ()))
            yield f"- `{column['name']}`: {'a number' if categories is None else names}"


def _outputs(run: Run, program: Program) -> Iterator[str]:
    for name, value in program.outputs.items():
        kind = str(value.dtype).removeprefix("torch.")
        shape = tuple("N" if size == -1 else size for size in sizes(value.shape))
        yield f"- `{name}`, {kind} {_shape(shape)}: {OUTPUTS.get(name, '(N,) an uncertainty').partition(') ')[2]}"
    yield "\nClasses: " + ", ".join(f"{i} {name}" for i, name in enumerate(run.preparation.classes)) + "."
    yield "\nDecisions: " + "; ".join(f"{int(code)} {text}" for code, text in DECISIONS.items()) + "."


def _figures(record: SiloRecord | None) -> str:
    found = _measured(record)
    if record is None or not found:
        return "The run has measured nothing at this silo."
    rows = [f"| {FIGURES[name]} | {value:.4g} |" for name, value in found.items()]
    head = f"On the {record.n_test} inputs of the silo's own test split, by the run:\n\n" if record.n_test else ""
    return "\n".join([f"{head}| figure | value |", "| --- | ---: |", *rows])


def _promises(summary: Summary, record: SiloRecord | None, program: Program) -> Iterator[str]:
    promise = (record.promise if record is not None else None) or summary.guarantee
    if promise is not None:
        yield f"- Errors: {promise.statement}."
    if summary.sets is not None and "sets" in program.outputs:
        others = (
            "also of its own if silos differ in nothing but how frequent classes are, as its training labels tell"
            if summary.sets.label_shift
            else "of the mixture of silos without as many"
        )
        yield (
            f"- Sets hold the true class of {100 * summary.sets.coverage:.6g} % of inputs: of the silo's own where it "
            f"has at least {summary.sets.least} calibration inputs, else {others}."
        )
    if "familiarity" in program.outputs:
        yield (
            "- Familiarity: of inputs drawn like the silo's calibration inputs, an expected share of at most a has a "
            "p-value of a or less, for every a."
        )
    yield (
        "- All of these hold for finitely many calibration inputs, and for inputs drawn as they were; none holds for "
        "inputs of another kind, and none is about a single input. Uncertainties and probabilities promise nothing."
    )


LIMITS = (
    "It is the silo's model as the run ended: it learns nothing from what it is shown. What differs from the run is "
    "rounding (probabilities to 1e-5); a label, decision or p-value is another one only where the run's own lies next "
    "to a tie or threshold. Images have to be of the size above; categories go in as numbers. Abstaining helps where "
    "somebody acts on it."
)


def _reveals(raw: RawInputs, record: SiloRecord | None, program: Program) -> Iterator[str]:
    yield "The file can be read by whoever has it. Beside the weights of the silo's model it holds:\n"
    if "familiarity" in program.outputs:
        count = "" if record is None or record.n_calibration is None else f" {record.n_calibration}"
        yield (
            f"- how far each of the silo's{count} calibration inputs is from the classes at each stage of the model, "
            "one number per stage, rounded to 1e-4 of a log-distance; no input, no label, and none of the "
            "numbers that the distances are of. Whoever has an input can tell whether one like it, to that rounding, "
            "is among them;"
        )
        yield "- class means and covariance factors of these stages over the federation's training inputs;"
    if raw.kind == "table":
        yield (
            "- medians, means and standard deviations of the silo's columns of numbers, and all category texts that "
            "its table has;"
        )
    if raw.kind == "images":
        yield "- the constants that images are normalised with;"
    yield "- the silo's temperature and thresholds, each of which is one number of its validation or calibration split;"
    yield "- the names of classes and of the silo, and the figures of this card."
