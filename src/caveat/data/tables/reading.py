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
    groups: str | None = None
    time: str | None = None
    subgroups: str | None = None
    subgroup_input: bool = True

    @property
    def no_inputs(self) -> dict[str, str]:
        """The keys that name a column that is not an input, and the column."""
        keys = ("target", "silo_column", "groups", "time", *(() if self.subgroup_input else ("subgroups",)))
        return {key: name for key in keys if (name := getattr(self, key)) is not None}

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
        others = [name for name in self.declared.of_type(kind) if name not in self.no_inputs.values()]
        return tuple(dict.fromkeys([*names, *others]))
