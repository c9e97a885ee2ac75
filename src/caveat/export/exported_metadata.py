"""Metadata of an exported model: its inputs, outputs and guarantees."""

import dataclasses
import json
from collections.abc import Collection, Iterator
from typing import Any

from .._version import __version__
from ..core import Decision, Reason, SiloId
from ..core.quantity import Quantity, Times
from ..data.tables.files import MISSING
from ..files import read, sum_of
from ..files.schema import SiloRecord, Summary
from ..runs.answering import AnsweringRun
from ..runs.initial_model import MODEL
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
    "nearness": "(N,) p-value in (0, 1] for the input being as near to a training input as the silo's own data",
    "sureness": "(N,) p-value in (0, 1] for the answer being as certain as the answers to the silo's own data",
    "typicality": "(N,) p-value in (0, 1] that combines these p-values; a low one raises an alarm",
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
    "answered_accuracy": "share of correct labels among answered inputs",
    "unfamiliar": "share of inputs called unfamiliar",
    "novel": "share of inputs called novel", "unsure": "share of inputs called unsure",
    "set_coverage": "share of sets with the true class", "set_size": "classes per set",
    "mae": "mean absolute error of medians", 
    "reference_mae": "mean absolute error of the median of all training targets",
    "rmse": "root mean squared error of means", 
    "reference_rmse": "root mean squared error of the mean of all training targets",
    "crps": "continuous ranked probability score of the distributions",
    "reference_crps": "continuous ranked probability score of the distribution of all training targets",
    "interval_coverage": "share of intervals with the true value", "interval_width": "mean width of intervals",
    "interval_low": "mean lower bound of times", "events": "inputs whose event was observed",
    "c_index": "Harrell's C-index", "c_index_uno": "Uno's C-index", "integrated_brier": "integrated Brier score",
    "reference_integrated_brier": "integrated Brier score of the Kaplan-Meier curve of all training targets",
    "d_calibration": "p-value of D-calibration",
}  # fmt: skip


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
    return (
        f"{FIGURES[name].partition(' of ')[0]} of a uniform distribution over data.range" if declared else FIGURES[name]
    )


def task(raw: RawInputs) -> str:
    """Return the Hugging Face name of the model's task."""
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


def measured(record: SiloRecord | None) -> dict[str, float]:
    figures = {} if record is None else record.test.model_dump()
    return {name: float(figures[name]) for name in FIGURES if figures.get(name) is not None}


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
            "(`caveat export --training-features`). Alarms of the other kinds are as rare as stated below."
        )
    if promise is not None and exported and _answers_novel(run, outputs):
        yield (
            "Errors: no guarantee. The guarantee of the run holds with the alarm `novel`, and this file answers inputs "
            "from which the run abstains because of this alarm."
        )
    elif promise is not None:
        yield f"Errors: {promise.statement}."
    if summary.sets is not None and "sets" in outputs:
        others = (
            "inputs of the silo, too, if silos differ only in class frequencies, which its training labels provide"
            if summary.sets.label_shift
            else "the mixture of all silos with fewer"
        )
        pooled = f"classes are pooled if one has fewer than {summary.sets.least} calibration inputs"
        each = f" of each class ({pooled})" if summary.sets.per_class else ""
        yield (
            f"Sets contain the true class of {100 * summary.sets.coverage:.6g} % of inputs{each}. This holds for "
            f"inputs of the silo if it has at least {summary.sets.least} calibration inputs, otherwise for {others}."
        )
    if summary.intervals is not None and "low" in outputs:
        low = isinstance(run.preparation.target, Times)
        what = "A time is at least its lower bound" if low else "An interval contains the true value"
        yield (
            f"{what} with a probability of at least {summary.intervals.coverage:g}, over calibration inputs and new "
            f"inputs. This holds for the silo if it has at least {summary.intervals.least} calibration inputs, "
            f"otherwise for the mixture of all silos with fewer.{' Bounds are valid for censored times, too.' * low}"
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
        "All of these guarantees hold for finite calibration sets and for inputs from the same distribution. None "
        "holds for other inputs or for a single input. Uncertainties and probabilities have no guarantee."
    )
