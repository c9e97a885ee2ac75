"""A data dictionary, classes with codes, and columns of one's own: the same table, however a file writes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from data_samples import SEED, same, write_csv

from caveat import data
from caveat.config import dump, load, loads
from caveat.core import ConfigurationError, Reason, Refused
from caveat.data.agreement import own_schema, own_settings, own_silos, shared_schema
from caveat.data.new_inputs import labeled_inputs, noted_inputs
from caveat.data.settings import DataSettings
from caveat.data.tables.declarations import DictionaryColumn, LabelCode, OwnColumn
from caveat.runs.stored_preparation import as_record, from_record

COLUMNS = (
    DictionaryColumn(name="age", unit="years", range=(0, 120), missing=(-9,), outside="missing"),
    DictionaryColumn(name="dose", range=(-50, 50)),
    DictionaryColumn(name="town", type="category", values=("north", "south")),
)
"""What the tables of `write_csv` hold, but for the column "ward"."""
CLASSES = ("no", "yes")
CODES = (LabelCode(code="0", meaning="no"), LabelCode(code="1", meaning="yes"))
TOML = """
[data]
source = "csv:a.csv"
target = "ill"
classes = ["no", "yes"]
dictionary = "dictionary.toml"
[data.label_codes]
0 = "no"
1 = "yes"
[data.rename_columns]
alter = { name = "age", unit = "months", factor = 0.25 }
note = false
[method]
name = "fedavg"
"""
DICTIONARY = """
[age]
unit = "years"
range = [0, 120]
missing = [-9, "unknown"]
[town]
type = "category"
values = ["north", 1]
outside = "missing"
"""


def rows(path: Path) -> list[list[str]]:
    return [line.split(",") for line in path.read_text().splitlines()]


def write(path: Path, table: list[list[str]]) -> Path:
    path.write_text("\n".join(map(",".join, table)) + "\n")
    return path


def settings(*paths: Path, **more: Any) -> DataSettings:
    return DataSettings(source=f"csv:{','.join(map(str, paths))}", target="ill", **more)


@pytest.fixture
def plain(tmp_path: Path) -> list[Path]:
    """Two tables without the column that the dictionary lacks."""
    (tmp_path / "plain").mkdir()
    made = [write_csv(tmp_path / "plain" / f"{n}.csv", 60, seed) for seed, n in enumerate("ab")]
    return [write(path, [[*row[:3], row[4]] for row in rows(path)]) for path in made]


@pytest.fixture
def coded(tmp_path: Path, plain: list[Path]) -> list[Path]:
    """The same with codes for labels, codes and impossible numbers for what is missing, and one column more."""
    missing = {0: "-9", 7: "-9.0", 14: "300"}
    found = []
    for path in plain:
        header, *body = rows(path)
        body = [
            [age or missing.get(i, ""), dose, town, str(CLASSES.index(ill)), f"free text {i}"]
            for i, (age, dose, town, ill) in enumerate(body)
        ]
        found.append(write(tmp_path / path.name, [[*header, "note"], *body]))
    return found


def test_declared_tables_are_the_plain_ones_together_and_apart(plain: list[Path], coded: list[Path]) -> None:
    expected = data.load(settings(*plain), SEED)
    together = data.load(settings(*coded, classes=CLASSES, label_codes=CODES, dictionary=COLUMNS), SEED)
    assert together.classes == expected.classes == CLASSES
    assert all(same(a, b) for a, b in zip(together, expected, strict=True))
    shared = DataSettings(source="on_site", target="ill", classes=CLASSES, dictionary=COLUMNS)
    own = {path.stem: own_settings(shared, f"csv:{path}", label_codes=CODES) for path in coded}
    schemas = {name: own_schema(each, SEED, name, allowed=("town",)) for name, each in own.items()}
    agreed = shared_schema(schemas, shared)
    for silo in expected:
        assert same(own_silos(own[silo.name], SEED, silo.name, agreed)[0], silo)
    with pytest.raises(Refused, match="column 'town' contains text whose categories would leave the silo"):
        own_schema(own["a"], SEED, "a", allowed=())


def test_the_order_of_classes_is_as_they_are_named(coded: list[Path]) -> None:
    swapped = (LabelCode(code="0", meaning="well"), LabelCode(code="1", meaning="ill"))
    silos = data.load(settings(*coded, classes=("well", "ill"), label_codes=swapped, dictionary=COLUMNS), SEED)
    assert silos.classes == ("well", "ill")
    named = data.load(settings(*coded, label_codes=swapped, dictionary=COLUMNS), SEED)
    assert named.classes == ("ill", "well")


@pytest.mark.parametrize(
    ("column", "rule", "told"),
    [
        (DictionaryColumn(name="age", range=(0, 40)), "range", "only values from 0 to 40; 4. of 51 values"),
        (DictionaryColumn(name="town", type="category", values=("north",)), "values", "only values among north; 2"),
        (DictionaryColumn(name="height"), "columns", "no column 'height', which the dictionary has: declare"),
        (DictionaryColumn(name="town"), "reading", "but the dictionary declares the column as numbers, expected"),
    ],
)  # fmt: skip
def test_what_a_dictionary_does_not_allow_is_refused_by_rule(
    column: DictionaryColumn, rule: str, told: str, plain: list[Path]
) -> None:
    dictionary = tuple({each.name: each for each in (*COLUMNS, column)}.values())
    with pytest.raises(Refused, match=told) as refused:
        data.load(settings(*plain, dictionary=dictionary), SEED)
    assert (refused.value.rule, refused.value.column) == (rule, column.name)
    assert str(plain[0]) in str(refused.value)


def test_rows_to_predict_are_brought_to_what_was_declared(plain: list[Path], coded: list[Path]) -> None:
    """By a preparation that was kept as well, and with labels to be measured on."""
    header, *body = rows(coded[0])
    own = write(coded[0], [["alter", *header[1:]], *body])
    columns = (OwnColumn(own="alter", name="age"),)
    agreed = DataSettings(source="on_site", target="ill", classes=CLASSES, dictionary=COLUMNS)
    mine = own_settings(agreed, f"csv:{own}", label_codes=CODES, rename_columns=columns)
    shared = shared_schema({"a": own_schema(mine, SEED, "a")}, agreed)
    silos = own_silos(mine, SEED, "a", shared)
    kept = from_record(as_record(silos.preparation), "preparation.json")
    expected = own_silos(own_settings(agreed, f"csv:{plain[0]}"), SEED, "a", shared)
    assert kept.encoders == silos.encoders
    test = silos[0].indices["test"]
    for preparation in (silos.preparation, kept):
        found = noted_inputs(own, preparation, "a").x
        assert torch.equal(found, noted_inputs(plain[0], expected, "a").x)
        assert torch.equal(found[test], silos[0].test.x)
        assert torch.equal(labeled_inputs(own, preparation, "a", "ill").y[test], silos[0].test.y)


def test_a_row_with_an_impossible_age_is_not_answered(plain: list[Path]) -> None:
    strict = (dataclasses.replace(COLUMNS[0], outside="refuse"), *COLUMNS[1:])
    silos = data.load(settings(*plain, dictionary=strict), SEED)
    header, *body = rows(plain[0])
    write(plain[0], [header, ["300", *body[0][1:]], *body[1:]])
    found = noted_inputs(plain[0], silos, "a")
    assert found.why is not None
    assert found.why.tolist() == [Reason.OUTSIDE, *[Reason.NONE] * 59]
    assert found.notes[0] == "age is not from 0 to 120 years"


def test_a_survey_shows_means_units_and_what_would_be_refused(coded: list[Path]) -> None:
    height = DictionaryColumn(name="height")
    strict = DictionaryColumn(name="dose", unit="mg", range=(0, 9))
    found = data.survey(f"csv:{coded[0]}", "ill", dictionary=(COLUMNS[0], strict, COLUMNS[2], height))
    columns = {column["name"]: column for column in found["columns"]}
    assert columns["age"]["unit"] == "years"
    assert columns["age"]["missing"] == 9
    ages = [float(row[0]) for row in rows(coded[0])[1:] if row[0] not in ("", "-9", "-9.0", "300")]
    assert columns["age"]["mean"] == pytest.approx(sum(ages) / len(ages))
    assert columns["age"]["range"] == [min(ages), max(ages)]
    assert "only values from 0 to 9 mg" in columns["dose"]["refused"]
    assert "no column 'height'" in columns["height"]["refused"]
    assert columns["note"]["becomes"] == "not read: not in the dictionary"
    assert columns["ill"]["becomes"] == "label: 2 classes"


# How it is written


def test_a_configuration_holds_what_the_dictionary_says(tmp_path: Path) -> None:
    (tmp_path / "dictionary.toml").write_text(DICTIONARY)
    (tmp_path / "config.toml").write_text(TOML)
    config = load(str(tmp_path / "config.toml"))
    age, town = config.data.dictionary
    assert age == DictionaryColumn(name="age", unit="years", range=(0, 120), missing=(-9, "unknown"))
    assert town == DictionaryColumn(name="town", type="category", values=("north", "1"), outside="missing")
    assert config.data.label_codes == CODES
    assert config.data.rename_columns == (
        OwnColumn(own="alter", name="age", unit="months", factor=0.25),
        OwnColumn(own="note"),
    )
    (tmp_path / "dictionary.toml").unlink()
    assert loads(dump(config), "kept") == config


def test_a_text_that_is_kept_or_sent_names_no_file_to_read(tmp_path: Path) -> None:
    (tmp_path / "dictionary.toml").write_text(DICTIONARY)
    with pytest.raises(ConfigurationError, match=r"data\.dictionary = .*dictionary\.toml"):
        loads(TOML.replace("dictionary.toml", str(tmp_path / "dictionary.toml")), "sent")


@pytest.mark.parametrize(
    ("dictionary", "told"),
    [
        ("[age]\nunits = 'a'\n", r"dictionary\.toml:2: unknown key age\.units of a data dictionary"),
        ("age = 3\n", r"dictionary\.toml:1: age is a section"),
        ("[age]\nrange = [3, 1]\n", "column 'age' has range = .*, expected the lower value first"),
        ("[age]\nvalues = ['a']\n", "column 'age' has type = 'number', which excludes values"),
        ("[age]\ntype = 'text'\n", r"dictionary\.toml:2: age\.type = \"text\": must be 'number' or 'category'"),
        (None, r"data\.dictionary = 'dictionary\.toml': .*no such file or folder"),
    ],
)
def test_a_dictionary_that_is_none_is_named(dictionary: str | None, told: str, tmp_path: Path) -> None:
    if dictionary is not None:
        (tmp_path / "dictionary.toml").write_text(dictionary)
    (tmp_path / "config.toml").write_text(TOML)
    with pytest.raises(ConfigurationError, match=told):
        load(str(tmp_path / "config.toml"))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"source": "on_site", "label_codes": CODES},
            r"data\.label_codes differs between silos: set \[data\.label_codes\] in each silo\.toml",
        ),
        ({"source": "on_site", "rename_columns": (OwnColumn(own="a"),)}, r"data\.rename_columns differs between silos"),
        ({"source": "digits", "target": None, "classes": CLASSES}, r"data\.classes = .* is not used by source"),
        (
            {"categorical": ("age",), "dictionary": COLUMNS},
            "data.categorical has 'age', but data.dictionary declares it",
        ),
        ({"numeric": ("town",), "dictionary": COLUMNS}, "data.numeric has 'town', but data.dictionary declares it"),
        ({"classes": ("a", "a")}, "data.classes contains 'a' twice"),
        ({"classes": ("a",)}, "expected two classes or more"),
        ({"dictionary": COLUMNS[:1] * 2}, "data.dictionary contains 'age' twice"),
        (
            {"rename_columns": (OwnColumn(own="a", name="b"), OwnColumn(own="c", name="b"))},
            "data.rename_columns contains 'b' twice",
        ),
    ],
)
def test_declarations_that_contradict_each_other_are_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        DataSettings(**({"source": "csv:a.csv", "target": "ill"} | more))


def test_columns_of_one_s_own_that_no_file_has_are_named(plain: list[Path]) -> None:
    with pytest.raises(ConfigurationError, match=r"data\.rename_columns names 'alter': .* has age, dose, town, ill"):
        data.load(settings(*plain, rename_columns=(OwnColumn(own="alter", name="age"),)), SEED)
    with pytest.raises(Refused, match="several columns are called 'age', expected one"):
        data.load(settings(*plain, rename_columns=(OwnColumn(own="dose", name="age"),)), SEED)
