"""Survey of a data source, before partitioning and training."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import DataWarning, Refused
from ..core.devices import FLOAT, memory
from ..core.settings import check_type
from .build import read
from .checks import check_usual
from .quantities import column_values
from .raw_samples import Pool, ordered
from .settings import DataSettings
from .side_by_side import at_silos, remark, unlike
from .sources import guess, parsed, tables
from .tables.column_refusals import label_refusal
from .tables.columns import ColumnContent, column_of
from .tables.encoding import encoded_rows
from .tables.files import Sheet, missing, read_sheets
from .tables.harmonize import Refusals, check_same_columns, surveyed_sheets
from .tables.reading_settings import NUMERIC, Reading, TableColumn
from .tables.warnings import marks_of, missing_marks, named_like_id, without
from .user_files import table_settings


def survey(source: str, target: str | None = None, silo_column: str | None = None, **declared: Any) -> dict[str, Any]:
    """Describe the content of a source or a path, as plain values.

    Keys: "source"; "in_silos", whether the data consists of silos; "shape" of one input, if all have the same;
    "classes", unless the target is a quantity; and "parts", the domains or silos, each with "name", "examples", "test"
    (examples in the source's test part), "class_counts" (test part included), "shape" if shapes differ, and for tables
    "missing" per column.

    A table has "columns", in file order, each with "name", "holds" (numbers, texts, nothing), "missing" and "distinct"
    values, "range", "mean" and "std" of numbers, "unit" from the dictionary, "categories" of texts, "becomes" (its
    encoding), and "refused", the reason if it cannot be read. If there are several silos, a column also has "silos":
    for each silo, its "missing" values, and the "range" and "median" of numbers or the "counts" of categories. If some
    silos do not fit the others, a column has "unlike", their names, and "remark", the reason. `declared` has other keys
    of `[data]` for tables, such as `decimal` and `rename_columns`, or `size` of images. A table without `target` has no
    classes. Raises DataError, and warns of unusual data.
    """
    check_type(source, str, "source", "a path or a source, as text")
    name = guess(source)
    part, *_ = parsed(name)
    if isinstance(part, tables.TableSource):
        # Without a target, a table has no classes yet.
        own = table_settings("csv:any", {"target": target or "any", "silo_column": silo_column, **declared})
        return _table(part, own.reading._replace(target=target))
    found = read(DataSettings(source=name, target=target, silo_column=silo_column, **declared))
    check_usual(found.pools)
    shapes = [list(each.x.shape[1:]) for each in found.pools]
    alike = all(shape == shapes[0] for shape in shapes)
    return {
        "source": name,
        "in_silos": found.given,
        **({"shape": shapes[0]} if alike else {}),
        **({"classes": list(found.pools[0].classes)} if found.pools[0].value is None else {}),
        "parts": [
            _part(each) | ({} if alike else {"shape": shape}) for each, shape in zip(found.pools, shapes, strict=True)
        ],
    }


def _part(pool: Pool) -> dict[str, Any]:
    return {
        "name": pool.domain,
        "examples": len(pool.y),
        "test": pool.own_test,
        **({"class_counts": np.bincount(pool.y, minlength=len(pool.classes)).tolist()} if pool.value is None else {}),
    }


def _table(source: tables.TableSource, reading: Reading) -> dict[str, Any]:
    found_wrong = Refusals()
    sheets = read_sheets(source.paths(), reading.csv_format)
    sheets = surveyed_sheets(sheets, reading.csv_format, reading.target, reading.no_inputs.values(), found_wrong)
    if reading.declared.dictionary:  # columns that it lacks are not read, so files may differ in them
        shared = set[str].intersection(*(set(sheet.columns) for sheet in sheets))
        sheets = [sheet.with_columns({name: None for name in sheet.columns if name not in shared}) for sheet in sheets]
    check_same_columns(sheets, reading.no_inputs.values())
    lacking = found_wrong.keys() - set(sheets[0].columns)
    reading = reading._replace(
        categorical=[name for name in reading.categorical if name not in lacking],
        numeric=[name for name in reading.numeric if name not in lacking],
    )
    tables.check_names(sheets, reading)
    tables.check_labels(sheets, reading)
    labelled = reading.target is not None and reading.predict not in NUMERIC
    if labelled and reading.target not in found_wrong:
        sheets = tables.one_class(sheets, reading)
    tables.warn_of_groups(sheets, reading)
    columns = [_column(sheets, column, reading, found_wrong) for column in sheets[0].columns]
    columns += [_lacking(name, refusal) for name, refusal in found_wrong.items() if name not in sheets[0].columns]
    tables.warn_of_spaces(sheets, [column["name"] for column in columns if "categories" in column])
    _add_silos(columns, sheets, reading)
    found = {label for sheet in sheets for label in sheet.column(reading.target or "")} if labelled else set[str]()
    classes = ordered(sorted(found))
    counts = Counter(name for sheet in sheets for name in tables.silos_of(sheet, reading))
    names = ordered(list(counts)) if reading.silo_column else tuple(counts)
    return {
        "source": str(source),
        "in_silos": len(sheets) > 1 or reading.silo_column is not None,
        **({"classes": list(classes)} if classes else {}),
        "columns": columns,
        "parts": _parts(sheets, names, counts, classes, reading),
    }


def _add_silos(columns: list[dict[str, Any]], sheets: Sequence[Sheet], reading: Reading) -> None:
    """Add each silo's values to the columns that can be read, and mark silos that do not fit."""
    silos = np.array([silo for sheet in sheets for silo in tables.silos_of(sheet, reading)])
    names = list(dict.fromkeys(silos.tolist()))
    given = {column["name"]: column for column in columns if "refused" not in column and column["distinct"]}
    for name in (*reading.no_inputs.values(), *filter(named_like_id, list(given))):
        if name != reading.target:
            given.pop(name, None)  # ids differ between silos
    if len(names) < 2 or FLOAT * len(silos) * len(given) > memory():
        return
    for name, column in given.items():
        held = TableColumn(name, tuple(column["categories"]) if "categories" in column else None)
        values = encoded_rows(sheets, [held])[:, 0]
        of_silos = {silo: values[silos == silo] for silo in names}
        column["silos"] = [each.plain for each in at_silos(held, of_silos)]
        if marks := marks_of(values) if held.categories is None else []:
            warnings.warn(missing_marks(name, marks, of_silos), DataWarning, stacklevel=4)
        found = at_silos(held, without(of_silos, marks))
        if odd := unlike(found):
            column |= {"unlike": odd, "remark": remark(name, found, odd, name == reading.target)}
            warnings.warn(column["remark"], DataWarning, stacklevel=4)


def _parts(
    sheets: Sequence[Sheet], names: Sequence[str], counts: Counter[str], classes: Sequence[str], reading: Reading
) -> list[dict[str, Any]]:

    def with_silos(column: str) -> Iterator[tuple[str, str]]:
        for sheet in sheets:
            yield from zip(tables.silos_of(sheet, reading), sheet.column(column), strict=True)

    features = [column for column in sheets[0].columns if column not in reading.no_inputs.values()]
    absent = {column: Counter(silo for silo, text in with_silos(column) if missing(text)) for column in features}
    labels = Counter(with_silos(reading.target)) if reading.target is not None else None
    return [
        {
            "name": silo,
            "examples": counts[silo],
            **({} if labels is None else {"test": 0, "class_counts": [labels[silo, label] for label in classes]}),
            "missing": {column: absent[column][silo] for column in features},
        }
        for silo in names
    ]


def _lacking(name: str, refusal: Refused) -> dict[str, Any]:
    return {
        "name": name,
        "holds": "nothing",
        "missing": 0,
        "distinct": 0,
        "becomes": "refused",
        "refused": str(refusal),
    }


def _column(sheets: Sequence[Sheet], name: str, reading: Reading, wrong: Refusals) -> dict[str, Any]:
    rules = {rule.name: rule for rule in reading.declared.dictionary}
    if name in reading.no_inputs.values():
        found = column_of(sheets, name, reading._replace(categorical=(name,)))
        refused = label_refusal(sheets, reading) if name == reading.target else ""
        numeric = {"quantity": "values of a quantity", "time": "times to an event"}
        kind = numeric.get(reading.predict or "", "classes")
        of = {reading.target: kind, reading.silo_column: "silos", reading.groups: "groups", reading.time: "times",
              reading.event: "values of events"}  # fmt: skip
        if name == reading.time:
            try:
                found = replace(found, distinct=len(np.unique(tables.row_times(sheets, reading))))
            except Refused as refusal:
                refused = str(refusal)
        if reading.predict in NUMERIC and name in (reading.target, reading.event):
            try:
                column_values(sheets, reading.target or "", reading.csv_format, reading.event)
            except Refused as refusal:
                refused = str(refusal) if refusal.column == name else refused
        becomes = f"{'label: ' if name == reading.target else ''}{found.distinct} {of[name]}"
    else:
        found = column_of(sheets, name, reading)
        refused, becomes = found.refused, _becomes(found)
        if rules and name not in rules:
            refused, becomes = "", "not read: not in the dictionary"
        elif found.remark and not refused:
            warnings.warn(f"column {name!r}: {found.remark}", DataWarning, stacklevel=4)
    entry = {"name": name, "holds": found.holds, "missing": found.missing, "distinct": found.distinct}
    refused = str(wrong[name]) if name in wrong else refused
    if found.lowest is not None:
        entry["range"] = [found.lowest, found.highest]
    if found.mean is not None:
        entry |= {"mean": found.mean, "std": found.deviation}
    if name in rules and rules[name].unit:
        entry["unit"] = rules[name].unit
    if found.categories is not None:
        entry["categories"] = list(found.categories)
    return entry | ({"becomes": "refused", "refused": refused} if refused else {"becomes": becomes})


def _becomes(found: ColumnContent) -> str:
    if not found.distinct:
        return "nothing, because it has no values"
    if found.distinct == 1 and not found.missing:
        return "a constant, which is useless"
    if found.holds == "texts":
        return f"{found.distinct} {'category' if found.distinct == 1 else 'categories'}"
    number = "number" if found.distinct > 1 else "constant"
    return f"{number} and a flag" if found.missing else number
