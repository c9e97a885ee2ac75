"""Formats of one's own, elsewhere than in the table of a training file: rows to predict, federations, images."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import SEED, same

from caveat import data
from caveat.config import dump, load, loads
from caveat.core import ConfigurationError, DataError, DataWarning
from caveat.data.agreement import own_schema, own_settings, own_silos, shared_schema
from caveat.data.new_inputs import labeled_inputs
from caveat.data.settings import DataSettings
from caveat.data.tables.declarations import DictionaryColumn, LabelCode, OwnColumn, OwnFile
from caveat.federation.silo.silo_file import read_silo_file
from caveat.runs.stored_preparation import as_record, from_record

CLASSES = ("no", "yes")
SEX = (LabelCode(code="M", meaning="male"), LabelCode(code="F", meaning="female"))
NORTH = OwnFile(
    name="north", decimal=",", missing=(-9,),
    label_codes=(LabelCode(code="0", meaning="no"), LabelCode(code="1", meaning="yes")),
    rename_columns=(
        OwnColumn(own="krea", name="crea", unit="µmol/l", factor=0.01), OwnColumn(own="sex", name="sex", codes=SEX)
    ),
)  # fmt: skip


def tables(folder: Path) -> tuple[Path, Path]:
    """Two tables with the same values: north in its own format, south in the usual one; and north in that one."""
    rng = np.random.default_rng(0)
    made = []
    for name in ("north", "south"):
        rows = [(int(rng.integers(50, 200)), int(rng.integers(20, 90)), "MF"[i % 2], i // 3 % 2) for i in range(60)]
        own = ["krea;age;sex;y", *(f"{c},5 µmol/l;{-9 if c < 60 else a};{s};{y}" for c, a, s, y in rows)]
        plain = ["crea,age,sex,y"]
        words = {each.code: each.meaning for each in SEX}
        plain += [f"{(c + 0.5) * 0.01!r},{'' if c < 60 else a},{words[s]},{CLASSES[y]}" for c, a, s, y in rows]
        for kind, lines in (("own", own), ("plain", plain)):
            (folder / kind).mkdir(exist_ok=True)
            (folder / kind / f"{name}.csv").write_text("\n".join(lines) + "\n")
        made.append(rows)
    shutil.copy(folder / "plain" / "south.csv", folder / "own" / "south.csv")
    return folder / "own", folder / "plain"


def settings(folder: Path, **keys: Any) -> DataSettings:
    return DataSettings(source=f"csv:{folder}", target="y", **keys)


def test_a_file_with_a_format_of_its_own_is_the_plain_one(tmp_path: Path) -> None:
    """In training, in rows to predict, and from a preparation that was kept."""
    own, plain = tables(tmp_path)
    found, expected = data.load(settings(own, files=(NORTH,)), SEED), data.load(settings(plain), SEED)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    kept = from_record(as_record(found.preparation), tmp_path / "preparation.json")
    for preparation in (found.preparation, kept):
        for folder, name in ((own, "north"), (plain, "south")):
            rows = labeled_inputs(folder / f"{name}.csv", preparation, name, "y")
            usual = labeled_inputs(plain / f"{name}.csv", expected.preparation, name, "y")
            assert rows.inputs.x.equal(usual.inputs.x)
            assert rows.y.equal(usual.y)
    formats = {name: kept.encoders[name].csv_format.of("new", name) for name in ("north", "south")}
    assert formats["north"].conversions == ["decimal mark ','", "krea * 0.01"]
    assert formats["south"].conversions == []
    # A file of another name is in the format of the silo whose rows it has.
    renamed = shutil.copy(own / "north.csv", tmp_path / "new.csv")
    assert labeled_inputs(renamed, kept, "north", "y").inputs.x.equal(
        labeled_inputs(plain / "north.csv", expected.preparation, "north", "y").inputs.x
    )


def test_formats_of_files_are_kept_in_a_configuration(tmp_path: Path) -> None:
    text = """
[data]
source = "csv:a"
target = "y"
missing = ["-", 999]
thousands = " "
[data.files.north]
decimal = ","
rename_columns = { krea = { name = "crea", factor = 0.5 }, note = false }
[data.files."south 2".label_codes]
0 = "no"
[data.files."south 2".rename_columns.sex]
codes = { M = "male" }
[method]
name = "fedavg"
"""
    (tmp_path / "config.toml").write_text(text)
    config = load(str(tmp_path / "config.toml"))
    assert [file.name for file in config.data.files] == ["north", "south 2"]
    assert config.data.files[1].rename_columns[0].codes == SEX[:1]
    assert loads(dump(config), "kept") == config


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"files": (OwnFile(name="west", decimal=","),)}, r"data\.files names 'west', expected one of .* north, south"),
        ({"files": (OwnFile(name="north", rename_columns=(OwnColumn(own="size", name="x"),)),)},
         r"data\.files\.north\.rename_columns names 'size': .*north\.csv has krea, age, sex, y"),
        ({"decimal": ",", "thousands": ","}, r"data\.thousands = ',' is also the decimal mark"),
    ],
)  # fmt: skip
def test_declarations_that_cannot_be_are_named(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        data.load(settings(tables(tmp_path)[0], **keys), SEED)


@pytest.mark.parametrize("since", [{"since": "2020-13-01"}, {"since": "2020-01-01"}, {"until": "x", "date": "%Y"}])
def test_dates_are_declared_as_a_whole(since: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"data\.rename_columns: column 'x'"):
        OwnColumn(own="x", **since)


def federation(folder: Path, first: str, second: str, **keys: Any) -> data.Silos:
    """What two silos agree on and read, each with a table whose text is its own."""
    shared = DataSettings(source="on_site", target="y", classes=CLASSES, categorical=("x",), **keys)
    schemas, own = {}, {}
    for name, text in (("a", first), ("b", second)):
        rows = [f"{text if i % 2 else 'other'},{i % 7},{CLASSES[i // 3 % 2]}" for i in range(60)]
        (folder / f"{name}.csv").write_text("\n".join(["x,z,y", *rows]) + "\n")
        own[name] = own_settings(shared, f"csv:{folder / name}.csv")
        schemas[name] = own_schema(own[name], SEED, name, allowed=("x",))
    agreed = shared_schema(schemas, shared)
    made = {name: own_silos(each, SEED, name, agreed) for name, each in own.items()}
    together = data.load(DataSettings(source=f"csv:{folder}", target="y", classes=CLASSES, categorical=("x",)), SEED)
    assert all(same(made[silo.name][0], silo) for silo in together)
    return made["a"]


def test_silos_agree_on_one_category_for_one_value(tmp_path: Path) -> None:
    assert federation(tmp_path, "1", "1.0").shape == (3,)


def test_silos_do_not_agree_on_spellings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'x': 'Yes' at silo 'a' and 'yes' at silo 'b' differ only in case"):
        federation(tmp_path, "Yes", "yes")
    both = (DictionaryColumn(name="x", type="category", values=("Yes", "yes", "other")), DictionaryColumn(name="z"))
    with pytest.warns(DataWarning, match=r"read as 3 categories: 'Yes' and 'yes' are kept as different categories"):
        assert federation(tmp_path, "Yes", "yes", dictionary=both).shape == (4,)


def test_a_silo_has_marks_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "silo.toml").write_text(
        'silo = "a"\nstate = "state"\n[data]\nsource = "csv:a.csv"\ntarget = "y"\nthousands = " "\n'
        'missing = ["-", -9]\n'
    )
    made = read_silo_file(tmp_path / "silo.toml").settings(DataSettings(source="on_site", target="y"))
    assert (made.thousands, made.missing) == (" ", ("-", -9))


def test_folders_of_images_that_differ_in_case_are_refused_until_one_is_renamed(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for silo, kinds in (("a", ("y", "n")), ("b", ("Y", "n"))):
        for kind in kinds:
            (tmp_path / silo / kind).mkdir(parents=True)
            for i in range(12):
                Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / silo / kind / f"{i}.png")
    own = DataSettings(source=f"images:{tmp_path}")
    with pytest.raises(DataError) as refused:
        data.load(own, SEED)
    assert "class folders 'Y' (12 images) and 'y' (12 images) differ only in case" in str(refused.value)
    named = re.search(r"rename one of (\S+), (\S+)$", str(refused.value))
    assert named is not None
    Path(named[1]).rename(Path(named[1]).with_name("y"))
    assert data.load(own, SEED).classes == ("n", "y")
