"""Laws of the sources of caveat.data: tables, folders of images, own arrays, new inputs, real data."""

from __future__ import annotations

import os
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from data_samples import edit_csv, labeled_images, same, write_csv, write_images, write_npz

from caveat import data
from caveat.core import ConfigurationError, DataError, DataWarning
from caveat.data.settings import DataSettings, Normalize, Shift
from caveat.data.splits import NAMES

real_data = pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="CAVEAT_DATA does not name prepared real data")


# Tables


def tables(tmp_path: Path, rows: int = 60) -> tuple[DataSettings, list[Path]]:
    paths = [write_csv(tmp_path / "a.csv", rows), write_csv(tmp_path / "b.csv", rows, 1, ("south", "west"))]
    return DataSettings(source=f"csv:{paths[0]},{paths[1]}", target="ill"), paths


def test_csv_features_are_fitted_per_silo_on_train_and_equally_wide(tmp_path: Path) -> None:
    silos = data.load(tables(tmp_path)[0], 0)
    # age, dose, age missing, town (north south west), ward (3)
    assert silos.shape == (9,)
    assert [silo.name for silo in silos] == ["a", "b"]
    assert silos.classes == ("no", "yes")
    for silo in silos:
        assert silo.train.x[:, :2].mean(0).abs().max() < 1e-5
        assert (silo.train.x[:, :2].std(0, unbiased=False) - 1).abs().max() < 1e-5
        assert all(getattr(silo, name).x.isfinite().all() for name in NAMES)
    assert silos[0].train.x[:, 5].sum() == 0  # nobody of the first silo lives in the west
    assert silos[1].train.x[:, 5].sum() > 0


@pytest.mark.parametrize(("column", "value"), [(0, "9999"), (1, ""), (2, "elsewhere")])
def test_a_row_outside_train_changes_no_training_feature(tmp_path: Path, column: int, value: str) -> None:
    settings, paths = tables(tmp_path)
    before = data.load(settings, 0)
    row = before[0].indices["test"][0].item()
    edit_csv(paths[0], row, column, value)
    after = data.load(settings, 0)
    assert not same(before[0], after[0], ("test",))
    assert same(before[0], after[0], NAMES[:3])
    assert same(before[1], after[1])


def test_a_silo_column_names_the_silos(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", 90)
    silos = data.load(DataSettings(source=f"csv:{path}", target="ill", silo_column="ward"), 0)
    assert [silo.name for silo in silos] == ["ward-0", "ward-1", "ward-2"]
    assert silos.shape == (5,)


def test_codes_of_categories_can_be_declared(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("code,ill\n" + "".join(f"{i % 4},{i // 4 % 2}\n" for i in range(80)))
    source = f"csv:{tmp_path / 'a.csv'}"
    assert data.load(DataSettings(source=source, target="ill", n_silos=2), 0).shape == (1,)
    assert data.load(DataSettings(source=source, target="ill", n_silos=2, categorical=("code",)), 0).shape == (4,)


def test_columns_without_any_value_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("code,dose,age,ill\n" + "".join(f"?,,{i % 9},{i % 2}\n" for i in range(80)))
    settings = DataSettings(source=f"csv:{tmp_path / 'a.csv'}", target="ill", n_silos=2, categorical=("code",))
    with pytest.warns(DataWarning, match=r"2 of 3 features are the same in all samples: 'code', 'dose'"):
        silos = data.load(settings, 0)
    assert silos.shape == (3,)  # dose, age, dose missing
    assert all(getattr(silo, name).x.isfinite().all() for silo in silos for name in NAMES)


# Own data, new inputs, pictures, surveys


def test_image_folders_are_the_silos_and_classes_are_the_union(tmp_path: Path) -> None:
    write_images(tmp_path, {"east": {"cat": 20, "dog": 20}, "west": {"dog": 30, "eel": 10}})
    silos = data.load(DataSettings(source=f"images:{tmp_path}"), 0)
    assert silos.classes == ("cat", "dog", "eel")
    assert [(silo.name, silo.domain) for silo in silos] == [("east", "east"), ("west", "west")]
    assert silos.shape == (1, 6, 6)
    assert set(silos[1].train.y.tolist()) == {1, 2}
    assert data.read_inputs(tmp_path / "west" / "eel", silos, "west").shape == (10, 1, 6, 6)
    assert data.read_inputs(tmp_path / "west" / "eel" / "003.png", silos, "west").shape == (1, 1, 6, 6)
    with pytest.raises(DataError, match="not trained on csv or parquet files"):
        data.read_inputs(write_csv(tmp_path / "a.csv"), silos, "west")


def test_pictures_and_inputs_go_back_and_forth(tmp_path: Path) -> None:
    x, y = labeled_images(60)
    color = np.stack([x, 255 - x, x // 2], axis=-1)
    normalize = Normalize((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    silos = data.from_arrays({"home": (color, y), "away": (color, y)}, normalize=normalize)
    inputs = silos.prepare(color)
    assert inputs.shape == (60, 3, 6, 6)
    assert np.array_equal(silos.to_image(inputs), color)
    assert np.array_equal(silos.to_image(inputs[0]), color[0])
    np.savez(tmp_path / "new.npz", x=color)
    assert torch.equal(data.read_inputs(tmp_path / "new.npz", silos, "away"), inputs)
    with pytest.raises(DataError, match="no silo 'nobody', expected one of home, away"):
        data.read_inputs(tmp_path / "new.npz", silos, "nobody")
    with pytest.raises(DataError, match=r"have shape \(6, 6, 1\), expected \(6, 6, 3\)"):
        silos.prepare(x)


@pytest.mark.filterwarnings("ignore:.*column")
def test_new_rows_are_read_by_their_silos_encoder(tmp_path: Path) -> None:
    settings, paths = tables(tmp_path)
    silos = data.load(settings, 0)
    for silo, path in zip(silos, paths, strict=True):
        rows = data.read_inputs(path, silos, silo.name)
        assert torch.equal(rows[silo.indices["test"]], silo.test.x)
    assert not torch.equal(data.read_inputs(paths[0], silos, "b"), data.read_inputs(paths[0], silos, "a"))


def test_own_arrays_keep_their_names_and_their_test_part() -> None:
    x = np.random.default_rng(0).normal(size=(50, 4))
    y = np.arange(50) % 2
    new = np.random.default_rng(1).normal(size=(7, 4))
    silos = data.from_arrays({"b": (x, y, new, y[:7]), "a": (x, y)})
    assert [silo.name for silo in silos] == ["b", "a"]
    assert silos[0].indices["test"].tolist() == list(range(50, 57))
    assert np.allclose(silos[0].test.x, new)
    assert not silos.images


def test_survey_counts_what_is_there(tmp_path: Path) -> None:
    found = data.survey(str(write_npz(tmp_path / "a.npz")))
    assert found["parts"] == [{"name": "a", "examples": 160, "test": 40, "class_counts": [54, 53, 53]}]
    write_images(tmp_path / "folder", {"east": {"cat": 2}, "west": {"cat": 1, "dog": 3}})
    found = data.survey(str(tmp_path / "folder"))
    assert found["in_silos"]
    assert [part["class_counts"] for part in found["parts"]] == [[2, 0], [1, 3]]
    path = str(write_csv(tmp_path / "t.csv", 22))
    assert data.survey(path)["parts"][0]["missing"] == {"age": 4, "dose": 0, "town": 2, "ward": 0, "ill": 0}
    assert data.survey(path, "ill")["columns"][2] == {
        "name": "town",
        "holds": "texts",
        "missing": 2,
        "distinct": 2,
        "categories": ["north", "south"],
        "becomes": "2 categories",
    }
    assert data.survey("digits")["parts"][0]["examples"] == 1797


def test_relative_paths_are_looked_up_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "a.npz")
    monkeypatch.setenv("CAVEAT_DATA", str(tmp_path))
    assert data.npz("a.npz").own_test == 40


def test_hub_names_its_extra_and_reads_images_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = DataSettings(source="hub:someone/shapes", n_silos=2)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match="extra 'hub'"):
        data.load(settings, 0)
    x, y = labeled_images(60)

    class Split(dict):
        features = {"image": None, "label": SimpleNamespace(names=["a", "b", "c"])}  # noqa: RUF012

    fake = ModuleType("datasets")
    fake.load_dataset = lambda name: {"train": Split(image=list(x), label=y.tolist())}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert data.load(settings, 0).classes == ("a", "b", "c")


# Real data


@real_data
def test_mnist_makes_nine_silos_of_2000_as_the_paper_has_them() -> None:
    settings = DataSettings(
        source="npz:mnist.npz",
        n_silos=9,
        samples_per_silo=2000,
        shift=Shift(angles=(0, -50, 120), noise_std=(0, 0, 10)),
    )
    silos = data.load(settings, 0)
    silos.check(1024)
    assert silos.shape == (1, 28, 28)
    assert [silo.domain for silo in silos[::4]] == ["rotate(0)", "rotate(-50)", "rotate(120)+noise(10)"]
    for silo in silos:
        assert [len(getattr(silo, name)) for name in NAMES] == [1600, 200, 200, 500]
        assert silo.train.y.bincount(minlength=10).min() > 100
        assert silo.test.x.dtype == torch.float32
        assert silo.test.x.abs().max() == 1
    used = [set(silo.indices[name].tolist()) for silo in silos for name in NAMES]
    assert all(a.isdisjoint(b) for a, b in combinations(used, 2))


@real_data
@pytest.mark.filterwarnings("ignore:column")
def test_four_hospitals_are_four_silos_of_equal_width() -> None:
    hospitals = ("cleveland", "hungarian", "switzerland", "va")
    source = "csv:" + ",".join(f"uci_heart_{name}.csv" for name in hospitals)
    silos = data.load(DataSettings(source=source, target="disease", categorical=("cp", "restecg", "thal")), 0)
    silos.check(32)
    assert [silo.name for silo in silos] == [f"uci_heart_{name}" for name in hospitals]
    assert [sum(len(getattr(silo, name)) for name in NAMES) for silo in silos] == [303, 294, 123, 200]
    assert all(getattr(silo, name).x.shape[1:] == silos.shape for silo in silos for name in NAMES)
    assert all(getattr(silo, name).x.isfinite().all() for silo in silos for name in NAMES)


@real_data
def test_office_files_are_domains() -> None:
    source = "npz:office_caltech10_dslr.npz,office_caltech10_webcam.npz"
    silos = data.load(DataSettings(source=source, n_silos=4), 0)
    assert [silo.domain for silo in silos] == ["office_caltech10_dslr"] * 2 + ["office_caltech10_webcam"] * 2
    with pytest.raises(DataError, match=r"mnist.npz has inputs of shape \(28, 28, 1\), .*usps.npz of \(16, 16, 1\)"):
        data.load(DataSettings(source="npz:mnist.npz,usps.npz"), 0)
