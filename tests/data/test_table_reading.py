"""What columns of a table become: as declared, as they look, or refused with the cell that is wrong."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import edit_csv, same, write_csv

from caveat import data
from caveat.core import ConfigurationError, DataError, DataWarning
from caveat.data.settings import DataSettings

ROWS = 600


def write(path: Path, cell: Callable[[int], object], separator: str = ",", rows: int = ROWS) -> Path:
    """A table of a column `dose`, one of numbers, and a label."""
    lines = [separator.join(("dose", "age", "ill"))]
    lines += [separator.join((str(cell(row)), str(20 + row % 50), str(row % 2))) for row in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(path: Path, **keys: Any) -> DataSettings:
    return DataSettings(source=f"csv:{path}", target="ill", n_silos=2, **keys)


def refused(path: Path, *words: str, **keys: Any) -> None:
    with pytest.raises(DataError) as caught:
        data.load(settings(path, **keys), 0)
    assert all(word in str(caught.value) for word in (str(path), *words)), str(caught.value)
    assert max(map(len, str(caught.value).split("\n"))) < len(str(path)) + 400


def number(row: int) -> str:
    return f"{(row * 37 % 1000) / 500 - 1:.3f}"


def test_a_mistyped_number_is_refused_and_not_made_hundreds_of_categories(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", number)
    assert data.load(settings(path), 0).shape == (2,)
    edit_csv(path, 36, 0, "1.2x")
    refused(path, "line 38", "'dose' is '1.2x'", "599 of 600 values are numbers", "data.categorical")


@pytest.mark.parametrize(("texts", "fails"), [(60, True), (61, False)])
def test_from_nine_tenths_of_numbers_on_other_text_is_a_mistake(tmp_path: Path, texts: int, fails: bool) -> None:
    path = write(tmp_path / "a.csv", lambda row: "late" if row < texts else row % 5)
    if fails:
        refused(path, "line 2", "'late'", "540 of 600")
    else:
        with pytest.warns(DataWarning, match=r"'dose' is read as 6 categories: 539 of 600 values are numbers"):
            assert data.load(settings(path), 0).shape == (7,)


def test_missing_values_are_no_other_text(tmp_path: Path) -> None:
    gaps = ["", "?", "NA", "n/a", "nan", "null", "None"]
    path = write(tmp_path / "a.csv", lambda row: gaps[row % 7] if row % 2 else number(row))
    assert data.load(settings(path), 0).shape == (3,)


def test_decimal_commas_are_refused_until_they_are_declared(tmp_path: Path) -> None:
    comma = write(tmp_path / "a.csv", lambda row: number(row).replace(".", ","), ";")
    refused(comma, "line 2", "'dose' is '-1,000'", 'data.decimal = ","')
    silos = data.load(settings(comma, decimal=","), 0)
    point = data.load(settings(write(tmp_path / "b.csv", number)), 0)
    assert silos.shape == (2,)
    assert all(same(a, b) for a, b in zip(silos, point, strict=True))


def test_few_decimal_commas_are_no_categories_either(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.csv", lambda row: ("0,5", "1,5")[row % 2], ";"), "a number with a decimal comma")
    points = write(tmp_path / "b.csv", lambda row: ("0.5", "1.5")[row % 2], ";")
    refused(points, "a number with a decimal point", 'data.decimal = "."', decimal=",")


@pytest.mark.filterwarnings("ignore:column")
def test_whole_numbers_need_no_decimal_mark(tmp_path: Path) -> None:
    assert data.load(settings(write(tmp_path / "a.csv", lambda row: row, ";"), decimal=","), 0).shape == (2,)


@pytest.mark.filterwarnings("ignore:column")
def test_texts_that_look_like_names_are_refused_until_they_are_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", lambda row: f"Person {row}", rows=60)
    refused(path, "line 2", "'Person 0'", "60 different texts in 60 rows")
    assert data.load(settings(path, categorical=("dose",)), 0).shape[0] > 20
    assert data.load(settings(write(tmp_path / "b.csv", lambda row: f"ward {row % 30}", rows=60)), 0).shape[0] > 15
    assert data.load(settings(write(tmp_path / "c.csv", lambda row: f"ward {row % 20}", rows=30)), 0).shape[0] > 10


def test_a_declared_categorical_column_is_taken_whatever_it_looks_like(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", lambda row: "x" if row == 9 else row % 4)
    refused(path, "'x'")
    assert data.load(settings(path, categorical=("dose",)), 0).shape[0] in (5, 6)  # whether "x" is in train or not


def test_a_declared_number_is_refused_by_cell_however_much_text_there_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", lambda row: "low" if row % 2 else number(row % 9))
    refused(path, "line 3", "'low'", "data.numeric", numeric=("dose",))


def test_a_separator_can_be_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", number, "~")
    with pytest.raises(ConfigurationError, match=r"data.target = 'ill'"):
        data.load(settings(path), 0)
    assert data.load(settings(path, separator="~"), 0).shape == (2,)


@pytest.mark.filterwarnings("ignore:column")
def test_an_underscore_makes_no_number(tmp_path: Path) -> None:
    assert data.load(settings(write(tmp_path / "a.csv", lambda row: f"1_{row % 2}")), 0).shape == (3,)


def test_each_refused_column_has_a_line_and_long_cells_are_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", lambda row: "x" * 5000 if row == 3 else row)
    edit_csv(path, 7, 1, "old")
    refused(path, "line 5", "xxx'...", "\n", "line 9", "'old'")


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (lambda row: number(row), ["quantities", "different labels in 600 rows"]),
        (lambda row: number(row % 21), ["quantities", "21 different labels"]),
        (lambda row: str(row % 21), ["quantities", "21 different labels", "data.predict"]),
        (lambda row: f"name {row}", ["600 different labels in 600 rows"]),
    ],
)
def test_quantities_and_names_are_no_labels(tmp_path: Path, label: Callable[[int], str], words: list[str]) -> None:
    path = write(tmp_path / "a.csv", number)
    lines = path.read_text().splitlines()
    lines[1:] = [f"{line.rpartition(',')[0]},{label(row)}" for row, line in enumerate(lines[1:])]
    path.write_text("\n".join(lines))
    refused(path, "line 2", *words)


@pytest.mark.parametrize(
    ("count", "keys", "label"),
    [
        (20, {}, str),
        (21, {"predict": "classes"}, str),
        (21, {"classes": tuple(map(str, range(21)))}, str),
        (21, {}, "{:03d}".format),
    ],
    ids=["digits", "declared", "classes", "codes"],
)
def test_whole_numbers_can_be_classes(
    tmp_path: Path, count: int, keys: dict[str, Any], label: Callable[[int], str]
) -> None:
    path = write(tmp_path / "a.csv", number)
    lines = path.read_text().splitlines()
    lines[1:] = [f"{line.rpartition(',')[0]},{label(row % count)}" for row, line in enumerate(lines[1:])]
    path.write_text("\n".join(lines))
    assert data.load(settings(path, **keys), 0).classes == tuple(label(number) for number in range(count))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"numeric": ("dose",), "categorical": ("dose",)}, "both have 'dose'"),
        ({"numeric": ("ill",)}, "data.target and data.numeric are both 'ill'"),
        ({"numeric": ("size",)}, "data.numeric = 'size': .* has dose, age, ill"),
        ({"decimal": ";"}, "data.decimal|decimal = ';'"),
        ({"separator": ""}, "data.separator = ''"),
        ({"separator": ";;"}, "data.separator = ';;'"),
    ],
)
def test_declarations_that_cannot_be(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a.csv", number)
    with pytest.raises(ConfigurationError, match=message):
        data.load(settings(path, **keys), 0)


@pytest.mark.parametrize("keys", [{"numeric": ("a",)}, {"decimal": ","}, {"separator": ";"}])
def test_keys_of_tables_are_refused_elsewhere(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="is not used by source 'digits'"):
        DataSettings(**keys)


# What a survey says


def test_a_survey_says_what_each_column_becomes(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", 70)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{lines[0]},flat", *(f"{line},7" for line in lines[1:])]))
    columns = {each["name"]: each for each in data.survey(str(path), "ill", categorical=("flat",))["columns"]}
    assert {name: each["becomes"] for name, each in columns.items()} == {
        "age": "number and a flag",
        "dose": "number",
        "town": "2 categories",
        "ward": "3 categories",
        "flat": "a constant, which is useless",
        "ill": "label: 2 classes",
    }
    assert columns["age"]["missing"] == 10
    assert columns["dose"]["range"][0] < 0 < columns["dose"]["range"][1]
    assert columns["ward"]["distinct"] == 3


def test_a_survey_describes_a_table_with_columns_that_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", number)
    edit_csv(path, 36, 0, "1.2x")
    for target in ("ill", None):
        found = data.survey(str(path), target)
        assert [each["becomes"] for each in found["columns"]][:2] == ["refused", "number"]
        assert "line 38: 'dose' is '1.2x'" in found["columns"][0]["refused"]
    assert "refused" not in data.survey(str(path), "ill", categorical=("dose",))["columns"][0]
    ages = data.survey(str(write(tmp_path / "b.csv", number)), "age", predict="classes")
    assert ages["columns"][1]["becomes"] == "label: 50 classes"


# Rows to predict


def coded(tmp_path: Path, **keys: Any) -> data.Silos:
    path = tmp_path / "a.csv"
    lines = ["code;dose;ill", *(f"{row % 3};{row % 10},5;{row // 3 % 2}" for row in range(90))]
    path.write_text("\n".join(lines) + "\n")
    return data.load(settings(path, categorical=("code",), decimal=",", **keys), 0)


def test_rows_to_predict_are_written_as_those_of_training(tmp_path: Path) -> None:
    silos = coded(tmp_path)
    (tmp_path / "new.csv").write_text("dose;code\n1,5;2\n")
    (tmp_path / "bad.csv").write_text("dose;code\n1.5;2\n")
    assert np.allclose(data.read_inputs(tmp_path / "new.csv", silos, "silo-0"), silos.inputs([[2, 1.5]], "silo-0"))
    with pytest.raises(DataError, match=r"bad.csv, line 2: the value of 'dose', expected a finite number"):
        data.read_inputs(tmp_path / "bad.csv", silos, "silo-0")


def test_rows_unlike_those_of_training_are_noted(tmp_path: Path) -> None:
    silos = coded(tmp_path)
    (tmp_path / "new.csv").write_text("code;dose\n1;0,5\n7;0,5\n?;\n;2\n")
    found = data.noted_inputs(tmp_path / "new.csv", silos, "silo-0")
    assert found.notes == ("", "unseen category of code", "all values missing", "")
    with pytest.warns(DataWarning, match=r"new.csv: 2 of 4 inputs .*unseen category of code \(1\)"):
        data.read_inputs(tmp_path / "new.csv", silos, "silo-0")


def test_codes_that_are_none_mean_nothing_and_are_noted(tmp_path: Path) -> None:
    silos = coded(tmp_path)
    rows = [[2, 0.5], [7, 0.5], [-3, 0.5], [0.5, 0.5], [np.nan, np.nan], [-1, 0.5]]
    found = silos.noted(rows, "silo-0")
    unseen = "unseen category of code"
    assert found.notes == ("", unseen, unseen, unseen, "all values missing", "")
    # None of them is taken for a category that there is: -3 was the third from the end.
    assert found.x[:, 1:].sum(1).tolist() == [1, 0, 0, 0, 0, 0]
    assert silos.noted(np.array([[2, 1], [7, 1]], dtype=np.uint8), "silo-0").notes == ("", unseen)
    assert silos.noted(found.x).notes == ()


@pytest.mark.filterwarnings("ignore:column")
def test_a_category_outside_every_training_split_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", lambda row: "ab"[row % 2])
    test = data.load(settings(path), 0)[0].indices["test"][0].item()
    edit_csv(path, test, 0, "rare")
    silos = data.load(settings(path), 0)
    (tmp_path / "new.csv").write_text("dose,age\nrare,1\na,1\n")
    assert data.noted_inputs(tmp_path / "new.csv", silos, "silo-0").notes == ("unseen category of dose", "")


# Spaces around cells


@pytest.mark.parametrize("column", [0, 2])
@pytest.mark.filterwarnings("ignore:column")
def test_texts_that_differ_by_spaces_alone_are_one_and_that_is_told(tmp_path: Path, column: int) -> None:
    path = write(tmp_path / "a.csv", lambda row: ("red", "blue")[row % 2])
    plain = data.load(settings(path), 0)
    edit_csv(path, 8, column, " red" if column == 0 else "0 ")
    edit_csv(path, 9, 1, " 29 ")
    told = re.escape(f"{path}, line 10: ") + r"'\w+' is '( red|0 )', elsewhere '(red|0)': read as equal"
    with pytest.warns(DataWarning, match=told):
        spaced = data.load(settings(path), 0)
    assert data.splits_record(spaced) == data.splits_record(plain)
    with pytest.warns(DataWarning, match=told):
        found = data.survey(str(path), "ill")
    assert found["columns"][0]["categories"] == ["blue", "red"]
    assert found["classes"] == ["0", "1"]


def test_spaces_that_are_everywhere_are_no_word_worth(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", lambda row: ("red  ", "blue ", " ", "")[row % 4], separator=", ")
    with warnings.catch_warnings(action="error", category=DataWarning):
        data.load(settings(path), 0)
        data.survey(str(path), "ill")
