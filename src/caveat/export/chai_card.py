"""The card of a silo's model as an Applied Model Card of the Coalition for Health AI (CHAI).

The card is XML of schema 0.2 (https://github.com/coalition-for-health-ai/mc-schema), made from the `contents` of
`silo_model_card`. The elements have the order that the schema requires.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from ..core.text import plain
from .exported_metadata import DECISIONS
from .silo_model_card import BLANK, title

NAMESPACE = "https://mc.chai.org/v0.2/schema.xsd"
INTERPRETATION = "Metrics on a test split, with 95 % intervals. On other inputs, they can differ."
Tree = Mapping[str, Any]


def chai_text(found: Tree) -> str:
    """Return the contents of a card as XML."""
    root = ElementTree.Element("AppliedModelCard", xmlns=NAMESPACE)
    _add(root, _elements(found))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add(parent: ElementTree.Element, values: Tree) -> None:
    """Add an element per name; a list is several elements of the same name."""
    for name, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            element = ElementTree.SubElement(parent, name)
            if isinstance(each, Mapping):
                _add(element, each)
            else:
                element.text = "".join(c for c in str(each) if c.isprintable() or c in "\n\t")


def _elements(found: Tree) -> Tree:
    model, said, data = found["model"], found["stated"], found["data"]
    groups, predicted, answers, goal = found["groups"], _predicted(model), "labels are correct", "the majority class"
    if "classes" not in model:
        answers, goal = "values are near the true ones", "predictions without inputs"
    return {
        "BasicInfo": {
            "ModelName": title(model), "ModelDeveloper": said["developer"], "DeveloperContact": said["contact"],
        },
        "ReleaseInfo": {
            "ReleaseStage": said["stage"], "ReleaseDate": said["released"], "ReleaseVersion": model["sha256"][:12],
            "GlobalAvailability": said["availability"],
        },
        "ModelSummary": {
            "Summary": f"The model of silo {plain(model['silo'])} from federated training ({model['method']}) over "
            f"{data['silos']} silos that share no data. It predicts {predicted}, reports its "
            "uncertainty, and abstains from inputs on which it should not be trusted.",
            "Keywords": {"Keyword": ["federated learning", "uncertainty quantification", model["task"]]},
        },
        "UsesAndDirections": {
            "IntendedUseAndWorkflow": said["intended_use"], "PrimaryIntendedUsers": said["users"],
            "HowToUse": _lines([*DECISIONS.values(), f"who acts on an abstention: {said['oversight']}"]),
            "TargetedPatientPopulation": said["population"], "CautionedOutOfScopeSettings": said["out_of_scope"],
        },
        "Warnings": {
            "KnownRisksAndLimitations": _lines(
                [*found["warnings"], *(f"not noticed: {each}" for each in found["not_noticed"]), found["limits"]]
            ),
            "KnownBiasesOrEthicalConsiderations": "See FairnessEquity." if groups else BLANK,
            "ClinicalRiskLevel": said["risk"],
        },
        "TrustIngredients": {
            "AISystemFacts": {
                "OutcomesAndOutputs": f"{predicted[0].upper()}{predicted[1:]}, uncertainties, p-values and a decision: "
                 + "; ".join(DECISIONS.values()),
                "ModelType": f"{model['method']}, {found['training']['model'].get('name', BLANK)}",
                "InputDataSource": said["data_source"], "OutputAndInputDataTypes": _lines(data["inputs"]),
                "DevelopmentDataCharacterization": _lines(_development(data)),
                "BiasMitigationApproaches": _mitigation(found), "OngoingMaintenance": said["maintenance"],
                "Security": _lines(_security(found)), "Transparency": _lines(found["promises"]),
            },
            "TransparencyInformation": {
                "FundingSource": said["funding"], "StakeholdersConsulted": said["stakeholders"],
            },
        },
        "KeyMetrics": {
            "UsefulnessUsabilityEfficacy": _metrics(
                f"Whether {answers}, compared with {goal} and training alone", _results(found["figures"])
            ),
            "FairnessEquity": _metrics(
                f"Whether {answers} for each group of people", _of_groups(groups),
                "all silos' test inputs of a group together", groups,
            ),
            "SafetyReliability": _metrics(
                "How often the model answers, and how reliable its uncertainties are",
                _others(found["figures"]["other"]),
            ),
        },
        "Resources": {
            "PeerReviewedPublications": said["publications"], "PatientConsentOrDisclosure": said["consent"],
        },
        "Bibliography": f"caveat {model['caveat']}; SHA-256 of the model {model['sha256']}, of the run "
        f"{model['run_sha256']}",
    }  # fmt: skip


def _predicted(model: Tree) -> str:
    """Return what is predicted."""
    if "classes" in model:
        return f"one of the classes {', '.join(map(plain, model['classes']))}, with a probability each"
    name = f" ({plain(model['target'])})" if model["target"] else ""
    return (
        f"a time to an event{name}, with a lower bound"
        if model["predicts"] == "time"
        else (f"a quantity{name}, with an interval")
    )


def _lines(texts: Sequence[str] | Iterator[str]) -> str:
    return "\n".join(texts) or BLANK


def _development(data: Tree) -> Iterator[str]:
    yield f"{data['silos']} silos; source: {data['source']}"
    if data["rows"]:
        yield "rows of this silo: " + ", ".join(f"{n:,} {part}" for part, n in data["rows"].items())
    if counts := data["training_rows_by_class"]:
        yield "training rows by class: " + ", ".join(f"{plain(k)} {n:,}" for k, n in counts.items())


def _mitigation(found: Tree) -> str:
    if not found["groups"]:
        return BLANK
    own = found["training"]["uncertainty"].get("by_subgroup", False)
    return f"Guarantees, prediction sets and alarms are {'for each group' if own else 'for all groups together'}."


def _security(found: Tree) -> Iterator[str]:
    yield "Rows of data do not leave a silo."
    privacy = found["privacy"]
    if privacy is None:
        yield "No noise for differential privacy was added."
    else:
        cost = f"epsilon {privacy['epsilon']:.3g}, delta {privacy['delta']:.3g}"
        yield f"Differential privacy with {cost} covers {privacy['covers']}"


def _metrics(
    goal: str, results: list[Tree], data: str = "the test split of this silo", known: Any = True
) -> dict[str, Any]:
    return {
        "MetricGoal": goal,
        "Results": {"MetricResult": results or [_result(BLANK, {"kind": "single", "value": BLANK})]},
        "Interpretation": INTERPRETATION if known else BLANK,
        "TestType": "retrospective, internal: inputs held out at random" if known else BLANK,
        "TestingDataDescription": data if known else BLANK,
        "ValidationProcessAndJustification": "No test input was used in training, calibration or settings."
        if known else BLANK,
    }  # fmt: skip


def _result(label: str, value: Tree) -> dict[str, Any]:
    return {"Label": label, "ValueJson": json.dumps(value, ensure_ascii=False)}


def _ranged(label: str, found: Tree) -> dict[str, Any]:
    if not found.get("share", True):
        return _result(label, {"kind": "single", "value": found["value"]})
    value = 100 * found["value"]
    if found.get("interval_95") is None:
        return _result(label, {"kind": "single", "value": value, "unit": "%"})
    low, high = (100 * each for each in found["interval_95"])
    return _result(
        label, {"kind": "estimate_ci", "estimate": value, "lower": low, "upper": high, "level": 95, "unit": "%"}
    )


def _results(figures: Tree) -> list[Tree]:
    return [_ranged(name, each) for name, each in figures.items() if name != "other"]


def _of_groups(groups: Sequence[Tree]) -> list[Tree]:
    return [
        _ranged(f"{name}, {plain(each['group'])} ({each[name]['of']} inputs)", each[name])
        for each in groups
        for name in each
        if name != "group"
    ]


def _others(figures: Tree) -> list[Tree]:
    return [_result(name, {"kind": "single", "value": value}) for name, value in figures.items()]
