"""Tables in parquet files are those of csv files with the same cells."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from caveat import data
from caveat.core import ConfigurationError, DataError
from caveat.data import DataSettings

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
RNG = np.random.default_rng(0)
N = 60
COLUMNS = {
    "age": RNG.normal(50, 9, N).astype(np.float32).tolist(),
    "visits": [None if i % 9 == 0 else int(i) for i in range(N)],
    "ward": ["a", "b", None] * 20,
    "smoker": [bool(i % 2) for i in range(N)],
    "outcome": ["ill", "well"] * 30,
}


def write(folder: Path, columns: dict[str, list[object]]) -> None:
    folder.mkdir()
    for part, rows in (("north", slice(0, 40)), ("south", slice(20, N))):
        cut = {name: values[rows] for name, values in columns.items()}
        pq.write_table(pa.table(cut), folder / f"{part}.parquet", row_group_size=7)
        cells = (["" if v is None else str(v) for v in row] for row in zip(*cut.values(), strict=True))
        (folder / f"{part}.csv").write_text("\n".join(map(",".join, [list(cut), *cells])) + "\n")


def source(folder: Path, suffix: str) -> str:
    return f"csv:{folder / f'north.{suffix}'},{folder / f'south.{suffix}'}"


def test_a_parquet_file_is_the_csv_file_with_its_cells(tmp_path: Path) -> None:
    write(tmp_path / "t", COLUMNS)
    one, other = (
        data.load(DataSettings(source=source(tmp_path / "t", suffix), target="outcome"), 0)
        for suffix in ("csv", "parquet")
    )
    assert data.splits_record(one) == data.splits_record(other)
    for name in ("train", "test"):
        assert torch.equal(getattr(one["north"], name).x, getattr(other["north"], name).x)
    file = tmp_path / "t" / "south.parquet"
    assert torch.equal(data.read_inputs(file, other, "south"), data.read_inputs(file.with_suffix(".csv"), one, "south"))


def test_a_folder_and_a_bare_path_are_tables_too(tmp_path: Path) -> None:
    write(tmp_path / "t", COLUMNS)
    for csv in (tmp_path / "t").glob("*.csv"):
        csv.unlink()
    assert data.load(DataSettings(source=f"csv:{tmp_path / 't'}", target="outcome"), 0).names == ["north", "south"]
    assert data.survey(str(tmp_path / "t" / "north.parquet"), target="outcome") is not None


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"lists": [[1]] * N}, "column 'lists' holds list<"),
        ({"bytes": [b"x"] * N}, "column 'bytes' holds binary, expected numbers or text"),
        ({"age": [float("inf")] * N}, "line 1: 'age' is 'inf', expected a finite number"),
        ({"name": [f"Jo {i}" for i in range(N)]}, "look like names or free text"),
        ({" age": [1.0] * N}, "column name 'age' is empty or doubled"),
    ],
)
def test_columns_are_checked_as_those_of_csv_files(columns: dict[str, list[object]], told: str, tmp_path: Path) -> None:
    write(tmp_path / "t", COLUMNS | columns)
    with pytest.raises(DataError) as caught:
        data.load(DataSettings(source=source(tmp_path / "t", "parquet"), target="outcome"), 0)
    assert told in str(caught.value)
    assert "north.parquet" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_files_and_a_missing_package_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t", COLUMNS)
    file = tmp_path / "t" / "north.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    settings = DataSettings(source=source(tmp_path / "t", "parquet"), target="outcome")
    with pytest.raises(DataError, match=r"north\.parquet: not a readable parquet file \(ArrowInvalid"):
        data.load(settings, 0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="needs the optional package 'pyarrow': install caveat with the extra"):
        data.load(settings, 0)
