"""Tables and refusals that `caveat data` prints about a data source."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..terminal.tables import Heading, TextTable, text_table

MOST_COLUMNS = 12
"""Maximum number of classes for which a table has a column per class."""
MOST_REFUSALS = 10
"""Maximum number of refused columns that are explained."""
MOST_SILOS = 8
"""Maximum number of silos for which the table shows every column at each silo."""
LONGEST_CELL = 18
"""Maximum length of a cell, so that the table fits a terminal with 80 columns."""


def survey_table(found: Mapping[str, Any]) -> TextTable:
    """Return a table with a row per domain or silo, which contains the numbers of samples, of test samples, of samples
    per class and of missing values."""
    kind = "silo" if found["in_silos"] else "domain"
    shape = f", {_times(found['shape'])}" if "shape" in found else ""
    if "columns" in found:
        shape = f", {len(found['columns'])} columns"
    rows = [_part(part, kind, found.get("classes", [])) for part in found["parts"]]
    heads = [Heading(name, words=i == 0, wraps=True) for i, name in enumerate(rows[0])]
    return text_table(heads, (list(row.values()) for row in rows), f"{found['source']}{shape}", gap=2)


def _part(part: Mapping[str, Any], kind: str, classes: Sequence[str]) -> dict[str, str]:
    cells = {kind: part["name"] or "all"}
    if "shape" in part:
        cells["shape"] = _times(part["shape"])
    cells["samples"] = str(part["examples"])
    if "test" in part:
        cells["test part"] = str(part["test"] or "none")
    counts = part.get("class_counts", [])
    if len(counts) <= MOST_COLUMNS:
        cells |= {f"class {name}": str(count) for name, count in zip(classes, counts, strict=False)}
    else:
        cells |= {"classes": str(len(counts)), "fewest of a class": str(min(counts)), "most": str(max(counts))}
    if "missing" in part:
        lacking = [f"{column} {count}" for column, count in part["missing"].items() if count]
        more = ", ..." if len(lacking) > MOST_COLUMNS else ""
        cells["missing values"] = ", ".join(lacking[:MOST_COLUMNS]) + more or "none"
    return cells


def column_table(found: Mapping[str, Any]) -> TextTable:
    """Return a table with a row per column of the data, which shows its contents and how it is encoded."""
    heads = ("column", "holds", "values", "mean", "missing", "distinct", "becomes")
    rows = []
    for column in found["columns"]:
        low, high = column.get("range", ("", ""))
        values = f"{low:g} to {high:g}" if "range" in column else ", ".join(column.get("categories", ()))
        values = f"{values} {column.get('unit', '')}".rstrip()
        mean = f"{column['mean']:.3g} ± {column['std']:.2g}" if "mean" in column else ""
        counts = (str(column["missing"]), str(column["distinct"]))
        becomes = "refused: see below" if "refused" in column else column["becomes"]
        rows.append((_short(column["name"]), column["holds"], _short(values), mean, *counts, becomes))
    made = [Heading(name, words=name not in ("missing", "distinct"), wraps=True) for name in heads]
    return text_table(made, rows, gap=1)


def silo_table(found: Mapping[str, Any]) -> TextTable | None:
    """Return a table with a row per column and silo, which marks silos that are unlike the others.

    With many silos, the table shows only columns in which some silos are unlike the others, and only a few of the
    silos. Returns None if there are no silos.
    """
    rows = []
    for column in found["columns"]:
        silos, odd = column.get("silos", ()), column.get("unlike", ())
        if len(silos) > MOST_SILOS:
            silos = sorted(silos, key=lambda each: each["name"] not in odd)[: MOST_SILOS if odd else 0]
        for i, each in enumerate(silos):
            low, high = each.get("range", ("", ""))
            counts = sorted(each.get("counts", {}).items(), key=lambda pair: -pair[1])
            values = f"{low:g} to {high:g}" if "range" in each else ", ".join(f"{name} {n}" for name, n in counts)
            median = f"{each['median']:.4g}" if "median" in each else ""
            mark = "unlike others" if each["name"] in odd else ""
            name = "" if i else _short(column["name"])
            rows.append((name, _short(each["name"]), _short(values), median, str(each["missing"]), mark))
    heads = ("column", "silo", "values", "median", "missing", "")
    made = [Heading(name, words=name not in ("median", "missing"), wraps=True) for name in heads]
    return text_table(made, rows, gap=1) if rows else None


def refusals(found: Mapping[str, Any]) -> str:
    """Return a line per column that cannot be read, with the reason."""
    refused = [column["refused"] for column in found["columns"] if "refused" in column]
    more = [f"{len(refused) - MOST_REFUSALS} more columns are refused"] if len(refused) > MOST_REFUSALS else []
    return "\n".join([*refused[:MOST_REFUSALS], *more])


def _short(text: str) -> str:
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 3]}..."


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
