"""Bodies of requests as inputs of a model: rows, inputs, MLflow's names, and tensors of the Open Inference Protocol."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .inference_thread import Outcome
from .served_model import Given, Refusal

Columns = Mapping[str, list[Any]]
MOST_AXES = 32
"""Maximum number of axes of a tensor; a product of many sizes takes minutes."""


def _refused(value: str) -> Any:
    raise ValueError(value)


def _missing(value: str) -> Any:
    return None if value == "NaN" else _refused(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _refused("a name occurs twice")


def parsed(body: bytes, *, nan: bool = False) -> dict[str, Any]:
    """Return a JSON object; with `nan`, NaN is null, as MLflow's client sends missing values. Raises Refusal."""
    try:
        value = json.loads(body, parse_constant=_missing if nan else _refused, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refusal((None, None, "expected a JSON object in UTF-8, without NaN, Infinity and repeated names"))
    return value


def columns_of(rows: Any, most: int) -> dict[str, list[Any]]:
    """Return the values by column of a list of objects. Raises Refusal."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refusal((None, None, "expected rows as a list of objects, with a value for each column"))
    check_count(len(rows), most)
    names = rows[0].keys()
    for number, row in enumerate(rows):
        if row.keys() != names:
            raise Refusal((number, None, "expected the same columns in every row, with null for a missing value"))
    return {name: [row[name] for row in rows] for name in names}


def check_count(count: int, most: int) -> None:
    if not 0 < count <= most:
        raise Refusal((None, None, f"expected 1 to {most:,} inputs"))


def request_of(body: Mapping[str, Any], most: int) -> Given:
    """Return the content of a body: rows, inputs, or MLflow's other names. Raises Refusal."""
    forms = [name for name in ("rows", "inputs", "instances", "dataframe_records", "dataframe_split") if name in body]
    if len(forms) != 1:
        raise Refusal((None, None, 'expected "rows" or "inputs"'))
    given = body[forms[0]]
    if forms[0] in ("rows", "dataframe_records"):
        columns = columns_of(given, most)
        return _given(body, len(given), columns)
    if forms[0] == "dataframe_split":
        names, data = _split(given)
        check_count(len(data), most)
        split = {name: [row[i] for row in data] for i, name in enumerate(names)}
        return _given(body, len(data), split)
    if not isinstance(given, list):
        raise Refusal((None, None, "expected inputs as lists of numbers"))
    check_count(len(given), most)
    return _given(body, len(given), values=given)


def _given(body: Mapping[str, Any], count: int, columns: Columns | None = None, values: Any = None) -> Given:
    groups = body.get("groups")
    if groups is not None and not (isinstance(groups, list) and all(isinstance(each, str) for each in groups)):
        raise Refusal((None, None, "expected groups as a list of texts"))
    if groups is not None and len(groups) != count:
        raise Refusal((None, None, "expected a group for each input"))
    return Given(count, columns, values, groups)


def outcomes_of(body: Mapping[str, Any], most: int) -> list[Outcome]:
    """Return the outcomes in a body; a class 1 may be sent as "1", 1 or 1.0. Raises Refusal."""
    given = body.get("outcomes")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise Refusal((None, None, "expected outcomes as a list of objects with id, row and label"))
    check_count(len(given), most)
    found = []
    for i, each in enumerate(given):
        id, row, label = each.get("id"), each.get("row", 0), each.get("label")
        if not isinstance(id, str):
            raise Refusal((i, "id", "expected the id of an answer, a text"))
        if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < most:
            raise Refusal((i, "row", "expected the number of a row of the answer, from 0"))
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if not isinstance(label, (str, int, float)):
            raise Refusal((i, "label", "expected the name of a class, or a number"))
        found.append(Outcome(id, row, str(label)))
    return found


def _split(given: Any) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of a `dataframe_split`. Raises Refusal."""
    names = given.get("columns") if isinstance(given, dict) else None
    data = given.get("data") if isinstance(given, dict) else None
    if isinstance(names, list) and isinstance(data, list) and all(isinstance(each, str) for each in names):
        rows = [row for row in data if isinstance(row, list) and len(row) == len(names)]
        if len(rows) == len(data) and len(set(names)) == len(names):
            return names, rows
    raise Refusal((None, None, "expected the names of columns, and rows of as many values"))


def tensors_of(body: Mapping[str, Any], most: int) -> Given:
    """Return the content of tensors of the Open Inference Protocol. Raises Refusal."""
    wrong = Refusal((None, None, "expected inputs as tensors with name, shape, datatype and data"))
    tensors = body.get("inputs")
    if not isinstance(tensors, list) or not tensors or not all(isinstance(each, dict) for each in tensors):
        raise wrong
    by_name: dict[str, list[Any]] = {}
    shape: list[int] = []
    for tensor in tensors:
        name, shape, data = (tensor.get(key) for key in ("name", "shape", "data"))
        if (
            not isinstance(name, str)
            or not isinstance(data, list)
            or not isinstance(shape, list)
            or not 0 < len(shape) <= MOST_AXES
            or not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= 2**31 for size in shape)
        ):
            raise wrong
        by_name[name] = data
        check_count(shape[0], most)
    if by_name.keys() == {"inputs"}:
        flat = _flat(by_name["inputs"])
        if len(flat) != math.prod(shape):
            raise Refusal((None, None, "expected as many numbers as the shape requires"))
        return _given(body, shape[0], values=_shaped(flat, shape))
    flats = {name: _flat(data) for name, data in by_name.items()}
    if len({len(each) for each in flats.values()}) != 1 or len(next(iter(flats.values()))) != shape[0]:
        raise Refusal((None, None, "expected a tensor for each column, all of the same length"))
    return _given(body, shape[0], flats)


def _flat(data: list[Any]) -> list[Any]:
    while data and all(isinstance(each, list) for each in data):
        data = [value for each in data for value in each]
    return data


def _shaped(flat: list[Any], shape: list[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)] if size else []
    return flat
