"""Silos that read their data apart hold bitwise what they hold when all files are read on one machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import SEED, SILOS, TABLES, edit_csv, labeled_images, same, write_csv, write_images
from PIL import Image

from caveat import data
from caveat.core import DataError, DataWarning
from caveat.data.agreement import own_schema, own_settings, own_silos, shared_schema, unlike_silos
from caveat.data.settings import DataSettings, Normalize, OodSettings, Split
from caveat.data.shared_schema import DataSchema, SharedSchema
from caveat.data.silo_collection import Silos
from caveat.data.splits import hashes
from caveat.data.tables.declarations import LabelCode, OwnColumn


def wired(value: Any) -> Any:
    """The same, after a journey as JSON text."""
    return type(value).of_json(json.loads(json.dumps(value.to_json())))


def schemas(settings: DataSettings, sources: Mapping[str, str]) -> dict[str, DataSchema]:
    return {
        name: wired(own_schema(own_settings(settings, source), SEED, name))
        for name, source in reversed(sources.items())
    }


def apart(settings: DataSettings, sources: Mapping[str, str]) -> tuple[SharedSchema, dict[str, Silos]]:
    """What silos agree on, and each silo as it reads its own source."""
    shared = wired(shared_schema(schemas(settings, sources), settings))
    silos = {n: own_silos(own_settings(settings, source), SEED, n, shared) for n, source in sources.items()}
    return shared, silos


def assert_same(together: Silos, shared: SharedSchema, silos: Mapping[str, Silos]) -> None:
    assert [silo.name for silo in together] == list(silos)
    assert shared.classes == together.classes
    assert shared.input_shape == together.shape
    for silo in together:
        (own,) = silos[silo.name]
        assert same(own, silo), silo.name
        assert hashes(own) == hashes(silo)
        assert silos[silo.name].classes == together.classes
        assert {name: stream.x.tolist() for name, stream in own.streams.items()} == {
            name: stream.x.tolist() for name, stream in silo.streams.items()
        }


def assert_same_tables(settings: DataSettings, *paths: Path) -> SharedSchema:
    shared, silos = apart(settings, {path.stem: f"csv:{path}" for path in paths})
    joined = DataSettings(
        source=f"csv:{','.join(map(str, paths))}", target=settings.target, categorical=settings.categorical
    )
    together = data.load(joined, SEED)
    assert_same(together, shared, silos)
    assert [silo.domain for silo in together] == [own[0].domain for own in silos.values()]
    return shared


@pytest.fixture
def wards(tmp_path: Path) -> list[Path]:
    """Three tables; only the second has a town "west", a class "dead", and gaps in `dose`."""
    towns = {"a": ("north", "south"), "b": ("west", "south"), "c": ("north", "south")}
    paths = [write_csv(tmp_path / f"{n}.csv", 60, seed, towns[n]) for seed, n in enumerate("abc")]
    for row in range(5, 25):
        edit_csv(paths[1], row, 1, "?")
    for row in range(30, 40):
        edit_csv(paths[1], row, 4, "dead")
    return paths


def test_tables_with_a_category_a_class_and_gaps_that_one_silo_has(wards: list[Path]) -> None:
    shared = assert_same_tables(TABLES, *wards)
    assert shared.classes == ("dead", "no", "yes")
    columns = {column.name: column for column in shared.columns}
    assert columns["town"].categories == ("north", "south", "west")
    assert columns["dose"].flagged
    assert columns["age"].flagged
    assert columns["ward"].categories == ("ward-0", "ward-1", "ward-2")
    assert shared.input_shape == (2 + 2 + 3 + 3,)


def test_tables_with_columns_in_another_order(wards: list[Path]) -> None:
    rows = [line.split(",") for line in wards[2].read_text().splitlines()]
    wards[2].write_text("\n".join(",".join(row[i] for i in (4, 3, 1, 0, 2)) for row in rows) + "\n")
    shared = assert_same_tables(TABLES, *wards)
    assert [column.name for column in shared.columns] == ["age", "dose", "town", "ward"]


@pytest.mark.filterwarnings("ignore:column")
def test_a_column_that_is_empty_at_one_silo_holds_what_it_holds_elsewhere(wards: list[Path]) -> None:
    for column in (1, 2):
        for row in range(60):
            edit_csv(wards[0], row, column, "")
    shared = assert_same_tables(TABLES, *wards)
    assert shared.columns[1].flagged
    assert shared.columns[2].categories == ("north", "south", "west")


def test_a_category_of_a_test_split_alone_is_neither_told_nor_encoded(tmp_path: Path) -> None:
    """The "x" of a test split would make the order of 2 and 10 that of texts."""
    paths = [write_csv(tmp_path / f"{name}.csv", 60, seed, ("2", "10")) for seed, name in enumerate("ab")]
    settings = DataSettings(source="on_site", target="ill", categorical=("town",))
    _, silos = apart(settings, {path.stem: f"csv:{path}" for path in paths})
    edit_csv(paths[0], int(silos["a"][0].indices["test"][0]), 2, "x")
    shared = assert_same_tables(settings, *paths)
    assert shared.columns[2].categories == ("2", "10")
    assert '"x"' not in json.dumps(
        own_schema(own_settings(settings, f"csv:{paths[0]}"), SEED, "a").to_json()["columns"]
    )


@pytest.mark.filterwarnings("ignore:.*column")
def test_new_rows_are_read_as_together(wards: list[Path]) -> None:
    _, silos = apart(TABLES, {path.stem: f"csv:{path}" for path in wards})
    together = data.load(DataSettings(source=f"csv:{','.join(map(str, wards))}", target="ill"), SEED)
    for name in "abc":
        rows = data.read_inputs(wards[1], silos[name], name)
        assert torch.equal(rows, data.read_inputs(wards[1], together, name))


@pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="CAVEAT_DATA does not name prepared real data")
@pytest.mark.parametrize("categorical", [(), ("cp", "restecg", "slope", "thal")])
@pytest.mark.filterwarnings("ignore:column")
def test_four_hospitals(categorical: tuple[str, ...]) -> None:
    files = [
        Path(os.environ["CAVEAT_DATA"], f"uci_heart_{h}.csv") for h in ("cleveland", "hungarian", "switzerland", "va")
    ]
    settings = DataSettings(source="on_site", target="disease", categorical=categorical, split=Split(test=0.3))
    shared, silos = apart(settings, {path.stem: f"csv:{path.name}" for path in files})
    joined = DataSettings(
        source=f"csv:{','.join(path.name for path in files)}",
        target="disease",
        categorical=categorical,
        split=Split(test=0.3),
    )
    assert_same(data.load(joined, SEED), shared, silos)
    assert {"ca", "chol"} <= {column.name for column in shared.columns if column.flagged}


def test_targets_of_other_names(wards: list[Path]) -> None:
    wards[1].write_text(wards[1].read_text().replace("ill", "outcome"))
    other = own_settings(TABLES, f"csv:{wards[1]}", target="outcome")
    told = {"a": own_schema(own_settings(TABLES, f"csv:{wards[0]}"), SEED, "a"), "b": own_schema(other, SEED, "b")}
    shared = shared_schema(told, TABLES)
    assert own_silos(other, SEED, "b", shared).classes == ("dead", "no", "yes")


def test_features(tmp_path: Path) -> None:
    """Elsewhere the files are domains, whose silos are called silo-0, ...; labels have gaps at each silo."""
    rng = np.random.default_rng(0)
    for number, labels in enumerate([(0, 2), (1, 2, 10)]):
        y = rng.choice(labels, 80)
        y = np.where(y == 10, 3, y)
        np.savez(tmp_path / f"silo-{number}.npz", x=rng.normal(size=(80, 5)), y=y)
    paths = [tmp_path / f"silo-{number}.npz" for number in range(2)]
    shared, silos = apart(SILOS, {path.stem: f"npz:{path}" for path in paths})
    together = data.load(DataSettings(source=f"npz:{paths[0]},{paths[1]}"), SEED)
    assert_same(together, shared, silos)
    assert shared.classes == ("0", "1", "2", "3")
    whole = f"npz:{paths[0]},{paths[1]}"
    assert same(own_silos(own_settings(SILOS, whole), SEED, "silo-1", shared)[0], together[1])


@pytest.mark.parametrize("size", [None, 4])
def test_grey_and_coloured_images_with_test_parts_and_a_stream(tmp_path: Path, size: int | None) -> None:
    x, y = labeled_images(120)
    colored = np.random.default_rng(1).integers(0, 256, (40, 6, 6, 3), dtype=np.uint8)
    names = np.array(["stop", "left", "right"])  # in an order of their own
    np.savez(tmp_path / "silo-0.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:], classes=names)
    np.savez(tmp_path / "silo-1.npz", x=colored, y=np.arange(40) % 2, classes=names)
    np.savez(tmp_path / "unknown.npz", x=x, y=y)
    common = {
        "size": size,
        "normalize": Normalize(mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3)),
        "ood": OodSettings(global_source=f"npz:{tmp_path / 'unknown.npz'}"),
    }
    sources = {f"silo-{n}": f"npz:{tmp_path / f'silo-{n}.npz'}" for n in range(2)}
    shared, silos = apart(DataSettings(source="on_site", **common), sources)
    joined = f"npz:{tmp_path / 'silo-0.npz'},{tmp_path / 'silo-1.npz'}"
    assert_same(data.load(DataSettings(source=joined, **common), SEED), shared, silos)
    assert shared.shape == (size or 6, size or 6, 3)
    assert shared.classes == ("stop", "left", "right")
    assert {len(own[0].streams["ood_global"]) for own in silos.values()} == {40, 8}


@pytest.mark.parametrize("own", ["{}", "{}/{{}}"])
@pytest.mark.parametrize("channels", [None, 1])
def test_folders_of_images(tmp_path: Path, own: str, channels: Any) -> None:
    folder = write_images(tmp_path / "all", {"east": {"2": 9, "10": 9}, "west": {"10": 9, "7": 9}})
    rgb = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(rgb).save(folder / "west" / "7" / "zz.png")
    settings = DataSettings(source="on_site", channels=channels)
    sources = {name: f"images:{own.format(folder).format(name)}" for name in ("east", "west")}
    shared, silos = apart(settings, sources)
    assert_same(data.load(DataSettings(source=f"images:{folder}", channels=channels), SEED), shared, silos)
    assert shared.classes == ("2", "7", "10")
    assert shared.input_shape == (channels or 3, 6, 6)


def test_the_agreement_does_not_depend_on_who_speaks_first(wards: list[Path]) -> None:
    told = schemas(TABLES, {path.stem: f"csv:{path}" for path in wards})
    assert shared_schema(told, TABLES) == shared_schema(dict(sorted(told.items())), TABLES)


def test_digits_are_one_silo_whatever_it_is_called() -> None:
    said = own_schema(own_settings(SILOS, "digits"), SEED, "anyone")
    assert (said.labels, said.shape, said.images) == (tuple("0123456789"), (8, 8, 1), True)


def test_a_silo_that_joins_later_with_an_unknown_category(wards: list[Path]) -> None:
    told = schemas(TABLES, {path.stem: f"csv:{path}" for path in (wards[0], wards[1])})
    shared = shared_schema(told, TABLES)
    late = write_csv(wards[0].with_name("late.csv"), 60, 9, ("east",))
    (silo,) = own_silos(own_settings(TABLES, f"csv:{late}"), SEED, "late", shared)
    assert silo.train.x.shape[1:] == shared.input_shape
    towns = slice(4, 7)  # behind two numbers and their flags
    assert not silo.train.x[:, towns].any()
    assert silo.train.x[:, 7:].sum(1).tolist() == [1] * len(silo.train)


def test_own_data_that_changed_since_the_agreement_are_refused(wards: list[Path]) -> None:
    shared = shared_schema(schemas(TABLES, {"a": f"csv:{wards[0]}"}), TABLES)
    edit_csv(wards[0], 3, 4, "dead")
    with pytest.raises(DataError, match="silo 'a' has label 'dead'"):
        own_silos(own_settings(TABLES, f"csv:{wards[0]}"), SEED, "a", shared)


def spelled(folder: Path, name: str, words: tuple[str, str], seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = [f"{rng.normal():.3f},{words[row % 3 % 2]},{row % 4},{('no', 'yes')[row // 2 % 2]}" for row in range(60)]
    path = folder / f"{name}.csv"
    path.write_text("\n".join(["age,sex,ward,ill", *lines]))
    return path


def test_other_spellings_are_told_at_the_silo_and_at_the_server(tmp_path: Path) -> None:
    """From the categories that silos send anyway, without their origin at the silos; the advice works."""
    words = {"north": ("M", "F"), "south": ("male", "female"), "west": ("male", "female")}
    paths = {name: spelled(tmp_path, name, each, seed) for seed, (name, each) in enumerate(words.items())}
    settings = DataSettings(source="on_site", target="ill", classes=("no", "yes"), categorical=("sex", "ward"))
    sources = {name: f"csv:{path}" for name, path in paths.items()}
    sent = schemas(settings, sources)
    told = "column 'sex': silo 'north' has 'F', 'M', others have 'female', 'male': if they mean the same, set "
    key = 'data.rename_columns.sex = { codes = { F = "female", M = "male" } }'
    assert list(unlike_silos(sent)) == [told + key]
    shared = shared_schema(sent, settings)
    assert "north" not in json.dumps(shared.to_json())
    with pytest.warns(DataWarning) as found:
        own_silos(own_settings(settings, sources["north"]), SEED, "north", shared)
    assert [str(each.message) for each in found] == [told + key]
    codes = (LabelCode("F", "female"), LabelCode("M", "male"))
    mended = own_settings(settings, sources["north"], rename_columns=(OwnColumn("sex", "sex", codes=codes),))
    sent |= {"north": own_schema(mended, SEED, "north")}
    assert list(unlike_silos(sent)) == []
    own_silos(mended, SEED, "north", shared_schema(sent, settings))


def test_other_units_are_told_where_silos_allow_it(tmp_path: Path) -> None:
    """By magnitudes, the power of two nearest to a median: a silo compares its own also if it does not tell it."""
    paths = {}
    for name, factor in (("north", 88.4), ("south", 1), ("west", 1)):
        rng = np.random.default_rng(len(name))
        lines = [f"{rng.normal(1.1, 0.2) * factor:.3f},{rng.normal():.3f},{row % 2}" for row in range(60)]
        paths[name] = tmp_path / f"{name}.csv"
        paths[name].write_text("\n".join(["krea,z,ill", *lines]))
    settings = DataSettings(source="on_site", target="ill")
    own = {name: own_settings(settings, f"csv:{path}") for name, path in paths.items()}
    silent = {name: own_schema(each, SEED, name) for name, each in own.items()}
    assert {column.magnitude for each in silent.values() for column in each.columns} == {None}
    assert list(unlike_silos(silent)) == []
    own_silos(own["north"], SEED, "north", shared_schema(silent, settings))
    told = {name: wired(own_schema(each, SEED, name, magnitudes=True)) for name, each in own.items()}
    assert [told[name].columns[0].magnitude for name in paths] == [7, 0, 0]
    line = (
        "column 'krea': the median of silo 'north' is near 128, of others near 1: if units differ, set "
        "data.rename_columns.krea = { factor = NUMBER }"
    )
    assert list(unlike_silos(told)) == [line]
    shared = wired(shared_schema(told | {"north": silent["north"]}, settings))
    assert [column.magnitude for column in shared.columns] == [0, -1]
    with pytest.warns(DataWarning) as found:
        own_silos(own["north"], SEED, "north", shared)
    assert [str(each.message) for each in found] == [line]
    mended = own_settings(
        settings, f"csv:{paths['north']}", rename_columns=(OwnColumn("krea", "krea", factor=1 / 88.4),)
    )
    own_silos(mended, SEED, "north", shared)
    alone = shared_schema({"south": told["south"], "west": silent["west"]}, settings)
    assert {column.magnitude for column in alone.columns} == {None}


def test_labels_of_other_spellings_are_told_at_the_server(tmp_path: Path) -> None:
    kinds = {"a": ("ill", "well"), "b": ("krank", "gesund"), "c": ("ill", "well")}
    for name, each in kinds.items():
        write_images(tmp_path / name, {name: dict.fromkeys(each, 12)})
    sent = schemas(DataSettings(source="on_site"), {name: f"images:{tmp_path / name}" for name in kinds})
    (told,) = unlike_silos(sent)
    assert told.startswith("labels: silo 'b' has 'gesund', 'krank', others have 'ill', 'well': if they mean the same")
