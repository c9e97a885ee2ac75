"""What an exported model says of itself, as texts by name: what it takes to use it, and to find its run again."""

from __future__ import annotations

import json
from typing import Any

from .._version import __version__
from ..core import Decision, SiloId
from ..files.reading import sum_of
from ..runs.answering import AnsweringRun
from ..runs.warm import MODEL
from .inputs import RawInputs
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
    "answerer": "(N,) whose model the label is of, 0 or 1, abstained from or not",
    "familiarity": "(N,) p-value in (0, 1] of the input being like the silo's own; low is unlike",
    "sets": "(N, C) whether a class is in the set that holds the true one as often as promised",
    "total": "(N,) nats, entropy of probs",
    "aleatoric": "(N,) nats, the part that the data are to blame for",
    "epistemic": "(N,) nats, the part that the model is to blame for",
    "unfamiliar": "(N,) the larger, the less the input is like the silo's own",
    "log_evidence": "(N,) logarithm of the evidence; larger is more certain",
}
"""What outputs are; every other output is an uncertainty by the name that the method gives it, larger less certain."""


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
        found["columns"] = [
            {"name": column.name, **({} if column.categories is None else {"categories": list(column.categories)})}
            for column in raw.encoder.table
        ]
        found["missing"] = "NaN; of categories also -1; a text is the number of its category, from 0"
    return found


def sizes(shape: tuple[int | Size, ...]) -> list[int]:
    """A shape in which the batch is -1."""
    return [-1 if isinstance(size, Size) else size for size in shape]
