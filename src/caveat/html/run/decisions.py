"""Decisions about the test inputs of each stream and their accuracy, as bars and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.text import count, decimal, percent
from ...files import RunFolder
from ...files.schema import INSIDE, NOBODY, ORACLE, Separation, Stream
from ..templates import Column, Table, column, table, words
from .familiarity import separated
from .silo_metrics import METRICS
from .uncertainty import evidence_figures, evidence_legend, quadrants

ABOUT = {
    INSIDE: "known to the silo: its own test split",
    "ood_local": "known to other silos but not to this one, for the global model to answer",
    "mix": f"{INSIDE} and ood_local together",
    NOBODY: "known to no silo: only abstention is correct",
}
KINDS = ("local", "global", "abstain")
"""Kinds of decisions, in the order of display."""
OWN, CHOSEN = "always", "switch"
"""The policy that answers every input, with the local model if there is one; and the name of the chosen model."""
SWITCHING = ("switch", "guaranteed")
"""The policies whose choice is called a switch."""
_ORDER = ("local", "global", CHOSEN, ORACLE)


def streams(run: RunFolder) -> dict[str, Stream]:
    """Return streams by name; empty if one model judges the whole test split."""
    tested = run.summary.tested if run.summary else {}
    return tested if len(tested) > 1 or any(len(stream.models) > 1 for stream in tested.values()) else {}


def models(tested: Mapping[str, Stream]) -> list[str]:
    """Return the names of all models, the oracle included, in the order in which they are shown."""
    found = dict.fromkeys(name for stream in tested.values() for name in stream.models)
    if any(stream.oracle for stream in tested.values()):
        found[ORACLE] = None
    return sorted(found, key=lambda name: _ORDER.index(name) if name in _ORDER else -1)


def label(run: RunFolder, model: str) -> str:
    """Return the name of a model, which is only a switch if the policy switches. If some silos lack a model, the name
    includes the number of silos."""
    name = "answered" if model == CHOSEN and run.summary and run.summary.policy.name not in SWITCHING else model
    found = run.summary.models.get(CHOSEN if model == ORACLE else model) if run.summary else None
    few = found is not None and found.silos is not None and found.silos < len(run.silos)
    return f"{name} ({found.silos} of {len(run.silos)} silos)" if few and found else name


def accuracy(name: str, stream: Stream, model: str) -> float | None:
    """Return a model's mean accuracy over silos; None if no answer can be correct."""
    if name == NOBODY:
        return None
    if model == ORACLE:
        return stream.oracle.accuracy if stream.oracle else None
    return stream.models[model].mean.accuracy if model in stream.models else None


def accuracy_answered(name: str, stream: Stream) -> float | None:
    """Return the accuracy among the answered inputs of all silos together. It is not a mean over silos, because a silo
    can have very few answered inputs."""
    return None if name == NOBODY else stream.chosen.pooled.accuracy_answered


def abstains(tested: Mapping[str, Stream]) -> bool:
    return any(stream.decisions.get("abstain", 0.0) > 0 for stream in tested.values())


def decisions(run: RunFolder) -> dict[str, Any] | None:
    """Return the section's tables and figures by name. None if there was nothing to decide: one model that answers
    everything, and one stream."""
    tested = streams(run)
    found = {
        "about": [(name, ABOUT[name]) for name in tested if name in ABOUT] if len(tested) > 1 else [],
        "streams": stream_table(run, tested),
        "quadrants": quadrants(tested) if run.summary and run.summary.policy.name != OWN else None,
        "evidence": evidence_figures(tested),
        "evidence_legend": evidence_legend(tested),
        "outside": [_outside_table(*each) for each in tested.items()],
        "models": _model_table(run),
    }
    return found if found["streams"] or found["models"] else None


def stream_table(run: RunFolder, tested: dict[str, Stream]) -> Table | None:
    """Return a table of streams by models: accuracies, decisions, and the accuracy of answers."""
    found = tested.values()
    columns = [words("stream", tested), column("inputs", (count(stream.examples) for stream in found))]
    for model in models(tested):
        values = (percent(accuracy(*each, model)) for each in tested.items())
        columns.append(column(label(run, model), values, _HELP.get(model, "")))
    columns += _share_columns([stream.decisions for stream in found])
    if abstains(tested):
        values = (percent(accuracy_answered(*each)) for each in tested.items())
        columns.append(column("accuracy when answered", values, "over the answered inputs of all silos together"))
    caption = "Accuracy of each model on test inputs of each kind, mean over silos, and decisions, as shares of all "
    return table(columns, f"{caption}silos' inputs.")


def _share_columns(found: Sequence[Mapping[str, float]]) -> list[Column]:
    occur = [kind for kind in KINDS if any(shares.get(kind, 0.0) > 0 for shares in found)]
    return [column(_SHARES[kind], (percent(shares.get(kind, 0.0)) for shares in found)) for kind in occur]


_HELP = {
    "local": "accuracy of the local model if it answers everything",
    "global": "accuracy of the global model if it answers everything",
    "switch": "accuracy of the chosen model, including its labels for abstentions",
    ORACLE: "accuracy of the best possible choice between the two models",
}
_SHARES = {"local": "answered by local", "global": "answered by global", "abstain": "abstained"}


def _outside_table(stream: str, found: Stream) -> Table | None:
    by_model = {name: found.outside[name] for name in models({"": found}) if name in found.outside}
    scores = list(dict.fromkeys(score for each in by_model.values() for score in each))
    of = {name: [each.get(score, Separation()) for score in scores] for name, each in by_model.items()}
    about = "share of known inputs flagged when 95 % of these are; 0 is best"
    columns = [
        words("score", scores),
        *(column(f"{name} AUROC", map(separated, each), "0.5 is chance, 1 is best") for name, each in of.items()),
        *(column(f"{name} FPR95", (percent(one.fpr95) for one in each), about) for name, each in of.items()),
    ]
    caption = f"How well each score separates {stream} from the silo's own test split, mean over silos; "
    return table(columns, f"{caption}a triangle marks a value that is inexact because many scores are equal.")


def _model_table(run: RunFolder) -> Table | None:
    """Return the local, the global and the chosen model side by side; None if there is nothing to choose from."""
    found = run.summary.models if run.summary else {}
    if len(found) < 2:  # one model's metrics are in the mean row of the silos
        return None
    shown = {name: found[name] for name in ("local", "global", "switch", ORACLE) if name in found} | found
    columns = [words("model", (label(run, name) for name in shown))]
    for metric, header, write, help in (*METRICS, ("ece", "ECE", decimal, "expected calibration error")):
        columns.append(column(header, (write(getattr(each.mean, metric)) for each in shown.values()), help))
        if metric == "accuracy":
            worst = (percent(each.worst.accuracy) for each in shown.values())
            columns.append(column("worst silo", worst, "accuracy at the silo with the lowest accuracy"))
    caption = "The models that decisions choose from, each answering the whole test split: mean over silos."
    return table(columns, caption)
