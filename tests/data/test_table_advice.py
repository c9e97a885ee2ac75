"""What a refusal of a table says is to be done, which has to help where it is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caveat import data
from caveat.config import loads
from caveat.core import ConfigurationError, DataError, Refused
from caveat.data.setting_lines import advised
from caveat.data.settings import DataSettings
from caveat.data.sources.tables import csv_source, rows_of
from caveat.data.tables.declarations import Declared, DictionaryColumn, LabelCode
from caveat.data.tables.files import read_sheet
from caveat.data.tables.harmonize import declared_labels
from caveat.data.tables.reading_settings import CsvFormat, Reading, TableColumn

CHOL = DictionaryColumn(name="chol", unit="mg/dl", range=(80, 700))
SEX = DictionaryColumn(name="sex", type="category", values=("0", "1"))
CLASSES = ("healthy", "ill")


def table(folder: Path, chol: list[str], sex: str = "1", labels: tuple[str, str] = CLASSES) -> Path:
    rows = [f"{value};{sex if i == 1 else 0};{labels[i % 2]}" for i, value in enumerate(chol)]
    (folder / "a.csv").write_text("\n".join(["chol;sex;disease", *rows]) + "\n")
    return folder / "a.csv"


def refusal(path: Path, *, codes: tuple[LabelCode, ...] = (), dictionary: tuple[DictionaryColumn, ...] = ()) -> str:
    """Why a silo does not read its table."""
    settings = DataSettings(
        source=f"csv:{path}", target="disease", classes=CLASSES, label_codes=codes, dictionary=dictionary or (CHOL, SEX)
    )
    with pytest.raises(Refused) as refused:
        csv_source([path], Reading.of(settings))
    return str(refused.value)


def test_another_unit_is_advised_where_most_of_a_column_is_out_of_range(tmp_path: Path) -> None:
    whole = refusal(table(tmp_path, ["6.03", "7.4", "5.9", "6.6"]))
    assert "values from 80 to 700 mg/dl; 4 of 4 values in this column are not allowed" in whole
    assert "the factor that converts the values to mg/dl, chol = { factor = ... }" in whole
    assert 'outside = "missing"' not in whole
    one = refusal(table(tmp_path, ["233", "0.5", "204", "192"]))
    assert 'declare them as missing with outside = "missing"' in one
    assert "factor" not in one


def test_categories_have_no_unit(tmp_path: Path) -> None:
    told = refusal(table(tmp_path, ["233", "286", "204", "192"], sex="7"))
    assert "values among 0, 1; 1 of 4 values in this column are not allowed" in told
    assert "factor" not in told
    assert 'outside = "missing"' in told


def test_a_number_of_the_dictionary_is_never_to_be_a_category(tmp_path: Path) -> None:
    comma = refusal(table(tmp_path, ["233,5", "286,1", "204,0", "192,3"]))
    assert comma.endswith('a number with a decimal comma: set data.decimal = ","')
    text = refusal(table(tmp_path, ["233", "high", "204", "192"]))
    assert "is 'high', but the dictionary declares the column as numbers, expected a number" in text
    assert "data.numeric" not in text


def test_a_class_that_is_none_is_named_with_the_one_that_it_may_be(tmp_path: Path) -> None:
    told = refusal(table(tmp_path, ["233", "286"], labels=("Healthy", "ill")))
    assert "is 'Healthy', expected one of data.classes (healthy, ill); declare in" in told
    assert told.endswith("the class of each label; did you mean 'healthy'?")
    coded = table(tmp_path, ["233", "286"], labels=("0", "ill"))
    told = refusal(coded, codes=(LabelCode(code="0", meaning="Healthy"),))
    assert "'disease' is '0', which [data.label_codes] of silo.toml" in told
    assert "declares as 'Healthy', expected one of data.classes (healthy, ill)" in told


def test_what_a_finished_model_is_given_is_to_be_mended_in_the_file(tmp_path: Path) -> None:
    """Nothing that its own table was declared by can change any more."""
    columns = (TableColumn("chol"), TableColumn("sex", ("0", "1")))
    declared = Declared(classes=CLASSES, dictionary=(CHOL, SEX))
    csv_format = CsvFormat(None, ".", declared)
    for chol, sex, row in (("2860", "1.0", [2860, 1]), ("286", "7", [286, 3]), ("?", "", [np.nan, -1])):
        found = rows_of(read_sheet(table(tmp_path, ["233", chol], sex)), columns, csv_format)
        np.testing.assert_array_equal(found[1], row)
    place = "line 3: the value of 'chol', expected a finite number or an empty cell, with decimal mark '.'"
    with pytest.raises(DataError) as refused:
        rows_of(read_sheet(table(tmp_path, ["233", "secret"])), columns, csv_format)
    assert place in str(refused.value)
    assert "no row of the file is used" in str(refused.value)
    assert "data.rename_columns" not in str(refused.value)
    assert "secret" not in str(refused.value)
    other = read_sheet(table(tmp_path, ["233", "286"], labels=("Healthy", "ill")))
    with pytest.raises(Refused, match=r"is 'Healthy', expected one of data\.classes") as labels:
        declared_labels(other, declared, "disease")
    assert "data.labels" not in str(labels.value)


@pytest.mark.parametrize(("encoding", "told"), [("latin-1", "line 3: not in UTF-8"), ("utf-16", "if it is in UTF-16")])
def test_a_file_that_is_not_in_utf_8_says_where_and_how_it_comes_into_it(
    encoding: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("town,ill\nUlm,1\nKöln,0\n", encoding=encoding)
    with pytest.raises(Refused, match=r"iconv -f .* -t UTF-8 OLD\.csv > NEW\.csv") as refused:
        read_sheet(path)
    assert told in str(refused.value)


def test_free_text_is_to_be_left_out_of_a_federation(tmp_path: Path) -> None:
    rows = [f"Person {i};{i % 2}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["surname;disease", *rows]) + "\n")
    settings = DataSettings(source=f"csv:{tmp_path / 'a.csv'}", target="disease")
    with pytest.raises(Refused, match=r"remove the column with data\.rename_columns\.surname = false; or, if all"):
        csv_source([tmp_path / "a.csv"], Reading.of(settings))


def dated(folder: Path, **dates: list[str]) -> str:
    """Write a table per silo, with a column of dates. Return the lines of a configuration that reads them."""
    for silo, column in dates.items():
        rows = [f"{date};{row % 7};{CLASSES[row % 2]}" for row, date in enumerate(column)]
        (folder / f"{silo}.csv").write_text("\n".join(["day;dose;disease", *rows]) + "\n")
    return f'data.source = "csv:{folder}"\ndata.target = "disease"\n'


def of(lines: str) -> DataSettings:
    return loads(f'{lines}\n[method]\nname = "fedavg"', "c.toml").data


ISO = [f"2021-03-{day:02}" for day in range(1, 29)]
POINTS = [f"{day:02}.03.2021" for day in range(1, 29)]


@pytest.mark.parametrize(
    ("dates", "advice"),
    [
        ({"east": ISO, "north": ISO, "south": POINTS}, ['data.files.south.rename_columns.day = { date = "%d.%m.%Y" }']),
        ({"east": POINTS, "south": POINTS}, ['data.rename_columns.day = { date = "%d.%m.%Y" }']),
        (
            {"east": [day.replace(".", "/") for day in POINTS], "north": ISO, "south": POINTS},
            ['data.files.east.rename_columns.day = { date = "%d/%m/%Y" }',
             'data.files.south.rename_columns.day = { date = "%d.%m.%Y" }'],
        ),
        ({"north": ISO, "south": [day.replace("-", "") for day in ISO]},
         ['data.files.south.rename_columns.day = { date = "%Y%m%d" }']),
    ],
)  # fmt: skip
def test_the_advice_for_dates_of_data_time_can_be_followed(
    tmp_path: Path, dates: dict[str, list[str]], advice: list[str]
) -> None:
    lines = dated(tmp_path, **dates) + 'data.time = "day"\n'
    with pytest.raises(Refused, match=r"but the column is data\.time: expected dates") as refused:
        data.read(of(lines))
    assert advised(str(refused.value)) == advice
    found = data.read(of(lines + "\n".join(advice)))
    assert all((pool.time == found.pools[0].time).all() for pool in found.pools)


def test_iso_dates_are_read_beside_a_format_for_all_files(tmp_path: Path) -> None:
    lines = dated(tmp_path, north=ISO, south=POINTS) + 'data.time = "day"\n'
    north, south = data.read(of(lines + 'data.rename_columns.day = { date = "%d.%m.%Y" }')).pools
    assert (north.time == south.time).all()
    dated(tmp_path, south=[*POINTS, ISO[0]])
    with pytest.raises(
        Refused, match=r"line 30: 'day' is '2021-03-01'.*the dates in .*south\.csv must have one format"
    ):
        data.read(of(lines + 'data.rename_columns.day = { date = "%d.%m.%Y" }'))
    dated(tmp_path, south=[str(row) for row in range(len(ISO))])
    with pytest.raises(Refused, match=r"'day' is '0'.* or numbers in all rows; .*south\.csv has numbers$"):
        data.read(of(lines))


def test_a_column_of_dates_may_also_split_by_time_or_be_left_out(tmp_path: Path) -> None:
    lines = dated(tmp_path, north=ISO)
    with pytest.raises(Refused, match=r', data\.time = "day" to split by time, or data\.rename_columns\.day = false'):
        data.read(of(lines))
    left_out = "data.rename_columns.day = false\n"
    assert [column.name for column in data.read(of(lines + left_out)).pools[0].table] == ["dose"]
    with pytest.raises(ConfigurationError, match=r"'day' from all files, but data\.files\.north\.rename"):
        of(lines + left_out + 'data.files.north.rename_columns.day = { date = "%Y-%m-%d" }')


def test_a_limit_may_be_read_as_half_of_it(tmp_path: Path) -> None:
    told = refusal(table(tmp_path, ["233", "<100", "204", "192", "211", "180", "190", "200", "201", "202", "<100"]))
    assert told.endswith('rename_columns.chol = { limit = "value" }; limit = "half" instead reads <1 as 0.5')
