"""The card of a run says what was measured and promised, and marks what nobody has stated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import caveat, one_error, sets
from typer.testing import Result

BLANKS = 17
"""The keys of card.toml that a test leaves blank."""

CHAI: dict[str, Any] = {
    "BasicInfo": {"ModelName": {}, "ModelDeveloper": {}, "DeveloperContact": {}},
    "ReleaseInfo": {"ReleaseStage": {}, "ReleaseDate": {}, "ReleaseVersion": {}, "GlobalAvailability": {}},
    "ModelSummary": {"Summary": {}, "Keywords": {"Keyword": {}}},
    "UsesAndDirections": {
        "IntendedUseAndWorkflow": {}, "PrimaryIntendedUsers": {}, "HowToUse": {}, "TargetedPatientPopulation": {},
        "CautionedOutOfScopeSettings": {},
    },
    "Warnings": {
        "KnownRisksAndLimitations": {}, "KnownBiasesOrEthicalConsiderations": {}, "ClinicalRiskLevel": {},
    },
    "TrustIngredients": {
        "AISystemFacts": {
            "OutcomesAndOutputs": {}, "ModelType": {}, "InputDataSource": {}, "OutputAndInputDataTypes": {},
            "DevelopmentDataCharacterization": {}, "BiasMitigationApproaches": {}, "OngoingMaintenance": {},
            "Security": {}, "Transparency": {},
        },
        "TransparencyInformation": {"FundingSource": {}, "StakeholdersConsulted": {}},
    },
    "KeyMetrics": {
        name: {
            "MetricGoal": {}, "Results": {"MetricResult": {"Label": {}, "ValueJson": {}}}, "Interpretation": {},
            "TestType": {}, "TestingDataDescription": {}, "ValidationProcessAndJustification": {},
        }
        for name in ("UsefulnessUsabilityEfficacy", "FairnessEquity", "SafetyReliability")
    },
    "Resources": {"PeerReviewedPublications": {}, "PatientConsentOrDisclosure": {}},
    "Bibliography": {},
}  # fmt: skip
"""The elements of CHAI's schema 0.2 in its order, without optional ones that the card lacks."""


def test_the_card_has_figures_promises_and_what_people_state(finished: tuple[Path, Result], nowhere: Path) -> None:
    (nowhere / "card.toml").write_text('license = "apache-2.0"\nfunding = ""\n')
    done = caveat("card", finished[0], "--silo", "silo-1", "--card", "card.toml")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("---\nlibrary_name: caveat\npipeline_tag: image-classification\n")
    assert 'license: "apache-2.0"' in done.stdout
    assert done.stdout.count(": not stated") == BLANKS
    assert "| accuracy | " in done.stdout
    found = json.loads(caveat("card", finished[0], "--silo", "silo-1", "--format", "json").stdout)
    summary = json.loads((finished[0] / "summary.json").read_text())
    record = next(each for each in summary["silos"] if each["name"] == "silo-1")
    assert found["figures"]["accuracy"]["value"] == pytest.approx(record["test"]["accuracy"])
    assert found["figures"]["accuracy"]["interval_95"][0] <= record["test"]["accuracy"]
    assert found["figures"]["majority class"]["of"] == found["data"]["rows"]["test"] == record["n_test"]
    assert any(each.startswith("All p-values") for each in found["promises"])
    assert found["stated"]["license"] == "not stated"


def test_training_alone_is_beside_it(nowhere: Path) -> None:
    tiny = ["method.name=fedavg", "model.name=mlp", "model.hidden=8", "rounds=1", "training.local_epochs=1"]
    tiny += ["data.n_silos=3", "uncertainty.mc_samples=2", 'baselines=["local"]']
    assert caveat("run", *sets(*tiny), "--out", "run").exit_code == 0
    found = json.loads(caveat("card", "run", "--silo", "silo-0", "--format", "json").stdout)
    assert found["figures"]["training alone"]["of"] == found["figures"]["accuracy"]["of"]


@pytest.mark.parametrize(("text", "told"), [
    ('licence = "mit"', "'licence': no such key; did you mean license?"),
    ("risk = 3", "risk = 3, expected a text"), ("risk =", "Invalid value"),
])  # fmt: skip
def test_mistakes_are_one_line(text: str, told: str, finished: tuple[Path, Result], nowhere: Path) -> None:
    (nowhere / "card.toml").write_text(text)
    assert told in one_error(caveat("card", finished[0], "--silo", "silo-1", "--card", "card.toml"), 2)


def children(element: ElementTree.Element) -> Any:
    """The names of an element's children, and of theirs; several of the same name have the same."""
    for each in element:
        assert len(each) or (each.text or "").strip(), each.tag
    return {each.tag.partition("}")[2]: children(each) for each in element}


def test_the_card_of_chai_follows_its_schema(finished: tuple[Path, Result], nowhere: Path) -> None:
    (nowhere / "card.toml").write_text('developer = "A & B <c@example.org> \\u0001"\n')
    done = caveat("card", finished[0], "--silo", "silo-1", "--card", "card.toml", "--format", "chai")
    assert done.exit_code == 0, done.stderr
    root = ElementTree.fromstring(done.stdout)
    assert root.tag == "{https://mc.chai.org/v0.2/schema.xsd}AppliedModelCard"
    assert json.dumps(children(root)) == json.dumps(CHAI)
    texts = {each.tag.partition("}")[2]: (each.text or "").strip() for each in root.iter()}
    assert texts["ModelDeveloper"] == "A & B <c@example.org>"
    assert [texts[name] for name in ("FundingSource", "ClinicalRiskLevel", "ReleaseStage")] == ["not stated"] * 3
    results = [json.loads(each.text or "") for each in root.iter("{https://mc.chai.org/v0.2/schema.xsd}ValueJson")]
    card = json.loads(caveat("card", finished[0], "--silo", "silo-1", "--format", "json").stdout)
    accuracy = card["figures"]["accuracy"]
    assert (results[0]["kind"], results[0]["unit"]) == ("estimate_ci", "%")
    assert [results[0]["lower"], results[0]["upper"]] == pytest.approx([100 * x for x in accuracy["interval_95"]])


def test_hugging_face_reads_the_metadata(finished: tuple[Path, Result], nowhere: Path) -> None:
    yaml = pytest.importorskip("yaml")
    (nowhere / "card.toml").write_text('license = "for research only"\n')
    done = caveat("card", finished[0], "--silo", "silo-1", "--card", "card.toml")
    about = yaml.safe_load(done.stdout.split("---\n")[1])
    assert (about["license"], about["license_name"]) == ("other", "for research only")
    (model,) = about["model-index"]
    (result,) = model["results"]
    assert (result["task"]["type"], result["dataset"]["type"]) == ("image-classification", "private")
    assert result["metrics"][0]["type"] == "accuracy"
    assert 0 <= result["metrics"][0]["value"] <= 1


def test_the_card_of_a_quantity_has_errors_beside_the_median_of_training(nowhere: Path) -> None:
    tiny = ["method.name=fedavg", "rounds=2", "uncertainty.mc_samples=2", 'baselines=["local"]']
    assert caveat("run", "diabetes", *sets(*tiny), "--out", "run").exit_code == 0
    summary = json.loads((nowhere / "run" / "summary.json").read_text())
    record, name = summary["silos"][0], summary["silos"][0]["name"]
    test, n = record["test"], record["n_test"]
    found = json.loads(caveat("card", "run", "--silo", name, "--format", "json").stdout)
    figures, label = found["figures"], "mean absolute error of medians"
    assert figures[label]["value"] == test["mae"]
    assert figures[f"{label}, without inputs (the median of all training targets)"]["value"] == test["reference_mae"]
    assert figures[f"{label}, mean over silos"]["value"] == pytest.approx(summary["mean"]["mae"])
    assert f"{label}, training alone" in figures
    covered = figures["share of intervals with the true value"]
    assert covered["value"] == pytest.approx(test["interval_coverage"])
    assert covered["of"] == n
    assert covered["interval_95"][0] < covered["value"]
    assert not set(figures) & set(figures["other"])
    assert found["model"]["predicts"] == "quantity"
    text = caveat("card", "run", "--silo", name).stdout
    assert f"| {label} | {test['mae']:.4g} |" in text
    assert "    - type: mae\n" in text
    assert "class" not in text.split("## Limits")[0].replace("classification", "")
    root = ElementTree.fromstring(caveat("card", "run", "--silo", name, "--format", "chai").stdout)
    assert json.dumps(children(root)) == json.dumps(CHAI)
    texts = [each.text or "" for each in root.iter()]
    assert any("It predicts a quantity" in each for each in texts)
