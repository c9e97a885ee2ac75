"""The data dictionary shared by all silos, and the column names, units and label codes of a silo's table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from ...core import ConfigurationError
from ...core.settings import check_different, frozen_settings

Name = Annotated[str, Field(min_length=1, max_length=500)]
Decimal = Literal[".", ","]
Thousands = Literal[",", ".", " ", "'"]
Marks = tuple[str | float, ...]
"""Values that mean missing: texts, or numbers."""


@frozen_settings
class DictionaryColumn:
    """A column of a data dictionary."""

    name: Name
    """The column's name at all silos."""
    type: Literal["number", "category"] = "number"
    """The type of its values: numbers, or texts and codes of categories."""
    unit: str = ""
    """The unit of its numbers, for display and comparison with the unit of a silo's column."""
    range: tuple[float, float] | None = None
    """number: the lowest and the highest valid value."""
    values: tuple[Name, ...] = ()
    """category: all valid values; by default any."""
    missing: tuple[str | float, ...] = ()
    """Values that mean missing, in addition to an empty cell, ?, NA, nan, null and none."""
    outside: Literal["refuse", "missing"] = "refuse"
    """Treatment of values outside of `range` or `values`: refuse the table, or treat them as missing."""

    def __post_init__(self) -> None:
        wrong = {"number": "values", "category": "range"}[self.type]
        if getattr(self, wrong):
            raise ConfigurationError(
                f"data.dictionary: column {self.name!r} has type = {self.type!r}, which excludes {wrong}",
                "data.dictionary",
            )
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ConfigurationError(
                f"data.dictionary: column {self.name!r} has range = {list(self.range)}, expected the lower value first",
                "data.dictionary",
            )

    @property
    def expected(self) -> str:
        """The valid values, for messages."""
        if self.range is not None:
            low, high = self.range
            return f"from {low:g} to {high:g} {self.unit}".rstrip()
        return f"among {', '.join(self.values)}"


@frozen_settings
class LabelCode:
    """The meaning of a label in a file."""

    code: str
    """The label in the file."""
    meaning: Name
    """The class."""


@frozen_settings
class OwnColumn:
    """The name and the format of a column in a silo's own file."""

    own: Name
    """The column's name in the file."""
    name: str = ""
    """The column's name at all silos; empty if the column is removed."""
    unit: str = ""
    """The unit of its numbers in the file, which may be written in the cells ("68 kg", "€ 5"); it must equal the
    dictionary's unit unless there is a factor."""
    factor: Annotated[float, Field(gt=0)] | None = None
    """The factor that converts its numbers to the dictionary's unit."""
    outside: Literal["refuse", "missing"] | None = None
    """Overrides the dictionary's treatment of invalid values."""
    decimal: Decimal | None = None
    """Overrides the file's decimal mark."""
    thousands: Thousands | None = None
    """Overrides the file's thousands mark."""
    missing: Marks = ()
    """Values that mean missing in this column, in addition to those of the file."""
    limit: Literal["value", "half"] | None = None
    """Numbers such as <0.5 and >100 are read as the limit; with "half", <0.5 is read as half the limit."""
    date: str = ""
    """The format of dates, such as "%d.%m.%Y" or "%Y%m%d", which are read as days, or of times, "%H:%M", which are read
    as hours; "excel" for dates that a spreadsheet stored as numbers of days since 1899-12-30."""
    since: str = ""
    """Days count from this date, 2020-01-31; by default from 1970-01-01."""
    until: str = ""
    """Days count up to this date: for a date of birth, the age at that date."""
    codes: tuple[LabelCode, ...] = ()
    """The meanings of its texts, CODE = "MEANING"."""

    def __post_init__(self) -> None:
        key = f"data.rename_columns: column {self.own!r}"
        if self.decimal is not None and self.decimal == self.thousands:
            told = f"{key} has {self.decimal!r} as decimal mark and as thousands mark, expected different marks"
            raise ConfigurationError(told, "data.rename_columns")
        if (self.since or self.until) and (not self.date or (self.since and self.until)):
            told = f"{key}: expected since or until only with date, and only one of the two"
            raise ConfigurationError(told, "data.rename_columns")
        for name in ("since", "until"):
            try:
                datetime.fromisoformat(getattr(self, name) or "1970-01-01")
            except ValueError:
                raise ConfigurationError(
                    f"{key} has {name} = {getattr(self, name)!r}, expected a date such as 2020-01-31",
                    "data.rename_columns",
                ) from None


@frozen_settings
class OwnFile:
    """The format of one file, if it differs from `[data]`."""

    name: Name
    """The file's name without its suffix."""
    decimal: Decimal | None = None
    thousands: Thousands | None = None
    separator: str | None = None
    missing: Marks = ()
    """Values that mean missing in this file, in addition to `data.missing`."""
    label_codes: tuple[LabelCode, ...] = ()
    rename_columns: tuple[OwnColumn, ...] = ()


@dataclass(frozen=True)
class Declared:
    """All declarations of a table's columns and labels."""

    classes: tuple[str, ...] = ()
    label_codes: tuple[LabelCode, ...] = ()
    rename_columns: tuple[OwnColumn, ...] = ()
    dictionary: tuple[DictionaryColumn, ...] = ()
    thousands: Thousands | None = None
    missing: Marks = ()
    files: tuple[OwnFile, ...] = ()

    def of_type(self, kind: str) -> tuple[str, ...]:
        """Return the names of the dictionary's columns of a type."""
        return tuple(column.name for column in self.dictionary if column.type == kind)

    def own_file(self, *names: str) -> OwnFile | None:
        """Return the format of the first file in `names` that has its own; None if no file has."""
        known = {file.name: file for file in self.files}
        return next((known[name] for name in names if name in known), None)


NOTHING = Declared()


def check_declared(declared: Declared, categorical: Sequence[str], numeric: Sequence[str]) -> None:
    """Raise ConfigurationError for duplicate and contradictory declarations."""
    check_different(declared.classes, "data.classes")
    if len(declared.classes) == 1:
        raise ConfigurationError(
            f"data.classes = {list(declared.classes)}: expected two classes or more", "data.classes"
        )
    check_different([column.name for column in declared.dictionary], "data.dictionary")
    check_different([each.code for each in declared.label_codes], "data.label_codes")
    check_different([column.own for column in declared.rename_columns], "data.rename_columns")
    check_different([column.name for column in declared.rename_columns if column.name], "data.rename_columns")
    check_different([file.name for file in declared.files], "data.files")
    left_out = {column.own for column in declared.rename_columns if not column.name}
    for file in declared.files:
        if column := next((each for each in file.rename_columns if each.own == each.name in left_out), None):
            raise ConfigurationError(
                f"data.rename_columns removes {column.own!r} from all files, but data.files.{file.name}."
                "rename_columns declares the format of this column; remove one of the two entries",
                "data.rename_columns",
            )
    for key, names, other in (("categorical", categorical, "number"), ("numeric", numeric, "category")):
        if both := sorted(set(names) & set(declared.of_type(other))):
            raise ConfigurationError(
                f"data.{key} has {both[0]!r}, but data.dictionary declares it as {other!r}", f"data.{key}"
            )


def as_lists(data: dict[str, Any]) -> dict[str, Any]:
    """Return `[data]` with dictionary, label codes, renamed columns and files converted from tables to lists.

    As tables they are `[NAME]` with the keys of `DictionaryColumn`; CODE = "CLASS"; OWN = "NAME", OWN = false for a
    column to remove, or OWN = {name = "NAME", ...} with the keys of `OwnColumn`; and `[NAME]` with those of `OwnFile`.
    """
    made: dict[str, Callable[[Mapping[str, Any]], list[Any]]] = {
        "dictionary": _dictionary,
        "label_codes": _codes,
        "files": lambda table: [
            {"name": name, **as_lists(each)} if isinstance(each, dict) else each for name, each in table.items()
        ],
        "rename_columns": lambda table: [_column(own, each) for own, each in table.items()],
    }
    return data | {key: make(data[key]) for key, make in made.items() if isinstance(data.get(key), dict)}


def _dictionary(table: Mapping[str, Any]) -> list[Any]:
    return [
        {
            "name": name,
            **each,
            **({"values": list(map(str, each["values"]))} if isinstance(each.get("values"), list) else {}),
        }
        if isinstance(each, dict)
        else each
        for name, each in table.items()
    ]


def _codes(table: Mapping[str, Any]) -> list[Any]:
    return [{"code": code, "meaning": meaning} for code, meaning in table.items()]


def _column(own: str, value: Any) -> dict[str, Any]:
    if value is False:
        return {"own": own}
    if not isinstance(value, dict):
        return {"own": own, "name": value}
    codes = {"codes": _codes(value["codes"])} if isinstance(value.get("codes"), dict) else {}
    return {"own": own, "name": own, **value, **codes}
