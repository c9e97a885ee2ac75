"""Settings for reading tables: the format of their files, and the keys of `[data]` that name their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from .declarations import NOTHING, Declared

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    name: str
    categories: tuple[str, ...] | None = None
    """The texts that the column's values encode; None for a column of numbers."""


@dataclass(frozen=True)
class CsvFormat:
    """The format of csv files."""

    separator: str | None = None
    """The separator of values; None detects it in the header."""
    decimal: str = "."
    """The decimal mark of numbers."""
    declared: Declared = NOTHING
    """The declarations of columns and labels."""

    def of(self, *names: str) -> CsvFormat:
        """Return the format of the first file in `names` that has its own format, else the common format."""
        own, common = self.declared.own_file(*names), replace(self.declared, files=())
        if own is None:
            return replace(self, declared=common)
        declared = replace(
            common,
            thousands=own.thousands or (common.thousands if own.decimal in (None, self.decimal) else None),
            missing=(*common.missing, *own.missing),
            label_codes=_overridden(common.label_codes, own.label_codes, "code"),
            rename_columns=_overridden(common.rename_columns, own.rename_columns, "own"),
        )
        return CsvFormat(own.separator or self.separator, own.decimal or self.decimal, declared)

    @property
    def conversions(self) -> list[str]:
        """All settings that change the numbers of a file: marks other than a decimal point, and factors of columns."""
        marks = [f"decimal mark {self.decimal!r}"] if self.decimal != "." else []
        if self.declared.thousands:
            marks.append(f"thousands mark {self.declared.thousands!r}")
        return [*marks, *(f"{each.own} * {each.factor:g}" for each in self.declared.rename_columns if each.factor)]


AS_USUAL = CsvFormat()


def _overridden(common: tuple[Entry, ...], own: tuple[Entry, ...], key: str) -> tuple[Entry, ...]:
    return tuple({getattr(each, key): each for each in (*common, *own)}.values())


NUMERIC = ("quantity", "time")
"""Values of `data.predict` whose targets are numbers."""


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
    predict: str | None = None
    event: str | None = None

    @property
    def no_inputs(self) -> dict[str, str]:
        """The columns that are not inputs, by the key that names them."""
        keys = ("target", "event", "silo_column", "groups", "time", *(() if self.subgroup_input else ("subgroups",)))
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
