"""The encoding of a table's columns: alike in width for all silos, fitted by each on its training split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import DataError
from .pools import Array, TextColumn, ordered


@dataclass(frozen=True)
class TableLayout:
    """What the encoded rows of all silos have in common."""

    columns: tuple[TextColumn, ...] = ()
    """In their order, with the categories that a training split of some silo has."""
    flagged: tuple[str, ...] = ()
    """Columns of numbers that a training split of some silo misses some of."""

    @property
    def width(self) -> int:
        """How many features a row becomes."""
        one_each = [column for column in self.columns if column.categories is None]
        return len(one_each) + len(self.flagged) + sum(len(column.categories or ()) for column in self.columns)


@dataclass(frozen=True)
class Encoder:
    """A silo's features from its raw rows: fitted on its training split, as wide as every other silo's."""

    table: tuple[TextColumn, ...]
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


def common_layout(table: tuple[TextColumn, ...], train: Sequence[Array]) -> TableLayout:
    """What silos have in common whose training splits, raw rows of one table, are all at hand."""
    together = np.concatenate(train)
    flagged = [c.name for i, c in enumerate(table) if c.categories is None and np.isnan(together[:, i]).any()]
    return TableLayout(seen(table, together), tuple(flagged))


def seen(table: Sequence[TextColumn], rows: Array) -> tuple[TextColumn, ...]:
    """The columns of a table with the categories that some rows of it have."""
    found = [np.unique(rows[:, i]) for i in range(len(table))]
    return tuple(
        column
        if column.categories is None
        else TextColumn(column.name, ordered([column.categories[int(code)] for code in codes if code >= 0]))
        for column, codes in zip(table, found, strict=True)
    )


def recoded(rows: Array, table: Sequence[TextColumn], columns: Sequence[TextColumn]) -> Array:
    """The rows of one table as those of another with the same columns, by name; categories that it lacks are missing.

    A column of numbers in one and of categories in the other has to be missing in all rows: DataError if not.
    """
    place = {column.name: i for i, column in enumerate(table)}
    return np.stack([_recoded(rows[:, place[c.name]], table[place[c.name]], c) for c in columns], axis=1)


def _recoded(values: Array, old: TextColumn, new: TextColumn) -> Array:
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
    tables: Mapping[str, tuple[TextColumn, ...]], train: Mapping[str, Array], layout: TableLayout
) -> dict[str, Encoder]:
    """One encoder per silo, from the raw rows of its training split and the columns that these have.

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
