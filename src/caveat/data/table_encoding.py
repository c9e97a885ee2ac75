"""The encoding of a table's columns: alike in width for all silos, fitted by each on its training split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import DataError
from .pools import Array, TableColumn, ordered


@dataclass(frozen=True)
class TableLayout:
    """The features that every silo encodes the rows of its table to."""

    columns: tuple[TableColumn, ...] = ()
    """The table's columns in their order, with the categories that a training split of some silo has."""
    flagged: tuple[str, ...] = ()
    """The names of columns in which a training split of some silo misses a number: they get a feature that says so."""

    @property
    def width(self) -> int:
        """How many features a row becomes."""
        one_each = [column for column in self.columns if column.categories is None]
        return len(one_each) + len(self.flagged) + sum(len(column.categories or ()) for column in self.columns)


@dataclass(frozen=True)
class Encoder:
    """A silo's features from its raw rows: fitted on its training split, as wide as every other silo's."""

    table: tuple[TableColumn, ...]
    """The columns of the raw rows."""
    layout: TableLayout
    pipeline: Any
    """A fitted scikit-learn transformer of rows with the layout's columns."""

    def __call__(self, raw: Array) -> Array:
        """(N, D) raw values to (N, F) finite float32 features."""
        if raw.ndim != 2 or raw.shape[1] != len(self.table):
            raise DataError(f"rows of shape {raw.shape}, expected {len(self.table)} columns")
        rows = recoded(raw, self.table, self.layout.columns)
        return np.asarray(self.pipeline.transform(rows), dtype=np.float32)


def common_layout(table: tuple[TableColumn, ...], train: Sequence[Array]) -> TableLayout:
    """The layout for silos whose training splits, raw rows (N, D) of one table each, are all on this machine."""
    together = np.concatenate(train)
    flagged = [c.name for i, c in enumerate(table) if c.categories is None and np.isnan(together[:, i]).any()]
    return TableLayout(seen(table, together), tuple(flagged))


def seen(table: Sequence[TableColumn], rows: Array) -> tuple[TableColumn, ...]:
    """The columns of a table with the categories that some rows of it have."""
    found = [np.unique(rows[:, i]) for i in range(len(table))]
    return tuple(
        column
        if column.categories is None
        else TableColumn(column.name, ordered([column.categories[int(code)] for code in codes if code >= 0]))
        for column, codes in zip(table, found, strict=True)
    )


def recoded(rows: Array, table: Sequence[TableColumn], columns: Sequence[TableColumn]) -> Array:
    """Rows (N, D) of `table` in the order and with the codes of `columns`, which have the same names.

    A category that `columns` lack becomes a missing value. Raises DataError for a column that holds numbers in one and
    categories in the other, unless all its rows are missing.
    """
    place = {column.name: i for i, column in enumerate(table)}
    return np.stack([_recoded(rows[:, place[c.name]], table[place[c.name]], c) for c in columns], axis=1)


def _recoded(values: Array, old: TableColumn, new: TableColumn) -> Array:
    if old.categories == new.categories:
        return values
    if old.categories is None or new.categories is None:
        if not (np.isnan(values) if old.categories is None else values < 0).all():
            raise DataError(f"column {new.name!r} has numbers at one silo and texts at another")
        return np.full_like(values, np.nan if new.categories is None else -1)
    number = {category: code for code, category in enumerate(new.categories)}
    codes = np.array([*(number.get(category, -1) for category in old.categories), -1], dtype=values.dtype)
    return np.asarray(codes[values.astype(int)])  # -1, missing, is the last


def fit_encoders(
    tables: Mapping[str, tuple[TableColumn, ...]], train: Mapping[str, Array], layout: TableLayout
) -> dict[str, Encoder]:
    """One encoder per silo, fitted on the raw rows (N, D) of its training split, whose columns are in `tables`.

    Numbers: median for missing values, standardised, and a flag where missing if the column is flagged. Categories:
    one-hot over those of the layout; others are zeros.
    """
    from sklearn.compose import ColumnTransformer  # scikit-learn takes a second to import, images do not need it
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = [i for i, column in enumerate(layout.columns) if column.categories is None]
    flagged = [i for i in numbers if layout.columns[i].name in layout.flagged]
    codes = {i: np.arange(len(column.categories)) for i, column in enumerate(layout.columns) if column.categories}

    def fit(rows: Array) -> Any:
        impute = SimpleImputer(strategy="median", keep_empty_features=True)
        parts = [
            ("number", make_pipeline(impute, StandardScaler()), numbers),
            ("missing", MissingIndicator(features="all"), flagged),
            (
                "category",
                OneHotEncoder(categories=list(codes.values()), handle_unknown="ignore", sparse_output=False),
                list(codes),
            ),
        ]
        return ColumnTransformer([part for part in parts if part[2]]).fit(rows)

    return {
        silo: Encoder(tables[silo], layout, fit(recoded(rows, tables[silo], layout.columns)))
        for silo, rows in train.items()
    }
