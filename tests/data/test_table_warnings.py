"""What is said of columns that can be read, but are hardly meant: a line each, with advice that works."""

from __future__ import annotations

import re
import tomllib
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_tables import NAN, check, followed, read, table, told, usual, write

from caveat.data import from_frames
from caveat.data.setting_lines import ASSIGNED

UNUSUAL = [
    ("ids", {"a": {"id": lambda row: 1000 + row * 7, "x": usual}}, r"column 'id' has a different value in every row"),
    ("an index", {"a": {"Unnamed: 0": lambda row: row, "x": usual}}, r"column 'Unnamed: 0' has a different value"),
    ("ids that begin anew", {name: {"k": lambda row: row, "x": usual} for name in "ab"}, "column 'k' has a different"),
    ("long ids", {"a": {"mrn": lambda row: 30_000_000 + row * 13, "x": usual}}, "column 'mrn' has a different value"),
    ("a copy of the label", {"a": {"copy": lambda row: row // 2 % 2, "x": usual}}, "'copy' determines the label"),
    ("a copy in words", {"a": {"copy": lambda row: "AB"[row // 2 % 2], "x": usual}}, "'copy' determines the label"),
    ("a constant at one silo", {"a": {"w": usual, "x": usual}, "b": {"w": lambda _: 7, "x": usual}},
     r"columns with one value at some silos, but not at others: 'w' \(b\)"),
    ("missing at one silo", {"a": {"w": usual, "x": usual}, "b": {"w": lambda _: "", "x": usual}},
     r"columns with one value at some silos, but not at others: 'w' \(b\)"),
    ("other words at one silo", {"a": {"sex": lambda row: "MF"[row % 2], "x": usual},
                                 "b": {"sex": lambda row: ("male", "female")[row % 2], "x": usual}},
     r"column 'sex': silo 'a' has 'F', 'M', others have 'female', 'male': .* data\.rename_columns\.sex = \{ codes = "),
    ("a header that is data", {"a": {"63": lambda row: row % 9, "1": usual, "145": lambda row: row % 13}},
     r"the header line is '63,1,145,y'; is it a row of data\?"),
    ("codes of leading zeros", {"a": {"icd": lambda row: f"0{row % 7}1", "x": usual}},
     r"numbers with leading zeros are codes; set data\.numeric = \[\"icd\"\] if not"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "line"), [each[1:] for each in UNUSUAL], ids=[each[0] for each in UNUSUAL])
def test_an_unusual_column_is_one_line(tmp_path: Path, files: dict[str, dict[str, Any]], line: str) -> None:
    for name, columns in files.items():
        table(tmp_path / f"{name}.csv", **columns)
    (found,) = told(tmp_path)
    assert re.search(line, found), found
    if assigned := ASSIGNED.search(found):
        assert told(tmp_path, **tomllib.loads(assigned[0])["data"]) == [] or "codes" in assigned[0]


@pytest.mark.parametrize(
    "columns",
    [
        {"platelets": lambda row: 150_000 + row * 7919 % 100_003, "x": usual},
        {"dose": lambda row: f"{row * 0.37:.2f}", "x": usual},
        {"town": lambda row: ("north", "south")[row % 2], "x": usual},
        {"0": usual, "1": lambda row: row % 13, "2": lambda row: row % 7},
        {"2019": usual, "2020": lambda row: row % 13},
    ],
)
def test_usual_columns_are_no_line(tmp_path: Path, columns: dict[str, Any]) -> None:
    for name in "ab":
        table(tmp_path / f"{name}.csv", **columns)
    assert not told(tmp_path)


def skewed(row: int) -> float:
    return round(90 + 40 * abs(float(np.sin(row * 7))) ** 3, 1)


def at_times(value: object, of: Any, every: int = 9) -> Any:
    """A column of which every so many rows have this value instead."""
    return lambda row: value if row % every == 4 else of(row)


MARKS = [
    ("-9 in an age", "-9", at_times(-9, lambda row: 20 + row * 7 % 60), [-9]),
    ("-1 in a count", "-1", at_times(-1, usual), [-1]),
    ("-99.0 in a fraction", "-99", at_times("-99.0", lambda row: f"{row / 60:.3f}"), [-99]),
    ("999 in a laboratory value", "999", at_times(999, skewed), [999]),
    ("9999 in a laboratory value", "9999", at_times(9999, skewed), [9999]),
    ("99 in a rating", "99", at_times(99, lambda row: row % 7), [99]),
    ("99.9 in a temperature", "99.9", at_times("99.9", lambda row: f"{36.5 + row % 13 / 10:.1f}"), [99.9]),
    ("-9 and 999", "-9, 999", at_times(-9, at_times(999, skewed, 11), 7), [-9, 999]),
    ("888 and 999", "888, 999", at_times(888, at_times(999, skewed, 11), 7), [888, 999]),
    ("0 in a pressure", "0", at_times(0, skewed), [0]),
    ("999 at one silo", "999", at_times(999, skewed), [999]),
]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(("shown", "of", "marks"), [each[1:] for each in MARKS], ids=[each[0] for each in MARKS])
def test_a_mark_of_missing_values_is_one_line_whose_advice_works(
    tmp_path: Path, shown: str, of: Any, marks: list[float], kind: str
) -> None:
    for name in "ab":
        table(tmp_path / f"{name}.csv", v=of if name == "a" else skewed if "999" in shown else of, x=usual)
    if kind == "parquet":
        as_parquet(tmp_path)
    (line,) = told(tmp_path)
    read_values = [[float(of(row)) in map(float, marks) for row in range(60)]] * (1 if "999" in shown else 2)
    counts = [sum(each) for each in read_values]
    each = ", ".join(f"{count} of 60 of {name}" for name, count in zip("ab", counts, strict=False))
    held = f"column 'v' has {shown} in {sum(counts)} of 120 rows ({each})"
    assert f"{held}, far from all other values: if that means missing, set" in line
    keys = followed(line, {}, 0)
    assert keys == {"rename_columns": {"v": {"missing": marks}}}
    assert told(tmp_path, **keys) == []
    if marks not in ([0], [-1]):  # other columns hold these
        assert told(tmp_path, missing=marks) == []
    values = read(tmp_path, keys | {"rename_columns": {"v": {"missing": marks, "name": "x"}, "x": False}}).x["a"]
    expected = [NAN if float(of(row)) in map(float, marks) else float(of(row)) for row in range(60)]
    assert all(np.isnan(a) if np.isnan(b) else a == np.float32(b) for a, b in zip(values, expected, strict=True))


def test_a_silo_that_has_only_marks_is_told_once(tmp_path: Path) -> None:
    """It neither has one value, nor another unit, in a further line; a silo with another unit than others has one."""
    for name in "abc":
        table(tmp_path / f"{name}.csv", v=at_times(0, skewed) if name == "a" else skewed, x=usual)
    (line,) = told(tmp_path)
    assert (
        "column 'v' has 0 in 7 of 180 rows (7 of 60 of a), far from all other values: if that means missing, set"
        in line
    )
    table(tmp_path / "b.csv", v=lambda _: 0, x=usual)
    table(tmp_path / "c.csv", v=lambda _: 0, x=usual)
    (line,) = told(tmp_path)
    held = "column 'v' has 0 in 127 of 180 rows (all 60 of b, all 60 of c, 7 of 60 of a)"
    assert f"{held}, far from all other values: if that means missing" in line
    table(tmp_path / "c.csv", v=lambda row: 3 * skewed(row), x=usual)
    marks, unit = told(tmp_path)
    assert "in 67 of 180 rows (all 60 of b, 7 of 60 of a), far from" in marks
    assert re.search(r"column 'v': medians are 1\d\d at a; 3\d\d at c; none at b: if units", unit)


def as_parquet(folder: Path) -> None:
    csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    for path in sorted(folder.glob("*.csv")):
        parquet.write_table(csv.read_csv(path), path.with_suffix(".parquet"))
        path.unlink()


NO_MARKS = {
    "temperatures below zero": lambda row: -9 if row % 9 == 0 else row % 23 - 8,
    "an age of 99": lambda row: 99 if row % 19 == 0 else 40 + row * 7 % 58,
    "a count that is often 0": lambda row: max(row * 37 % 11 - 6, 0),
    "a dose that may be 0": lambda row: (0, 10, 20, 40)[row % 4],
    "999 in a range up to it": lambda row: 999 if row % 9 == 0 else row * 37 % 900,
    "-1, 0 and 1": lambda row: row % 3 - 1,
    "once 999": lambda row: 999 if row == 9 else skewed(row),
    "pregnancies": lambda row: row * 5 % 13,
    "a 0 that is the lowest of many": lambda row: row % 17 * 3,
    "a year": lambda row: 2000 + row % 20,
}


@pytest.mark.parametrize("name", NO_MARKS)
def test_values_that_occur_are_no_marks(tmp_path: Path, name: str) -> None:
    table(tmp_path / "a.csv", v=NO_MARKS[name], x=usual)
    assert told(tmp_path) == []


# Dates that are numbers

DAYS = [date(2020, 1, 31) + timedelta(days=37 * i) for i in range(25)]
SINCE = [(day - date(1970, 1, 1)).days for day in DAYS]
SERIAL = [(day - date(1899, 12, 30)).days for day in DAYS]


@pytest.mark.parametrize(
    ("cells", "values", "form"),
    [
        ([f"{day:%Y%m%d}" for day in DAYS], SINCE, "%Y%m%d"),
        ([f"{day:%Y%m%d}.0" for day in DAYS], SINCE, "%Y%m%d"),
        ([*(f"{day:%Y%m%d}" for day in DAYS), ""], [*SINCE, NAN], "%Y%m%d"),
        ([str(each) for each in SERIAL], SINCE, "excel"),
        ([f"{each}.25" for each in SERIAL], [day + 0.25 for day in SINCE], "excel"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_dates_that_are_numbers_are_one_line_whose_advice_works(
    tmp_path: Path, cells: list[str], values: list[float], form: str, kind: str
) -> None:
    write(tmp_path, {"north": cells})
    if kind == "parquet":
        as_parquet(tmp_path)
    found = read(tmp_path, {})
    (line,) = found.told
    assert line.startswith("column 'x' is read as numbers: values such as ")
    keys = followed(line, {}, 0)
    assert keys == {"rename_columns": {"x": {"date": form}}}
    again = read(tmp_path, keys)
    assert again.told == []
    assert again.x["north"][: len(values)] == pytest.approx(values, nan_ok=True)
    assert read(tmp_path, followed(line, {}, 1)).told == []


def test_dates_of_digits_with_a_leading_zero_are_refused_with_the_key(tmp_path: Path) -> None:
    write(tmp_path, {"north": [f"{day:%d%m%Y}" for day in DAYS]})
    check(tmp_path, {}, [0], {"north": SINCE})


@pytest.mark.parametrize(("name", "expected"), [
    ("admitted", True), ("visitDate", True), ("date_of_birth", True), ("dob", True), ("income", False),
    ("updated", False),
])  # fmt: skip
def test_days_of_a_spreadsheet_are_known_by_the_column_s_name(tmp_path: Path, name: str, expected: bool) -> None:
    table(tmp_path / "a.csv", **{name: lambda row: 15_000 + row * 7919 % 28_000, "x": usual})
    found = [line for line in told(tmp_path) if "as a spreadsheet stores dates" in line]
    assert bool(found) == expected


def test_dates_of_frames_are_dates_already() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({
        "date": [*pandas.date_range("2024-12-01", periods=20)] * 3, "x": np.arange(60) % 7, "y": ["no", "yes"] * 30,
    })  # fmt: skip
    assert from_frames({"a": frame, "b": frame}, target="y").shape == (2,)


def test_numbers_that_are_no_dates_are_no_line(tmp_path: Path) -> None:
    write(tmp_path, {"north": [str(20201399 + 7 * i) for i in range(20)]})
    assert read(tmp_path, {}).told == []


def test_an_own_name_is_in_the_advice_for_dates(tmp_path: Path) -> None:
    write(tmp_path, {"north": [f"{day:%Y%m%d}" for day in DAYS]})
    keys = {"rename_columns": {"x": "day"}}
    (line,) = read(tmp_path, keys).told
    keys = followed(line, keys | {"rename_columns": {}}, 0)
    assert keys == {"rename_columns": {"x": {"name": "day", "date": "%Y%m%d"}}}
    assert read(tmp_path, keys).told == []
