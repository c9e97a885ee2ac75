"""Tables in CSV and parquet files: their rows as numbers and codes of categories."""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, repeat
from pathlib import Path

import numpy as np

from ...core import ConfigurationError, DataError, DataWarning, Refused, SiloId
from ...core.devices import FLOAT, check_memory
from ...core.errors import nearest
from ..groups import numbered, times
from ..lazy_rows import some_rows
from ..quantities import CLASSES, column_values, with_values
from ..raw_samples import Array, DataSource, LabelArray, Pool, ordered, shown
from ..setting_lines import assignment
from ..side_by_side import check_spellings
from ..tables.allowed_values import FORBIDDEN
from ..tables.cell_formats import PLAIN, number, one_spelling
from ..tables.column_refusals import label_refusal, spelling_refusal
from ..tables.columns import ColumnContent, date_advice, features_of
from ..tables.encoding import Codes, encoded_rows, mapped_rows
from ..tables.files import SUFFIX, ParquetSheet, Sheet, missing, read_sheets, spaces
from ..tables.harmonize import check_same_columns, declared_rows, declared_sheets
from ..tables.reading_settings import NUMERIC, CsvFormat, Reading, TableColumn
from ..tables.warnings import named_like_id, repeats
from .base import Source, SourceSettings, file_of_silo

DAY = 86400.0
MEND_ROW = "correct the cell (empty, ? or NA for a missing value), or remove the row; no row of the file is used"


class TableSource(Source):
    name = "csv"
    form = "csv:PATH[,PATH...]"
    about = "tables (csv or parquet) with data.target; data.silo_column names the silo, or each file is a silo"
    keys = frozenset({
        "target", "predict", "event", "horizons", "range", "standardize_target", "silo_column", "classes",
        "label_codes", "dictionary", "rename_columns", "categorical", "numeric", "decimal", "thousands", "missing",
        "separator", "files", "groups", "time", "subgroups", "subgroup_input", "duplicates", "lazy",
    })  # fmt: skip
    suffixes = (".csv", SUFFIX)
    alone = "columns of tables differ"

    def read(self, settings: SourceSettings) -> DataSource:
        return csv_source(self.paths(), settings.reading, settings.lazy)

    def read_silo(self, settings: SourceSettings, silo: SiloId) -> Pool:
        path = file_of_silo(self.paths(), silo)
        return csv_source([path], settings.reading._replace(silo_column=None), settings.lazy).pools[0]

    def paths(self) -> list[Path]:
        """Return the csv and parquet files, including files in folders. Raise DataError for a folder without any."""
        paths: list[Path] = []
        for found in super().paths():
            paths += map(_not_special, _tables(found)) if found.is_dir() else [found]
            if found.is_dir() and not _tables(found):
                raise DataError(f"{found}: no csv or parquet files in this folder")
        return paths

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        return bool(_tables(path)) if path.is_dir() else super().recognizes(path)


AGES = {"below 40": (0, 40), "40 to 54": (40, 55), "from 55": (55, 200)}
"""The silos of `DiabetesSource`, and their ages: from the first number to below the second."""


class DiabetesSource(Source):
    name = form = "diabetes"
    about = "442 patients of scikit-learn's diabetes data, in three silos by age; the target is a quantity"
    keys = frozenset({"predict", "range", "standardize_target"})
    in_silos = True
    for_one_silo = False
    alone = "its target is a quantity"
    predicts = "quantity"

    def read(self, settings: SourceSettings) -> DataSource:
        from sklearn.datasets import load_diabetes  # importing scikit-learn takes a second

        if (predict := settings.reading.predict) in ("classes", "time"):
            raise ConfigurationError(
                f"data.predict = {predict!r}: the target of 'diabetes' is a quantity", "data.predict"
            )
        bunch = load_diabetes(scaled=False)
        x, table = bunch.data.astype(np.float32), tuple(map(TableColumn, bunch.feature_names))
        pools = []
        for name, (low, high) in AGES.items():
            rows = np.flatnonzero((x[:, 0] >= low) & (x[:, 0] < high))
            pool = Pool(x[rows], np.zeros(len(rows), np.int64), CLASSES, name, table=table, origin=f"diabetes, {name}")
            pools.append(with_values(pool, bunch.target[rows]))
        return DataSource(tuple(pools), given=True)

    def paths(self) -> list[Path]:
        return []


def _tables(folder: Path) -> list[Path]:
    return sorted((*folder.glob("*.csv"), *folder.glob(f"*{SUFFIX}")))


def _not_special(path: Path) -> Path:
    """Return the path of a file or folder. Raise DataError for a pipe or a device, because reading it may never end."""
    if not path.is_file() and not path.is_dir():
        raise DataError(f"{path}: neither a file nor a folder, expected a file or a folder")
    return path


def csv_source(paths: Sequence[Path], reading: Reading, lazy: bool = False) -> DataSource:
    """Read one pool per silo if there are several files or a silo column, otherwise one pool to partition.

    With `lazy` the rows of parquet files are read when needed. Raises ConfigurationError for unknown columns and for
    lazy csv files; DataError for data that contradict their declaration.
    """
    sheets = read_sheets(paths, reading.csv_format)
    _check_size(sheets, lazy)
    return sheets_source(sheets, reading, lazy, given=len(paths) > 1)


def sheets_source(sheets: Sequence[Sheet], reading: Reading, lazy: bool = False, given: bool = True) -> DataSource:
    """Return the pools of tables; `given` says whether each table is a silo."""
    declared, target, silo = reading.declared, reading.target or "", reading.silo_column
    sheets = declared_sheets(sheets, reading.csv_format, reading.target, reading.no_inputs.values())
    check_same_columns(sheets, reading.no_inputs.values())
    check_names(sheets, reading)
    check_labels(sheets, reading)
    warn_of_header(sheets)
    if refused := label_refusal(sheets, reading):
        raise Refused(refused, "names", target)
    quantity = reading.predict in NUMERIC
    sheets = sheets if quantity else one_class(sheets, reading)
    table = _schema(features_of(sheets, reading), warn_of_groups(sheets, reading))
    if not table:
        raise DataError(f"{sheets[0].path}: no columns but {target!r}, expected at least one feature")
    warn_of_spaces(
        sheets,
        [*([] if quantity else [target]), *([silo] if silo else []), *(each.name for each in table if each.categories)],
    )
    values = column_values(sheets, target, reading.csv_format, reading.event) if quantity else None
    texts = (text for sheet in sheets for text in sheet.column(target))
    y, classes = _coded(texts, declared.classes) if values is None else (np.zeros(len(values), np.int64), ())
    if silo:
        groups, names = _coded(text for sheet in sheets for text in sheet.column(silo))
    else:
        groups, names = np.repeat(np.arange(len(sheets)), list(map(len, sheets))), tuple(s.silo for s in sheets)
    if len(set(names)) < len(names):
        raise DataError(f"several files are called {max(names, key=names.count)!r}, expected different names")
    if values is None and (given or silo):
        check_spellings(
            {name: [classes[k] for k in np.unique(y[groups == i])] for i, name in enumerate(names)}, declared.classes
        )
    rows = mapped_rows(sheets, table) if lazy else encoded_rows(sheets, table)
    indices = [np.flatnonzero(groups == number) for number in range(len(names))]
    pools = [
        Pool(some_rows(rows, index), y[index], classes, name, table=table, csv_format=reading.csv_format)
        for name, index in zip(names, indices, strict=True)
    ]
    if values is not None:
        pools = [with_values(pool, values[index]) for pool, index in zip(pools, indices, strict=True)]
    if reading.groups:
        named = [text for sheet in sheets for text in sheet.column(reading.groups)]
        pools = [replace(pool, groups=numbered(named[row] for row in index.tolist())) for pool, index in
                 zip(pools, indices, strict=True)]  # fmt: skip
    if reading.time:
        time = row_times(sheets, reading)
        pools = [replace(pool, time=time[index]) for pool, index in zip(pools, indices, strict=True)]
    if reading.subgroups:
        cells = np.concatenate([subgroup_cells(sheet, reading) for sheet in sheets])
        pools = [replace(pool, subgroup=cells[index]) for pool, index in zip(pools, indices, strict=True)]
    return DataSource(tuple(pools), given=silo is not None or given)


def subgroup_cells(sheet: Sheet, reading: Reading) -> Array:
    """Return the cells (N,) of the column with the subgroup of each row, with decimal points."""
    texts = list(sheet.column(reading.subgroups or ""))
    if not reading.subgroup_input and reading.decimal != ".":
        texts = [text if (value := number(text, reading.decimal)) is None else repr(value) for text in texts]
    return np.array(texts, dtype=object)


def row_times(sheets: Sequence[Sheet], reading: Reading) -> Array:
    """Return the times (N,) of rows for `data.time`: dates in seconds, or numbers. Dates are in the format declared for
    the column of their file, or else in ISO 8601. Raises Refused for other cells."""
    name = reading.time or ""
    found = [_sheet_times(sheet, name, reading.csv_format.of(sheet.path.stem).decimal) for sheet in sheets]
    dates = found[0][1] or any(are_dates and not isinstance(values, int) for values, are_dates in found)
    good = [values for values, are_dates in found if are_dates == dates and not isinstance(values, int)]
    if len(good) == len(sheets):
        return np.concatenate(good)
    wrong = [(sheet, values) for sheet, (values, are_dates) in zip(sheets, found, strict=True)
             if are_dates != dates or isinstance(values, int)]  # fmt: skip
    sheet, row = wrong[0]
    expected = "expected dates such as 2024-03-31 in all rows, or numbers in all rows"
    advice = date_advice(sheets, [each for each, _ in wrong], name, reading) if dates else ""
    place = sheet.place(name, row if isinstance(row, int) else 0)
    raise Refused(f"{place}, but the column is data.time: {expected}{advice}", "reading", name)


def _sheet_times(sheet: Sheet, name: str, decimal: str) -> tuple[Array | int, bool]:
    """Return the times of a file's rows, or the first row without one, and whether they are dates."""
    form, raw = sheet.format_of(name), list(sheet.raw(name))
    if form.date:
        days = [replace(form, since="", until="").value(text) for text in raw]
        known = np.array([day for day in days if day is not None])
        if len(known) == len(days):
            return DAY * known, True
        if len(known) or number(raw[0], decimal) is not None:
            return days.index(None), True
        return times(raw, decimal), True
    texts = list(sheet.column(name))
    decimal = decimal if form == PLAIN and not sheet.stores_numbers(name) else "."
    return times(texts, decimal), number(texts[0], decimal) is None


def _check_size(sheets: Sequence[Sheet], lazy: bool) -> None:
    """Raise ConfigurationError for rows that do not fit into memory, and for lazy csv files."""
    for sheet in sheets:
        if lazy and not isinstance(sheet, ParquetSheet):
            raise ConfigurationError(
                f"data.lazy = true needs images or parquet files, but {sheet.path} is text: remove the key, or "
                "save the table as a parquet file",
                "data.lazy",
            )
    if not lazy:
        needed = FLOAT * sum(map(len, sheets)) * len(sheets[0].columns)
        told = f"{sheets[0].path}: set data.lazy = true for parquet files, because the rows take"
        check_memory(needed, told, "data.lazy")


def _coded(texts: Iterable[str], known: tuple[str, ...] = ()) -> tuple[LabelArray, tuple[str, ...]]:
    """Return codes (N,) for texts, and the texts in the order of codes: those `known`, or all sorted."""
    codes: dict[str, int] = {}
    found = np.fromiter((codes.setdefault(text, len(codes)) for text in texts), np.int64)
    names = known or ordered(list(codes))
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[text] for text in codes], np.int64)[found], names


def silos_of(sheet: Sheet, reading: Reading) -> Iterable[str]:
    """Return the silo of each row: the value of the silo column, or else the name of its file or frame."""
    return sheet.column(reading.silo_column) if reading.silo_column else repeat(sheet.silo, len(sheet))


def rows_of(sheet: Sheet, table: Sequence[TableColumn], csv_format: CsvFormat, silo: SiloId = "") -> Array:
    """Return the rows of a sheet as raw rows of a table; other columns are ignored.

    The sheet is read in the format of the training file with this name, or else in the format of the silo's files. A
    category that the table lacks gets the code after the last, and one that the data dictionary does not allow the code
    after that. Numbers are not compared with the dictionary.
    """
    csv_format = csv_format.of(sheet.path.stem, silo)
    path, sheet = sheet.path, declared_rows(sheet, csv_format)
    names = [column.name for column in table]
    absent = [name for name in names if name not in sheet.columns]
    if absent:
        others = ", ".join([name for name in sheet.columns if name not in names][:5])
        raise DataError(
            f"{path}: no column {absent[0]!r}, expected the columns that the model was trained on"
            f"{nearest(absent[0], sheet.columns) or (others and f'; columns that it was not trained on: {others}')}"
        )
    try:
        rows = encoded_rows([sheet], table)
    except DataError as error:
        raise DataError(f"{error}, with decimal mark {csv_format.decimal!r}: {MEND_ROW}") from error
    rules = {rule.name: rule for rule in csv_format.declared.dictionary if rule.values}
    for i, column in enumerate(table):
        if column.categories is not None and column.name in rules:
            allowed = Codes(rules[column.name].values)
            outside = [allowed[text] == allowed.unseen for text in sheet.column(column.name)]
            rows[outside, i] = len(column.categories) + FORBIDDEN
    return rows


def check_names(sheets: Sequence[Sheet], reading: Reading) -> None:
    """Raise ConfigurationError for unknown columns and contradictory keys."""
    features = [(name, key) for key in ("categorical", "numeric") for name in getattr(reading, key)]
    features += [(reading.subgroups, "subgroups")] if reading.subgroups is not None else []
    for name, key in (*((name, key) for key, name in reading.no_inputs.items()), *features):
        if name not in sheets[0].columns:
            columns = ", ".join(sheets[0].columns)
            why = "; columns that the data dictionary lacks are not read" if reading.declared.dictionary else ""
            if len(sheets[0].columns) == 1 and (marks := re.findall(r"[^\w.-]", columns)):
                why = f"; if these are several columns, set {assignment('separator', max(marks, key=marks.count))}"
            raise ConfigurationError(
                f"data.{key} = {name!r}: no such column; {sheets[0].path} has {columns}{why}"
                f"{nearest(name, sheets[0].columns)}",
                f"data.{key}",
            )
    for key in ("groups", "time", "target"):
        for other, named in (*((each, key) for key, each in reading.no_inputs.items()), *features):
            if other == getattr(reading, key) and named != key:
                raise ConfigurationError(
                    f"data.{key} and data.{named} are both {other!r}, expected different columns", f"data.{key}"
                )


def warn_of_header(sheets: Sequence[Sheet]) -> None:
    """Warn of a header line that looks like a row of data: names are numbers, but not column numbers."""
    for sheet in sheets:
        numbers = [value for name in sheet.columns if (value := number(name)) is not None]
        steps = {after - before for before, after in pairwise(numbers)}
        if 2 * len(numbers) >= len(sheet.columns) and (len(numbers) < 2 or steps != {1}):
            told = f"{sheet.path}: the header line is {shown(','.join(sheet.columns))}; is it a row of data?"
            warnings.warn(f"{told} If so, write a line with names above it", DataWarning, stacklevel=3)


def check_labels(sheets: Sequence[Sheet], reading: Reading) -> None:
    """Raise DataError for rows without a label, a silo, a group or a time."""
    for name in [name for key, name in reading.no_inputs.items() if key != "subgroups"]:
        for sheet in sheets:
            for row, text in enumerate(sheet.column(name)):
                if missing(text):
                    told = f"{sheet.path}, line {sheet.lines[row]}: {name!r} is missing ({text!r}), expected a value"
                    raise Refused(f"{told}; add it, or remove the row from the file", "unlabelled", name)


def one_class(sheets: list[Sheet], reading: Reading) -> list[Sheet]:
    """Return files whose labels have one spelling for each number or truth value. Raises Refused for labels that differ
    only in case, spaces, Unicode form or leading zeros."""
    target = reading.target or ""
    labels = {text for sheet in sheets for text in sheet.column(target)}
    if alike := {} if labels <= set(reading.declared.classes) else one_spelling(labels):
        cells = ([alike.get(text, text) for text in sheet.column(target)] for sheet in sheets)
        sheets = [sheet.with_columns({target: each}) for sheet, each in zip(sheets, cells, strict=True)]
    if refused := spelling_refusal(sheets, target, reading, {alike.get(text, text) for text in labels}):
        raise Refused(refused, "labels", target)
    return sheets


def warn_of_spaces(sheets: Sequence[Sheet], columns: Sequence[str]) -> None:
    """Warn of text columns in which values differ only by surrounding spaces, which are ignored."""
    for name in columns:
        if told := spaces(sheets, name):
            warnings.warn(told, DataWarning, stacklevel=3)


def warn_of_groups(sheets: Sequence[Sheet], reading: Reading) -> str:
    """Warn of the first input that looks like a group of related rows; return its name, "" if none."""
    if reading.groups is not None:
        return ""
    silos = [silo for sheet in sheets for silo in silos_of(sheet, reading)]
    inputs = [name for name in sheets[0].columns if name not in reading.no_inputs.values() and named_like_id(name)]
    found = (name for name in inputs if repeats(silos, (text for sheet in sheets for text in sheet.column(name))))
    if name := next(found, ""):
        left_out = assignment(f"rename_columns\n{name}", False)
        told = (
            f"column {shown(name)} looks like a group of rows, such as the rows of a patient: {_belong(name)}, so "
            "that they share a split and count once in each guarantee; if every row is independent of the others, "
            f"remove the column, {left_out}"
        )
        warnings.warn(told, DataWarning, stacklevel=3)
    return name


def _belong(name: str) -> str:
    return f"if rows with one {name} belong together, set {assignment('groups', name)}"


def _schema(columns: Sequence[ColumnContent], grouping: str) -> tuple[TableColumn, ...]:
    """Return a table's columns. Raise Refused with a line per refused column; `grouping` is a possible group column."""
    refused = [column for column in columns if column.refused]
    if refused:
        belong = {grouping: f"; {_belong(grouping)}"}
        told = "\n".join(column.refused + belong.get(column.name, "") for column in refused)
        raise Refused(told, "reading", refused[0].name)
    for column in columns:
        if column.remark:
            holds = "numbers" if column.categories is None else f"{column.distinct} categories"
            told = f"column {shown(column.name)} is read as {holds}: {column.remark}"
            warnings.warn(told, DataWarning, stacklevel=2)
    return tuple(column.column for column in columns)
