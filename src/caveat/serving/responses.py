"""Outputs of a model as the answers of `/predict`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core import Decision, Reason
from ..core.prediction import P_VALUES
from ..export.export_model import Arrays
from .served_model import ServedInputs, ServedModel

OTHER = ("probs", "label", "decision", "reason", "answered_by", "sets", "log_evidence", *P_VALUES)


def responses(model: ServedModel, found: Arrays, asked: ServedInputs) -> list[dict[str, Any]]:
    """Return an answer per input: JSON values by name, null for numbers that are not finite."""
    answers, other = [], {*OTHER, *model.answer_names}
    for i in range(len(asked)):
        reason = Reason(int(found["reason"][i]))
        answer: dict[str, Any] = {
            **_predicted(model, found, i),
            "uncertainty": {name: _number(each[i]) for name, each in found.items() if name not in other},
            **{name: _number(found[name][i]) for name in (*P_VALUES, "log_evidence") if name in found},
            "decision": Decision(int(found["decision"][i])).name.lower(),
            "reason": "" if reason is Reason.NONE else reason.name.lower(),
            "note": "; ".join(filter(None, [asked.notes[i] if asked.notes else "", *asked.told])),
        }
        if "sets" in found:
            answer["set"] = [model.classes[k] for k in np.flatnonzero(found["sets"][i])]
        answers.append(answer)
    return answers


def _predicted(model: ServedModel, found: Arrays, i: int) -> dict[str, Any]:
    """Return the label and the probabilities of an input, or the figures of a quantity."""
    if model.target is not None:
        return {name: _number(found[name][i]) for name in model.answer_names if name in found}
    probs = found["probs"][i].tolist()
    label = model.classes[int(found["label"][i])] if all(map(math.isfinite, probs)) else None
    return {"label": label, "probabilities": dict(zip(model.classes, map(_number, probs), strict=True))}


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
