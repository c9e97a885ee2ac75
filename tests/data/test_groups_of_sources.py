"""Groups of images by their files' names and of arrays by name, and rows that nearly repeat without any groups."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import labeled_images, write_images

from caveat import data
from caveat.core import ConfigurationError, DataError, DataWarning
from caveat.data.build import load
from caveat.data.checks import check_usual
from caveat.data.settings import DataSettings
from caveat.data.silo_collection import Silos
from caveat.data.sources import read_silo
from caveat.data.splits import NAMES


def folder_of(path: Path, patients: int = 12, silos: str = "ab") -> Path:
    """Images p00_0.png to p11_3.png in folders SILO/CLASS."""
    write_images(path, {silo: {"ill": 2 * patients, "well": 2 * patients} for silo in silos})
    for number, file in enumerate(sorted(path.rglob("*.png"))):
        file.rename(file.with_name(f"p{number % (4 * patients) // 4:02d}_{number % 4}.png"))
    return path


def check_apart(silos: Silos, source: DataSettings) -> None:
    """Every group is in one split, and in calibration and test once."""
    for silo in silos:
        groups = read_silo(source, silo.name).groups
        assert groups is not None
        at = {name: groups[silo.indices[name].numpy()].tolist() for name in NAMES}
        assert all(len(set(at[name])) == len(at[name]) for name in ("calibration", "test"))
        assert sum(len(set(each)) for each in at.values()) == len(set(groups.tolist())) > len(at["test"])


@pytest.mark.parametrize("lazy", [False, True])
def test_images_of_one_patient_are_in_one_split(tmp_path: Path, lazy: bool) -> None:
    settings = DataSettings(source=f"images:{folder_of(tmp_path)}", groups="^(p[0-9]+)_", lazy=lazy)
    check_apart(load(settings, 0), settings)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(p[0-9]+", r"data\.groups = '\(p\[0-9\]\+': missing \), .*expected a regular expression with one group"),
        ("p[0-9]+", r"data\.groups = 'p\[0-9\]\+': expected a regular expression with one group"),
        ("(p)([0-9]+)", "expected a regular expression with one group"),
        ("", r"data\.groups = '': expected a regular expression with one group"),
    ],
)
def test_a_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        load(DataSettings(source=f"images:{folder_of(tmp_path)}", groups=pattern), 0)


def test_groups_are_checked_before_images_are_read(tmp_path: Path) -> None:
    for file in folder_of(tmp_path).rglob("*.png"):
        file.write_bytes(b"no image")
    with pytest.raises(ConfigurationError, match="expected a regular expression with one group"):
        load(DataSettings(source=f"images:{tmp_path}", groups="p"), 0)


@pytest.mark.parametrize("pattern", ["^(q[0-9]+)_", "_(x*)"])
def test_an_image_without_a_group_is_named(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(
        DataError, match=r"p00_0\.png: the file name contains no group; expected a match of data\.groups"
    ):
        load(DataSettings(source=f"images:{folder_of(tmp_path)}", groups=pattern), 0)


def arrays(groups: int = 30, each: int = 4, seed: int = 0) -> dict[str, Any]:
    x, y = labeled_images(groups * each, 2, seed=seed)
    return {"x": x, "y": y, "patient": np.repeat([f"p{i}" for i in range(groups)], each)}


def test_arrays_name_the_groups_and_the_times_of_samples(tmp_path: Path) -> None:
    days = np.random.default_rng(0).permutation(120)
    for name, seed in (("a", 0), ("b", 1)):
        np.savez(tmp_path / f"{name}.npz", **arrays(seed=seed), day=days)
        (tmp_path / "npy" / name).mkdir(parents=True)
        for key, value in (arrays(seed=seed) | {"day": days}).items():
            np.save(tmp_path / "npy" / name / f"{key}.npy", value)
    one = DataSettings(source=f"npz:{tmp_path / 'a.npz'}", groups="patient", n_silos=1)
    check_apart(load(one, 0), one)
    for source, count in ((f"npz:{tmp_path / 'a.npz'}", 1), (f"npy:{tmp_path / 'npy'}", None)):
        (silo, *_) = load(DataSettings(source=source, time="day", n_silos=count), 0)
        at = [days[silo.indices[name].numpy()] for name in ("train", "validation", "calibration", "test")]
        assert all(before.max() < after.min() for before, after in pairwise(at))
    settings = DataSettings(source=f"npy:{tmp_path / 'npy'}", groups="patient")
    check_apart(load(settings, 0), settings)


def test_groups_of_parts_are_arrays_of_these_names(tmp_path: Path) -> None:
    train, test = arrays(20), arrays(10, seed=1)
    parts = {f"{key}_train": value for key, value in train.items()} | {f"{key}_test": test[key] for key in "xy"}
    settings = DataSettings(source=f"npz:{tmp_path / 'a.npz'}", groups="patient", n_silos=1)
    np.savez(tmp_path / "a.npz", **parts)
    with pytest.raises(
        DataError, match=r"a\.npz: no array 'patient_test', expected one because data\.groups = 'patient'"
    ):
        load(settings, 0)
    np.savez(tmp_path / "b.npz", **train)
    with pytest.raises(DataError, match=r"b\.npz: no array '', expected one because data\.groups = ''"):
        load(DataSettings(source=f"npz:{tmp_path / 'b.npz'}", groups="", n_silos=1), 0)
    np.savez(tmp_path / "a.npz", **parts, patient_test=test["patient"])
    with pytest.raises(DataError, match="10 groups are in both the training and the test part"):
        load(settings, 0)
    np.savez(tmp_path / "a.npz", **parts, patient_test=np.char.add("new ", test["patient"]))
    check_apart(load(settings, 0), settings)
    np.savez(tmp_path / "a.npz", **parts, patient_test=test["patient"][1:])
    with pytest.raises(DataError, match=r"groups with shape \(119,\), expected \(120,\)"):
        load(settings, 0)
    np.savez(tmp_path / "a.npz", **parts, patient_test=test["patient"][None])
    with pytest.raises(DataError, match=r"'patient_test' of data\.groups has shape \(1, 40\), expected one dimension"):
        load(settings, 0)


# Rows that nearly repeat


def told_of(x: np.ndarray, **more: Any) -> list[str]:
    y = np.arange(len(x)) % 2
    with warnings.catch_warnings(record=True, action="always") as found:
        data.from_arrays({"a": (x.astype(np.float32), y)}, **more)
    return [str(each.message) for each in found if issubclass(each.category, DataWarning)]


def patients(rows: int, noise: float, columns: int = 8, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(2000 // rows, columns)), rows, axis=0)
    return rng.permutation(x + rng.normal(0, noise, x.shape))


@pytest.mark.parametrize(("rows", "noise"), [(2, 0.01), (5, 0.01), (5, 0.05), (10, 0.05)])
@pytest.mark.parametrize("columns", [3, 8, 60])
def test_rows_that_nearly_repeat_are_one_warning(rows: int, noise: float, columns: int) -> None:
    x = patients(rows, noise * min(columns / 8, 1), columns)
    (told,) = told_of(x)
    assert "of the rows nearly repeat another, like rows of one patient or device: if so, name their column" in told
    assert told_of(x, groups={"a": np.arange(len(x)) // rows}) == []


RNG = np.random.default_rng(5)
ALONE = {
    "independent": RNG.normal(size=(2000, 8)),
    "independent, many columns": RNG.normal(size=(2000, 60)),
    "two columns": RNG.normal(size=(2000, 2)),
    "heavy tails": RNG.standard_cauchy(size=(2000, 5)),
    "skewed": np.exp(2 * RNG.normal(size=(2000, 5))),
    "clusters": RNG.normal(size=(15, 6))[RNG.integers(15, size=2000)] * 9 + RNG.normal(size=(2000, 6)),
    "a curve": np.sort(RNG.normal(size=(2000, 1)), axis=0) ** np.array([1, 2, 3]),
    "a walk": RNG.normal(size=(2000, 6)).cumsum(axis=0),
    "whole numbers": RNG.integers(0, 30, (2000, 5)),
    "flags beside two measurements": np.c_[RNG.integers(0, 2, (2000, 30)), RNG.normal(size=(2000, 2))],
    "equal rows": np.repeat(RNG.normal(size=(500, 6)), 4, axis=0),
    "few rows": np.repeat(RNG.normal(size=(20, 6)), 5, axis=0) + 1e-3 * RNG.normal(size=(100, 6)),
}


@pytest.mark.parametrize("name", ALONE)
def test_rows_that_are_alike_by_chance_are_no_warning(name: str) -> None:
    assert not [text for text in told_of(ALONE[name]) if "repeat" in text]


def test_rows_of_tables_that_nearly_repeat_are_one_warning(tmp_path: Path) -> None:
    x, path = patients(5, 0.01, 3), tmp_path / "a.csv"
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{'ill' if a + b > 0 else 'well'}" for a, b, c in x.tolist()]
    path.write_text("\n".join(["age,bmi,crp,outcome", *lines]))
    settings = DataSettings(source=f"csv:{path}", target="outcome", n_silos=1)
    with pytest.warns(DataWarning, match="silo .a.: about .* of the rows nearly repeat another") as told:
        check_usual(data.build.read(settings).pools)
    assert len(told) == 1
