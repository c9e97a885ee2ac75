"""What a data source holds, before anything is partitioned or trained."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.settings import check_type
from .pools import DataSource, Pool
from .settings import DataSettings, check_source
from .sources.by_name import csv_paths, guess, read
from .sources.tables import Sheet, missing, read_sheets


def survey(source: str, target: str | None = None, silo: str | None = None) -> dict[str, Any]:
    """What a source, or a bare path, holds, as plain values.

    "source", "in_silos" (whether the data comes in silos), "shape" of one input, where all have one, "classes",
    "columns" of a table (with "categories" where it has text), and "parts": the domains or silos, each with "name",
    "examples", "test" (in the source's own test part), "class_counts" (per class, test part included), "shape" of one
    input, where shapes differ, and, of a table, "missing" per column. A csv without `target` has no classes yet: only
    rows, columns and missing values. Raises DataError.
    """
    check_type(source, str, "source", "a path or a source, as text")
    name = guess(source)
    check_source("source", name)
    if name.startswith("csv:") and target is None:
        return _untargeted(name)
    settings = DataSettings(source=name, target=target, silo=silo)
    found = read(settings)
    pool = found.pools[0]
    shapes = [list(each.x.shape[1:]) for each in found.pools]
    alike = all(shape == shapes[0] for shape in shapes)
    result = {
        "source": name,
        "in_silos": found.given,
        **({"shape": shapes[0]} if alike else {}),
        "classes": list(pool.classes),
        "parts": [
            _part(each) | ({} if alike else {"shape": shape}) for each, shape in zip(found.pools, shapes, strict=True)
        ],
    }
    if pool.table:
        result["columns"] = _columns(found)
    return result


def _part(pool: Pool) -> dict[str, Any]:
    part: dict[str, Any] = {
        "name": pool.domain,
        "examples": len(pool.y),
        "test": pool.own_test,
        "class_counts": np.bincount(pool.y, minlength=len(pool.classes)).tolist(),
    }
    if pool.table:
        absent = np.where([column.categories is None for column in pool.table], np.isnan(pool.x), pool.x < 0)
        part["missing"] = dict(zip([c.name for c in pool.table], absent.sum(axis=0).tolist(), strict=True))
    return part


def _columns(source: DataSource) -> list[dict[str, Any]]:
    return [
        {"name": column.name} | ({"categories": list(column.categories)} if column.categories is not None else {})
        for column in source.pools[0].table
    ]


def _untargeted(name: str) -> dict[str, Any]:
    sheets = read_sheets(csv_paths(name.partition(":")[2]))
    return {
        "source": name,
        "in_silos": len(sheets) > 1,
        "columns": [{"name": column} for column in sheets[0].columns],
        "parts": [
            {"name": sheet.path.stem, "examples": len(sheet.rows), "missing": _missing(sheet)} for sheet in sheets
        ],
    }


def _missing(sheet: Sheet) -> dict[str, int]:
    return {column: sum(map(missing, sheet.column(column))) for column in sheet.columns}
