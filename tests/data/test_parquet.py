"""Tables in parquet files are those of csv files with the same cells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from caveat import data
from caveat.core import ConfigurationError, DataError
from caveat.data import agreement
from caveat.data.lazy_rows import LazyInputs
from caveat.data.settings import DataSettings
from caveat.data.splits import NAMES

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


@pytest.mark.filterwarnings("ignore:column")
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


@pytest.mark.filterwarnings("ignore:column")
def test_a_folder_and_a_bare_path_are_tables_too(tmp_path: Path) -> None:
    write(tmp_path / "t", COLUMNS)
    for csv in (tmp_path / "t").glob("*.csv"):
        csv.unlink()
    assert data.load(DataSettings(source=f"csv:{tmp_path / 't'}", target="outcome"), 0).names == ["north", "south"]
    assert data.survey(str(tmp_path / "t" / "north.parquet"), target="outcome") is not None


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"lists": [[1]] * N}, "column 'lists' contains list<"),
        ({"bytes": [b"x"] * N}, "column 'bytes' contains binary, expected numbers or texts"),
        ({"age": [float("inf")] * N}, "line 1: 'age' is 'inf', expected a finite number"),
        ({"name": [f"Jo {i}" for i in range(N)]}, "look like names or free text"),
        ({" age": [1.0] * N}, "column name 'age' is empty or duplicated"),
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


@pytest.mark.filterwarnings("ignore:column")
def test_rows_read_as_they_are_needed_are_those_of_the_csv_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "t", COLUMNS)
    held = data.load(DataSettings(source=source(tmp_path / "t", "csv"), target="outcome"), 0)
    settings = DataSettings(source=source(tmp_path / "t", "parquet"), target="outcome", lazy=True)
    lazily = data.load(settings, 0)
    assert held.encoders == lazily.encoders
    assert data.splits_record(held) == data.splits_record(lazily)
    for name in NAMES:
        x = getattr(lazily["south"], name).x
        assert isinstance(x, LazyInputs)
        assert torch.equal(getattr(held["south"], name).x, x[:])
    (kept,) = (tmp_path / "cache" / "tables").glob("*.npy")
    assert (tmp_path / "cache" / "tables").stat().st_mode & 0o077 == 0, "what is kept is nobody else's to read"
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-4] + b"\0\0\0\0")
    again = data.load(settings, 0)
    assert kept.read_bytes() == whole, "damage is noticed, and mended from the table"
    assert data.splits_record(again) == data.splits_record(held)


def test_a_silo_elsewhere_reads_rows_as_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "t", COLUMNS)
    own = [
        DataSettings(source=f"csv:{tmp_path / 't' / f'south.{suffix}'}", target="outcome", lazy=suffix == "parquet")
        for suffix in ("csv", "parquet")
    ]
    held, lazily = (agreement.own_schema(each, 0, "south") for each in own)
    assert held == lazily
    shared = agreement.shared_schema({"south": held}, own[0])
    one, other = (agreement.own_silos(each, 0, "south", shared)["south"] for each in own)
    assert torch.equal(one.train.x, other.train.x[:])


def test_text_is_not_read_as_it_is_needed(tmp_path: Path) -> None:
    write(tmp_path / "t", COLUMNS)
    with pytest.raises(ConfigurationError, match=r"north\.csv is text: remove the key, or save the table as a parquet"):
        data.load(DataSettings(source=source(tmp_path / "t", "csv"), target="outcome", lazy=True), 0)


LITTLE = """
import resource, sys
import numpy, pyarrow.parquet, sklearn.impute, sklearn.preprocessing, torch
from caveat import data
from caveat.data import DataSettings
from caveat.data.tables import encoding

def taken():  # bytes that are this process's own, files that are mapped into memory apart
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmData")).split()[1])

encoding.FITTED = 1 << 18  # of a table this small, one column at a time
most = taken() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
silos = data.load(DataSettings(source=f"csv:{sys.argv[1]}", target="y", n_silos=2, lazy=sys.argv[3] == "lazy"), 0)
print(sum(float(part.double().sum()) for silo in silos for part in silo.train.x.split(1024)))
"""


@pytest.mark.long
def test_a_table_larger_than_what_memory_may_be_taken_can_be_read(tmp_path: Path) -> None:
    """Half of what the rows take is all that reading, encoding and going through them may take."""
    rows, width, group = 160_000, 128, 4_000
    generator = np.random.default_rng(0)
    with pq.ParquetWriter(tmp_path / "t.parquet", _wide(generator, 1, width).schema) as file:
        for _ in range(rows // group):
            file.write_table(_wide(generator, group, width))
    decoded = 4 * rows * width
    environment = os.environ | {
        "CAVEAT_CACHE": str(tmp_path / "cache"), "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", LITTLE, str(tmp_path / "t.parquet")]
    done = subprocess.run([*command, str(decoded // 2), "lazy"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert np.isfinite(float(done.stdout))
    held = subprocess.run([*command, str(decoded // 2), "held"], env=environment, capture_output=True, text=True)
    assert held.returncode != 0, "the limit has to be one that memory would notice"
    assert "MemoryError" in held.stderr or "Unable to allocate" in held.stderr


def _wide(generator: np.random.Generator, rows: int, width: int) -> Any:
    columns = {f"c{i}": generator.normal(size=rows).astype(np.float32) for i in range(width)}
    return pa.table(columns | {"y": generator.integers(0, 2, rows)})
