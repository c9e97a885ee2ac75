"""Runs whose promises are by subgroup: what they report and keep, new inputs, and hospitals' patients by sex."""

from __future__ import annotations

import csv
import json
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_run import write_json

import caveat
from caveat.cli.prediction_output import prediction_rows
from caveat.config import load
from caveat.core.errors import DataWarning
from caveat.data.subgroups import Subgroups
from caveat.export.chai_card import chai_text
from caveat.export.silo_model_card import card_text, contents
from caveat.files import read_run
from caveat.html.run.page import write_report
from caveat.html.run.subgroups import CAPTION, REPORTED, subgroup_table
from caveat.runs.joining import own_silos_of
from caveat.runs.start import start
from caveat.terminal.results import subgroups

ROWS = 400
MODEL = caveat.ModelSettings(name="mlp", hidden=8)
GUARANTEED = caveat.Uncertainty(policy="guaranteed", risk=0.2, set_coverage=0.9)


def table(seed: int) -> str:
    """Rows of which the label of a third, sex f, is hard to predict."""
    rng = np.random.default_rng(seed)
    sex = np.where(rng.random(ROWS) < 0.3, "f", "m")
    x = rng.normal(size=(ROWS, 2))
    y = (x[:, 0] + rng.normal(size=ROWS) * np.where(sex == "f", 2.0, 0.2) > 0).astype(int)
    rows = [f"{a:.3f},{b:.3f},{s},{label}" for (a, b), s, label in zip(x, sex, y, strict=True)]
    return "\n".join(["a,b,sex,y", *rows]) + "\n"


def write(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.csv" for name in ("north", "south")]
    for seed, path in enumerate(paths):
        path.write_text(table(seed))
    return paths


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> caveat.Run:
    folder = tmp_path_factory.mktemp("subgroups")
    silos = caveat.data.from_files(*write(folder / "data"), target="y", subgroups="sex")
    return caveat.run(silos, caveat.FedAvg(rounds=6), model=MODEL, uncertainty=GUARANTEED, out=folder / "run")


def test_a_run_reports_its_promises_and_metrics_by_subgroup(run: caveat.Run, tmp_path: Path) -> None:
    summary = run.summary
    assert [each["of"] for each in summary["guarantee"]["subgroups"]] == [["sex = f"], ["sex = m"]]
    assert summary["sets"]["subgroups"] == ["sex = f", "sex = m"]
    of = torch.cat([silo.subgroups["test"] for silo in run.silos])
    assert [each["examples"] for each in summary["subgroups"]] == torch.bincount(of).tolist()
    found = [run.predictor(s.name)(caveat.data.Inputs(s.test.x, subgroup=s.subgroups["test"])) for s in run.silos]
    right = torch.cat([each.label == silo.test.y for each, silo in zip(found, run.silos, strict=True)])
    held = [each.sets.gather(1, s.test.y[:, None])[:, 0] for each, s in zip(found, run.silos, strict=True)
            if each.sets is not None]  # fmt: skip
    answered = torch.cat([each.decision != caveat.Decision.ABSTAIN for each in found])
    for g, each in enumerate(summary["subgroups"]):
        assert each["accuracy"] == pytest.approx(float(right[of == g].double().mean()))
        assert each["coverage"] == pytest.approx(float(answered[of == g].double().mean()))
        assert each["set_coverage"] == pytest.approx(float(torch.cat(held)[of == g].double().mean()))
    assert summary["subgroups"][0]["accuracy"] < summary["subgroups"][1]["accuracy"]
    shown = subgroup_table(read_run(run.folder))
    assert shown is not None
    assert [cell.text for cell in shown.columns[0].cells] == ["sex = f", "sex = m"]
    assert subgroups(read_run(run.folder)) is not None
    assert "<h3>Subgroups</h3>" in write_report(run.folder, tmp_path / "page.html").read_text()


def test_a_card_has_accuracy_and_intervals_by_subgroup(run: caveat.Run) -> None:
    found, records = contents(run, "north"), run.summary["subgroups"]
    for each, record in zip(found["groups"], records, strict=True):
        accuracy = each["accuracy"]
        low, high = accuracy["interval_95"]
        assert (each["group"], accuracy["of"]) == (record["name"], record["examples"])
        assert accuracy["value"] == pytest.approx(record["accuracy"])
        assert low < accuracy["value"] < high
        assert each["answered"]["value"] == pytest.approx(record["coverage"], abs=1e-6)
        answered = round(record["coverage"] * record["examples"])  # no answer, no accuracy of answers
        assert each.get("accuracy of answers", {"of": 0})["of"] == answered
    text = card_text(found)
    assert "| sex = f: accuracy | " in text
    assert "sex = f" in chai_text(found).split("<FairnessEquity>")[1].split("</FairnessEquity>")[0]


def test_a_run_knows_the_subgroups_of_new_inputs(run: caveat.Run, tmp_path: Path) -> None:
    loaded = caveat.load(run.folder)
    path = tmp_path / "new.csv"
    path.write_text(table(7))
    inputs = caveat.data.noted_inputs(path, loaded.preparation, "north")
    assert inputs.subgroup is not None
    whole = loaded.predictor("north")(inputs)
    assert whole.subgroup is not None
    sexes = [line.split(",")[2] for line in table(7).splitlines()[1:]]
    named = loaded.predictor("north")(inputs.x, subgroups=sexes)
    assert torch.equal(named.decision, whole.decision)
    with pytest.warns(DataWarning, match=r"400 of 400 inputs have no subgroup \(sex\), so the guarantees"):
        unknown = loaded.predictor("north")(inputs.x)
    assert not torch.equal(unknown.decision, whole.decision)
    assert whole.sets is not None
    assert unknown.sets is not None
    names = [loaded.preparation.subgroup_names[of] for of in whole.subgroup.tolist()]
    header, *rows = csv.reader(prediction_rows(whole, loaded.preparation.classes, {"subgroup": names}).splitlines())
    assert [row[header.index("subgroup")] for row in rows] == [f"sex = {sex}" for sex in sexes]
    # Sets of the hard subgroup are larger than those by the promise of all inputs, and of the easy one smaller.
    f = torch.tensor([sex == "f" for sex in sexes])
    assert whole.sets[f].sum() > unknown.sets[f].sum()
    assert whole.sets[~f].sum() < unknown.sets[~f].sum()


def test_without_the_promises_a_run_still_reports_by_subgroup(run: caveat.Run, tmp_path: Path) -> None:
    plain = caveat.Uncertainty(policy="guaranteed", risk=0.2, set_coverage=0.9, by_subgroup=False)
    one = caveat.run(run.silos, caveat.FedAvg(rounds=6), model=MODEL, uncertainty=plain, out=tmp_path / "run")
    assert [each["name"] for each in one.summary["subgroups"]] == ["sex = f", "sex = m"]
    assert "subgroups" not in one.summary["guarantee"]
    by, reported = (subgroup_table(read_run(each.folder)) for each in (run, one))
    assert by is not None
    assert reported is not None
    assert (by.caption, reported.caption) == (CAPTION, REPORTED)
    # Of the hard subgroup sets are smaller than they have to be, of the easy one larger.
    found = [[each["set_size"] for each in summary["subgroups"]] for summary in (one.summary, run.summary)]
    assert found[0][0] < found[1][0]
    assert found[0][1] >= found[1][1]


@pytest.mark.parametrize("own", [True, False])
def test_more_errors_than_guaranteed_are_flagged_with_whose_guarantee_it_is(
    own: bool, run: caveat.Run, tmp_path: Path
) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    summary = json.loads((run.folder / "summary.json").read_text())
    for each, wrong in zip(summary["subgroups"], (0.5, 0.1), strict=True):
        each |= {"examples": 100.0, "coverage": 1.0, "answered_accuracy": 1 - wrong}
    if not own:
        del summary["guarantee"]["subgroups"]
    write_json(tmp_path / "run" / "summary.json", summary)
    shown = subgroup_table(read_run(tmp_path / "run"))
    assert shown is not None
    (errors,) = [column for column in shown.columns if column.header == "wrong among these"]
    flag = "more errors than guaranteed" + " for inputs of several subgroups" * (not own)
    assert [(cell.text, cell.flag) for cell in errors.cells] == [("50.0 %", flag), ("10.0 %", "")]


def test_a_run_does_not_continue_with_other_subgroups(run: caveat.Run, tmp_path: Path) -> None:
    assert "subgroups_sha256" in (run.folder / "splits.json").read_text()
    settings = {"model": MODEL, "uncertainty": GUARANTEED, "out": run.folder}
    again = caveat.run(run.silos, caveat.FedAvg(rounds=6), **settings)
    assert again.summary == run.summary
    other = caveat.data.from_files(*write(tmp_path), target="y", subgroups="sex", subgroup_values=["m", "f"])
    with pytest.raises(caveat.CaveatError, match="data"):
        caveat.run(other, caveat.FedAvg(rounds=6), **settings)


@pytest.mark.filterwarnings("ignore:1 of 3 features are the same")
def test_a_joining_silo_has_the_subgroups_of_the_federation(tmp_path: Path) -> None:
    """Though its own rows are all of one sex."""
    sources = ",".join(map(str, write(tmp_path / "data")))
    (tmp_path / "config.toml").write_text(
        f'rounds = 2\n[data]\nsource = "csv:{sources}"\ntarget = "y"\nsubgroups = "sex"\n[model]\nname = "mlp"\n'
        'hidden = 8\n[method]\nname = "fedavg"\n[uncertainty]\npolicy = "guaranteed"\nrisk = 0.3\n'
    )
    federation = caveat.load(start(load(str(tmp_path / "config.toml")), tmp_path / "run"))
    rows = table(5).splitlines()
    own = tmp_path / "west.csv"
    own.write_text("\n".join([rows[0], *(row for row in rows if ",m," in row)]) + "\n")
    silos = own_silos_of(federation, f"csv:{own}", "west")
    assert silos.subgroup_names == ("sex = f", "sex = m")
    assert silos["west"].subgroups["test"].unique().tolist() == [1]
    joined = caveat.join(federation, silos, rounds=1, out=tmp_path / "joined")
    (silo,) = joined.summary["silos"]
    assert [each["of"] for each in silo["promise"]["subgroups"]] == [["sex = f", "sex = m"]]
    other = replace(silos, subgroups=Subgroups("sex", ("m", "f")))
    with pytest.raises(caveat.DataError, match="the subgroups"):
        caveat.join(federation, other, rounds=1, out=tmp_path / "other")


@pytest.mark.long
def test_patients_of_four_hospitals_by_sex(tmp_path: Path) -> None:
    folder = os.environ.get("CAVEAT_DATA", "")
    if not (Path(folder) / "uci_heart_va.csv").exists():
        pytest.skip("CAVEAT_DATA has no uci_heart_*.csv")
    paths = [Path(folder) / f"uci_heart_{name}.csv" for name in ("cleveland", "hungarian", "switzerland", "va")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        silos = caveat.data.from_files(*paths, target="disease", subgroups="sex")
        settings = caveat.Uncertainty(policy="guaranteed", risk=0.2, set_coverage=0.9)
        found = caveat.run(silos, caveat.FedAvg(rounds=20), model=MODEL, uncertainty=settings, out=tmp_path / "run")
    summary = found.summary
    assert [each["name"] for each in summary["subgroups"]] == ["sex = 0", "sex = 1"]
    assert sum(each["examples"] for each in summary["subgroups"]) == sum(len(silo.test) for silo in silos)
    pools = [name for each in summary["guarantee"]["subgroups"] for name in each["of"]]
    assert sorted(pools) == ["sex = 0", "sex = 1"]
    for each in summary["subgroups"]:
        assert each["set_coverage"] > 0.8
