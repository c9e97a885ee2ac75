"""Subgroups of samples: from a column of files and frames, from arrays; values, bins, missing values, splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from caveat import data
from caveat.core.errors import ConfigurationError, DataError, DataWarning
from caveat.data import new_inputs
from caveat.data.subgroups import Subgrouping, Subgroups, given
from caveat.data.tables.files import read_sheet

ROWS = 60


def table(seed: int = 0, sexes: str = "fm") -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "age": rng.integers(20, 90, ROWS).tolist(),
        "sex": [sexes[i] for i in rng.integers(0, len(sexes), ROWS)],
        "value": rng.normal(size=ROWS).round(3).tolist(),
        "y": [i % 2 for i in range(ROWS)],
    }


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


def files(folder: Path) -> list[Path]:
    return [write(folder / f"{name}.csv", table(seed)) for seed, name in enumerate(("north", "south"))]


def test_every_sample_keeps_its_subgroup_in_its_split(tmp_path: Path) -> None:
    silos = data.from_files(*files(tmp_path), target="y", subgroups="sex")
    assert silos.subgroup_names == ("sex = f", "sex = m")
    for seed, silo in enumerate(silos):
        expected = np.array(["fm".index(sex) for sex in table(seed)["sex"]])
        for split, of in silo.subgroups.items():
            assert of.tolist() == expected[silo.indices[split].numpy()].tolist()
            assert len(of) == len(getattr(silo, split))
    plain = data.from_files(*files(tmp_path), target="y")
    assert all((a.train.x == b.train.x).all() for a, b in zip(silos, plain, strict=True))
    assert plain[0].subgroups == {}
    assert plain.subgroup_names == ()


def test_a_column_can_be_no_input(tmp_path: Path) -> None:
    silos = data.from_files(*files(tmp_path), target="y", subgroups="sex", subgroup_input=False)
    assert silos.shape == (2,)
    assert silos.subgroup_names == ("sex = f", "sex = m")
    found = data.noted_inputs(tmp_path / "north.csv", silos, "north").subgroup
    assert found is not None
    assert found.tolist() == ["fm".index(sex) for sex in table()["sex"]]
    rows = {name: each for name, each in table().items() if name != "sex"}
    assert data.noted_inputs(write(tmp_path / "without.csv", rows), silos, "north").subgroup is None
    np.savez(tmp_path / "raw.npz", x=np.array([rows["age"], rows["value"]], np.float32).T)
    unknown = data.noted_inputs(tmp_path / "raw.npz", silos, "north")
    assert unknown.subgroup is None
    assert (unknown.x == data.noted_inputs(tmp_path / "without.csv", silos, "north").x).all()


def test_a_file_is_read_once_with_the_separator_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`data.files.north.separator` also holds for new rows in north.csv."""
    north, south = files(tmp_path)
    north.write_text(north.read_text().replace(",", "^"))
    keys: dict[str, Any] = {"files": {"north": {"separator": "^"}}, "subgroups": "sex", "subgroup_input": False}
    silos = data.from_files(north, south, target="y", **keys)
    read: list[Path] = []
    monkeypatch.setattr(new_inputs, "read_sheet", lambda path, mark: read.append(path) or read_sheet(path, mark))
    found = data.noted_inputs(north, silos, "north")
    assert read == [north]
    assert found.subgroup is not None
    assert found.subgroup.tolist() == ["fm".index(sex) for sex in table()["sex"]]


def test_numbers_are_binned_by_edges_and_by_quantiles_of_all_silos(tmp_path: Path) -> None:
    silos = data.from_files(*files(tmp_path), target="y", subgroups="age", subgroup_edges=[50, 65])
    assert silos.subgroup_names == ("age < 50", "50 <= age < 65", "age >= 65")
    ages = np.array(table()["age"])
    expected = np.where(ages < 50, 0, np.where(ages < 65, 1, 2))
    assert silos[0].subgroups["test"].tolist() == expected[silos[0].indices["test"].numpy()].tolist()
    found = data.from_files(*files(tmp_path), target="y", subgroups="age", subgroup_quantiles=3)
    assert found.subgroups is not None
    train = [age for seed, silo in enumerate(found) for age in np.array(table(seed)["age"])[silo.indices["train"]]]
    assert list(found.subgroups.edges) == np.quantile(train, [1 / 3, 2 / 3], method="higher").tolist()
    counts = np.bincount(np.concatenate([silo.subgroups["train"] for silo in found]))
    assert counts.min() > 0.25 * counts.sum()


def test_quantiles_of_a_frequent_lowest_number_leave_no_bin_empty(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"target": "y", "n_silos": 1, "subgroups": "age", "subgroup_quantiles": 4}
    silos = data.from_files(write(tmp_path / "a.csv", table() | {"age": [0] * 25 + [*range(1, 36)]}), **keys)
    assert silos.subgroups is not None
    assert min(silos.subgroups.edges) > 0
    assert set(torch.cat(list(silos[0].subgroups.values())).tolist()) == set(range(len(silos.subgroup_names)))
    for age in (0, ""):
        path = write(tmp_path / "a.csv", table() | {"age": [age] * ROWS})
        with pytest.raises(DataError, match=r"_quantiles = 4: 'age' has no .*; set data\.subgroup_edges"):
            data.from_files(path, subgroup_input=False, **keys)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"subgroups": "sex", "subgroup_values": ["f", "male"]},
            r"'sex = male': data\.subgroups = 'sex' has 'f', 'm'$",
        ),
        (
            {"subgroups": "age", "subgroup_edges": [50, 200]},
            r"'age >= 200': data\.subgroups = 'age' has '20', .* and \d+ more$",
        ),
    ],
)
def test_a_declared_subgroup_without_samples_is_a_warning(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    with pytest.warns(DataWarning, match=f"^no sample is in {told}"):
        data.from_files(*files(tmp_path), target="y", **keys)


def test_missing_and_undeclared_values_have_no_subgroup(tmp_path: Path) -> None:
    rows = table()
    rows["sex"][:3] = ["", "NA", "x"]
    silos = data.from_files(write(tmp_path / "a.csv", rows), *files(tmp_path), target="y", subgroups="sex",
                            subgroup_values=["m", "f"])  # fmt: skip
    whole = {int(i): int(of) for split in ("train", "validation", "calibration", "test")
             for i, of in zip(silos["a"].indices[split], silos["a"].subgroups[split], strict=True)}  # fmt: skip
    assert [whole[i] for i in range(3)] == [-1, -1, -1]
    assert {whole[i] for i in range(3, ROWS)} == {0, 1}
    assert silos.subgroup_names == ("sex = m", "sex = f")


def test_numbers_that_are_codes_are_equal_however_they_are_written() -> None:
    known = Subgroups("sex", ("0", "1"))
    assert known.codes(np.array(["1", "1.0", "01", "0", "", "2"], object)).tolist() == [1, 1, -1, 0, -1, -1]
    assert given(known, [1, 1.0, None, float("nan"), "0"], 5).tolist() == [1, 1, -1, -1, 0]


def test_new_rows_have_the_subgroups_of_their_cells(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frames = {name: pandas.DataFrame(table(seed)) for seed, name in enumerate(("north", "south"))}
    for subgroups, expected in (("sex", ["fm".index(sex) for sex in table()["sex"]]),
                                ("age", [int(age >= 50) for age in table()["age"]])):  # fmt: skip
        settings = {"subgroup_edges": (50,)} if subgroups == "age" else {}
        silos = data.from_frames(frames, target="y", subgroups=subgroups, **settings)
        found = silos.noted(frames["north"], "north").subgroup
        assert found is not None
        assert found.tolist() == expected
        of_file = data.noted_inputs(files(tmp_path)[0], silos, "north").subgroup
        assert of_file is not None
        assert of_file.tolist() == expected
    named = silos.noted(frames["north"], "north", subgroups=[None] * 30 + [70] * 30).subgroup
    assert named is not None
    assert named.tolist() == [-1] * 30 + [1] * 30
    assert silos.noted(silos[0].test.x, "north").subgroup is None


def test_arrays_have_subgroups_beside_them() -> None:
    rng = np.random.default_rng(0)
    arrays = {f"s{k}": (rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2) for k in range(2)}
    sexes = {name: np.array(["f", "m", None, "m"] * 10, object) for name in arrays}
    silos = data.from_arrays(arrays, subgroups=sexes)
    assert silos.subgroup_names == ("subgroup = f", "subgroup = m")
    codes = np.array([0, 1, -1, 1] * 10)
    for silo in silos:
        for split, of in silo.subgroups.items():
            assert of.tolist() == codes[silo.indices[split].numpy()].tolist()
    ages = {name: np.arange(40) for name in arrays}
    binned = data.from_arrays(arrays, subgroups=ages, subgrouping=Subgrouping("age", edges=(10,)))
    assert binned.subgroup_names == ("age < 10", "age >= 10")
    assert silos.noted(arrays["s0"][0], "s0", subgroups=["m"] * 40).subgroup is not None
    with pytest.raises(DataError, match=r"silo 's0': subgroups with shape \(3,\), expected \(40,\)"):
        data.from_arrays(arrays, subgroups={**sexes, "s0": ["f"] * 3})
    with pytest.raises(DataError, match=r"subgroups have shape \(3,\), expected \(40,\)"):
        silos.noted(arrays["s0"][0], "s0", subgroups=["m"] * 3)
    with pytest.raises(DataError, match="trained without"):
        data.from_arrays(arrays).noted(arrays["s0"][0], "s0", subgroups=["m"] * 40)
    with pytest.raises(ConfigurationError, match="subgrouping was passed without subgroups"):
        data.from_arrays(arrays, subgrouping=Subgrouping("age", edges=(10,)))


def test_unusable_subgroups_are_refused(tmp_path: Path) -> None:
    paths = files(tmp_path)
    with pytest.raises(ConfigurationError, match=r"data\.target and data\.subgroups are both 'y'"):
        data.from_files(*paths, target="y", subgroups="y", subgroup_input=False)
    with pytest.raises(ConfigurationError, match="'weight'"):
        data.from_files(*paths, target="y", subgroups="weight")
    with pytest.raises(DataError, match=r"'value' has .* different values, expected 1 to 20; set data\.subgroup_edges"):
        data.from_files(*paths, target="y", subgroups="value")
    with pytest.raises(DataError, match=r"has the value '[fm]', expected numbers"):
        data.from_files(*paths, target="y", subgroups="sex", subgroup_edges=[1])
    with pytest.raises(ConfigurationError, match="no effect without"):
        data.from_files(*paths, target="y", subgroup_edges=[1])
    with pytest.raises(ConfigurationError, match="expected only one of them"):
        data.from_files(*paths, target="y", subgroups="age", subgroup_edges=[1], subgroup_quantiles=2)
    with pytest.raises(ConfigurationError, match="in increasing order"):
        data.from_files(*paths, target="y", subgroups="age", subgroup_edges=[2, 1])
    with pytest.raises(ConfigurationError, match="expected different values"):
        data.from_files(*paths, target="y", subgroups="age", subgroup_values=["1", "1.0"])
    with pytest.raises(ConfigurationError, match=r"needs data\.subgroup_values or data\.subgroup_edges"):
        data.DataSettings(source="on_site", target="y", subgroups="sex")
