"""Files as programs write them: encodings, ends of lines, separators, lines that are no data, and parquet's types."""

from __future__ import annotations

import datetime
import decimal
import gzip
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from written_tables import NAN, Found, check, followed, read, same, write

from caveat.core import CaveatError, DataError

ROWS = [("Müller", 1.5, "ja"), ("Øst", 2.25, "nein"), ("naïve", 3, "ja"), ("Ærø", 4, "nein")] * 10


def text(sep: str = ",", mark: str = ".", end: str = "\n", head: str = "x,z,y", quote: str = "") -> str:
    rows = [head.split(","), *([a, f"{b}".replace(".", mark), c] for a, b, c in ROWS)]
    return end.join(sep.join(f"{quote}{cell}{quote}" for cell in row) for row in rows) + end


PLAIN = text()
WORDS = [row[0] for row in ROWS[:4]]
EURO = PLAIN.replace("Øst", "€uro\u2013Ost")
READ = {
    "UTF-8": PLAIN.encode(),
    "UTF-8 with a mark": PLAIN.encode("utf-8-sig"),
    "ends of lines of Windows": text(end="\r\n").encode(),
    "ends of lines of old Macs": text(end="\r").encode(),
    "tabs": text("\t").encode(),
    "bars": text("|").encode(),
    "semicolons": text(";").encode(),
    "a separator declared in the file": b"sep=;\r\n" + text(";").encode(),
    "every cell quoted": text(quote='"').encode(),
    "empty lines between": text(end="\n\n").encode(),
    "empty lines before": b"\n\n" + PLAIN.encode(),
    "no end of the last line": PLAIN.rstrip().encode(),
    "spaces around names": text(head=" x , z , y ").encode(),
    "no-break spaces around names": text(head="\u00a0x,z\u00a0,y").encode(),
}


@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "north.csv").write_bytes(READ[name])
    found = read(tmp_path, {})
    assert same(found.x["north"], WORDS)
    assert found.y["north"][:4] == ["ja", "nein", "ja", "nein"]
    assert found.told == []


def test_a_quoted_cell_may_hold_ends_of_lines_and_separators(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text(PLAIN.replace("Müller", '"Mül\n,""ler"'))
    assert same(read(tmp_path, {}).x["north"], ['Mül\n,"ler', *WORDS[1:]])


ENCODED = [
    ("ISO-8859-1", PLAIN.encode("iso8859-1"), WORDS),
    ("WINDOWS-1252", EURO.encode("cp1252"), ["Müller", "€uro\u2013Ost", "naïve", "Ærø"]),
    ("UTF-16", PLAIN.encode("utf-16"), WORDS),
    ("UTF-16LE", PLAIN.encode("utf-16-le"), WORDS),
    ("UTF-16BE", PLAIN.encode("utf-16-be"), WORDS),
    ("UTF-16LE", re.sub(r"[^\x00-\x7f]", "a", PLAIN).encode("utf-16-le"), ["Maller", "ast", "naave", "ara"]),
    ("UTF-32", PLAIN.encode("utf-32"), WORDS),
]


@pytest.mark.parametrize(
    ("name", "content", "words"), ENCODED, ids=[f"{i} {each[0]}" for i, each in enumerate(ENCODED)]
)
def test_another_encoding_is_refused_with_a_command_that_works(
    tmp_path: Path, name: str, content: bytes, words: list[str]
) -> None:
    path = tmp_path / "north.csv"
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"north\.csv(, line \d+)?: not in UTF-8, expected a csv file in UTF-8"
    ) as refused:
        read(tmp_path, {})
    command = re.search(r"run `(.*)`$", str(refused.value))
    assert command is not None
    assert f"-f {name} " in command[1]
    if shutil.which("iconv") is None:
        pytest.skip("the advice is right; to follow it needs the command iconv")
    path.rename(tmp_path / "OLD")
    subprocess.run(
        command[1].replace("OLD.csv", "OLD").replace("NEW.csv", "north.csv"), shell=True, cwd=tmp_path, check=True
    )
    (tmp_path / "OLD").unlink()
    assert same(read(tmp_path, {}).x["north"], words)


INDEX = "\n".join(f"{i},{line}" if i else f",{line}" for i, line in enumerate(PLAIN.splitlines()))
REFUSED = [
    (
        "a gzip file",
        gzip.compress(PLAIN.encode()),
        r"north\.csv: a file compressed by gzip, expected a csv file in UTF-8; save",
    ),
    ("a workbook", b"PK\x03\x04" + bytes(99), r"north\.csv: an Excel workbook or a zip archive, expected a csv file"),
    ("an old workbook", b"\xd0\xcf\x11\xe0" + bytes(99), r"north\.csv: an Excel workbook, expected a csv file"),
    ("a parquet file", b"PAR1" + bytes(99), r"north\.csv: a parquet file, expected a csv file"),
    ("nothing", b"", r"north\.csv: 0 lines, expected a header and at least one row"),
    ("a header alone", b"x,z,y\n", r"north\.csv: 1 line, expected a header and at least one row"),
    ("a row too short", PLAIN.encode() + b"a,1\n", r"north\.csv, line 42: 2 values, expected 3 as in the header"),
    (
        "an open quote",
        PLAIN.replace("Müller", '"Müller', 1).encode(),
        r"not a readable csv file in UTF-8 \(unexpected end",
    ),
    ("a name twice", text(head="x,x,y").encode(), r"column name 'x' is empty or duplicated, expected a different"),
    ("a comma at each end", text(end=",\n").encode(), r"column name '' is empty or duplicated"),
    (
        "an index without a name",
        INDEX.encode(),
        r"remove the column \(to_csv\(index=False\) of pandas",
    ),
    ("a title", b"Ward 7\n" + PLAIN.encode(), r"line 2: 3 values, expected 1 .* remove the lines above the header"),
    ("a comment", b"# today\n" + PLAIN.encode(), r"line 2: 3 values, expected 1 .* remove the lines above the header"),
]


@pytest.mark.parametrize(("content", "told"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_what_is_no_table_is_one_sentence(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "north.csv").write_bytes(content)
    with pytest.raises(DataError, match=told) as refused:
        read(tmp_path, {})
    assert "\n" not in str(refused.value)
    if "lines above" in told:
        (tmp_path / "north.csv").write_bytes(content.split(b"\n", 1)[1])
        assert same(read(tmp_path, {}).x["north"], WORDS)


@pytest.mark.parametrize("mark", ["^", "~", " "])
def test_an_unusual_separator_is_named(tmp_path: Path, mark: str) -> None:
    (tmp_path / "north.csv").write_text(text(mark))
    with pytest.raises(CaveatError) as refused:
        read(tmp_path, {})
    keys = followed(str(refused.value), {}, 0)
    assert keys == {"separator": mark}
    assert same(read(tmp_path, keys).x["north"], WORDS)


# Parquet: values of a column, the advice to follow, and the values then read

DAY = datetime.date(1970, 1, 2)
AT = datetime.datetime(1970, 1, 2, 12)
PARQUET: list[tuple[str, list[Any], list[int], list[Any]]] = [
    ("whole numbers", [1, 2, 30], [], [1, 2, 30]),
    ("whole numbers and nothing", [1, None, 30], [], [1, NAN, 30]),
    ("floats and nothing", [1.5, None, NAN], [], [1.5, NAN, NAN]),
    ("truth values", [True, False], [], ["True", "False"]),
    ("truth values and nothing", [True, None, False], [], ["True", None, "False"]),
    ("text", ["left", "right", None], [], ["left", "right", None]),
    ("text of numbers", ["1.5", "2"], [], [1.5, 2]),
    ("text of numbers with a unit", ["1.5 kg", "2 kg"], [0], [1.5, 2]),
    ("text of dates", ["02.01.1970", "31.01.1970"], [0], [1, 30]),
    ("text with leading zeros", ["007", "010"], [], ["007", "010"]),
    ("dates", [DAY, DAY + datetime.timedelta(29)], [0], [1, 30]),
    ("dates and nothing", [DAY, None, DAY + datetime.timedelta(29)], [0], [1, NAN, 30]),
    ("dates as categories", [DAY, DAY + datetime.timedelta(29)], [1], ["1970-01-02", "1970-01-31"]),
    ("times", [AT, AT + datetime.timedelta(1)], [0], [1.5, 2.5]),
    ("times of a day", [datetime.time(14, 15), datetime.time(6, 30)], [0], [14.25, 6.5]),
    ("decimals", [decimal.Decimal("1.50"), decimal.Decimal("2.25")], [], [1.5, 2.25]),
    ("nothing at all", [None, None], [], [NAN, NAN]),
    ("large whole numbers", [3_000_000_000, 1], [], [3e9, 1]),
    ("case", ["Yes", "yes", "no"], [0], ["yes", "yes", "no"]),
    ("a mark for missing", ["1.5", "-", "2"], [0], [1.5, NAN, 2]),
]


@pytest.mark.parametrize(
    ("cells", "advised", "values"), [each[1:] for each in PARQUET], ids=[each[0] for each in PARQUET]
)
def test_a_parquet_column_is_read_right_or_refused_with_advice_that_works(
    tmp_path: Path, cells: list[Any], advised: list[int], values: list[Any]
) -> None:
    write(tmp_path, {"north.parquet": cells})
    check(tmp_path, {}, advised, {"north": values})


@pytest.mark.parametrize(
    "kind", ["float32", "float64", "int8", "uint8", "int64", "float16", "dictionary", "large_string"]
)
def test_parquet_types_of_one_value_are_read_alike(tmp_path: Path, kind: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x = pa.array([1, 2, 3] * 10)
    x = x.cast(pa.string()).dictionary_encode() if kind == "dictionary" else x.cast(getattr(pa, kind)())
    pq.write_table(pa.table({"x": x, "y": ["no", "yes", "no"] * 10}), tmp_path / "north.parquet")
    found: Found = read(tmp_path, {})
    assert same(found.x["north"], [1, 2, 3])


@pytest.mark.parametrize("kind", ["list", "struct", "binary"])
def test_nested_and_binary_columns_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    value: Any = {"list": [1, 2], "struct": {"a": 1}, "binary": b"ab"}[kind]
    pq.write_table(pa.table({"x": [value] * 30, "y": ["no", "yes", "no"] * 10}), tmp_path / "north.parquet")
    with pytest.raises(DataError, match=r"north\.parquet: column 'x' contains .*, expected numbers or texts; remove"):
        read(tmp_path, {})


def test_a_text_that_is_called_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "north.parquet").write_text(PLAIN)
    with pytest.raises(DataError, match=r"north\.parquet: not a readable parquet file"):
        read(tmp_path, {})
