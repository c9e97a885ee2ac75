"""Decisions about the test inputs of each stream and their accuracy, as bars and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ...core.text import count, decimal, percent
from ...files import RunFolder
from ...files.schema import INSIDE, NOBODY, ORACLE, Separation, Stream
from ..diagrams import spans, stack_swatch, stacked_bar
from ..svg import WIDTH, Chart, Point, drawing, group, text
from ..templates import Cell, Column, Table, column, table, words
from .silos import METRICS, SiloRows
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
    """Return streams by name; empty if there was nothing to decide (one model answers the whole test split)."""
    tested = run.summary.tested if run.summary else {}
    chances = [len(stream.models) > 1 or stream.decisions.get("abstain", 0.0) > 0 for stream in tested.values()]
    return tested if len(tested) > 1 or any(chances) else {}


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


def kinds(*decisions: Mapping[str, float]) -> list[str]:
    """Return the kinds of decisions that occur, in the order of `KINDS`."""
    return [kind for kind in KINDS if any(shares.get(kind, 0.0) > 0 for shares in decisions)]


_BAR, _ROW = 24, 58
_FITS = 0.11  # minimum share whose label fits into its part of a bar


def share_bar(shares: Mapping[str, float], label: str) -> Markup:
    """Return a bar for a table's cell, with its numbers as the alternative text."""
    return drawing(120, 12, label, *parts(shares, (0, 0), (120, 12)), class_="stack")


def shares_text(shares: Mapping[str, float]) -> str:
    """Return the shares as text."""
    return ", ".join(f"{kind} {percent(share)}" for kind, share in _made(shares).items())


def parts(shares: Mapping[str, float], at: Point, size: Point) -> list[Markup]:
    """Return the parts of one bar at (x, y) of (width, height). An empty part is abstention. The two colors differ in
    brightness as well as in hue, and are the same in the light and the dark theme."""
    return stacked_bar(_made(shares), at, size, "share")


def _made(shares: Mapping[str, float]) -> dict[str, float]:
    return {kind: shares[kind] for kind in KINDS if shares.get(kind, 0.0) > 0}


def _share_labels(shares: Mapping[str, float], y: float) -> list[Markup]:
    return [
        text(WIDTH * (start + share / 2), y, percent(share, 0), "middle", f"on-{kind}")
        for kind, start, share in spans(_made(shares))
        if share >= _FITS
    ]


def decision_bars(run: RunFolder, silos: SiloRows) -> Chart | None:
    """Return the decisions of each silo, in the same order; None if all decisions are of one kind."""
    shares = {silo.name: silo.decisions for silo in run.silos if silo.decisions}
    if len(kinds(*shares.values())) < 2:
        return None
    rows = silos.laid_out()
    thick = min(11.0, 0.8 * rows.height)
    bars = []
    for name, y in rows.places:
        if of := shares.get(name):
            drawn = parts(of, (rows.frame.left, y - thick / 2), (rows.frame.width, thick))
            bars.append(group(f"{name}: {shares_text(of)}", *drawn, name=name))
    whole = shares_text(run.summary.decisions or {}) if run.summary else ""
    label = f"Shares of decisions of {len(shares)} silos. Total: {whole}"
    figure = drawing(rows.width, rows.frame.bottom + 4, label, *silos.named(rows), *bars, class_="dots")
    caption = "Share of each silo's test inputs that the local model answered, that the global model answered, and "
    caption += "that no model answered: blue, amber and empty."
    return Chart("Decisions", figure, caption)


_TIED = 0.02
"""Tolerance of an AUROC above which its value is flagged."""
_WHO = {"both": "both", "only_local": "only local", "only_global": "only global", "neither": "neither"}


def decisions(run: RunFolder) -> dict[str, Any] | None:
    """Return the section's tables, figures and legends by name. None if there was nothing to decide: one model that
    answers everything, and one stream."""
    tested = streams(run)
    several = len(tested) > 1
    made = kinds(*(stream.decisions for stream in tested.values()), *(silo.decisions or {} for silo in run.silos))
    found = {
        "about": [(name, ABOUT[name]) for name in tested if name in ABOUT] if several else [],
        "legend": [(stack_swatch(kind, "share"), kind) for kind in made],
        "streams": stream_table(run, tested),
        "shares": _shares(tested) if several else None,
        "quadrants": quadrants(tested) if run.summary and run.summary.policy.name != OWN else None,
        "evidence": evidence_figures(tested),
        "evidence_legend": evidence_legend(tested),
        "right": _right_table(tested),
        "outside": [_outside_table(*each) for each in tested.items()],
        "models": _model_table(run),
        "silos": _silo_table(run, several),
    }
    return found if found["streams"] or found["models"] or found["silos"] else None


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
    return [column(_SHARES[kind], (percent(shares.get(kind, 0.0)) for shares in found)) for kind in kinds(*found)]


_HELP = {
    "local": "accuracy of the local model if it answers everything",
    "global": "accuracy of the global model if it answers everything",
    "switch": "accuracy of the chosen model, including its labels for abstentions",
    ORACLE: "accuracy of the best possible choice between the two models",
}
_SHARES = {"local": "answered by local", "global": "answered by global", "abstain": "abstained"}


def _shares(tested: dict[str, Stream]) -> Chart | None:
    rows = {name: stream.decisions for name, stream in tested.items() if stream.decisions}
    if not rows:
        return None
    label = "Shares of decisions. " + "; ".join(f"{name}: {shares_text(shares)}" for name, shares in rows.items())
    caption = "Share of each stream's test inputs that the local model answered, that it handed over to the "
    caption += "global model, and that no model answered."
    drawn: list[Markup] = []
    for i, (name, shares) in enumerate(rows.items()):
        y = _ROW * i
        drawn += [text(0, y + 18, name), *parts(shares, (0, y + 25), (WIDTH, _BAR)), *_share_labels(shares, y + 42)]
    return Chart("Who answers", drawing(WIDTH, _ROW * len(rows), label, *drawn, class_="shares"), caption)


def _right_table(tested: dict[str, Stream]) -> Table | None:
    """Return decisions by which models were correct: both, one of them, or neither; None for a run with one model."""
    rows = [
        (name, who, sum(found.values()), found)
        for name, stream in tested.items()
        for who in _WHO
        if (found := stream.right.get(who)) and sum(found.values())
    ]
    columns = [
        words("stream", (name for name, *_ in rows)),
        words("correct", (_WHO[who] for _, who, *_ in rows)),
        column("inputs", (count(inputs) for _, _, inputs, _ in rows)),
        *_share_columns([{kind: n / inputs for kind, n in found.items()} for _, _, inputs, found in rows]),
    ]
    return table(columns, "Shares of the inputs in each row.")


def _outside_table(stream: str, found: Stream) -> Table | None:
    by_model = {name: found.outside[name] for name in models({"": found}) if name in found.outside}
    scores = list(dict.fromkeys(score for each in by_model.values() for score in each))
    of = {name: [each.get(score, Separation()) for score in scores] for name, each in by_model.items()}
    about = "share of known inputs flagged when 95 % of these are; 0 is best"
    columns = [
        words("score", scores),
        *(column(f"{name} AUROC", map(_separated, each), "0.5 is chance, 1 is best") for name, each in of.items()),
        *(column(f"{name} FPR95", (percent(one.fpr95) for one in each), about) for name, each in of.items()),
    ]
    caption = f"How well each score separates {stream} from the silo's own test split, mean over silos; "
    return table(columns, f"{caption}a triangle marks a value that is inexact because many scores are equal.")


def _separated(found: Separation) -> Cell:
    tolerance = found.auroc_tolerance or 0.0
    tied = f"so many scores are equal that the value is only known to within {tolerance:.3f}"
    return Cell(decimal(found.auroc), tied if tolerance > _TIED else "")


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


def _silo_table(run: RunFolder, several: bool) -> Table | None:
    """Return each silo's decisions on its test split, with a bar per stream; None if all decisions are of one kind."""
    silos = [silo for silo in run.silos if silo.decisions]
    shares = [silo.decisions or {} for silo in silos]
    others = list(dict.fromkeys(name for silo in silos for name in silo.streams))
    of_others = [{name: each.decisions for name, each in silo.streams.items()} for silo in silos]
    if len(kinds(*shares, *(found for each in of_others for found in each.values()))) < 2:
        return None
    spared = any(silo.test.coverage not in (None, 1.0) for silo in silos)
    answered = [percent(silo.test.accuracy_answered) if spared else "" for silo in silos]
    bars = {name: [each.get(name, {}) for each in of_others] for name in others} or {"decisions": shares}
    columns = [
        words("silo", (silo.name for silo in silos)),
        *_share_columns(shares),
        column("accuracy when answered", answered, "on its test split"),
        *(
            words(name, (_bar(s.name, name, one) for s, one in zip(silos, each, strict=True)))
            for name, each in bars.items()
        ),
    ]
    about = ": shares of its test split, and a bar for each stream." if several else " about its test split."
    return table(columns, f"What each silo decided{about}")


def _bar(silo: str, stream: str, shares: dict[str, float]) -> str:
    return share_bar(shares, f"{silo}, {stream}: {shares_text(shares)}") if shares else ""
