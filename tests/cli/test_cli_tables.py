"""Tables on the command line: what `data` shows, what a run refuses, what `predict` says of rows unlike training."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import TINY, caveat, files, one_error, sets
from html_page import Page
from PIL import Image
from typer.testing import Result

from caveat.api import load
from caveat.cli.prediction_output import has_images, mostly_missing, of_own, prediction_rows, right_at
from caveat.config import read_dictionary
from caveat.core import Prediction, ResultWarning
from caveat.core.text import percent
from caveat.data.tables.drift_reference import NO_REFERENCE, ColumnReference, Reference
from caveat.data.tables.reading_settings import TableColumn
from caveat.files import as_text, write_json
from caveat.files.schema import Summary

pytestmark = pytest.mark.usefixtures("nowhere")
TABLE = [*TINY, "data.source=csv:a.csv", "data.target=ill", "data.shift.angles=[]", "training.batch_size=8"]


def write(path: Path, decimal: str = ".", odd: str = "", labels: str = "ny") -> None:
    """600 rows of a number, codes and a label, separated by semicolons."""
    lines = ["dose;code;ill"]
    for row in range(600):
        number = f"{row * 37 % 1000}{decimal}{row % 7}"
        lines.append(f"{odd if odd and row == 36 else number};{row % 3};{labels[row // 3 % 2]}")
    path.write_text("\n".join(lines) + "\n")


def refused(result: Result) -> str:
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("decimal", "odd", "told"),
    [
        (",", "", "error: a.csv, line 2: 'dose' is '0,0', a number with a decimal comma: set data.decimal = \",\""),
        (".", "1.2x", "error: a.csv, line 38: 'dose' is '1.2x', but 599 of 600 values are numbers"),
    ],
)
def test_a_table_that_would_be_read_wrongly_is_refused_and_shown(
    nowhere: Path, decimal: str, odd: str, told: str
) -> None:
    write(nowhere / "a.csv", decimal, odd)
    assert told in one_error(caveat("run", *sets(*TABLE)), 3)
    assert files(nowhere) == {"a.csv"}
    for target in (["--target", "ill"], []):
        shown = caveat("data", "a.csv", *target)
        assert refused(shown).startswith(told)
        dose = next(line for line in shown.stdout.splitlines() if line.strip().startswith("dose"))
        assert dose.rstrip().endswith("refused: see below")


def test_a_run_needs_no_file(nowhere: Path) -> None:
    """Tables on the command line: FedAvg and training alone, a perceptron, true labels."""
    for name in ("a", "b"):
        write(nowhere / f"{name}.csv")
    data = ("a.csv", "b.csv")
    assert "data.target is missing" in one_error(caveat("run", *data), 2)
    result = caveat("run", *data, "--target", "ill", *sets("rounds=1"), "--quiet", "--out", "run")
    assert result.exit_code == 0, result.stderr
    kept = (nowhere / "run" / "config.toml").read_text()
    assert 'source = "csv:a.csv,b.csv"' in kept
    assert 'target = "ill"' in kept
    assert 'baselines = ["local"]' in kept
    assert caveat("plan", *data, "--target", "ill").exit_code == 0
    asked = ("run", "a.csv", "--target", "ill", "--silo-column", "code", *sets("rounds=1"), "--quiet", "--out", "by")
    assert caveat(*asked).exit_code == 0
    assert "no such file, and no such recipe" in one_error(caveat("run", "c.csv"), 2)


def test_data_shows_silos_side_by_side(nowhere: Path) -> None:
    for name, factor in (("north", 1), ("south", 88.4), ("east", 1)):
        lines = [f"{(row % 9 + 5) * factor:g},{'FM'[row % 2]},{row % 2}" for row in range(60)]
        (nowhere / f"{name}.csv").write_text("\n".join(["creatinine,sex,ill", *lines]))
    asked = ("data", "north.csv", "south.csv", "east.csv", "--target", "ill")
    result = caveat(*asked)
    told = "column 'creatinine': medians are 796 at south; 9 at north; 9 at east: if units differ"
    assert told in result.stderr
    south = [line for line in result.stdout.splitlines() if line.split()[:1] == ["south"]]
    assert [line.endswith("unlike others ") for line in south] == [False, True, False, False]
    side_by_side = result.stdout[result.stdout.index("column      silo") :]
    assert max(map(len, side_by_side.splitlines())) <= 80
    columns = json.loads(caveat(*asked, "--json").stdout)["columns"]
    assert columns[0]["unlike"] == ["south"]
    assert columns[0]["silos"][1] == {"name": "south", "missing": 0, "range": [442, 1149.2], "median": 795.6}
    assert columns[1]["silos"][0]["counts"] == {"F": 30, "M": 30}
    by_sex = caveat("data", "north.csv", "--target", "ill", "--silo-column", "sex")
    assert by_sex.exit_code == 0, by_sex.stderr


def test_data_resizes_images(nowhere: Path) -> None:
    for silo in "ab":
        for label, pixels in (("no", 8), ("yes", 9)):
            (nowhere / "img" / silo / label).mkdir(parents=True)
            for number in range(4):
                picture = np.full((pixels, pixels), 60 * number, np.uint8)
                Image.fromarray(picture).save(nowhere / "img" / silo / label / f"{number}.png")
    assert "set data.size" in one_error(caveat("data", "img"), 3)
    result = caveat("data", "img", "--size", "8")
    assert result.exit_code == 0, result.stderr
    assert "8x8" in result.stdout


def silo_file(folder: Path, *lines: str) -> None:
    text = ['silo = "hill"', 'state = "state"', "[data]", 'source = "csv:a.csv"', 'target = "ill"', *lines]
    (folder / "silo.toml").write_text("\n".join(text) + "\n")


def test_data_reads_a_table_as_its_silo_s_file_says(nowhere: Path) -> None:
    """Before anything is started, at the silo: what a federation would make of the table, or refuse."""
    pytest.importorskip("flwr")
    write(nowhere / "a.csv", ",", labels="12")
    silo_file(nowhere, 'decimal = ","', 'categorical = ["kind"]', "[data.label_codes]", '1 = "well"', '2 = "ill"',
              "[data.rename_columns]", 'code = "kind"')  # fmt: skip
    result = caveat("data", "silo.toml")
    assert result.exit_code == 0
    assert "class well" in result.stdout
    assert "300" in result.stdout
    kind = next(line for line in result.stdout.splitlines() if line.strip().startswith("kind"))
    assert kind.rstrip().endswith("3 categories")
    assert "--target: silo.toml already describes its table" in refused_call("--target", "ill")
    assert "--set data.size=8: silo.toml already describes its table" in refused_call("--set", "data.size=8")
    (nowhere / "d.toml").write_text('[dose]\nrange = [0, 500]\n[kind]\ntype = "category"\n')
    assert (
        "305 of 600 values in this column are not allowed"
        in caveat("data", "silo.toml", "--dictionary", "d.toml").stderr
    )
    silo_file(nowhere, 'decimal = ","', 'dictionary = "d.toml"')
    assert "--dictionary d.toml: silo.toml already names a dictionary" in refused_call("--dictionary", "d.toml")
    assert not (nowhere / "state").exists()


def refused_call(*options: str) -> str:
    return one_error(caveat("data", "silo.toml", *options), 2)


def test_data_shows_what_columns_become_as_they_are_declared(nowhere: Path) -> None:
    write(nowhere / "a.csv", ",")
    declared = ["--decimal", ",", "--separator", ";", "--categorical", "code", "--numeric", "dose"]
    result = caveat("data", "a.csv", "--target", "ill", *declared)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["dose", "numbers", "0", "to", "999.6", "503", "±", "2.9e+02", "0", "600", "number"] in rows
    assert ["code", "texts", "0,", "1,", "2", "0", "3", "3", "categories"] in rows
    assert ["ill", "texts", "n,", "y", "0", "2", "label:", "2", "classes"] in rows
    columns = result.stdout[result.stdout.index("column ") :].splitlines()
    assert all(len(line.rstrip()) <= 80 for line in columns)
    write(nowhere / "b.csv")
    tabs = (nowhere / "b.csv").read_text().replace(";", "\t")
    (nowhere / "b.csv").write_text(tabs)
    assert caveat("data", "b.csv", "--separator", "\\t", "--target", "ill").exit_code == 0
    assert "decimal = 'x': must be '.' or ','" in one_error(caveat("data", "b.csv", "--decimal", "x"), 2)


def test_what_is_unusual_is_a_line_on_standard_error(nowhere: Path) -> None:
    lines = ["age,flat,ill", *(f"{row // 2},1,{row % 2}" for row in range(60))]
    (nowhere / "a.csv").write_text("\n".join(lines))
    result = caveat("run", *sets(*TABLE), "--quiet", "--out", "run")
    assert result.exit_code == 0
    about_data = [line for line in result.stderr.splitlines() if not line.startswith("warning: fedavg: ")]
    assert about_data == ["warning: 1 of 2 features are the same in all samples: 'flat'"]


RUN = ("--quiet", *sets(*TINY[1:], "data.shift.angles=[]", "training.batch_size=8", "data.n_silos=2"))


def test_advice_for_data_of_the_command_line_is_an_option_that_works(nowhere: Path) -> None:
    """Each refusal ends in the options that mend it, for `run` and for `data`."""
    lines = ["dose;weight;code;ill"]
    lines += [f"{row * 37 % 1000},{row % 7};{row % 50} kg;0{row % 3}1;{'ny'[row // 3 % 2]}" for row in range(200)]
    (nowhere / "a b.csv").write_text("\n".join(lines) + "\n")
    for command in (("data", "a b.csv", "--target", "ill"), ("run", "a b.csv", "--target", "ill", *RUN)):
        given: list[str] = []
        for _ in range(4):
            result = caveat(*command, *given)
            if result.exit_code == 0:
                break
            *_, error = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
            options = shlex.split(error.partition(" (as an option: ")[2].removesuffix(")"))
            assert options[0::2] == ["--set"] * (len(options) // 2)
            given += options
        assert given == [
            "--set", 'data.decimal = ","', "--set", 'data.rename_columns.weight = { unit = "kg" }'
        ]  # fmt: skip
        assert 'codes; set data.numeric = ["code"] if not (as an option: --set \'data.numeric = ' in result.stderr


def test_advice_for_data_of_a_configuration_is_a_line_of_it(nowhere: Path) -> None:
    write(nowhere / "a.csv", ",")
    (nowhere / "a.toml").write_text(
        '[data]\nsource = "csv:a.csv"\ntarget = "ill"\nn_silos = 2\n[method]\nname = "fedavg"\n'
    )
    assert one_error(caveat("run", "a.toml"), 3).endswith(
        'set data.decimal = ",", or data.categorical = ["dose"] if its values are codes'
    )


def test_data_takes_keys_of_a_configuration(nowhere: Path) -> None:
    write(nowhere / "a b.csv", ",")
    (nowhere / "c.csv").write_text((nowhere / "a b.csv").read_text().replace(",", "."))
    found = caveat("data", "a b.csv", "c.csv", "--target", "ill", "--set", 'data.files."a b".decimal = ","', "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["columns"][0]["silos"][0]["range"] == [0.0, 999.6]
    for key in ("training.lr", "data.source", "data"):
        told = one_error(caveat("data", "c.csv", "--set", f"{key}=1"), 2)
        assert f"--set {key}: expected a key of [data], such as data.decimal" in told
    told = one_error(caveat("data", "c.csv", "--set", "data.decimals=1"), 2)
    assert "--set: unknown key data.decimals; did you mean data.decimal?" in told
    (nowhere / "d.toml").write_text('[dose]\nunit = "mg"\n')
    option, *keys = (
        caveat("data", "c.csv", "--target", "ill", "--json", *given)
        for given in (
            ("--dictionary", "d.toml"),
            *(("--set", f"data.dictionary{key}") for key in ("=d.toml", ".dose.unit=mg")),
        )
    )
    assert json.loads(option.stdout)["columns"][0]["unit"] == "mg"
    assert [each.stdout for each in keys] == [option.stdout] * 2


def test_predict_marks_rows_unlike_those_of_training(nowhere: Path) -> None:
    write(nowhere / "a.csv", ",", labels="=@")
    declared = sets(*TABLE, 'data.categorical=["code"]', "data.decimal=,")
    assert caveat("run", *declared, "--quiet", "--out", "run").exit_code == 0
    (nowhere / "new.csv").write_text("dose;code\n1,5;2\n1,5;9\n;NA\n")
    result = caveat("predict", "run", "new.csv", "--silo", "silo-0")
    assert result.exit_code == 0
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert [row["input_note"] for row in rows] == ["", "unseen category of code", "all values missing"]
    assert {row["label"] for row in rows} <= {"'=", "'@"}
    told = "warning: 2 of 3 inputs are unlike the training inputs: unseen category of code (1), all values missing (1)"
    assert told in result.stderr.splitlines()
    assert "new.csv is read in the format that silo silo-0 declared: decimal mark ','" in result.stderr.splitlines()
    (nowhere / "none.csv").write_text("dose;code\n")
    assert "none.csv" in one_error(caveat("predict", "run", "none.csv", "--silo", "silo-0"), 3)


def test_predict_says_what_a_run_s_page_says_and_whose_rows_they_are(nowhere: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [f"{100 + row},{draw.normal():.3f},{draw.normal():.3f},{row % 2}" for row in range(200)]
    Path("a.csv").write_text("\n".join(["patient,dose,age,ill", *rows]) + "\n")
    chance = ("rounds=1", "data.groups=patient", "data.n_silos=2", "baselines=[]")
    trained = caveat("run", "a.csv", "--target", "ill", *sets(*chance), "--out", "some/run", "--quiet")
    (advice,) = [
        line
        for line in trained.stdout.splitlines()
        if line.startswith("→ Do not use it at any silo: it predicts class ")
    ]
    result = caveat("predict", "some/run", "a.csv", "--silo", "silo-1")
    assert f"warning: silo-1: {advice.removeprefix('→ ')}" in result.stderr.splitlines()
    found = list(csv.DictReader(result.stdout.splitlines()))
    assert [row["patient"] for row in found] == [f"{100 + i}" for i in range(200)]
    assert {row["decides"] for row in found} == {"person"}  # by the advice of the run's report
    assert "warning: a.csv is a file of the run's data" in result.stderr
    tested = {each["name"]: each for each in json.loads(Path("some/run/summary.json").read_text())["silos"]}
    of, share = tested["silo-1"]["n_test"], tested["silo-1"]["test"]["accuracy"]
    right = f"may be worse: at silo silo-1, {share * of:.0f} of {of} answered test inputs in the run were right ("
    assert f"{right}{percent(share)}, 95 % interval " in result.stderr
    with pytest.warns(ResultWarning, match="^silo-0: Do not use it at any silo: it predicts class "):
        load("some/run").predictor("silo-0")
    own = caveat("evaluate", "some/run", "a.csv", "--silo", "silo-1", "--target", "ill").stderr
    assert "warning: a.csv is a file of the run's data, so the model was trained on most of its inputs" in own
    assert right in own
    summary = Summary.model_validate_json(Path("some/run/summary.json").read_text())
    of, share = tested["silo-0"]["n_test"], tested["silo-0"]["test"]["accuracy"]
    assert right_at(summary, "silo-0").startswith(f": at silo silo-0, {share * of:.0f} of {of} answered test inputs ")
    assert right_at(summary, "silo-9") == "; the results for the run's test split are in summary.json."
    assert right_at(None, "silo-0") == "."
    Path("b.csv").write_text(Path("a.csv").read_text())
    for file, given in (("a.csv", "FILE"), ("b.csv", "b.csv")):  # a file with labels that are new tests the model
        assert caveat("predict", "some/run", file, "--silo", "silo-1", "--report", "p.html").exit_code == 0
        page = Page(Path("p.html").read_text()).text
        assert f"caveat evaluate some/run {given} --silo silo-1 --target ill" in page
    assert "trained on" not in caveat("evaluate", "some/run", "b.csv", "--silo", "silo-1", "--target", "ill").stderr


def test_a_file_named_after_a_silo_has_the_test_result_of_that_silo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caveat.cli.prediction_output.right_at", lambda summary, silo: f" at {silo}")
    data = SimpleNamespace(source="csv:b c.csv,a.csv")
    run: Any = SimpleNamespace(
        experiment=SimpleNamespace(spec=SimpleNamespace(data=data)), preparation=SimpleNamespace(names=["VA", "b c"])
    )
    assert of_own("b c.csv", run, "VA", None).endswith(" at b c")
    assert of_own("a.csv", run, "VA", None).endswith(" at VA")
    assert of_own("other.csv", run, "VA", None) == ""


def test_images_of_a_silo_are_those_that_the_runs_report_shows(tmp_path: Path) -> None:
    item = {"label": 0, "predicted": 0, "probability": 0.9, "total": 0.3}
    assert not has_images(tmp_path, "a")
    silos = [{"name": "a", "certain": [{**item, "image": "AAAA"}]}, {"name": "b", "certain": [item]}]
    write_json(tmp_path / "gallery.json", {"classes": ["ill", "well"], "silos": silos})
    assert [has_images(tmp_path, name) for name in "abc"] == [True, False, False]


def test_columns_that_are_mostly_missing_at_a_silo_are_those_of_its_calibration_rows() -> None:
    columns = tuple(ColumnReference((1.0,) * (4 - missing), missing) for missing in (0, 2, 3))
    encoder: Any = SimpleNamespace(
        table=[TableColumn("age"), TableColumn("chol"), TableColumn("ca")], reference=Reference(columns)
    )
    assert mostly_missing(encoder) == {"ca"}
    encoder.reference = NO_REFERENCE
    assert mostly_missing(encoder) == mostly_missing(None) == set()


def test_predict_names_a_column_in_other_units(nowhere: Path) -> None:
    write(nowhere / "a.csv")
    assert caveat("run", *sets(*TABLE), "--quiet", "--out", "run").exit_code == 0
    lines = (nowhere / "a.csv").read_text().splitlines()
    new = [line.split(";") for line in lines[1:60]]
    (nowhere / "new.csv").write_text("dose;code\n" + "".join(f"{d};{c}\n" for d, c, _ in new))
    told = caveat("predict", "run", "new.csv", "--silo", "silo-0").stderr
    assert "column" not in told
    assert "is read in the format" not in told
    (nowhere / "new.csv").write_text("dose;code\n" + "".join(f"{float(d) / 1000};{c}\n" for d, c, _ in new))
    result = caveat("predict", "run", "new.csv", "--silo", "silo-0")
    assert result.exit_code == 0
    assert 'warning: column "dose": median 0.' in result.stderr
    assert "in the silo's data: another unit?" in result.stderr
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert all("over all rows, column dose is unlike the silo's own" in row["input_note"] for row in rows)


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-", "\t1"]
)
def test_a_spreadsheet_runs_no_class_name(text: str) -> None:
    safe = f"'{text}".replace("\r", " ")
    assert as_text(text) == safe
    prediction = Prediction.from_samples(torch.tensor([[[0.9, 0.1]]]))
    (header, first) = csv.reader(
        io.StringIO(prediction_rows(prediction, [text, "b"], {"=name": ["=note"]}), newline="")
    )
    assert first[1] == safe
    assert (header[-1], first[-1]) == ("'=name", "'=note")
    assert header[2] == f"p_{safe[1:]}"


@pytest.mark.parametrize("text", ["yes", "", "a=b", "-1", "+1", "-0.5", "1e-3"])
def test_other_text_and_plain_numbers_stay(text: str) -> None:
    assert as_text(text) == text


def test_a_project_has_the_dictionary_that_its_silos_may_copy(nowhere: Path) -> None:
    """The configuration may have been anywhere; silos get the project's folder alone."""
    pytest.importorskip("flwr")
    (nowhere / "d.toml").write_text(
        '["dose, daily"]\nunit = "mg"\nrange = [0, 500]\nmissing = [0, "none"]\n[kind]\ntype = "category"\n'
        'values = ["a", "b"]\noutside = "missing"\n'
    )
    asked = sets("data.source=on_site", "data.target=ill", 'data.classes=["well", "ill"]', "data.dictionary=d.toml")
    assert caveat("flower", "init", "project", *asked).exit_code == 0
    assert read_dictionary(nowhere / "project" / "dictionary.toml") == read_dictionary(nowhere / "d.toml")
    assert caveat("flower", "init", "plain", *asked[:-2]).exit_code == 0
    assert not (nowhere / "plain" / "dictionary.toml").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--groups", "patient_id"), "No such option: --groups; use --set 'data.groups = \"patient_id\"'"),
        (("--missing=-",), "No such option: --missing; use --set 'data.missing = [\"-\"]'"),
    ],
)
def test_a_run_names_the_keys_of_options_that_data_has(given: tuple[str, ...], told: str) -> None:
    result = caveat("run", "a.csv", "--target", "ill", *given)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_fraction_is_to_be_a_number(nowhere: Path) -> None:
    write(nowhere / "a.csv")
    told = one_error(caveat("data", "a.csv", "--set", "data.rename_columns.dose = { factor = 1/88.4 }"), 2)
    assert told.endswith("; 1/88.4 is a fraction, expected a number such as 0.0113")


def test_data_counts_times_as_a_run_orders_them(nowhere: Path) -> None:
    for name, first in (("north", "2021-03-01"), ("south", "01.03.2021")):
        rows = [f"{first};{row};{'ny'[row % 2]}" for row in range(30)]
        (nowhere / f"{name}.csv").write_text("\n".join(["day;dose;ill", *rows]) + "\n")
    asked = ("data", "north.csv", "south.csv", "--target", "ill", "--time", "day")
    advice = 'data.files.south.rename_columns.day = { date = "%d.%m.%Y" }'
    assert f"for other dates set {advice}" in refused(caveat(*asked))
    shown = caveat(*asked, "--set", advice)
    assert shown.exit_code == 0
    assert " 1 times" in shown.stdout
