"""`caveat data silo.toml` refuses what joining refuses, and of each refusal the server learns silo, column and rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import caveat
from hospitals import CONFIG, hospital
from typer.testing import Result

from caveat.config import load
from caveat.core import RunError
from caveat.federation.request_terms import Terms
from caveat.federation.silo.app import without_details
from caveat.federation.silo.member import SiloSide
from caveat.federation.silo.silo_file import read_silo_file

DICTIONARY = """
[age]
unit = "years"
range = [-10, 10]
[pressure]
range = [-10, 10]
[site]
type = "category"
[smoker]
type = "category"
"""


def home_of(folder: Path, rows: int = 80) -> Path:
    """A hospital beside the configuration of its federation."""
    text = CONFIG.format(method="fedavg", rounds=1, quorum=2, start_timeout=1, silos=3)
    (folder / "config.toml").write_text(text.replace("[model]", 'dictionary = "d.toml"\n[model]'))
    (folder / "d.toml").write_text(DICTIONARY)
    return hospital(folder, "hill", 1, rows)


def edited(file: Path, *pairs: tuple[str, str], more: str = "") -> None:
    text = file.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text + more)


def checked(home: Path, config: bool = True) -> Result:
    given = ["--config", home.parent / "config.toml"] if config else []
    return caveat("data", home / "silo.toml", *given)


def told(home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a server is told that asks the silo to join; "" where it takes part."""
    config = load(str(home.parent / "config.toml"))
    terms = Terms("abc", config, config.method.name, "", ("hill",))
    try:
        with without_details():
            SiloSide(read_silo_file(home / "silo.toml")).check_joining(terms)
    except RunError as error:
        return str(error)
    return ""


def test_a_silo_that_may_join_is_told_what_could_not_be_checked(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    found = checked(home)
    assert found.exit_code == 0
    assert "all checks of joining a federation passed" in found.stdout
    assert [line.partition(":")[2] for line in found.stdout.splitlines() if line.startswith("not checked:")] == [
        " whether its columns, categories and shapes fit those of the other silos"
    ]
    alone = checked(home, config=False)
    assert alone.exit_code == 0
    assert "not checked: the federation's configuration (classes, dictionary, target" in alone.stdout
    assert {path.name for path in home.iterdir()} == {"hill.csv", "silo.toml"}  # nothing is written


def test_units_that_nothing_checks_are_told(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    edited(tmp_path / "d.toml", ("range = [-10, 10]\n[site]", "[site]"))
    line = "not checked: whether other silos have the same units; no range in data.dictionary for: pressure"
    assert line in checked(home).stdout.splitlines()


def codes(home: Path, ill: str, well: str, labels: str = "") -> None:
    edited(home / "hill.csv", (",ill", f",{ill}"), (",well", f",{well}"))
    edited(home / "silo.toml", more=labels)


def without_target(home: Path) -> None:
    edited(home / "silo.toml", ('target = "outcome"\n', ""))


def without_smoker(home: Path) -> None:
    edited(home / "silo.toml", ('"site", "smoker"', '"site"'))


def without_small_counts(home: Path) -> None:
    edited(home / "silo.toml", ("small_counts = true", "small_counts = false"))


def with_surnames(home: Path) -> None:
    """In a column that the silo allows, and that its table calls as the dictionary does."""
    first, *rows = (home / "hill.csv").read_text().splitlines()
    cells = [row.split(",") for row in rows]
    rows = [",".join([*each[:3], f"Person{i}", each[4]]) for i, each in enumerate(cells)]
    (home / "hill.csv").write_text("\n".join([first, *rows]) + "\n")


def without_a_label(home: Path) -> None:
    first, second, *rows = (home / "hill.csv").read_text().splitlines()
    (home / "hill.csv").write_text("\n".join([first, second.rpartition(",")[0] + ",", *rows]) + "\n")


def in_latin_1(home: Path) -> None:
    text = (home / "hill.csv").read_text().replace("only hill", "Hügel")
    (home / "hill.csv").write_text(text, encoding="latin-1")


def of_one_class(home: Path) -> None:
    edited(home / "hill.csv", (",ill", ",well"))


WRONG = {
    "codes 1 and 2 under 0 and 1": (
        lambda home: codes(home, "1", "2", '[data.label_codes]\n0 = "ill"\n1 = "well"\n'), "is '2', expected one of",
        "silo 'hill' refuses, 'outcome': labels must be in data.classes", True,
    ),
    "no [data.label_codes]": (
        lambda home: codes(home, "1", "0"), "declare in [data.label_codes] of silo.toml",
        "'outcome': labels must be in", True,
    ),
    "a class that is written otherwise": (
        lambda home: codes(home, "Ill", "well"), "is 'Ill', expected one of data.classes (ill, well); declare in",
        "'outcome': labels must be in data.classes", False,
    ),
    "a meaning that is written otherwise": (
        lambda home: codes(home, "1", "well", '[data.label_codes]\n1 = "Ill"\n'), "declares as 'Ill', expected one of",
        "'outcome': labels must be in data.classes", False,
    ),
    "a template that is not filled in": (
        without_target, "data.target is missing, expected the column", "refuses: the column to predict", True,
    ),
    "categories that are not allowed": (
        without_smoker, "categories of 'smoker'; to allow this, name the", "refuses, 'smoker': the silo", True,
    ),
    "small counts": (
        without_small_counts, "fewer than 5 rows of class 'ill'; set data.small_counts = true in",
        "refuses: counts of 1 to 4 rows", True,
    ),
    "surnames": (
        with_surnames, "texts in 38 rows, which would be sent to the server and look like names; remove the column "
        "with 'smoker' = false in [data.rename_columns]", "refuses, 'smoker': texts that look like names", True,
    ),
    "an empty label": (
        without_a_label, "line 2: 'outcome' is missing (''), expected a value; add it, or remove the row from",
        "refuses, 'outcome': every row must have a label", True,
    ),
    "a file in Latin-1": (
        in_latin_1, "not in UTF-8, expected a csv file in UTF-8; save the file in UTF-8 or, if it is in ISO-8859-1",
        "refuses: tables must be csv files in UTF-8", True,
    ),
    "one class": (
        of_one_class, "all its training labels are 'well', expected two classes", "every split must have rows", True,
    ),
    "a column of groups that is not there": (
        lambda home: edited(home / "silo.toml", more='groups = "patiant"\n'), "data.groups = 'patiant': ",
        "refuses: columns that the silo's own file names, silo.toml, [data], must be in its table", True,
    ),
    "a group that is missing": (
        lambda home: edited(home / "silo.toml", more='groups = "pressure"\n'), "'pressure' is missing (''), expected a",
        "refuses, 'pressure': every row must have", True,
    ),
    "a file that is not there": (
        lambda home: (home / "hill.csv").unlink(), "no such file", "refuses: its data must be in the place that", True,
    ),
}  # fmt: skip
"""Of each: what makes it, what the silo's own log and `caveat data` say, what the server is told, and whether it is
refused without the federation's configuration too."""


@pytest.mark.parametrize("name", WRONG)
def test_what_joining_refuses_is_refused_before(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, said, server, alone = WRONG[name]
    home = home_of(tmp_path)
    change(home)
    assert server in told(home, capsys)
    assert said in capsys.readouterr().err
    found = checked(home)
    status = 2 if "not there" in name else 3
    assert found.exit_code == status
    assert said in found.stderr
    assert checked(home, config=False).exit_code == (status if alone else 0)
    assert not (home / "state").exists()


@pytest.mark.parametrize(("rows", "warned"), [(50, True), (80, False)])
def test_too_few_calibration_inputs_for_any_alarm_are_told(rows: int, warned: bool, tmp_path: Path) -> None:
    found = checked(home_of(tmp_path, rows))
    assert found.exit_code == 0
    assert ("the silo's own alarms at 5% need at least 19" in found.stderr) == warned


def test_a_refusal_tells_the_server_no_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = home_of(tmp_path)
    with_surnames(home)
    assert "Person" not in told(home, capsys)


def test_limits_are_checked_with_the_configuration(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    edited(home / "silo.toml", more='[limits]\nmethods = ["fedbn"]\n')
    found = checked(home)
    assert found.exit_code == 3
    assert "'fedavg' is not allowed by limits.methods of silo.toml" in found.stderr
    assert checked(home, config=False).exit_code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a.csv", "--config", "c.toml"], "--config c.toml needs the silo.toml of a silo; a.csv is not a TOML file"),
        (["silo.toml", "--config", "c.toml", "--dictionary", "d.toml"], "c.toml already has the dictionary"),
        (["silo.toml", "--config", "none.toml"], "none.toml: no such file"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of(tmp_path)
    monkeypatch.chdir(home)
    found = caveat("data", *options)
    assert found.exit_code == 2
    assert said in found.stderr
