"""The keys of `[data]` for reading tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..pools import CsvFormat
from .dictionary import NOTHING, Declared


class Reading(NamedTuple):
    """The keys of `[data]` for reading tables."""

    target: str | None
    silo_column: str | None
    categorical: Sequence[str]
    numeric: Sequence[str]
    decimal: str
    separator: str | None
    declared: Declared = NOTHING

    @classmethod
    def of(cls, settings: object) -> Reading:
        """Return the keys of a `DataSettings`, with the column types of its dictionary."""
        own = cls(*(getattr(settings, key) for key in cls._fields))
        return own._replace(
            categorical=own.with_declared(own.categorical, "category"), numeric=own.with_declared(own.numeric, "number")
        )

    @property
    def csv_format(self) -> CsvFormat:
        """The format of the files."""
        return CsvFormat(self.separator, self.decimal, self.declared)

    def with_declared(self, names: Sequence[str], kind: str) -> tuple[str, ...]:
        """Return names of features plus the dictionary's columns of a type."""
        others = [name for name in self.declared.of_type(kind) if name not in (self.target, self.silo_column)]
        return tuple(dict.fromkeys([*names, *others]))
