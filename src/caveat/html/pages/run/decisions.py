"""The page's tables and figure of what was decided: whom silos ask about which test inputs, and how well that went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....core.text import count, decimal, percent
from ....files.run_folder import RunFolder
from ....files.schema.figures import ORACLE, Separation, Stream
from ...charts.svg import Chart
from ...tables import Cell, Column, Table, column, table, words
from .evidence import evidence_figures, evidence_legend
from .quadrants import quadrants
from .sections import METRICS
from .shares import share_bar, share_bars, swatch, told
from .streams import ABOUT, OWN, abstains, accuracy, accuracy_answered, kinds, label, models, streams

_TIED = 0.02
"""Tolerance of an AUROC above which its figure is flagged."""
_WHO = {"both": "both", "only_local": "only local", "only_global": "only global", "neither": "neither"}


def decisions(run: RunFolder) -> dict[str, Any] | None:
    """The section's tables, figures and legends by name.

    None where there was nothing to decide: one model that answers everything, and one stream.
    """
    tested = streams(run)
    several = len(tested) > 1
    found = {
        "about": [(name, ABOUT[name]) for name in tested if name in ABOUT] if several else [],
        "legend": [(swatch(kind), kind) for kind in _kinds(run, tested)],
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
    """Streams by models: accuracies, who answered, and how well."""
    found = tested.values()
    columns = [words("stream", tested), column("inputs", (count(stream.examples) for stream in found))]
    for model in models(tested):
        values = (percent(accuracy(*each, model)) for each in tested.items())
        columns.append(column(label(run, model), values, _MODELS.get(model, "")))
    columns += _share_columns([stream.decisions for stream in found])
    if abstains(tested):
        values = (percent(accuracy_answered(*each)) for each in tested.items())
        columns.append(column("accuracy when answered", values, "of all silos' answered inputs together"))
    caption = "Accuracy of each model on test inputs of each kind, mean over silos, and who answered, as shares of all "
    return table(columns, f"{caption}silos' inputs.")


def _share_columns(found: Sequence[Mapping[str, float]]) -> list[Column]:
    """A column per decision that was made anywhere, with its shares."""
    return [column(_SHARES[kind], (percent(shares.get(kind, 0.0)) for shares in found)) for kind in kinds(*found)]


_MODELS = {
    "local": "accuracy of the silo's own model, asked about everything",
    "global": "accuracy of the federation's model, asked about everything",
    "switch": "accuracy of the model that is chosen, its label where it abstains included",
    ORACLE: "accuracy of the best choice between the two models that there could be",
}
_SHARES = {"local": "answered by local", "global": "answered by global", "abstain": "abstained"}


def _kinds(run: RunFolder, tested: dict[str, Stream]) -> list[str]:
    return kinds(*(stream.decisions for stream in tested.values()), *(silo.decisions or {} for silo in run.silos))


def _shares(tested: dict[str, Stream]) -> Chart | None:
    rows = {name: stream.decisions for name, stream in tested.items() if stream.decisions}
    if not rows:
        return None
    label = "Shares of decisions. " + "; ".join(f"{name}: {told(shares)}" for name, shares in rows.items())
    caption = "Share of each stream's test inputs that the silo's own model answered, that it handed to the "
    caption += "federation's model, and that nobody answered."
    return Chart("Who answers", share_bars(rows, label), caption)


def _right_table(tested: dict[str, Stream]) -> Table | None:
    """What was decided where both models were right, one of them, or neither; None where there is one model."""
    rows = [
        (name, who, sum(found.values()), found)
        for name, stream in tested.items()
        for who in _WHO
        if (found := stream.right.get(who)) and sum(found.values())
    ]
    columns = [
        words("stream", (name for name, *_ in rows)),
        words("right is", (_WHO[who] for _, who, *_ in rows)),
        column("inputs", (count(inputs) for _, _, inputs, _ in rows)),
        *_share_columns([{kind: n / inputs for kind, n in found.items()} for _, _, inputs, found in rows]),
    ]
    return table(columns, "Shares of the inputs of a row.")


def _outside_table(stream: str, found: Stream) -> Table | None:
    """A row per score, and per model its AUROC and FPR95."""
    by_model = {name: found.outside[name] for name in models({"": found}) if name in found.outside}
    scores = list(dict.fromkeys(score for each in by_model.values() for score in each))
    of = {name: [each.get(score, Separation()) for score in scores] for name, each in by_model.items()}
    about = "share of known inputs flagged along with 95 % of these; 0 is best"
    columns = [
        words("score", scores),
        *(column(f"{name} AUROC", map(_separated, each), "0.5 is chance, 1 is best") for name, each in of.items()),
        *(column(f"{name} FPR95", (percent(one.fpr95) for one in each), about) for name, each in of.items()),
    ]
    caption = f"How well each score tells {stream} from the silo's own test split, mean over silos; "
    return table(columns, f"{caption}a triangle marks a figure that many equal scores leave open.")


def _separated(found: Separation) -> Cell:
    tolerance = found.auroc_tolerance or 0.0
    tied = f"so many scores are alike that the figure is only good to within {tolerance:.3f}"
    return Cell(decimal(found.auroc), tied if tolerance > _TIED else "")


def _model_table(run: RunFolder) -> Table | None:
    """Local, global and switched model beside each other; None if there is nothing to choose from."""
    found = run.summary.models if run.summary else {}
    if len(found) < 2:  # one model's figures are the mean row of the silos
        return None
    shown = {name: found[name] for name in ("local", "global", "switch", ORACLE) if name in found} | found
    columns = [words("model", (label(run, name) for name in shown))]
    for metric, header, write, help in (*METRICS, ("ece", "ECE", decimal, "expected calibration error")):
        columns.append(column(header, (write(getattr(each.mean, metric)) for each in shown.values()), help))
        if metric == "accuracy":
            worst = (percent(each.worst.accuracy) for each in shown.values())
            columns.append(column("worst silo", worst, "accuracy at the silo where it is lowest"))
    caption = "The models that decisions choose from, each asked about all of the test split: mean over silos."
    return table(columns, caption)


def _silo_table(run: RunFolder, several: bool) -> Table | None:
    """What each silo decided about its test split, and of other streams a bar; None if all was decided alike."""
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
    return share_bar(shares, f"{silo}, {stream}: {told(shares)}") if shares else ""
