"""Metadata of an exported model, and its model card."""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from .._version import __version__
from ..core import Decision, Reason, SiloId
from ..core.quantity import Quantity, Times
from ..data.tables.allowed_values import FORBIDDEN
from ..data.tables.files import MISSING
from ..files import read, sum_of
from ..files.schema import SiloRecord, Summary
from ..runs.answering import AnsweringRun
from ..runs.fingerprints import MODEL
from ..runs.finished_run import Run
from ..uncertainty.novelty import MOST_ROWS
from ..wrappers.alarms import Familiar
from ..wrappers.base import find
from .exported_function import RawInputs
from .recorded_program import Program, Size
from .wrong_outcomes import Promised

DECISIONS = {
    Decision.GLOBAL: "global: the answer is from the global model",
    Decision.LOCAL: "local: the answer is from the silo's local model",
    Decision.ABSTAIN: "abstain: do not rely on the answer",
}
OUTPUTS = {
    "probs": "(N, C) probability of each class",
    "label": "(N,) the most probable class, an index into `classes`",
    "value": "(N,) median of the quantity",
    "mean": "(N,) mean of the quantity",
    "median": "(N,) median of the time, infinite if it is later than all events of training",
    "low": "(N,) lower end of the interval",
    "high": "(N,) upper end of the interval",
    "spread": "(N,) standard deviation of the predicted distribution, in the unit of the target",
    "decision": "(N,) the decision, an index into `decisions`",
    "answered_by": "(N,) the model that gave the answer, 0 or 1, even if it abstains",
    "reason": "(N,) why not to rely on the answer, an index into `reasons`",
    "familiarity": "(N,) p-value in (0, 1] for the input being like the silo's own data",
    "nearness": "(N,) p-value in (0, 1] of the input being as near to a training input as the silo's own data",
    "sureness": "(N,) p-value in (0, 1] for the answer being as certain as the answers to the silo's own data",
    "typicality": "(N,) p-value in (0, 1] of all of these together, by which alarms are raised",
    "sets": "(N, C) whether a class is in the prediction set",
    "total": "(N,) nats, entropy of probs",
    "aleatoric": "(N,) nats, the aleatoric part",
    "epistemic": "(N,) nats, the epistemic part",
    "unfamiliar": "(N,) larger for inputs less like the silo's own data",
    "novel": "(N,) larger for inputs farther from every training input of the silo",
    "log_evidence": "(N,) logarithm of the evidence; larger is more certain",
}
"""Descriptions of outputs; every other output is an uncertainty of the method, larger for less certain inputs."""
TASKS = {"images": "image-classification", "table": "tabular-classification", "features": "tabular-classification",
         "tokens": "text-classification", "series": "other"}  # fmt: skip
"""Task names of Hugging Face, if the target has classes."""
FIGURES = {
    "accuracy": "share of correct labels", "nll": "negative log-likelihood, nats", "ece": "expected calibration error",
    "auroc_error": "AUROC of uncertainty for errors", "coverage": "share of inputs answered",
    "answered_accuracy": "share of correct labels among these", "unfamiliar": "share of inputs called unfamiliar",
    "novel": "share of inputs called novel", "unsure": "share of inputs called unsure",
    "set_coverage": "share of sets with the true class", "set_size": "classes per set",
    "mae": "mean absolute error of medians", "reference_mae": "the same of the median of all training targets",
    "rmse": "root mean squared error of means", "reference_rmse": "the same of the mean of all training targets",
    "crps": "continuous ranked probability score of the distributions",
    "reference_crps": "the same of the distribution of all training targets",
    "interval_coverage": "share of intervals with the true value", "interval_width": "mean width of intervals",
    "interval_low": "mean lower bound of times", "events": "inputs whose event was observed",
    "c_index": "Harrell's C-index", "c_index_uno": "Uno's C-index", "integrated_brier": "integrated Brier score",
    "reference_integrated_brier": "the same of the Kaplan-Meier curve of all training targets",
    "d_calibration": "p-value of D-calibration",
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
    """Return metadata by name, as text or JSON."""
    about: dict[str, Any] = {
        "decisions": {str(int(decision)): text for decision, text in DECISIONS.items()},
        "reasons": {str(int(reason)): reason.name.lower() for reason in Reason},
        "inputs": inputs(RawInputs(run.preparation, silo)),
        "models": len(run.complete_method.models),
        "outputs": {name: described_output(name, run.preparation.target) for name in program.outputs},
    }
    if (target := run.target(silo)) is not None:
        about["target"] = dataclasses.asdict(target) | {"predicts": target.predicts}
    summary, record = recorded(run, silo)
    promised = Promised.of(summary, record)
    if promised is not None and (promised.ranked_among is not None or not _answers_novel(run, program.outputs)):
        about["promised"] = dataclasses.asdict(promised)
    about["promises"] = list(promises(run, silo, program.outputs))
    if record is not None and record.n_calibration is not None:
        about["n_calibration"] = record.n_calibration
    if "typicality" in program.outputs:
        familiar = find(run.complete_method, Familiar)
        about["alarms"] = alarms(program)
        about["false_alarm_rate"] = 0.0 if familiar is None else familiar.false_alarm_rate
    return {
        "caveat": __version__,
        "method": run.method.name,
        "silo": silo,
        "model_sha256": str(sum_of(run.folder / MODEL).sha256),
        "classes": json.dumps(list(run.preparation.classes), ensure_ascii=False),
    } | {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()}


def described_output(name: str, target: Quantity | None = None) -> str:
    """Return the description of an output, with its shape."""
    if target is not None and name == "probs":
        return "(N, C) probability of each bar between the `edges` of `target`"
    if name.startswith("risk_"):
        return f"(N,) probability of the event until {name.removeprefix('risk_')}"
    return OUTPUTS.get(name, "(N,) an uncertainty of the method")


def figure_text(name: str, target: Quantity | None) -> str:
    """Return the description of a metric; with a declared range, predictions without inputs are uniform in it."""
    declared = name.startswith("reference_") and target is not None and target.declared
    return "the same of a uniform distribution over data.range" if declared else FIGURES[name]


def task(raw: RawInputs) -> str:
    """Return the name of Hugging Face for what the model does."""
    if raw.preparation.target is None:
        return TASKS[raw.kind]
    return "tabular-regression" if raw.kind in ("table", "features") else "other"


def recorded(run: AnsweringRun, silo: SiloId) -> tuple[Summary, SiloRecord | None]:
    """Return the summary of a run, and a silo's record in it, if there is one."""
    summary = read(run.folder / "summary.json", Summary)
    return summary, next((each for each in summary.silos if each.name == silo), None)


def alarms(program: Program) -> list[str]:
    """Return the alarms of a program by name."""
    return ["unfamiliar", *(["novel"] if "nearness" in program.outputs else []), "unsure"]


def inputs(raw: RawInputs) -> dict[str, Any]:
    """Return the description of inputs, and of a table's columns."""
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
        _declare(raw, found["columns"])
        found["missing_texts"] = sorted(MISSING)
        found["missing"] = "NaN; for categories also -1; a category is its index, from 0"
    return found


def _declare(raw: RawInputs, columns: list[dict[str, Any]]) -> None:
    """Add what the data dictionary says about columns of a table."""
    rules = {rule.name: rule for rule in raw.encoder.csv_format.declared.dictionary}
    limits = raw.encoder.limits(raw.silo)
    for i, column in enumerate(columns):
        rule = rules.get(column["name"])
        told = {} if rule is None else {"unit": rule.unit, "missing": list(rule.missing)}
        if rule is not None and i in limits:
            told |= {"range": list(rule.range or ()), "values": list(rule.values), "allowed": rule.expected,
                     "outside": "missing" if limits[i].empties else "abstain"}  # fmt: skip
        column |= {name: value for name, value in told.items() if value}


def sizes(shape: tuple[int | Size, ...]) -> list[int]:
    """Return a shape with -1 for the batch."""
    return [-1 if isinstance(size, Size) else size for size in shape]


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


def measured(record: SiloRecord | None) -> dict[str, float]:
    figures = {} if record is None else record.test.model_dump()
    return {name: float(figures[name]) for name in FIGURES if figures.get(name) is not None}


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
        yield f"One column each, in this order; missing values: {about['missing']}.\n"
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
    other = f"others {'count as missing' if column['outside'] == 'missing' else 'are not answered'}{code}"
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


def _answers_novel(run: AnsweringRun, outputs: Collection[str]) -> bool:
    """Return whether a file with these outputs answers inputs for which the run raises the alarm `novel`."""
    familiar = find(run.complete_method, Familiar)
    return familiar is not None and "nearness" not in outputs and bool(familiar.false_alarm_rate)


def promises(run: AnsweringRun, silo: SiloId, outputs: Collection[str], exported: bool = True) -> Iterator[str]:
    """Yield a sentence per guarantee for predictions with these outputs, by the run or by an exported file."""
    summary, record = recorded(run, silo)
    promise = (record.promise if record is not None else None) or summary.guarantee
    familiar = find(run.complete_method, Familiar)
    lacks = familiar is not None and "nearness" not in outputs and exported
    if lacks:
        yield (
            "Alarms: this file cannot raise the alarm `novel`, which needs features of the silo's training inputs "
            "(`caveat export --training-features`). Alarms of the other kinds are as rare as below."
        )
    if promise is not None and exported and _answers_novel(run, outputs):
        yield (
            "Errors: no guarantee. That of the run holds with the alarm `novel`, and this file answers inputs from "
            "which the run abstains for it."
        )
    elif promise is not None:
        yield f"Errors: {promise.statement}."
    if summary.sets is not None and "sets" in outputs:
        others = (
            "of the silo's own, too, if silos differ only in class frequencies, which its training labels provide"
            if summary.sets.label_shift
            else "of the mixture of all silos with fewer"
        )
        pooled = f"pooled because one has fewer than {summary.sets.least} calibration inputs"
        each = f" of each class (of classes together that are {pooled})" if summary.sets.per_class else ""
        yield (
            f"Sets contain the true class of {100 * summary.sets.coverage:.6g} % of inputs{each}: of the silo's own "
            f"if it has at least {summary.sets.least} calibration inputs, else {others}."
        )
    if summary.intervals is not None and "low" in outputs:
        low = isinstance(run.preparation.target, Times)
        what = "A time is at least its lower bound" if low else "An interval contains the true value"
        yield (
            f"{what} with a probability of at least {summary.intervals.coverage:g}, over calibration inputs and new "
            f"inputs: of the silo if it has at least {summary.intervals.least} calibration inputs, else of the mixture "
            f"of all silos with fewer.{' Bounds are valid for censored times, too.' * low}"
        )
    if summary.subgroups and exported:
        yield (
            "Subgroups: the exported model does not know the subgroup of an input; its decisions and sets have "
            "the guarantees for all inputs together."
        )
    if "typicality" in outputs:
        yield (
            "All p-values: for every a, an expected share of at most a of inputs like the "
            "silo's calibration inputs has a p-value of a or less."
        )
    yield (
        "All of these hold for finite calibration sets and for inputs from the same distribution. None holds "
        "for other inputs or for a single input. Uncertainties and probabilities have no guarantee."
    )


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
            f"- what the model's last layer takes of at most {MOST_ROWS:,} of the silo's training inputs, scaled to "
            "length 1, from which inputs may be recognized or reconstructed, and the distances of calibration inputs "
            "to the nearest;"
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
