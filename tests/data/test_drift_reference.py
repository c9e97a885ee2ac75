"""Tables as a whole: batches like the silo's own raise no alarm, columns in other units do, and no rows are kept."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

import caveat
from caveat.core import DataWarning, UnlikeColumn
from caveat.data.raw_samples import Array
from caveat.data.tables.drift_reference import MOST_ROWS, reference_of
from caveat.data.tables.reading_settings import TableColumn
from caveat.runs.stored_preparation import as_record, from_record, without_references

TABLE = (
    *(TableColumn(name, None) for name in ("age", "chol", "st", "sex", "ca", "late")),
    TableColumn("pain", ("none", "some", "much")),
)


def rows(random: np.random.Generator, n: int) -> Array:
    """Numbers with ties, many zeros, few values, and missing ones; and categories, some missing."""
    age, chol = np.round(random.normal(55, 9, n)), random.lognormal(5.5, 0.2, n)
    st = np.round(np.maximum(random.normal(0, 1, n), 0), 1)
    late = np.where(random.random(n) < 0.2, np.nan, random.normal(size=n))
    pain = np.where(random.random(n) < 0.05, -1, random.integers(0, 3, n))
    columns = [age, chol, st, random.random(n) < 0.7, random.integers(0, 4, n), late, pain]
    return np.stack(columns, 1).astype(np.float32)


@pytest.mark.parametrize(("n", "m"), [(5, 12), (5, 100), (20, 40), (50, 40), (50, 100), (500, 100)])
def test_batches_like_the_silos_own_are_hardly_ever_called_unlike(n: int, m: int) -> None:
    random, repeats = np.random.default_rng([n, m]), 250
    found = sum(
        bool(reference_of(rows(random, m), TABLE, random).unlike(rows(random, n), TABLE)) for _ in range(repeats)
    )
    assert found / repeats <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)


CHANGES: dict[str, Any] = {"age": lambda x: 12 * x, "chol": lambda x: x / 38.67, "st": lambda x: x / 10}


@pytest.mark.parametrize("name", CHANGES)
def test_a_column_in_other_units_is_found_in_fifty_rows(name: str) -> None:
    random, repeats, found = np.random.default_rng(0), 60, 0
    i = [column.name for column in TABLE].index(name)
    for _ in range(repeats):
        batch = rows(random, 50)
        batch[:, i] = CHANGES[name](batch[:, i])
        unlike = reference_of(rows(random, 45), TABLE, random).unlike(batch, TABLE)
        found += name in [each.name for each in unlike]
    assert found / repeats >= 0.95


def test_missing_values_categories_and_codes_are_found_too() -> None:
    random = np.random.default_rng(0)
    reference, batch = reference_of(rows(random, 100), TABLE, random), rows(random, 50)
    batch[:25, 0], batch[:, 3], batch[:, 6] = np.nan, 1 - batch[:, 3], 2
    found = {(each.name, each.figure) for each in reference.unlike(batch, TABLE)}
    assert {("age", "share missing"), ("sex", "share of 0"), ("pain", "share of 'much'")} <= found
    batch = rows(random, 50)
    assert not reference.unlike(batch, TABLE)
    batch[:, 6] = 3  # a category that the silo has never seen, instead of those that it knows
    assert [each.name for each in reference.unlike(batch, TABLE)] == ["pain"]
    assert not reference.unlike(batch[:4], TABLE)


@pytest.mark.parametrize(("tail", "m", "n"), [(40, 20, 500), (200, 25, 200), (500, 25, 500), (1500, 34, 400)])
def test_many_rare_categories_raise_no_alarm(tail: int, m: int, n: int) -> None:
    """The silo's own categories include those of the known rows; many of new rows are unseen. Without the latter, up to
    half of the batches are called unlike."""
    random, repeats, found = np.random.default_rng([tail, n]), 150, 0

    def codes(count: int) -> Array:
        return np.where(random.random(count) < 0.5, 0, 1 + random.integers(0, tail, count))

    for _ in range(repeats):
        own, new = codes(12 * m), codes(n)
        known = np.unique(own)
        table = [TableColumn("code", tuple(map(str, known)))]
        own, new = (np.where(np.isin(x, known), np.searchsorted(known, x), len(known)) for x in (own, new))
        reference = reference_of(own[:m, None].astype(np.float32), table, random)
        found += bool(reference.unlike(new[:, None].astype(np.float32), table))
    assert found / repeats <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)


def test_rows_that_differ_by_luck_raise_no_alarm() -> None:
    """Rows of few values: 20 of them often all differ, 2,000 cannot. Without repeated rows, new ones are unlike."""
    random, repeats, found = np.random.default_rng(0), 200, 0
    table = [TableColumn(name, None) for name in ("rare", "one", "other")]

    def few(count: int) -> Array:
        values = [random.random(count) < 0.1, *random.integers(0, 10, (2, count))]
        return np.stack(values, 1).astype(np.float32)

    for _ in range(repeats):
        found += bool(reference_of(few(20), table, random).unlike(few(2000), table))
    assert found / repeats <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)


def test_what_is_kept_has_no_rows_and_few_values() -> None:
    random = np.random.default_rng(0)
    known = rows(random, 400)
    reference = reference_of(known, TABLE, random)
    assert all(len(each.values) + each.missing == MOST_ROWS for each in reference.columns)
    assert all(list(each.values) == sorted(each.values) for each in reference.columns)
    kept = np.array(reference.columns[1].values, np.float32)
    assert np.isin(kept, known[:, 1]).all()  # exact, so that equal values tie
    wide = [TableColumn(str(i), None) for i in range(5000)]
    assert len(reference_of(random.normal(size=(200, 5000)).astype(np.float32), wide, random).columns[0].values) == 20
    assert reference_of(known[:4], TABLE, random).columns == ()


def test_a_column_says_what_differs() -> None:
    assert str(UnlikeColumn("chol", "median", 5.2, 243, 0.01)) == (
        'column "chol": median 5.2 here, 243 in the silo\'s data: another unit?'
    )
    assert str(UnlikeColumn("age", "median", 61, 55, 0.01)) == 'column "age": median 61 here, 55 in the silo\'s data'
    assert str(UnlikeColumn("st", "median", 0, 0, 0.01)).endswith(": another spread")
    assert str(UnlikeColumn("age", "share missing", 0.5, 0.02, 0.01)) == (
        'column "age": share missing 50% here, 2% in the silo\'s data'
    )


def test_predictions_of_arrays_and_frames_name_the_columns() -> None:
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(rows(random, 400)[:, :5], columns=[column.name for column in TABLE[:5]])
    frame["ill"] = (frame.age > 55).astype(int)
    silos = caveat.data.from_frames({"a": frame}, target="ill")
    model = caveat.ModelSettings(name="mlp", width=4, features=6, hidden=6)
    run = caveat.run(silos, caveat.FedAvg(), rounds=1, model=model)
    new = frame.drop(columns="ill").sample(50, random_state=0).assign(chol=lambda each: each.chol / 38.67)
    with pytest.warns(DataWarning, match='column "chol": median .* another unit'):
        found = run.predictor("a")(new)
    assert [each.name for each in found.unlike_columns] == ["chol"]
    assert found.unlike_columns[0].p < 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        again = run.predictor("a")(run.silos.named("a").test.x)  # tensors are not raw rows
        run.predictor("a")(frame.drop(columns="ill")[:100])
    assert again.unlike_columns == ()
    assert found.unfamiliar_at(0.05).shape == (50,)


def test_references_are_written_and_can_be_left_out() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows(np.random.default_rng(0), 200), columns=[column.name for column in TABLE])
    frame["ill"] = np.arange(200) % 2
    preparation = caveat.data.from_frames({"a": frame, "b": frame[::-1]}, target="ill").preparation
    record = as_record(preparation)
    read = from_record(record, "it")
    assert {name: each.reference for name, each in read.encoders.items()} == {
        name: each.reference for name, each in preparation.encoders.items()
    }
    assert read.encoders["a"].reference.columns
    assert not from_record(without_references(record), "it").encoders["a"].reference.columns
