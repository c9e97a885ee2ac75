"""Bad data and impossible settings are one error each, with the file or silo, the value, and what was expected."""

from __future__ import annotations

import dataclasses
import re
import zipfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from data_samples import edit_csv, labeled_images, write_csv, write_images, write_npz
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from caveat import data
from caveat.core import ConfigurationError, DataError
from caveat.data import preprocessing
from caveat.data.settings import DataSettings, Normalize, Partition, Shift, Split
from caveat.data.sources import array_files

X, Y = labeled_images(120)


def refused(settings: DataSettings, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        data.load(settings, 0)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("source", ["npz:{}/gone.npz", "images:{}/gone", "csv:{}/gone.csv"])
def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    source = source.format(tmp_path)
    refused(DataSettings(source=source, target="ill" if "csv" in source else None), str(tmp_path / "gone"), "no such")
    monkeypatch.setenv("CAVEAT_DATA", str(tmp_path / "root"))
    refused(DataSettings(source="npz:gone.npz"), str(tmp_path / "root" / "gone.npz"))


@pytest.mark.parametrize("keep", [0, 10, 2000, -30])
def test_truncated_npz(tmp_path: Path, keep: int) -> None:
    path = write_npz(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:keep])
    refused(DataSettings(source=f"npz:{path}", n_silos=2), str(path), "not a readable npz file")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y_test": np.full(40, 3)}, ["(test): label 3 is outside the 3 classes 0..2"]),
        ({"y_train": Y - 1}, ["label -1"]),
        ({"y_train": np.where(Y == 2, 255, Y)}, ["no training label is 2, but the largest is 255"]),
        ({"y_train": Y + 0.5}, ["labels such as", ".5"]),
        ({"y_train": np.where(Y == 0, np.nan, Y)}, ["labels such as nan"]),
        ({"y_train": np.array(list("abc"))[Y]}, ["non-negative integers"]),
        ({"y_train": Y[:-1]}, ["120 samples but 119 labels"]),
        ({"x_train": X[:0], "y_train": Y[:0]}, ["no samples"]),
        ({"x_train": X.astype(np.float32)}, ["images have dtype float32", "uint8"]),
        ({"x_train": np.zeros((120, 3, 6, 6), np.uint8)}, ["channels first"]),
        ({"x_test": np.zeros((40, 5, 5), np.uint8)}, ["(6, 6, 1)", "(5, 5, 1)"]),
        ({"x_train": Y}, ["expected images N,H,W"]),
        ({"y_train": np.array([None] * 120)}, ["pickled"]),
        ({"x_train": np.where(np.eye(120, 5), np.nan, 1.0), "x_test": np.ones((40, 5))}, ["5 values are NaN", "row 0"]),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, np.ndarray], words: list[str]) -> None:
    path = write_npz(tmp_path / "a.npz", **arrays)
    refused(DataSettings(source=f"npz:{path}", n_silos=2), str(path), *words)


def write_zeros(path: Path, megabytes: int, name: str = "x") -> Path:
    """An npz file of as many images of 1 MB, which are zeros and take next to nothing in the file."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({megabytes}, 1000, 1000), }}\n".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as member:
        member.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        for _ in range(megabytes):
            member.write(bytes(10**6))
    return path


def test_a_small_file_of_large_arrays_is_refused_before_they_are_read(tmp_path: Path) -> None:
    bomb = write_zeros(tmp_path / "bomb.npz", 300)
    with patch.object(np.lib.format, "read_array", side_effect=AssertionError("it was read")):
        refused(DataSettings(source=f"npz:{bomb}"), f"{bomb}: the file of 0.3 MB contains 300 MB", "200 times", "savez")


def test_arrays_that_memory_cannot_hold_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    with patch.object(array_files, "memory", return_value=5000):
        refused(DataSettings(source=f"npz:{path}"), str(path), "GB of arrays, but this machine has")
    silos = data.load(DataSettings(source=f"npz:{path}", n_silos=2), 0)
    with (
        patch.object(preprocessing, "memory", return_value=40 * 36 * 4 - 1),
        pytest.raises(DataError, match=r"40 inputs need .* this machine has"),
    ):
        silos.inputs(X[:40])
    assert len(silos.inputs(X[:40])) == 40


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x_test.npy", archive.read("x_train.npy"))
    refused(DataSettings(source=f"npz:{path}"), f"{path}: 2 arrays are called 'x_test', expected one")


def test_arrays_of_other_names_or_sizes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=X)
    refused(DataSettings(source=f"npz:{tmp_path / 'a.npz'}"), "['inputs']", "x_train")
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    np.savez(one, x=X, y=Y)
    np.savez(two, x=X[:, :4], y=Y)
    refused(DataSettings(source=f"npz:{one},{two}"), str(one), str(two), "(6, 6, 1)", "(4, 6, 1)")


def test_more_silos_than_samples(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", train=6)
    refused(DataSettings(source=f"npz:{path}", n_silos=9), "9 silos", "there are only 6")
    refused(DataSettings(n_silos=9, samples_per_silo=200), "9 silos with at least 200 samples each need 1800", "1438")


def test_image_folders(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"east": {"cat": 4, "dog": 4}, "west": {"dog": 4, "cat": 4}})
    settings = DataSettings(source=f"images:{folder}")
    odd = folder / "west" / "dog" / "zzz.png"
    Image.fromarray(np.zeros((5, 7), np.uint8)).save(odd)
    refused(settings, str(odd), "7x5", "6x6")
    odd.write_bytes(b"not an image")
    refused(settings, str(odd), "not a readable image")
    whole = (folder / "east" / "cat" / "000.png").read_bytes()
    odd.write_bytes(whole[: len(whole) // 2])
    refused(settings, str(odd), "not a readable image")
    odd.unlink()
    data.load(settings, 0)
    (folder / "west" / "eel").mkdir()
    refused(settings, str(folder / "west" / "eel"), "no images in this class folder")
    (folder / "north").mkdir()
    refused(settings, str(folder / "north"), "no class folders")
    refused(DataSettings(source=f"images:{folder / 'north'}"), "no silo folders")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (4, "", ["line 5", "'ill' is missing"]),
        (4, "nan", ["line 5", "'ill' is missing"]),
        (1, "1e39", ["line 5", "'dose' is '1e39'"]),
        (1, "inf", ["line 5", "'dose' is 'inf'"]),
        (1, "1,2", ["line 5", "6 values, expected 5"]),
        (3, '"unclosed', ["not a readable csv"]),
    ],
)
def test_bad_csv(tmp_path: Path, column: int, value: str, words: list[str]) -> None:
    path = write_csv(tmp_path / "a.csv")
    edit_csv(path, 3, column, value)
    refused(DataSettings(source=f"csv:{path}", target="ill", n_silos=2), str(path), *words)


def test_csv_columns(tmp_path: Path) -> None:
    a, b = write_csv(tmp_path / "a.csv"), write_csv(tmp_path / "b.csv")
    with pytest.raises(ConfigurationError, match=r"data.target = 'sick'.*age, dose, town, ward, ill"):
        data.load(DataSettings(source=f"csv:{a}", target="sick"), 0)
    b.write_text(b.read_text().replace("dose", "amount"))
    refused(DataSettings(source=f"csv:{a},{b}", target="ill"), str(a), str(b), "'amount', 'dose'")
    b.write_text(b.read_text().replace("amount", "age"))
    refused(DataSettings(source=f"csv:{b}", target="ill"), "'age' is empty or duplicated")
    b.write_bytes("naïve,ill\n1,2\n".encode("latin-1"))
    refused(DataSettings(source=f"csv:{b}", target="ill"), str(b), "UTF-8")
    b.write_text("")
    refused(DataSettings(source=f"csv:{b}", target="ill"), str(b), "expected a header")


UNUSABLE = ["", " ", "a/b", "..", ".x.part", "a\nb", "a\x1b[2J", "a\u202eb", "a\0", "\udcff", "n" * 201, "ü" * 101]


@pytest.mark.parametrize("name", UNUSABLE)
def test_silo_names_that_cannot_be_folders(name: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"silo name {name[:200]!r}")) as refused:
        data.from_arrays({name: (X, Y)})
    assert str(refused.value).isprintable()
    good = data.from_arrays({"good": (X, Y)})
    with pytest.raises(DataError, match="silo name"):
        dataclasses.replace(good, silos=[dataclasses.replace(good[0], name=name)]).check(1)


@pytest.mark.filterwarnings("ignore:column")
def test_silo_names_of_files_and_of_a_column_that_cannot_be_folders(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 2},{'good' if i % 3 else '.x.part'}\n" for i in range(40))
    table, hidden = tmp_path / "table.csv", tmp_path / ".x.part.csv"
    for path in (table, hidden):
        path.write_text(f"a,ill,where\n{rows}")
    for settings in (
        DataSettings(source=f"csv:{table},{hidden}", target="ill"),
        DataSettings(source=f"csv:{table}", target="ill", silo_column="where"),
    ):
        with pytest.raises(DataError, match=r"silo name '\.x\.part': expected at most 200 bytes of printable"):
            data.load(settings, 0)


def test_own_arrays_are_checked_by_silo() -> None:
    with pytest.raises(DataError, match=r"silo 'b': label 2 is outside the 2 classes"):
        data.from_arrays({"a": (X, Y % 2), "b": (X, Y)}, classes=["no", "yes"])
    with pytest.raises(DataError, match="silo 'a': found 3 arrays"):
        data.from_arrays({"a": (X, Y, X)})  # type: ignore[dict-item]
    with pytest.raises(DataError, match=r"'a'.*expected at least 3"):
        data.from_arrays({"a": (X[:3], Y[:3])})


def test_check_names_the_silo_that_cannot_train() -> None:
    good = (X, Y)
    data.from_arrays({"good": good}).check(64)
    with pytest.raises(DataError, match="silo 'few': 13 training samples are fewer than a batch of 64"):
        data.from_arrays({"good": good, "few": (X[:33], Y[:33])}).check(64)
    with pytest.raises(DataError, match="silo 'flat': all its training labels are '1'"):
        data.from_arrays({"good": good, "flat": (X, np.ones_like(Y))}).check(64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataSettings(source="mnist"), "data.source = 'mnist'"),
        (lambda: DataSettings(source="npz:"), "data.source = 'npz:'"),
        (lambda: DataSettings(source="csv:a.csv"), "data.target is missing"),
        (lambda: DataSettings(target="ill"), "data.target = 'ill' is not used"),
        (lambda: Partition(alpha=0.5), "data.partition.alpha = 0.5 is not used by partition 'iid'"),
        (lambda: Partition(scheme="dirichlet", per_silo=2), "data.partition.per_silo = 2 is not used"),
        (lambda: Split(train=0.9, calibration=0.1), r"= 1.1, expected 1"),
        (lambda: Split(train=0.9), r"train \+ validation = 1, which leaves no samples for calibration"),
        (lambda: Split(calibration=0.95), r"calibration \+ validation = 1.05, which leaves no samples for train"),
        (lambda: data.load(DataSettings(), 0), "data.n_silos is missing"),
        (lambda: data.rotated(data.digits(), normalize=Normalize((0.5, 0.5))), "2 numbers for images with 1 channels"),
        (lambda: data.from_arrays({"a": (X[:, 0], Y)}, shift=Shift(angles=(9,))), "only images can be rotated"),
        (lambda: data.from_arrays({"a": (X[:, 0], Y)}, normalize=Normalize((0.1,))), "data.normalize is for images"),
    ],
)
def test_impossible_settings(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "section",
    [
        {"sauce": "digits"},
        {"silos": 0},
        {"split": {"train": 1.5}},
        {"shift": {"noise_std": [-1]}},
        {"shift": {"angle": 1}},
    ],
)
def test_unknown_keys_and_values_out_of_range(section: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(DataSettings).validate_python(section)


def test_settings_read_what_toml_gives() -> None:
    section = {"n_silos": 9, "shift": {"angles": [0, -50, 120]}, "partition": {"scheme": "dirichlet", "alpha": 1}}
    expected = DataSettings(n_silos=9, shift=Shift(angles=(0, -50, 120)), partition=Partition("dirichlet", 1.0))
    assert TypeAdapter(DataSettings).validate_python(section) == expected
