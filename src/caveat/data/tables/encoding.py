"""The encoding of tables: from cells to numbers and codes, and from numbers and codes to model features.

Numbers and codes are in memory, or in a memory-mapped file in `tables` below the cache folder. Its name is a hash of
the tables' files and of the way they are read, so all runs share one file. Damage is detected by a hash of its content,
stored next to it. Features have the same width for all silos, and each silo fits its encoder on its training split.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ...core import ConfigurationError, DataError, UnlikeColumn
from ...core.devices import cache_folder
from ..lazy_rows import ArrayRows, row_parts
from ..raw_samples import LONGEST, Array, ordered
from .allowed_values import Limit, allowed, usable
from .cell_formats import NO_NUMBER, numeric, same_value
from .column_refusals import ENDLESS, LARGEST
from .drift_reference import NO_REFERENCE, Reference
from .files import Sheet, missing
from .reading_settings import AS_USUAL, CsvFormat, TableColumn

FORMAT = 2
"""Increased whenever the same files yield other numbers."""
FITTED = 1 << 23
"""Maximum number of values for which an encoder is fitted at once, in whole columns."""


def encoded_rows(sheets: Sequence[Sheet], table: Sequence[TableColumn]) -> Array:
    """Return all rows of tables as (N, D) float32: numbers (NaN if missing) and category codes (-1 if missing). A
    category that the table lacks gets the code after the last. Raises DataError for other text among numbers."""
    rows = np.empty((sum(map(len, sheets)), len(table)), np.float32)
    first = 0
    for part in _parts(sheets, table):
        rows[first : first + len(part)] = part
        first += len(part)
    return rows


def mapped_rows(sheets: Sequence[Sheet], table: Sequence[TableColumn]) -> Array:
    """Return the rows of `encoded_rows`, read from a file on access. Raise ConfigurationError if it cannot be
    written."""
    folder = cache_folder() / "tables"
    file = folder / f"{_name(sheets, table)}.npy"
    shape = (sum(map(len, sheets)), len(table))
    try:
        rows = _kept(file, shape)
        if rows is None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it contains private data
            _write(file, shape, sheets, table)
            rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ConfigurationError(
            f"data.lazy = true: the {shape[0]:,} rows of the table cannot be stored in {folder} ({error}); "
            "set CAVEAT_CACHE to another folder",
            "data.lazy",
        ) from error
    return cast(Array, ArrayRows(rows, lambda x, _: x, ", ".join(str(sheet.path) for sheet in sheets[:3])))


def _parts(sheets: Sequence[Sheet], table: Sequence[TableColumn]) -> Iterator[Array]:
    for part in (part for sheet in sheets for part in sheet.parts()):
        yield np.stack([_column(part, column) for column in table], axis=1)


class Codes(dict[str, int]):
    """The codes of texts: -1 for a missing value, the same code for equal numbers or truth values, and the code after
    the last one for an unknown text."""

    def __init__(self, categories: Sequence[str]) -> None:
        super().__init__({text: code for code, text in enumerate(categories)})
        self.alike = {same_value(text): code for text, code in reversed(self.items())}
        self.unseen = len(categories)

    def __missing__(self, text: str) -> int:
        plain = text.removeprefix(NO_NUMBER)
        code = -1 if missing(plain) else self.alike.get(same_value(plain), self.unseen)
        self[text] = code
        return code


def _column(sheet: Sheet, column: TableColumn) -> Array:
    if column.categories is not None:
        codes = Codes(column.categories)
        return np.array([codes[text] for text in sheet.column(column.name)], dtype=np.float32)
    if (stored := sheet.numbers(column.name)) is not None:
        return _stored(np.concatenate(list(stored)), sheet, column)
    values = np.full(len(sheet), np.nan, dtype=np.float32)
    for row, text in enumerate(sheet.column(column.name)):
        if missing(text):
            continue
        value = numeric(text)
        if value is None or not abs(value) <= LARGEST:
            raise DataError(f"{sheet.place(column.name, row)}, {ENDLESS}")
        values[row] = value
    return values


def _stored(values: Array, sheet: Sheet, column: TableColumn) -> Array:
    """Convert the numbers (n,) of a file to float32."""
    endless = abs(values) > LARGEST
    if endless.any():
        raise DataError(f"{sheet.place(column.name, int(endless.argmax()))}, {ENDLESS}")
    return values.astype(np.float32)


def _name(sheets: Sequence[Sheet], table: Sequence[TableColumn]) -> str:
    columns = [(column.name, column.categories) for column in table]
    digest = hashlib.sha256(json.dumps([FORMAT, columns]).encode())
    for sheet in sheets:
        if sheet.changes is not None:
            digest.update(json.dumps(sheet.changes).encode())
        with sheet.path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:40]


def _kept(file: Path, shape: tuple[int, int]) -> Array | None:
    """Return the rows of a cached file; None if it is missing or damaged."""
    try:
        if file.is_symlink() or _sum_of(file) != file.with_suffix(".sha256").read_text():
            return None
        rows: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return rows if rows.shape == shape and rows.dtype == np.float32 else None


def _write(file: Path, shape: tuple[int, int], sheets: Sequence[Sheet], table: Sequence[TableColumn]) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".part-") as part:
        made = Path(part) / file.name
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
        with made.open("wb") as opened:
            np.lib.format.write_array_header_1_0(opened, header)
            for rows in _parts(sheets, table):
                opened.write(rows.data)
        told = Path(part) / "sum"
        told.write_text(_sum_of(made))
        os.replace(told, file.with_suffix(".sha256"))
        os.replace(made, file)


def _sum_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@dataclass(frozen=True)
class TableLayout:
    """The features to which every silo encodes its rows."""

    columns: tuple[TableColumn, ...] = ()
    """The table's columns in order, with the categories in any silo's training split."""
    flagged: tuple[str, ...] = ()
    """Numeric columns with missing values in some silo's training split: they get an indicator feature."""

    @property
    def width(self) -> int:
        """The number of features of a row."""
        one_each = [column for column in self.columns if column.categories is None]
        return len(one_each) + len(self.flagged) + sum(len(column.categories or ()) for column in self.columns)


class Checked(NamedTuple):
    """Raw rows, compared with the data dictionary and with a silo's own rows."""

    values: Array
    """(N, D) the rows; values that the dictionary does not allow are missing."""
    why: Tensor
    """(N,) int64 of Reason: OUTSIDE or EMPTY for rows that are not answered, else NONE."""
    notes: tuple[str, ...]
    """(N,) notes."""
    unlike: tuple[UnlikeColumn, ...]
    """Columns in which all rows together are unlike the silo's own rows."""


@dataclass(frozen=True)
class Encoder:
    """The encoder of a silo's raw rows, fitted on its training split; all silos have the same width."""

    table: tuple[TableColumn, ...]
    """The columns of the raw rows."""
    layout: TableLayout
    medians: tuple[float, ...]
    """Per numeric column of the layout, in order: the imputed value."""
    means: tuple[float, ...]
    """Per numeric column: the mean that is subtracted."""
    scales: tuple[float, ...]
    """Per numeric column: the divisor."""
    csv_format: CsvFormat = AS_USUAL
    """The format of files with rows to encode."""
    reference: Reference = NO_REFERENCE
    """Values of the silo's own rows, for tests of whole batches of new rows."""

    def __call__(self, raw: Array) -> Array:
        """Encode raw values (N, D) as finite float32 features (N, F). Invalid category codes count as missing."""
        if raw.ndim != 2 or raw.shape[1] != len(self.table):
            raise DataError(f"the rows have shape {raw.shape}, expected (N, {len(self.table)})")
        values = raw if raw.dtype.kind == "f" else raw.astype(np.float64)
        known = [_known(values[:, i], column) for i, column in enumerate(self.table)]
        rows = recoded(np.stack(known, axis=1), self.table, self.layout.columns)
        numbers, flagged, coded = _kinds(self.layout)
        given = rows[:, numbers]
        medians, means, scales = (np.array(each, rows.dtype) for each in (self.medians, self.means, self.scales))
        scaled = (np.where(np.isnan(given), medians, given) - means) / scales
        one_hot = [rows[:, i : i + 1] == np.arange(count) for i, count in coded.items()]
        return np.concatenate([scaled, np.isnan(rows[:, flagged]), *one_hot], axis=1, dtype=np.float32)

    def decoded(self, features: Array) -> dict[str, str]:
        """Return the values of one encoded row (F,) by column, as text, "" for a missing one. Numbers have four digits;
        in columns without an indicator, missing numbers are the imputed ones. Empty for a row of another width."""
        numbers, flagged, coded = _kinds(self.layout)
        if len(features) != len(numbers) + len(flagged) + sum(coded.values()):  # features of a frozen model
            return {}
        end = len(numbers) + len(flagged)
        missing = {i for i, flag in zip(flagged, features[len(numbers) : end], strict=True) if flag}
        means, scales = np.array(self.means), np.array(self.scales)
        values = features[: len(numbers)] * scales + means
        values = np.where(abs(values) < 1e-6 * (abs(means) + scales), 0.0, values)  # rounding of float32
        found = {i: "" if i in missing else f"{value:.4g}" for i, value in zip(numbers, values, strict=True)}
        for i, count in coded.items():
            chosen = np.flatnonzero(features[end : end + count])
            found[i], end = (self.layout.columns[i].categories or ())[chosen[0]] if len(chosen) else "", end + count
        return {column.name: found[i] for i, column in enumerate(self.layout.columns)}

    def limits(self, silo: str) -> dict[int, Limit]:
        """Return the values that the data dictionary allows, by the position of a column; other columns allow all
        values."""
        declared = self.csv_format.of(silo).declared
        own = {column.name: column.outside for column in declared.rename_columns}
        rules = {rule.name: rule for rule in declared.dictionary}
        found = {}
        for i, column in enumerate(self.table):
            rule = rules.get(column.name)
            if rule is not None and (rule.range if column.categories is None else rule.values):
                found[i] = Limit(rule, (own.get(rule.name) or rule.outside) == "missing")
        return found

    def checked(self, raw: Array, silo: str) -> Checked:
        """Compare raw rows (N, D) with the data dictionary and with the silo's own rows."""
        limits = self.limits(silo)
        raw = raw if raw.dtype.kind == "f" else raw.astype(np.float64)
        values, why = usable(torch.from_numpy(raw), self.table, limits)
        raw, refused = (each.numpy() for each in allowed(torch.from_numpy(raw), self.table, limits))
        notes = self._notes(raw, {i: refused[:, i] for i in limits}, limits)
        return Checked(values.numpy(), why, notes, self.reference.unlike(raw, self.table))

    def _notes(self, raw: Array, refused: Mapping[int, Array], limits: Mapping[int, Limit]) -> tuple[str, ...]:
        """Return a note for each of (N, D) raw rows whose prediction is unreliable, "" for other rows. A category is
        unseen if no training split has it, or if its code is invalid (codes begin at 0; -1 is missing)."""
        trained = {column.name: set(column.categories or ()) for column in self.layout.columns}
        notes: list[list[str]] = [[] for _ in raw]
        absent = np.stack([_absent(raw[:, i], column) for i, column in enumerate(self.table)], axis=1).all(axis=1)
        for row in np.flatnonzero(absent):
            notes[row].append("all values missing")
        for i, column in enumerate(self.table):
            if column.categories is not None:
                codes = [code for code, text in enumerate(column.categories) if text in trained[column.name]]
                unseen = ~np.isin(raw[:, i], codes) & ~_absent(raw[:, i], column)
                unseen = unseen & ~refused[i] if i in refused else unseen
                for row in np.flatnonzero(unseen):
                    notes[row].append(f"unseen category of {column.name[:LONGEST]}")
            for row in np.flatnonzero(refused[i]) if i in refused else ():
                notes[row].append(f"{column.name[:LONGEST]} is not {limits[i].rule.expected}")
        return tuple("; ".join(each) for each in notes)


def _absent(values: Array, column: TableColumn) -> Array:
    """Return (N,) bool: whether a column's values are missing."""
    return np.isnan(values) if column.categories is None else np.isnan(values) | (values == -1)


def _known(values: Array, column: TableColumn) -> Array:
    if column.categories is None:
        return values
    known = np.isin(values, np.arange(len(column.categories)))
    return np.where(known, values, -1) if not known.all() else values


def common_layout(table: tuple[TableColumn, ...], train: Sequence[Array]) -> TableLayout:
    """Return the layout for silos whose training splits, raw rows (N, D), are all on this machine."""
    flagged = np.logical_or.reduce([some_missing(rows) for rows in train])
    names = tuple(c.name for c, is_flagged in zip(table, flagged, strict=True) if c.categories is None and is_flagged)
    return TableLayout(seen(table, train), names)


def some_missing(rows: Array) -> Array:
    """Return (D,) bool: whether a number is missing in each column of raw rows (N, D)."""
    found = np.zeros(rows.shape[1], bool)
    for part in row_parts(rows):
        found |= np.isnan(part).any(axis=0)
    return found


def all_missing(rows: Array) -> Array:
    """Return (D,) bool: whether all numbers are missing in each column of raw rows (N, D)."""
    found = np.ones(rows.shape[1], bool)
    for part in row_parts(rows):
        found &= np.isnan(part).all(axis=0)
    return found


def seen(table: Sequence[TableColumn], several: Sequence[Array]) -> tuple[TableColumn, ...]:
    """Return the columns of a table with the categories that occur in some of its rows."""
    codes = {i: set[int]() for i, column in enumerate(table) if column.categories is not None}
    for part in (part for rows in several for part in row_parts(rows)):
        for i, known in codes.items():
            known |= set(np.unique(part[:, i]).astype(int).tolist())
    return tuple(
        column
        if column.categories is None
        else TableColumn(column.name, ordered([column.categories[code] for code in sorted(codes[i]) if code >= 0]))
        for i, column in enumerate(table)
    )


def recoded(rows: Array, table: Sequence[TableColumn], columns: Sequence[TableColumn]) -> Array:
    """Convert rows (N, D) of `table` to the order and codes of `columns`, which have the same names.

    A category that `columns` lack becomes a missing value. Raises DataError for a column with numbers in one and
    categories in the other, unless all its values are missing.
    """
    place = {column.name: i for i, column in enumerate(table)}
    return np.stack([_recoded(rows[:, place[c.name]], table[place[c.name]], c) for c in columns], axis=1)


def _recoded(values: Array, old: TableColumn, new: TableColumn) -> Array:
    if old.categories == new.categories:
        return values
    if old.categories is None or new.categories is None:
        if not (np.isnan(values) if old.categories is None else values < 0).all():
            raise DataError(f"column {new.name!r} has numbers at one silo but texts at another")
        return np.full_like(values, np.nan if new.categories is None else -1)
    known = Codes(new.categories)
    codes = np.array([known[text] for text in old.categories], dtype=values.dtype)
    codes = np.append(np.where(codes == known.unseen, -1, codes), values.dtype.type(-1))
    return np.asarray(codes[values.astype(int)])  # -1, missing, selects the last


def fit_encoders(
    tables: Mapping[str, tuple[TableColumn, ...]], train: Mapping[str, Array], layout: TableLayout
) -> dict[str, Encoder]:
    """Fit one encoder per silo on the raw rows (N, D) of its training split, with the columns in `tables`.

    Missing numbers are replaced by the median, numbers are standardized, and flagged columns get an indicator of
    missing values. Categories are one-hot encoded over the categories of the layout; other categories become zeros.
    """
    from sklearn.impute import SimpleImputer  # importing scikit-learn takes a second
    from sklearn.preprocessing import StandardScaler

    numbers, _, _ = _kinds(layout)

    def fit(silo: str, rows: Array) -> Encoder:
        medians, means, scales = list[float](), list[float](), list[float]()
        width = max(FITTED // max(len(rows), 1), 1)
        for some in (numbers[i : i + width] for i in range(0, len(numbers), width)):
            given = np.empty((len(rows), len(some)), rows.dtype, order="F")
            start = 0
            for part in row_parts(rows):
                given[start : start + len(part)] = recoded(part, tables[silo], layout.columns)[:, some]
                start += len(part)
            impute = SimpleImputer(strategy="median", keep_empty_features=True)
            scale = StandardScaler().fit(impute.fit_transform(given))
            medians += map(float, impute.statistics_)
            means += map(float, scale.mean_)
            scales += map(float, scale.scale_)
        return Encoder(tables[silo], layout, tuple(medians), tuple(means), tuple(scales))

    return {silo: fit(silo, rows) for silo, rows in train.items()}


def _kinds(layout: TableLayout) -> tuple[list[int], list[int], dict[int, int]]:
    """Return the positions of numeric columns and of flagged ones, and the categories per categorical column. Features
    are in this order."""
    numbers = [i for i, column in enumerate(layout.columns) if column.categories is None]
    flagged = [i for i in numbers if layout.columns[i].name in layout.flagged]
    return numbers, flagged, {i: len(column.categories) for i, column in enumerate(layout.columns) if column.categories}
