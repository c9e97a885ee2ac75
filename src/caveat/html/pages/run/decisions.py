"""The page's tables and figure of what was decided: whom silos ask about which test inputs, and how well that went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ....files.run_folder import RunFolder
from ....files.schema.run import ORACLE, Separation, Stream
from ...text import decimal, percent
from .evidence import evidence_figures, evidence_legend
from .figures import Chart
from .quadrants import Quadrants, quadrants
from .sections import METRICS, HtmlCell, HtmlColumn, HtmlTable, table
from .shares import share_bar, share_bars, swatch, told
from .streams import ABOUT, OWN, abstains, accuracy, accuracy_answered, kinds, label, models, streams

_TIED = 0.02
"""Tolerance of an AUROC above which its figure is flagged."""
_WHO = {"both": "both", "only_local": "only local", "only_global": "only global", "neither": "neither"}


@dataclass(frozen=True)
class Decisions:
    about: Sequence[tuple[str, str]]
    """Streams and what they are, where there are several."""
    legend: Sequence[tuple[Markup, str]]
    streams: HtmlTable | None
    shares: Chart | None
    quadrants: Quadrants | None
    evidence: Sequence[Chart]
    evidence_legend: Sequence[tuple[Markup, str]]
    right: HtmlTable | None
    outside: Sequence[tuple[str, HtmlTable]]
    """By stream: how well it is told from what silos know."""
    models: HtmlTable | None
    silos: HtmlTable | None


def decisions(run: RunFolder) -> Decisions | None:
    """None where there was nothing to decide: one model that answers everything, and one stream."""
    tested = streams(run)
    several = len(tested) > 1
    found = Decisions(
        about=[(name, ABOUT[name]) for name in tested if name in ABOUT] if several else [],
        legend=[(swatch(kind), kind) for kind in _kinds(run, tested)],
        streams=stream_table(run, tested) if tested else None,
        shares=_shares(tested) if several else None,
        quadrants=quadrants(tested) if run.summary and run.summary.policy.name != OWN else None,
        evidence=evidence_figures(tested),
        evidence_legend=evidence_legend(tested),
        right=_right_table(tested),
        outside=[(name, found) for name, stream in tested.items() if (found := _outside_table(stream))],
        models=_model_table(run),
        silos=_silo_table(run),
    )
    return found if found.streams or found.models or found.silos else None


def stream_table(run: RunFolder, tested: dict[str, Stream]) -> HtmlTable:
    """Streams by models: accuracies, who answered, and how well."""
    found = tested.values()
    shown = kinds(*(stream.decisions for stream in found))
    answered = [HtmlCell(percent(accuracy_answered(*each))) for each in tested.items()] if abstains(tested) else []
    return table(
        [
            HtmlColumn("stream", [HtmlCell(name) for name in tested], words=True),
            HtmlColumn(
                "inputs", [HtmlCell(f"{n:,}" if (n := stream.examples) is not None else "") for stream in found]
            ),
            *(
                HtmlColumn(
                    label(run, model),
                    [HtmlCell(percent(accuracy(*each, model))) for each in tested.items()],
                    _MODELS.get(model, ""),
                )
                for model in models(tested)
            ),
            *(
                HtmlColumn(_SHARES[kind], [HtmlCell(percent(stream.decisions.get(kind, 0.0))) for stream in found])
                for kind in shown
            ),
            *(
                [HtmlColumn("accuracy when answered", answered, "of all silos' answered inputs together")]
                if answered
                else []
            ),
        ]
    )


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
    caption = (
        "Share of each stream's test inputs that the silo's own model answered, that it handed to the federation's "
    )
    caption += "model, and that nobody answered."
    return Chart("Who answers", share_bars(rows, label), caption)


def _right_table(tested: dict[str, Stream]) -> HtmlTable | None:
    """What was decided where both models were right, one of them, or neither; None where there is one model."""
    rows = [
        (name, who, found)
        for name, stream in tested.items()
        for who in _WHO
        if (found := stream.right.get(who)) and sum(found.values())
    ]
    if not rows:
        return None
    shown = kinds(*(found for _, _, found in rows))
    return table(
        [
            HtmlColumn("stream", [HtmlCell(name) for name, _, _ in rows], words=True),
            HtmlColumn("right is", [HtmlCell(_WHO[who]) for _, who, _ in rows], words=True),
            HtmlColumn("inputs", [HtmlCell(f"{sum(found.values()):,}") for _, _, found in rows]),
            *(
                HtmlColumn(
                    _SHARES[kind], [HtmlCell(percent(found.get(kind, 0) / sum(found.values()))) for _, _, found in rows]
                )
                for kind in shown
            ),
        ]
    )


def _outside_table(stream: Stream) -> HtmlTable | None:
    """A row per score, and per model its AUROC and FPR95."""
    by_model = {name: stream.outside[name] for name in models({"": stream}) if name in stream.outside}
    scores = list(dict.fromkeys(score for found in by_model.values() for score in found))
    if not scores:
        return None
    none = Separation()
    columns = [HtmlColumn("score", [HtmlCell(score) for score in scores], words=True)]
    for name, found in by_model.items():
        cells = [_separated(found.get(score, none)) for score in scores]
        columns.append(HtmlColumn(f"{name} AUROC", cells, "0.5 is chance, 1 is best"))
    for name, found in by_model.items():
        cells = [HtmlCell(percent(found.get(score, none).fpr95)) for score in scores]
        columns.append(
            HtmlColumn(f"{name} FPR95", cells, "share of known inputs flagged along with 95 % of these; 0 is best")
        )
    return table(columns)


def _separated(found: Separation) -> HtmlCell:
    tolerance = found.auroc_tolerance or 0.0
    tied = f"so many scores are alike that the figure is only good to within {tolerance:.3f}"
    return HtmlCell(decimal(found.auroc), tied if tolerance > _TIED else "")


def _model_table(run: RunFolder) -> HtmlTable | None:
    """Local, global and switched model beside each other; None if there is nothing to choose from."""
    found = run.summary.models if run.summary else {}
    if len(found) < 2:  # one model's figures are the mean row of the silos
        return None
    shown = {name: found[name] for name in ("local", "global", "switch", ORACLE) if name in found} | found
    columns = [HtmlColumn("model", [HtmlCell(label(run, name)) for name in shown], words=True)]
    for metric, header, write, help in (*METRICS, ("ece", "ECE", decimal, "expected calibration error")):
        columns.append(
            HtmlColumn(header, [HtmlCell(write(getattr(each.mean, metric))) for each in shown.values()], help)
        )
        if metric == "accuracy":
            worst = [HtmlCell(percent(each.worst.accuracy)) for each in shown.values()]
            columns.append(HtmlColumn("worst silo", worst, "accuracy at the silo where it is lowest"))
    return table(columns)


def _silo_table(run: RunFolder) -> HtmlTable | None:
    """What each silo decided about its test split, and of other streams a bar; None if all was decided alike."""
    silos = [silo for silo in run.silos if silo.decisions]
    shares = [silo.decisions or {} for silo in silos]
    shown = kinds(*shares)
    others = list(dict.fromkeys(name for silo in silos for name in silo.streams))
    of_others = [{name: each.decisions for name, each in silo.streams.items()} for silo in silos]
    if len(kinds(*shares, *(found for each in of_others for found in each.values()))) < 2:
        return None
    spared = any(silo.test.coverage not in (None, 1.0) for silo in silos)
    answered = [HtmlCell(percent(silo.test.accuracy_answered) if spared else "") for silo in silos]
    bars = {name: [each.get(name, {}) for each in of_others] for name in others} or {"decisions": shares}
    return table(
        [
            HtmlColumn("silo", [HtmlCell(silo.name) for silo in silos], words=True),
            *(
                HtmlColumn(_SHARES[kind], [HtmlCell(percent(found.get(kind, 0.0))) for found in shares])
                for kind in shown
            ),
            HtmlColumn("accuracy when answered", answered, "on its test split"),
            *(
                HtmlColumn(
                    name, [_bar(silo.name, name, found) for silo, found in zip(silos, each, strict=True)], words=True
                )
                for name, each in bars.items()
            ),
        ]
    )


def _bar(silo: str, stream: str, shares: dict[str, float]) -> HtmlCell:
    return HtmlCell(share_bar(shares, f"{silo}, {stream}: {told(shares)}") if shares else "")
