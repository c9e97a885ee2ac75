"""Rows by what they hold: equal ones are in one split, and what was held out once is never trained on."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from caveat.core import ConfigurationError
from caveat.data.agreement import own_schema, own_settings, own_silos, shared_schema
from caveat.data.build import load
from caveat.data.held_out_again import HeldOut, again_held_out, contents, keyed
from caveat.data.raw_samples import Pool
from caveat.data.settings import DataSettings
from caveat.data.sources import read_silo
from caveat.data.splits import PROTECTED, Splits

KEY = b"k"


def table(path: Path, rows: list[str], header: str = "dose,ward,outcome") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def lines(count: int = 60) -> list[str]:
    rng = np.random.default_rng(0)
    return [f"{rng.normal():.3f},{'abc'[i % 3]},{'ill' if i % 2 else 'well'}" for i in range(count)]


def pool_of(path: Path) -> Pool:
    return read_silo(DataSettings(source=f"csv:{path}", target="outcome"), "a")


@pytest.mark.parametrize("seed", range(3))
def test_equal_rows_are_in_the_most_protected_split_and_all_else_stays(tmp_path: Path, seed: int) -> None:
    rows = lines()
    rows[40], rows[41], rows[42] = rows[3], rows[3], f"{rows[5].rpartition(',')[0]},well"  # the last: another label
    settings = DataSettings(source=f"csv:{table(tmp_path / 'a.csv', rows)},{table(tmp_path / 'b.csv', lines(50))}",
                            target="outcome")  # fmt: skip
    drawn = load(dataclasses.replace(settings, duplicates="drawn"), seed)
    silos = load(settings, seed)
    place = {i: name for name, index in drawn[0].indices.items() for i in index.tolist()}
    best = min((place[i] for i in (3, 40, 41)), key=PROTECTED.index)
    expected = place | dict.fromkeys((3, 40, 41), best)
    assert {i: name for name, index in silos[0].indices.items() for i in index.tolist()} == expected
    assert all(silos[1].indices[name].equal(drawn[1].indices[name]) for name in PROTECTED)
    # Where every silo reads its own, too, whatever the others have.
    own = {name: own_settings(settings, f"csv:{tmp_path / name}.csv") for name in "ab"}
    shared = shared_schema({name: own_schema(each, seed, name) for name, each in own.items()}, settings)
    for silo in silos:
        (found,) = own_silos(own[silo.name], seed, silo.name, shared)
        assert all(found.indices[name].equal(silo.indices[name]) for name in PROTECTED)
        assert found.train.x.equal(silo.train.x)


def test_rows_are_equal_only_if_their_quantities_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{'abc'[i % 3]},{i}.5" for i in range(60)]
    rows[40], rows[41] = rows[3], f"{rows[3].rpartition(',')[0]},99.5"
    settings = DataSettings(source=f"csv:{table(tmp_path / 'a.csv', rows)},{table(tmp_path / 'b.csv', rows[:50])}",
                            target="outcome", predict="quantity")  # fmt: skip
    for seed in range(3):
        place, drawn = (
            {i: name for name, index in load(each, seed)[0].indices.items() for i in index.tolist()}
            for each in (settings, dataclasses.replace(settings, duplicates="drawn"))
        )
        best = min((drawn[i] for i in (3, 40)), key=PROTECTED.index)
        assert place == drawn | dict.fromkeys((3, 40), best)


@pytest.mark.filterwarnings("ignore:column")
def test_rows_that_tell_nobody_apart_stay_where_they_were_drawn_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{i % 2},a,{'ill' if i % 3 else 'well'}" for i in range(60)]
    settings = DataSettings(source=f"csv:{table(tmp_path / 'a.csv', rows)},{table(tmp_path / 'b.csv', lines())}",
                            target="outcome")  # fmt: skip
    silos = load(settings, 0)
    assert re.search(r"a: \d+ rows equal a row of a more protected split.* data.duplicates = 'drawn'", caplog.text)
    drawn = load(dataclasses.replace(settings, duplicates="drawn"), 0)
    assert all(silos[0].indices[name].equal(drawn[0].indices[name]) for name in PROTECTED)


def test_duplicates_are_refused_where_there_is_no_table() -> None:
    with pytest.raises(ConfigurationError, match=r"data.duplicates = 'drawn' is not used by source 'digits'"):
        DataSettings(duplicates="drawn")


def test_what_a_row_is_depends_neither_on_its_place_nor_on_other_rows(tmp_path: Path) -> None:
    rows = [*lines(), "?,a,ill", "-0,b,well", "1e0,c,ill"]
    first = contents(pool_of(table(tmp_path / "a.csv", rows)))
    again = [row.replace("1e0", "1.0").replace("-0,", "0,") for row in reversed(rows)]
    assert contents(pool_of(table(tmp_path / "b.csv", again))) == first[::-1]
    swapped = [",".join((row.split(",")[1], row.split(",")[0], row.split(",")[2])) for row in rows]
    # A text among the doses makes them categories, which they were not.
    mixed = [",".join((each[0], "high", each[2])) for each in (row.split(",") for row in swapped)]
    found = contents(pool_of(table(tmp_path / "c.csv", mixed + swapped[:1] * 2, "ward,dose,outcome")))
    assert found[-1] == first[0]
    assert len(set(keyed(first, KEY))) == len(first)
    assert keyed(first, KEY) != keyed(first, b"other")


def held(pool: Pool, splits: Splits, columns: tuple[str, ...] = ("dose", "ward")) -> HeldOut:
    rows = keyed(contents(pool, columns), KEY)
    return HeldOut(columns, *(Counter(rows[i] for i in splits[name].tolist()) for name in ("test", "calibration")))


def drawn(seed: int, count: int = 60) -> Splits:
    order = np.random.default_rng(seed).permutation(count)
    return {name: np.sort(part) for name, part in zip(PROTECTED, np.split(order, (12, 18, 24)), strict=True)}


def test_what_was_held_out_once_is_held_out_again_at_the_same_sizes(tmp_path: Path) -> None:
    pool = pool_of(table(tmp_path / "a.csv", lines()))
    first = drawn(1)
    known = held(pool, first)
    assert all(np.array_equal(again_held_out(pool, first, [known], KEY)[name], first[name]) for name in PROTECTED)
    found = again_held_out(pool, drawn(2), [known], KEY)
    protected = {*found["test"].tolist(), *found["calibration"].tolist()}
    assert protected >= {*first["test"].tolist(), *first["calibration"].tolist()}
    assert {*found["test"].tolist()} >= {*first["test"].tolist()}
    assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(60))
    assert len(found["train"]) >= 30
    # Another key knows nobody, and neither does a table without the columns.
    for other in ([known._replace(columns=("dose", "age"))], [known]):
        kept = again_held_out(pool, drawn(2), other, KEY if other[0].columns[1] == "age" else b"other")
        assert all(np.array_equal(kept[name], drawn(2)[name]) for name in PROTECTED)


def test_of_equal_rows_as_many_are_held_out_as_once_were(tmp_path: Path) -> None:
    pool = pool_of(table(tmp_path / "a.csv", ["1,a,ill"] * 20 + ["2,b,well"] * 40))
    found = again_held_out(pool, drawn(2), [held(pool, drawn(1))], KEY)
    for low, high in ((0, 20), (20, 60)):
        count = [sum(low <= i < high for name in ("test", "calibration") for i in s[name]) for s in (drawn(1), found)]
        assert count[1] >= count[0]
