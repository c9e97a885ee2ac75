"""Data that can hardly be meant: refused, or said in a warning."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_samples import labeled_images, write_csv, write_npz

from caveat import data
from caveat.core import DataError, DataWarning
from caveat.data.settings import DataSettings

X, Y = labeled_images(120)
FEATURES = np.random.default_rng(0).normal(size=(120, 4))


def test_inputs_that_are_all_the_same_are_refused() -> None:
    for x in (np.zeros_like(X), np.full_like(X, 9), np.ones_like(FEATURES)):
        with pytest.raises(DataError, match=r"silo 'a': all 240 inputs are the same"):
            data.from_arrays({"a": (x, Y), "b": (x, Y)})
    with pytest.warns(DataWarning, match=r"silo 'b': all 120 inputs are the same"):
        data.from_arrays({"a": (X, Y), "b": (np.zeros_like(X), Y)})


def test_features_that_are_the_same_everywhere_are_told() -> None:
    flat = FEATURES.copy()
    flat[:, 2] = 5
    with pytest.warns(DataWarning, match=r"1 of 4 features are the same in all samples: 2"):
        data.from_arrays({"a": (flat, Y), "b": (flat, Y)})
    other = flat.copy()
    other[:, 2] = 6  # at one silo alone it is as it should be
    data.from_arrays({"a": (flat, Y), "b": (other, Y)})


def test_a_test_part_that_is_the_training_part_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x_test=X, y_test=Y)
    with pytest.raises(DataError, match=r"a.npz: the test inputs equal the training inputs"):
        data.load(DataSettings(source=f"npz:{path}", n_silos=2), 0)
    path = write_npz(tmp_path / "b.npz", x_test=X[5:40], y_test=Y[5:40])
    with pytest.warns(DataWarning, match=r"b.npz: all 35 test inputs are among the training inputs"):
        data.load(DataSettings(source=f"npz:{path}", n_silos=2), 0)
    path = write_npz(tmp_path / "c.npz", x_test=np.concatenate([X[:1], 255 - X[:9]]), y_test=Y[:10])
    data.load(DataSettings(source=f"npz:{path}", n_silos=2), 0)


def test_many_classes_of_few_samples_are_told() -> None:
    with pytest.warns(DataWarning, match="40 classes in 120 samples; are the labels quantities"):
        data.from_arrays({"a": (FEATURES, np.arange(120) % 40)})


@pytest.mark.filterwarnings("ignore:column")
def test_many_categories_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("zip,age,ill\n" + "".join(f"z{i % 150},{i},{i % 2}\n" for i in range(450)))
    with pytest.warns(DataWarning, match="column 'zip' becomes 150 inputs"):
        data.load(DataSettings(source=f"csv:{path}", target="ill", n_silos=2), 0)


def named(path: Path, classes: object) -> Path:
    np.savez(path, x=X, y=Y, classes=np.array(classes))
    return path


@pytest.mark.parametrize(
    ("names", "wrong"), [(["a", "a", "b"], "'a' is duplicated"), (["a", " ", "b"], "' ' is empty")]
)
def test_classes_have_names_of_their_own(tmp_path: Path, names: list[str], wrong: str) -> None:
    path = named(tmp_path / "a.npz", names)
    with pytest.raises(DataError, match=rf"a.npz: class name {wrong}"):
        data.npz(path)
    with pytest.raises(DataError, match=f"class name {wrong}"):
        data.from_arrays({"a": (X, Y)}, classes=names)


def test_names_of_classes_in_bytes_are_utf8(tmp_path: Path) -> None:
    assert data.npz(named(tmp_path / "a.npz", ["é".encode(), b"b", b"c"])).classes[0] == "é"
    with pytest.raises(DataError, match=r"b.npz: array 'classes' contains bytes that are not UTF-8"):
        data.npz(named(tmp_path / "b.npz", [b"\xe9", b"b", b"c"]))
    with pytest.raises(DataError, match=r"'classes' has shape \(1, 3\)"):
        data.npz(named(tmp_path / "c.npz", [["a", "b", "c"]]))


@pytest.mark.parametrize("label", [np.uint64(2**64 - 1), np.float64(np.inf), np.float64(1e300), np.int64(2**62)])
def test_a_label_that_is_no_class_is_named_as_it_is(tmp_path: Path, label: np.generic) -> None:
    y = np.where(np.arange(120) == 3, label, Y.astype(label.dtype))
    with pytest.raises(DataError, match=rf"label {label!s}".replace("+", r"\+") + ", expected class numbers"):
        data.npz(write_npz(tmp_path / "a.npz", y_train=y))


def test_features_too_large_are_one_error_and_no_warning(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 values are NaN or infinite"):
        data.from_arrays({"a": (np.where(np.arange(480).reshape(120, 4) == 7, 1e300, FEATURES), Y)})


def crafted(path: Path, header: str) -> Path:
    """An npz file with an array x of this header and three bytes, and labels."""
    y, text = io.BytesIO(), header.encode() + b"\n"
    np.save(y, Y)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"123")
        file.writestr("y.npy", y.getvalue())
    return path


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 125), }",
            "claims an array of 1,000,000,000,00",
        ),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, ), }", "claims an array of -8 bytes but has 3"),
        ("{'descr': '<f8', 'fortran_order: False, 'shape': (1, ), }", "not a readable npz file"),
        ("((((((((((" * 50, "not a readable npz file"),
        ("{'descr': 'zz', 'fortran_order': False, 'shape': (1, ), }", "not a readable npz file"),
    ],
)
def test_a_header_that_lies_is_refused_before_memory_is_taken(tmp_path: Path, header: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        data.npz(crafted(tmp_path / "a.npz", header))


@pytest.mark.parametrize("name", ["a.npz", "a.csv"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="neither a file nor a folder"):
        data.survey(str(tmp_path / name), "ill" if name.endswith("csv") else None)
    write_csv(tmp_path / "b.csv")
    if name.endswith("csv"):
        with pytest.raises(DataError, match=r"a.csv: neither a file nor a folder"):
            data.load(DataSettings(source=f"csv:{tmp_path}", target="ill"), 0)


def test_no_inputs_are_refused(tmp_path: Path) -> None:
    silos = data.from_arrays({"a": (FEATURES, Y)})
    np.savez(tmp_path / "none.npz", x=FEATURES[:0])
    with pytest.raises(DataError, match=r"none.npz: inputs have shape \(0, 4\), expected at least one"):
        data.read_inputs(tmp_path / "none.npz", silos, "a")
