"""Tables as people write them, what is read of them, and the advice of refusals, followed."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydantic import TypeAdapter

from caveat.core import DataError, DataWarning
from caveat.data.checks import check_usual
from caveat.data.setting_lines import ASSIGNED
from caveat.data.settings import DataSettings
from caveat.data.sources.tables import csv_source
from caveat.data.tables.declarations import as_lists

NAN = float("nan")
Cells = Sequence[object]
TIMES = 8
"""How often the cells of a case are repeated."""


class Found(NamedTuple):
    """What was read: the column x, and the classes of y, per file; and the warnings."""

    x: dict[str, list[object]]
    y: dict[str, list[str]]
    told: list[str]


def read(folder: Path, keys: Mapping[str, Any]) -> Found:
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".csv", ".parquet"))
    data = as_lists({"source": f"csv:{','.join(map(str, paths))}", "target": "y", **keys})
    settings = TypeAdapter(DataSettings).validate_python(data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = csv_source(paths, settings.reading)
    x, y = {}, {}
    for pool in source.pools:
        y[pool.domain] = [pool.classes[code] for code in pool.y]
        at = next((i for i, column in enumerate(pool.table) if column.name == "x"), None)
        if at is None:
            x[pool.domain] = []
            continue
        texts = pool.table[at].categories
        values = pool.x[:, at].tolist()
        x[pool.domain] = values if texts is None else [None if code < 0 else texts[int(code)] for code in values]
    return Found(x, y, [str(each.message) for each in caught if issubclass(each.category, DataWarning)])


def quoted(cell: object, separator: str) -> str:
    text = str(cell)
    return f'"{text}"' if separator in text or '"' in text else text


def write(folder: Path, files: Mapping[str, Cells], labels: Mapping[str, Cells] | None = None) -> None:
    """Write a file for each name: x as given, a plain number z, and the label y."""
    for name, cells in files.items():
        count = len(cells) * TIMES
        y = list((labels or {}).get(name, ("no", "yes")))
        rows = [(cells[i % len(cells)], i % 7, y[(i // 3) % len(y)]) for i in range(count)]
        stem, _, kind = name.partition(".")
        if kind == "parquet":
            pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            columns = [list(column) for column in zip(*rows, strict=True)]
            pq.write_table(pa.table(dict(zip("xzy", columns, strict=True))), folder / name)
        else:
            lines = [",".join(quoted(cell, ",") for cell in row) for row in [("x", "z", "y"), *rows]]
            (folder / f"{stem}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def merged(keys: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(keys)
    for key, value in more.items():
        made[key] = merged(made[key], value) if isinstance(value, dict) and isinstance(made.get(key), dict) else value
    return made


def followed(told: str, keys: Mapping[str, Any], option: int) -> dict[str, Any]:
    """Return the keys with the lines of TOML that a message advises: the option of this number."""
    found: list[dict[str, Any]] = []
    end = None
    for match in ASSIGNED.finditer(told):
        if end is None or told[end : match.start()] != " and ":
            found.append({})
        found[-1] = merged(found[-1], tomllib.loads(match[0])["data"])
        end = match.end()
    assert len(found) > option, f"no option {option} in: {told}"
    return merged(keys, found[option])


def same(found: Sequence[object], expected: Cells) -> bool:
    pairs = zip(found, [expected[i % len(expected)] for i in range(len(found))], strict=True)
    return all(
        a == b
        or (a in (None, "") and b is None)
        or (isinstance(a, float) and isinstance(b, int | float) and (a == np.float32(b) or (a != a and b != b)))
        for a, b in pairs
    )


def check(folder: Path, keys: Mapping[str, Any], advised: Sequence[int], expected: Mapping[str, Cells]) -> Found:
    """Follow the advice of a refusal after the other, and compare what is then read."""
    keys = dict(keys)
    for option in advised:
        with pytest.raises(DataError) as refused:
            read(folder, keys)
        told = str(refused.value)
        assert "\n" not in told
        assert len(told) < 700, told
        keys = followed(told, keys, option)
    found = read(folder, keys)
    for name, cells in expected.items():
        assert same(found.x[name], cells) or not (found.x[name] or len(cells)), (keys, found.x[name][: len(cells)])
    return found


def table(path: Path, rows: int = 60, **columns: Any) -> Path:
    """Write columns, functions of the row, before the label y."""
    made = {**columns, "y": columns.get("y", lambda row: ("no", "yes")[row // 2 % 2])}
    lines = [",".join(made), *(",".join(str(of(row)) for of in made.values()) for row in range(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def told(folder: Path, **keys: Any) -> list[str]:
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".csv", ".parquet"))
    data = as_lists({"source": f"csv:{','.join(map(str, paths))}", "target": "y", **keys})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_usual(csv_source(paths, TypeAdapter(DataSettings).validate_python(data).reading).pools)
    return [str(each.message) for each in caught]


def usual(row: int) -> object:
    return row * 37 % 11
