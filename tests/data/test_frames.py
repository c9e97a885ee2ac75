"""Data frames: prepared as csv tables of the same cells are, with right values for each kind of column."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import caveat
from caveat.core import ConfigurationError, DataError, DataWarning
from caveat.data.tables.frames import Columns, FrameSheet, is_frame, is_numeric

pd = pytest.importorskip("pandas")  # `make lowest` goes without it

NAN, SPLITS = float("nan"), ("train", "validation", "calibration", "test")


def ward(seed: int, rows: int = 160) -> Any:
    draw = np.random.default_rng(seed)
    age = draw.normal(60, 12, rows)
    frame = pd.DataFrame({
        "age": age, "sex": draw.choice(["M", "F"], rows), "code": pd.Categorical(draw.integers(0, 3, rows)),
        "visits": pd.array(draw.integers(0, 9, rows), dtype="Int64"), "smokes": draw.random(rows) > 0.5,
        "outcome": np.where(age > 60, "ill", "well"),
    })  # fmt: skip
    frame.loc[::7, "age"] = NAN
    frame.loc[::9, "sex"] = None
    frame.loc[::5, "visits"] = pd.NA
    return frame


WARDS = {"north": ward(1), "St. Mary": ward(2)}


@pytest.mark.parametrize(("values", "expected"), [
    ([1, 2, 3], [1, 2, 3]),
    ([1.5, NAN, 3], [1.5, NAN, 3]),
    (pd.array([1, None, 3], dtype="Int64"), [1, NAN, 3]),
    (pd.Series([1, None, 2.5], dtype=object), [1, NAN, 2.5]),
    (pd.to_datetime(["1970-01-02", None, "2024-03-31 12:00"], format="ISO8601"), [1, NAN, 19813.5]),
    (pd.to_datetime(["1970-01-02 00:00+01:00"] * 2), [1 - 1 / 24] * 2),
    ([datetime.date(1970, 1, 11), None], [10, NAN]),
    (pd.to_timedelta([36, 12], unit="h"), [1.5, 0.5]),
    (["a", None, "b"], ["a", "", "b"]),
    ([True, False, None], ["True", "False", ""]),
    (pd.Categorical([1, 2, 1]), ["1", "2", "1"]),
    (pd.Categorical([1.0, 2.5, NAN]), ["1", "2.5", ""]),
    (["12", "0410", ""], ["12", "0410", ""]),
    ([None, None], ["", ""]),
])  # fmt: skip
def test_a_column_has_the_right_values(values: Any, expected: list[Any]) -> None:
    sheet = FrameSheet(pd.DataFrame({"x": values}), "a")
    found = sheet.numbers("x")
    if isinstance(expected[0], str):
        assert found is None
        assert list(sheet.column("x")) == expected
    else:
        assert found is not None
        np.testing.assert_allclose(np.concatenate(list(found)), expected)


def test_frames_are_prepared_as_csv_files_of_the_same_cells(tmp_path: Path) -> None:
    for name, frame in WARDS.items():
        frame.to_csv(tmp_path / f"{name.removeprefix('St. ')}.csv", index=False)
    keys: dict[str, Any] = {"target": "outcome", "categorical": ["code"], "seed": 3}
    files = caveat.data.from_files(tmp_path / "north.csv", tmp_path / "Mary.csv", **keys)
    frames = caveat.data.from_frames({"north": WARDS["north"], "Mary": WARDS["St. Mary"]}, **keys)
    for one, other in zip(files, frames, strict=True):
        assert one.name == other.name
        for split in SPLITS:
            assert torch.equal(getattr(one, split).x, getattr(other, split).x)
            assert torch.equal(getattr(one, split).y, getattr(other, split).y)


def polars_frame(frame: Any) -> Any:
    """The frame in polars, or else in narwhals, whose interface is a part of polars'."""
    values = {name: [None if pd.isna(value) else value for value in frame[name]] for name in frame.columns}
    values["code"] = [str(value) for value in values["code"]]
    try:
        import polars
    except ImportError:
        narwhals = pytest.importorskip("narwhals", reason="needs polars, or narwhals, which scikit-learn installs")
        pa = pytest.importorskip("pyarrow")
        values["code"] = pa.array(values["code"]).dictionary_encode()
        return narwhals.from_native(pa.table(values), eager_only=True)
    return polars.DataFrame(values).with_columns(polars.col("code").cast(polars.Categorical))


def test_frames_of_polars_are_prepared_as_those_of_pandas() -> None:
    day = pd.Timestamp("2024-12-01").date()
    pandas = {
        name: frame.assign(seen=[None if i % 8 == 0 else day + datetime.timedelta(i % 90) for i in range(len(frame))])
        for name, frame in WARDS.items()
    }
    frames = {name: polars_frame(frame) for name, frame in pandas.items()}
    one, other = (caveat.data.from_frames(each, target="outcome", seed=1) for each in (pandas, frames))
    for expected, found in zip(one, other, strict=True):
        for split in SPLITS:
            assert torch.equal(getattr(expected, split).x, getattr(found, split).x)
            assert torch.equal(getattr(expected, split).y, getattr(found, split).y)
    run = caveat.run(other, caveat.FedAvg(rounds=1), training=caveat.Training(batch_size=16))
    ask = run.predictor("north")
    assert torch.equal(ask(frames["north"]).probs, ask(pandas["north"]).probs)
    with pytest.raises(
        DataError, match="silo 'a': found a value of type Table, expected a name and a data frame of pandas or polars"
    ):
        caveat.data.from_frames({"a": pytest.importorskip("pyarrow").table({"x": [1]})}, target="x")


def test_one_frame_has_a_column_of_silos() -> None:
    frame = pd.concat([each.assign(ward=name) for name, each in WARDS.items()], ignore_index=True)
    together = caveat.data.from_frames(frame, target="outcome", silo_column="ward")
    assert [silo.name for silo in together] == ["St. Mary", "north"]
    assert torch.equal(together["north"].train.x, caveat.data.from_frames(WARDS, target="outcome")["north"].train.x)


def test_predictors_take_frames_with_columns_in_any_order() -> None:
    silos = caveat.data.from_frames(WARDS, target="outcome")
    training = caveat.Training(batch_size=16)
    run = caveat.run(silos, caveat.FedAvg(rounds=1), training=training)
    ask, new = run.predictor("north"), WARDS["north"].head(20)
    expected = ask(new)
    assert torch.equal(ask(new[[*reversed(new.columns)]].drop(columns="outcome")).probs, expected.probs)
    with pytest.raises(DataError, match="inputs: no column 'age'"):
        ask(new.drop(columns="age"))
    with pytest.warns(DataWarning, match="unseen category of sex"):
        ask(new.head(2).assign(sex="X"))


def test_declarations_are_those_of_a_configuration() -> None:
    keys: dict[str, Any] = {
        "label_codes": {"ill": "yes", "well": "no"},
        "rename_columns": {"age": "years", "sex": False},
    }
    silos = caveat.data.from_frames(WARDS, target="outcome", **keys)
    assert silos.classes == ("no", "yes")
    assert [column.name for column in silos.encoders["north"].table] == ["years", "code", "visits", "smokes"]


@pytest.mark.parametrize(("change", "told"), [
    (lambda frame: 3, "silo 'b': found a value of type int, expected a name and a data frame of pandas or polars"),
    (lambda frame: frame.drop(columns="age"), "differ in columns .*: set .*age = false to leave the columns out"),
    (lambda frame: frame.head(0), "silo b: no rows"),
    (lambda frame: frame.assign(age=[[1]] * len(frame)), "'age' has values such as '\\[1\\]'.*remove the column"),
    (lambda frame: frame.assign(outcome=None), "silo b, line 1: 'outcome' is missing"),
    (lambda frame: frame.set_axis(["age"] * 6, axis=1), "column name 'age' is empty or duplicated"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_by_silo(change: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        caveat.data.from_frames({"a": WARDS["north"], "b": change(WARDS["St. Mary"])}, target="outcome")


@pytest.mark.parametrize(("given", "told"), [
    ({"target": "outcom"}, "data.target = 'outcom': no such column; silo north has age, sex.*you mean outcome\\?"),
    ({"target": "outcome", "silo": "x"}, "silo: DataSettings has no such setting"),
])  # fmt: skip
def test_keys_are_checked(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        caveat.data.from_frames(WARDS, **given)


def test_some_frames_are_numeric() -> None:
    numbers = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]})
    assert is_numeric(numbers)
    assert not is_numeric(numbers.assign(d=["x", "y"]))
    assert not is_numeric(numbers.assign(b=[NAN, 1]))
    assert not is_numeric(numbers.assign(d=pd.to_datetime(["2024-01-01"] * 2)))
    columns = Columns.of(np.arange(6.0).reshape(3, 2), np.array([2, 0])).plus("y", np.array([1, 0]))
    assert (is_frame(columns), columns.columns, list(columns["x1"])) == (True, ["x0", "x1", "y"], [5.0, 1.0])
