"""Tables as people write them: read with the right value, or refused with advice that works when it is followed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_tables import NAN, Cells, check, followed, read, same, write

import caveat
from caveat.core import DataError
from caveat.data.sources.tables import rows_of
from caveat.data.tables.frames import Columns, FrameSheet
from caveat.data.tables.reading_settings import AS_USUAL, TableColumn

# Features of one file: cells, the advice to follow in turn (numbers of its options), and the values then read.

ONE = [
    # As the reports have them.
    ("thousands", ["300,060", "1,954"], [0], [300060, 1954]),
    ("or a decimal comma of three digits", ["300,060", "1,954"], [1], [300.06, 1.954]),
    ("thousands told by two marks", ["1,234,567", "300"], [0], [1234567, 300]),
    ("German number", ["2.638,47", "12,5", "0,5"], [0], [2638.47, 12.5, 0.5]),
    ("space as thousands mark", ["385 967", "1 204", "12"], [0], [385967, 1204, 12]),
    ("narrow space", ["385\u202f967", "1\u00a0204", "12"], [0], [385967, 1204, 12]),
    ("Swiss number", ["1'204.5", "12.5", "385'967"], [0], [1204.5, 12.5, 385967]),
    ("decimal comma", ["0,5", "1,25", "-3,75"], [0], [0.5, 1.25, -3.75]),
    ("decimal comma as codes", ["0,5", "1,5"], [1], ["0,5", "1,5"]),
    ("kg", ["68 kg", "70.5 kg", "91 kg"], [0], [68, 70.5, 91]),
    ("kg as categories", ["68 kg", "70 kg"], [1], ["68 kg", "70 kg"]),
    ("no space before the unit", ["68kg", "70kg", "91kg"], [0], [68, 70, 91]),
    ("currency behind", ["80 €", "95 €"], [0], [80, 95]),
    ("currency before", ["£70", "£1.5"], [0], [70, 1.5]),
    ("currency before with sign", ["-£70", "£1.5"], [0], [-70, 1.5]),
    ("currency code", ["EUR 5", "EUR 17"], [0], [5, 17]),
    ("percent", ["35%", "7.5%"], [0], [35, 7.5]),
    ("percent with comma", ["35,5 %", "7,25 %"], [0], [35.5, 7.25]),
    ("unit and thousands", ["1,200,000 €", "950 €"], [0], [1200000, 950]),
    ("typographic minus", ["\u22125", "3", "\u22120.5"], [], [-5, 3, -0.5]),
    ("time of day", ["14:15", "06:30", "00:00"], [0], [14.25, 6.5, 0]),
    ("time with seconds", ["14:15:36", "06:30:00"], [0], [14.26, 6.5]),
    ("below a limit", ["<0.5", "0.7", "1.2", "12"], [0], [0.5, 0.7, 1.2, 12]),
    ("above a limit", [">100", "7", "99"], [0], [100, 7, 99]),
    ("limit with a space and comma", ["< 0,5", "0,7", "1,25"], [0], [0.5, 0.7, 1.25]),
    ("limits as categories", ["<50", ">=50"], [], ["<50", ">=50"]),
    ("top-coded counts as categories", ["0", "1", ">=2"], [1], ["0", "1", ">=2"]),
    ("ISO date", ["2020-01-01", "2020-02-01", "1970-01-02"], [0], [18262, 18293, 1]),
    ("German date", ["31.01.1970", "01.02.1970"], [0], [30, 31]),
    ("date with slashes, day first", ["31/01/1970", "02/01/1970"], [0], [30, 1]),
    ("date with slashes, month first", ["01/31/1970", "02/01/1970"], [0], [30, 31]),
    ("ambiguous date, day first", ["03/01/1970", "02/01/1970"], [0], [2, 1]),
    ("ambiguous date, month first", ["03/01/1970", "02/01/1970"], [1], [59, 31]),
    ("date and time", ["1970-01-02 12:00:00", "1970-01-01 06:00:00"], [0], [1.5, 0.25]),
    ("ISO date and time", ["1970-01-02T12:00:00", "1970-01-01T06:00:00"], [0], [1.5, 0.25]),
    ("leading zeros", ["0410", "0038", "4010"], [], ["0410", "0038", "4010"]),
    ("zeros alone", ["0", "1", "0"], [], [0, 1, 0]),
    ("zero point", ["0.5", "00.5", "1"], [], [0.5, 0.5, 1]),
    ("leading zeros lost elsewhere", ["0410", "410", "0038"], [0], ["0410", "0410", "0038"]),
    ("dash for missing", ["1.5", "2", "3", "-"], [0], [1.5, 2, 3, NAN]),
    ("point for missing", ["1.5", "."], [0], [1.5, NAN]),
    ("several marks for missing", ["1.5", "2", "n.a.", "--"], [0], [1.5, 2, NAN, NAN]),
    ("dash in a column of codes", ["1", "2", "-"], [1], ["1", "2", "-"]),
    ("missing mark and comma", ["1,5", "2,25", "-"], [0], [1.5, 2.25, NAN]),
    ("missing mark and unit", ["5 kg", "7 kg", "-"], [0], [5, 7, NAN]),
    ("case", ["Yes", "yes", "NO", "No"], [1], ["Yes", "yes", "NO", "No"]),
    ("case, merged", ["Yes", "Yes", "yes", "no"], [0], ["Yes", "Yes", "Yes", "no"]),
    ("truth values", ["True", "TRUE", "false"], [], ["True", "True", "False"]),
    ("truth values alone", ["True", "False"], [], ["True", "False"]),
    ("spaces inside", ["left knee", "left  knee", "hip"], [1], ["left knee", "left  knee", "hip"]),
    ("no-break space", ["left knee", "left\u00a0knee", "left knee"], [0], ["left knee"] * 3),
    ("composed letters", ["caf\u00e9", "cafe\u0301", "caf\u00e9"], [0], ["caf\u00e9"] * 3),
    ("full-width letters", ["A", "\uff21", "B", "A"], [0], ["A", "A", "B", "A"]),
    ("dashes", ["a-b", "a\u2013b", "a-b"], [0], ["a-b"] * 3),
    # Their kinds.
    ("whole numbers", ["1", "2", "30"], [], [1, 2, 30]),
    ("exponents", ["1e3", "2.5E-1"], [], [1000, 0.25]),
    ("plus sign", ["+5", "-5"], [], [5, -5]),
    ("surrounding spaces", [" 5", "6 "], [], [5, 6]),
    ("no-break spaces around", ["\u00a05", "6\u00a0"], [], [5, 6]),
    ("missing as always", ["5", "", "NA", "n/a", "?", "null", "None", "NaN"], [], [5, *[NAN] * 7]),
    ("Indian grouping is no number", ["12,34,567", "1,00,000"], [], ["12,34,567", "1,00,000"]),
    ("a version is text", ["1.2.3", "1.10.0"], [], ["1.2.3", "1.10.0"]),
    ("a range is text", ["10-20", "20-30"], [], ["10-20", "20-30"]),
    ("stages are text", ["1a", "1b", "2a", "2b"], [], ["1a", "1b", "2a", "2b"]),
    ("wards are text", ["ward 1", "ward 2"], [], ["ward 1", "ward 2"]),
    ("a word among categories of numbers", ["1", "2", "low", "high"], [], ["1", "2", "low", "high"]),
    ("degrees", ["36.6 °C", "38 °C"], [0], [36.6, 38]),
    ("compound unit", ["5.1 mmol/l", "7 mmol/l"], [0], [5.1, 7]),
    ("unit with a digit", ["30 kg/m2", "24.5 kg/m2"], [0], [30, 24.5]),
    ("unit with a comma", ["30,5 kg", "24,25 kg"], [0], [30.5, 24.25]),
    ("limit with a unit", ["<0.5 mg", "0.7 mg", "12 mg"], [0], [0.5, 0.7, 12]),
    ("some cells with a unit", ["68 kg", "70", "91 kg"], [0], [68, 70, 91]),
    ("tab and unit", ["68\u00a0kg", "70\u00a0kg"], [0], [68, 70]),
    ("month names", ["02 Jan 1970", "31 Jan 1970"], [0], [1, 30]),
    ("two-digit years", ["31.12.99", "01.01.70"], [0], [10956, 0]),
    ("dates with gaps", ["1970-01-02", "", "NA"], [0], [1, NAN, NAN]),
    ("dates as categories", ["1970-01-02", "1970-01-03"], [1], ["1970-01-02", "1970-01-03"]),
    ("times with gaps and a mark", ["14:15", "06:30", "-"], [0], [14.25, 6.5, NAN]),
    ("typographic minus and comma", ["\u22125,5", "3,25"], [0], [-5.5, 3.25]),
    ("mixed thousands and decimals", ["1,234.5", "12.25"], [0], [1234.5, 12.25]),
    ("comma thousands and unit", ["$1,234.50", "$12"], [0], [1234.5, 12]),
    ("point and comma mixed, left out", ["1,5", "2.25", "1,75"], [0], []),
    ("point and comma mixed, as codes", ["1,5", "2.25", "1,75"], [1], ["1,5", "2.25", "1,75"]),
    ("dates mixed, left out", ["1970-01-31", "31.01.1970"], [0], []),
    ("decimal comma and a slip", [*["1,5", "2,25"] * 10, "x7"], [0, 1], [*["1.5", "2.25"] * 10, "x7"]),
    ("decimal comma and a word for missing", [*["1,5", "2,25"] * 10, "late"], [0, 0], [*[1.5, 2.25] * 10, NAN]),
    ("truth values beside 0 and 1", ["True", "0", "1", "false"], [], [1, 0, 1, 0]),
    ("true and false in capitals", ["TRUE", "FALSE"], [], ["TRUE", "FALSE"]),
]  # fmt: skip


@pytest.mark.parametrize(("cells", "advised", "values"), [each[1:] for each in ONE], ids=[each[0] for each in ONE])
def test_a_feature_is_read_right_or_refused_with_advice_that_works(
    tmp_path: Path, cells: list[str], advised: list[int], values: list[object]
) -> None:
    write(tmp_path, {"north": cells})
    check(tmp_path, {}, advised, {"north": values})


# Features of several files.

NORTH, SOUTH = ["0,5", "1,25"], ["0.5", "1.26"]
SEVERAL = [
    ("comma beside point", {"north": NORTH, "south": SOUTH}, {}, [0], {"north": [0.5, 1.25], "south": [0.5, 1.26]}),
    ("point beside declared comma", {"north": NORTH, "south": SOUTH}, {"decimal": ","}, [0],
     {"north": [0.5, 1.25], "south": [0.5, 1.26]}),
    ("thousands beside none", {"north": ["300,060", "1,954"], "south": ["300060", "1954"]}, {}, [0],
     {"north": [300060, 1954], "south": [300060, 1954]}),
    ("comma in both", {"north": NORTH, "south": NORTH}, {}, [0], {"north": [0.5, 1.25], "south": [0.5, 1.25]}),
    ("three kinds", {"a": NORTH, "b": SOUTH, "c": ["1'200", "3.5"]}, {}, [0],
     {"a": [0.5, 1.25], "b": [0.5, 1.26], "c": [1200, 3.5]}),
    ("unit at one", {"north": ["68 kg", "70 kg"], "south": ["68", "70"]}, {}, [0],
     {"north": [68, 70], "south": [68, 70]}),
    ("other units", {"north": ["68 kg", "70 kg"], "south": ["150 lb", "100 lb"]}, {}, [0],
     {"north": [68, 70], "south": [150, 100]}),
    ("other dates", {"north": ["1970-01-02", "1970-01-03"], "south": ["02.01.1970", "31.01.1970"]}, {}, [0],
     {"north": [1, 2], "south": [1, 30]}),
    ("comma, limit and unit at different files",
     {"a": ["0,5", "1,25", "-"], "b": ["<0.5", "2", "3.5"], "c": ["3 kg", "4 kg"]}, {}, [0],
     {"a": [0.5, 1.25, NAN], "b": [0.5, 2, 3.5], "c": [3, 4]}),
    ("marks for missing at one", {"north": ["1", "-"], "south": ["1", "2"]}, {}, [0],
     {"north": [1, NAN], "south": [1, 2]}),
    ("int beside float", {"north": ["1", "0"], "south": ["1.0", "0.0"]}, {}, [], {"north": [1, 0], "south": [1, 0]}),
    ("categories 1 and 1.0", {"north": ["1", "2"], "south": ["1.0", "2.0"]}, {"categorical": ["x"]}, [],
     {"north": ["1", "2"], "south": ["1", "2"]}),
    ("truth beside numbers", {"north": ["True", "False"], "south": ["1", "0"]}, {}, [],
     {"north": [1, 0], "south": [1, 0]}),
    ("parquet: int beside float", {"north.parquet": [1, 0], "south.parquet": [1.0, 0.0]}, {}, [],
     {"north": [1, 0], "south": [1, 0]}),
    ("parquet: int beside bool", {"north.parquet": [1, 0], "south.parquet": [True, False]}, {}, [],
     {"north": [1, 0], "south": [1, 0]}),
    ("parquet: text of codes", {"north.parquet": ["0410", "4010"]}, {}, [], {"north": ["0410", "4010"]}),
    ("parquet beside a file of commas", {"north": NORTH, "south.parquet": [0.5, 1.26]}, {"decimal": ","}, [],
     {"north": [0.5, 1.25], "south": [0.5, 1.26]}),
    ("parquet alone with a comma", {"south.parquet": [0.5, 1.26]}, {"decimal": ","}, [], {"south": [0.5, 1.26]}),
    ("parquet text with a comma", {"north.parquet": NORTH}, {}, [0], {"north": [0.5, 1.25]}),
    ("codes at one", {"north": ["M", "F"], "south": ["male", "female"]},
     {"files": {"north": {"rename_columns": {"x": {"codes": {"M": "male", "F": "female"}}}}}}, [],
     {"north": ["male", "female"], "south": ["male", "female"]}),
    ("factor at one", {"north": ["227", "114"], "south": ["2", "1"]},
     {"files": {"south": {"rename_columns": {"x": {"factor": 113.5}}}}}, [],
     {"north": [227, 114], "south": [227, 113.5]}),
    ("numbers for missing at one", {"north": ["-9", "4"], "south": ["-9", "5"]},
     {"files": {"north": {"missing": [-9]}}}, [], {"north": [NAN, 4], "south": [-9, 5]}),
    ("numbers for missing in all", {"north": ["999", "4"], "south": ["999.0", "5"]}, {"missing": [999]}, [],
     {"north": [NAN, 4], "south": [NAN, 5]}),
    ("text of a number for missing", {"north": ["-9.0", "4"]}, {"missing": ["-9"]}, [], {"north": [NAN, 4]}),
    ("parquet numbers for missing", {"north.parquet": [999, 4]}, {"missing": [999]}, [], {"north": [NAN, 4]}),
    ("age at a date", {"north": ["1970-01-01", "1990-01-01"]},
     {"rename_columns": {"x": {"date": "%Y-%m-%d", "until": "2020-01-01", "factor": 1 / 365.25}}}, [],
     {"north": [18262 / 365.25, 10957 / 365.25]}),
    ("days since a date", {"north": ["2020-01-03", "2020-02-01"]},
     {"rename_columns": {"x": {"date": "%Y-%m-%d", "since": "2020-01-01"}}}, [], {"north": [2, 31]}),
    ("half of a limit", {"north": ["<0.5", "2", "> 3"]}, {"rename_columns": {"x": {"limit": "half"}}}, [],
     {"north": [0.25, 2, 3]}),
    ("case at one", {"north": ["Yes", "No"], "south": ["yes", "no"]}, {}, [0],
     {"north": ["yes", "no"], "south": ["yes", "no"]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "keys", "advised", "values"), [each[1:] for each in SEVERAL], ids=[each[0] for each in SEVERAL]
)
def test_a_feature_of_several_files_is_read_right_or_refused_with_advice_that_works(
    tmp_path: Path,
    files: dict[str, list[str]],
    keys: dict[str, Any],
    advised: list[int],
    values: dict[str, list[object]],
) -> None:
    write(tmp_path, files)
    check(tmp_path, keys, advised, values)


# Labels: those of each file, keys, the advice to follow, and the classes then.

LABELS = [
    ("int beside float", {"a": [0, 1], "b": ["0.0", "1.0"]}, {}, [], ["0", "1"]),
    ("float alone", {"a": ["0.0", "1.0"]}, {}, [], ["0.0", "1.0"]),
    ("float where the int lacks it", {"a": [0, 1], "b": ["0", "2.0"]}, {}, [], ["0", "1", "2"]),
    ("truth beside int", {"a": [0, 1], "b": ["True", "False"]}, {}, [], ["0", "1"]),
    ("truth in capitals", {"a": ["True", "False"], "b": ["TRUE", "FALSE"]}, {}, [], ["False", "True"]),
    ("truth alone", {"a": ["True", "False"]}, {}, [], ["False", "True"]),
    ("parquet: int beside bool", {"a.parquet": [0, 1], "b.parquet": [False, True]}, {}, [], ["0", "1"]),
    ("parquet: int beside float", {"a.parquet": [0, 1], "b.parquet": [0.0, 1.0]}, {}, [], ["0", "1"]),
    ("parquet beside csv", {"a.parquet": [0.0, 1.0], "b": ["0", "1"]}, {}, [], ["0", "1"]),
    ("case, merged", {"a": ["Yes", "No"], "b": ["yes", "no"]}, {}, [0], ["no", "yes"]),
    ("case, kept", {"a": ["Yes", "No"], "b": ["yes", "no"]}, {}, [1], ["No", "Yes", "no", "yes"]),
    ("one file, merged", {"a": ["ill", "Ill", "ill", "well"]}, {}, [0], ["ill", "well"]),
    ("inner spaces", {"a": ["type 1", "type  1", "type 1", "type 2"]}, {}, [0], ["type 1", "type 2"]),
    ("Unicode", {"a": ["caf\u00e9", "tea"], "b": ["cafe\u0301", "tea"]}, {}, [0], None),
    ("leading zeros", {"a": ["01", "02"], "b": ["1", "2"]}, {}, [0], None),
    ("leading zeros alone", {"a": ["01", "02"]}, {}, [], ["01", "02"]),
    ("codes", {"a": ["0", "1"], "b": ["0.0", "1.0"]}, {"label_codes": {"0": "well", "1": "ill"}}, [], ["ill", "well"]),
    ("codes and classes", {"a": ["0", "1"], "b": ["0.0", "1.0"]},
     {"label_codes": {"0": "well", "1": "ill"}, "classes": ["well", "ill"]}, [], ["well", "ill"]),
    ("classes of numbers", {"a": ["0", "1"], "b": ["0.0", "1.0"]}, {"classes": ["1", "0"]}, [], ["1", "0"]),
    ("codes at one", {"a": ["M", "F"], "b": ["male", "female"]},
     {"files": {"a": {"label_codes": {"M": "male", "F": "female"}}}}, [], ["female", "male"]),
    ("zeros behind a point", {"a": ["1.05", "1.5"]}, {}, [], ["1.05", "1.5"]),
    ("half", {"a": ["0.5", "1"], "b": ["0.50", "1"]}, {}, [], ["0.5", "1"]),
    ("words", {"a": ["well", "ill"], "b": ["ill", "well"]}, {}, [], ["ill", "well"]),
    ("ten classes", {"a": range(10), "b": [f"{n}.0" for n in range(10)]}, {}, [], [str(n) for n in range(10)]),
    ("dash", {"a": ["non-ill", "ill"], "b": ["non\u2013ill", "ill"]}, {}, [0], None),
    ("zero-width space", {"a": ["ill", "well"], "b": ["ill\u200b", "well"]}, {}, [0], None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "keys", "advised", "classes"), [each[1:] for each in LABELS], ids=[each[0] for each in LABELS]
)
def test_a_class_is_one_however_it_is_written(
    tmp_path: Path, labels: dict[str, Cells], keys: dict[str, Any], advised: list[int], classes: list[str] | None
) -> None:
    write(tmp_path, {name: range(len(cells) * 6) for name, cells in labels.items()}, labels)
    found = check(tmp_path, keys, advised, {})
    names = sorted({label for each in found.y.values() for label in each})
    if classes is None:
        assert len(names) == 2
    else:
        assert names == sorted(classes)
    if not advised or advised == [0]:
        counts = [sorted(map(each.count, names)) for each in found.y.values()]
        assert all(count == counts[0] for count in counts) or len(names) == 3


# Advice never goes in a circle, whatever formats meet.

FORMS = [
    (".", "", ""), (",", "", ""), (".", ",", ""), (",", ".", ""), (",", " ", ""), (".", "'", ""), (",", "", " kg"),
    (".", "", " %"),
]  # fmt: skip


def written(value: float, decimal: str, thousands: str, unit: str) -> str:
    return f"{value:,.2f}".replace(",", "|").replace(".", decimal).replace("|", thousands) + unit


@pytest.mark.parametrize("seed", range(20))
def test_advice_leads_to_the_right_values_whatever_formats_meet(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns, expected = ["x", "u", "v"], {}
    for name in "abc"[: 1 + seed % 3]:
        values = np.round(rng.uniform(0.01, 9_999, (40, 3)), 2)
        values[0] = 1234.56
        forms = [FORMS[i] for i in rng.integers(len(FORMS), size=3)]
        rows = [[written(value, *form) for value, form in zip(row, forms, strict=True)] for row in values]
        if seed % 2:
            rows[3][0], values[3, 0] = "-", NAN
        lines = [";".join([*row, ("no", "yes")[i // 2 % 2]]) for i, row in enumerate(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join([";".join([*columns, "y"]), *lines]) + "\n")
        expected[name] = values[:, 0].tolist()
    keys: dict[str, Any] = {}
    for _ in range(12):
        try:
            found = read(tmp_path, keys)
            break
        except DataError as error:
            keys = followed(str(error), keys, 0)
    else:
        pytest.fail(f"refused after twelve times: {keys}")
    for name, values in expected.items():
        assert same(found.x[name], values), keys


def test_a_column_of_another_name_is_named_with_the_key_that_maps_it(tmp_path: Path) -> None:
    files = [tmp_path / "north.csv", tmp_path / "south.csv"]
    for file, name in zip(files, ("creatinine", "creatinin"), strict=True):
        file.write_text("\n".join([f"{name},ill", *(f"{row}.5,{row % 2}" for row in range(40))]))
    key = 'data.files.south.rename_columns.creatinin = "creatinine"'
    with pytest.raises(
        DataError, match=re.escape(f"expected the same columns: set {key} if these columns are the same")
    ):
        caveat.data.from_files(*files, target="ill")
    renamed = {"south": {"rename_columns": {"creatinin": "creatinine"}}}
    assert len(caveat.data.from_files(*files, target="ill", files=renamed)) == 2


def test_advice_on_other_columns_keeps_the_target_and_names_a_column_once(tmp_path: Path) -> None:
    files = [tmp_path / "north.csv", tmp_path / "south.csv"]
    told = []
    for header in ("creatinine,DISEASED", "creatinin,creatinne,ill"):
        files[0].write_text("creatinine,ill\n1.5,0\n")
        files[1].write_text(f"{header}\n1.5,0{',1' * (header.count(',') - 1)}\n")
        with pytest.raises(DataError) as refused:
            caveat.data.from_files(*files, target="ill")
        told.append(str(refused.value).partition("expected the same columns: ")[2])
    assert told[0] == f"{files[1]} needs 'ill', or another column renamed to it in data.files.south.rename_columns"
    assert told[1].count('= "creatinine"') == 1


def test_a_lacking_column_stands_beside_those_that_the_model_does_not_know(tmp_path: Path) -> None:
    sheet = FrameSheet(Columns({"age": [1.0], "hp": [2.0]}), "a", str(tmp_path / "new.csv"))
    with pytest.raises(DataError, match=r"no column 'horsepower', .* trained on; columns .* not trained on: hp$"):
        rows_of(sheet, [TableColumn("age", None), TableColumn("horsepower", None)], AS_USUAL)
