"""Silos side by side: the values of each, and which do not fit: another unit, other spellings, and nothing else."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caveat
from caveat.core import DataError, DataWarning
from caveat.data.side_by_side import at_silos, check_spellings, unlike
from caveat.data.tables.reading_settings import TableColumn

NUMBER = TableColumn("x")


def normal(mean: float, deviation: float, rows: int = 200, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(mean, deviation, rows).astype(np.float32)


def codes(*counts: int) -> Any:
    return np.repeat(np.arange(len(counts)), counts).astype(np.float32)


@pytest.mark.parametrize(("values", "odd"), [
    ({"a": normal(1.1, 0.2), "b": normal(97, 20), "c": normal(1.0, 0.2)}, ["b"]),
    ({"a": normal(1.1, 0.2), "b": normal(97, 20)}, ["a", "b"]),
    ({"a": normal(1.1, 0.2), "b": normal(97, 20), "c": normal(1.0, 0.2), "d": normal(90, 9)}, ["a", "b", "c", "d"]),
    ({"a": normal(37, 0.5), "b": normal(98.6, 0.9), "c": normal(37, 0.4)}, ["b"]),
    ({"a": normal(170, 9), "b": normal(1.7, 0.09), "c": normal(168, 9)}, ["b"]),
    ({"a": normal(60, 12), "b": normal(45, 12), "c": normal(70, 12)}, []),
    ({"a": normal(2020, 0.1), "b": normal(2021, 0.1), "c": normal(2022, 0.1)}, []),
    ({"a": normal(0, 1), "b": normal(0.5, 1), "c": normal(-0.5, 1)}, []),
    ({"a": normal(1.1, 0.2), "b": normal(97, 20, rows=9), "c": normal(1.0, 0.2)}, []),
    ({"a": normal(1.1, 0.2)}, []),
    ({"a": np.full(50, np.nan, np.float32), "b": normal(97, 20), "c": normal(97, 20)}, []),
])  # fmt: skip
def test_a_silo_with_another_unit_does_not_fit(values: dict[str, Any], odd: list[str]) -> None:
    assert unlike(at_silos(NUMBER, values)) == odd


@pytest.mark.parametrize(("values", "odd"), [
    ({"a": codes(50, 60), "b": codes(0, 0, 40, 50), "c": codes(30, 60)}, ["b"]),
    ({"a": codes(50, 60), "b": codes(45, 40, 10), "c": codes(30, 60)}, []),
    ({"a": codes(50, 60), "b": codes(90, 0), "c": codes(0, 60)}, []),
    ({"a": codes(50), "b": codes(0, 70), "c": codes(50)}, []),
    ({"a": codes(50), "b": codes(0, 0, 70, 80), "c": codes(50)}, ["b"]),
    ({"a": codes(50, 60), "b": codes(0, 0, 40, 50), "c": codes(30, 60), "d": codes(0, 0, 9, 8)}, list("abcd")),
    ({"a": codes(50), "b": codes(20, 40, 30)}, []),
    ({"a": np.append(codes(50, 60), [-1] * 40), "b": codes(50, 60)}, []),
])  # fmt: skip
def test_a_silo_with_other_spellings_does_not_fit(values: dict[str, Any], odd: list[str]) -> None:
    assert unlike(at_silos(TableColumn("x", ("F", "M", "female", "male")), values)) == odd


@pytest.mark.parametrize(("names", "values"), [
    (("1", "2", "3", "4"), {"a": codes(50, 60), "b": codes(0, 0, 40, 50), "c": codes(30, 60)}),
    ([f"ward {i}" for i in range(30)], {"a": codes(50, 60), "b": codes(0, 0, 40, 50), "c": codes(30, 60)}),
    ("abcdef", {"a": codes(50, 60), "b": codes(0, 0, 40, 50), "c": codes(0, 0, 0, 0, 30, 60)}),
])  # fmt: skip
def test_codes_and_texts_of_every_silo_s_own_are_no_spellings(names: Any, values: dict[str, Any]) -> None:
    many = dict(values)
    if len(names) > 20:
        many["a"] = np.append(many["a"], np.arange(30))
    assert unlike(at_silos(TableColumn("x", tuple(names)), many)) == []


def test_what_a_silo_holds() -> None:
    (found,) = at_silos(NUMBER, {"a": np.array([3, np.nan, 0.1, 2], np.float32)})
    assert found.plain == {"name": "a", "missing": 1, "range": [0.1, 3.0], "median": 2.0}
    (found,) = at_silos(TableColumn("x", ("F", "M")), {"a": np.array([1, -1, 1, 0], np.float32)})
    assert found.plain == {"name": "a", "missing": 1, "counts": {"F": 1, "M": 2}}


def hospitals(folder: Path, factor: float = 88.4, south: str = "XY", word: str = "") -> list[str]:
    words = {"M": "male", "F": "female"} if word else {}
    for seed, (name, unit, sexes) in enumerate((("north", 1, "FM"), ("south", factor, south), ("east", 1, "FM"))):
        draw = np.random.default_rng(seed)
        lines = []
        for row in range(80):
            sex = draw.choice(list(sexes))
            ill = ("no", "yes")[row % 2] if name != "south" else ("n", "y")[row % 2]
            said = words.get(sex, sex) if name == word else sex
            lines.append(f"{draw.normal(1.1, 0.2) * unit:.3f},{said},{ill if word else row % 2}")
        (folder / f"{name}.csv").write_text("\n".join(["creatinine,sex,ill", *lines]))
    return [str(folder / f"{name}.csv") for name in ("north", "south", "east")]


def test_a_survey_and_a_run_warn_of_the_same(tmp_path: Path) -> None:
    files = hospitals(tmp_path)
    told = [
        r"column 'creatinine': medians are 9\d\.\d at south; 1\.\d+ at north; 1\.\d+ at east: if units differ",
        r"column 'sex': silo 'south' has 'X', 'Y', others have 'F', 'M': if they mean the same, set "
        r'data\.rename_columns\.sex = \{ codes = \{ X = "MEANING", Y = "MEANING" \} \}',
    ]
    with pytest.warns(DataWarning, match=told[0]), pytest.warns(DataWarning, match=told[1]):
        found = caveat.data.survey(f"csv:{','.join(files)}", "ill")
    columns = {each["name"]: each for each in found["columns"]}
    assert {name: each.get("unlike", []) for name, each in columns.items()} == {
        "creatinine": ["south"], "sex": ["south"], "ill": []
    }  # fmt: skip
    assert columns["sex"]["silos"][1]["counts"].keys() == {"X", "Y"}
    with pytest.warns(DataWarning, match=told[0]), pytest.warns(DataWarning, match=told[1]):
        caveat.data.from_files(*files, target="ill")


def keys_of(text: str) -> dict[str, Any]:
    """The keys of `[data]` that a message says to set."""
    lines = re.findall(r"data\.\S+ = (?:\{.*?\}(?: \})*|\"[^\"]*\"|\[[^]]*\]|\S+)", text)
    found: dict[str, Any] = tomllib.loads("\n".join(lines))["data"]
    return found


def test_the_advice_works(tmp_path: Path) -> None:
    files = hospitals(tmp_path, factor=1, south="FM", word="south")
    with pytest.raises(DataError, match=r"^labels: silo 'south' has 'n', 'y', others have 'no', 'yes'") as refused:
        caveat.data.from_files(*files, target="ill")
    same, four = str(refused.value).split("; if the labels are 4 classes")
    assert keys_of(four) == {"classes": ["n", "no", "y", "yes"]}
    keys = keys_of(same)
    assert keys == {"label_codes": {"n": "no", "y": "yes"}}
    with pytest.warns(DataWarning, match="^column 'sex'") as told:
        caveat.data.from_files(*files, target="ill", **keys)
    keys |= keys_of(str(told[0].message))
    assert keys["rename_columns"] == {"sex": {"codes": {"female": "F", "male": "M"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        silos = caveat.data.from_files(*files, target="ill", **keys)
    assert silos.classes == ("no", "yes")


def test_labels_of_two_silos_that_share_none_are_refused_unless_declared() -> None:
    check_spellings({"a": ["0", "1"], "b": ["1", "2"], "c": ["7", "8"]}, ())  # numbers may be classes of their own
    with pytest.raises(
        DataError, match=r'set data\.label_codes\.0 = "no" and data\.label_codes\.1 = "yes"; if the labels'
    ):
        check_spellings({"a": ["0", "1"], "b": ["no", "yes"]}, ())
    check_spellings({"a": ["0", "1"], "b": ["no", "yes"]}, ("0", "1", "no", "yes"))
    check_spellings({"a": ["cat", "dog"], "b": ["dog", "hen"]}, ())
