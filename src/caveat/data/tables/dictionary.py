"""The data dictionary that all silos share, and the names, units and codes of a silo's own table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ...core import ConfigurationError
from ...core.settings import check_different, frozen_settings

Name = Annotated[str, Field(min_length=1, max_length=500)]


@frozen_settings
class DictionaryColumn:
    """A column of a data dictionary: what all silos mean by it."""

    name: Name
    """What the column is called everywhere."""
    type: Literal["number", "category"] = "number"
    """What its values are: numbers, or texts and codes that stand for categories."""
    unit: str = ""
    """The unit of its numbers, for people and to compare with what a silo says of its own."""
    range: tuple[float, float] | None = None
    """number: the lowest and the highest value that can be."""
    values: tuple[Name, ...] = ()
    """category: all values that there can be; by default any."""
    missing: tuple[str | float, ...] = ()
    """What stands for a missing value, beside an empty cell, ?, NA, nan, null and none."""
    outside: Literal["refuse", "missing"] = "refuse"
    """What becomes of values out of `range` or beside `values`: the table is refused, or they count as missing."""

    def __post_init__(self) -> None:
        wrong = {"number": "values", "category": "range"}[self.type]
        if getattr(self, wrong):
            raise ConfigurationError(
                f"data.dictionary: column {self.name!r} is a {self.type}, which has no {wrong}", "data.dictionary"
            )
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ConfigurationError(
                f"data.dictionary: column {self.name!r} has range = {list(self.range)}, expected the lower one first",
                "data.dictionary",
            )


@frozen_settings
class OwnColumn:
    """What a file of one's own calls a column, and how it is written there."""

    own: Name
    """Its name in the file."""
    name: str = ""
    """Its name everywhere else; empty where the column is left out."""
    unit: str = ""
    """The unit of its numbers in the file: another one than the dictionary's is refused, unless there is a factor."""
    factor: Annotated[float, Field(gt=0)] | None = None
    """What its numbers are multiplied by to be in the dictionary's unit."""
    outside: Literal["refuse", "missing"] | None = None
    """What becomes of values that the dictionary does not allow, where the file is to differ from it."""


@frozen_settings
class LabelCode:
    """What a label of a file stands for."""

    code: str
    """The label as the file has it."""
    meaning: Name
    """The class."""


@dataclass(frozen=True)
class Declared:
    """All that is declared of a table's columns and labels."""

    classes: tuple[str, ...] = ()
    label_codes: tuple[LabelCode, ...] = ()
    rename_columns: tuple[OwnColumn, ...] = ()
    dictionary: tuple[DictionaryColumn, ...] = ()

    def of_type(self, kind: str) -> tuple[str, ...]:
        """The names of the dictionary's columns of a type."""
        return tuple(column.name for column in self.dictionary if column.type == kind)


NOTHING = Declared()


def check_declared(declared: Declared, categorical: Sequence[str], numeric: Sequence[str]) -> None:
    """Raises ConfigurationError for what is declared twice, or against `data.categorical` and `data.numeric`."""
    check_different(declared.classes, "data.classes")
    if len(declared.classes) == 1:
        raise ConfigurationError(
            f"data.classes = {list(declared.classes)}: expected two classes or more", "data.classes"
        )
    check_different([column.name for column in declared.dictionary], "data.dictionary")
    check_different([each.code for each in declared.label_codes], "data.label_codes")
    check_different([column.own for column in declared.rename_columns], "data.rename_columns")
    check_different([column.name for column in declared.rename_columns if column.name], "data.rename_columns")
    for key, names, other in (("categorical", categorical, "number"), ("numeric", numeric, "category")):
        if both := sorted(set(names) & set(declared.of_type(other))):
            raise ConfigurationError(
                f"data.{key} has {both[0]!r}, but data.dictionary says that its type is {other!r}", f"data.{key}"
            )


def as_lists(data: dict[str, Any]) -> dict[str, Any]:
    """A `[data]` in which a dictionary, codes and columns are lists of their entries, however they were written.

    As tables they are `[NAME]` with the keys of `DictionaryColumn`; CODE = "CLASS"; and OWN = "NAME", OWN = false for a
    column to leave out, or OWN = {name = "NAME", ...} with the keys of `OwnColumn`.
    """
    made = {"dictionary": _dictionary, "label_codes": _codes, "rename_columns": _columns}
    return data | {key: make(data[key]) for key, make in made.items() if isinstance(data.get(key), dict)}


def _dictionary(table: Mapping[str, Any]) -> list[Any]:
    return [
        {"name": name, **each, **({"values": list(map(str, each["values"]))} if _is_list(each.get("values")) else {})}
        if isinstance(each, dict)
        else each
        for name, each in table.items()
    ]


def _codes(table: Mapping[str, Any]) -> list[Any]:
    return [{"code": code, "meaning": meaning} for code, meaning in table.items()]


def _columns(table: Mapping[str, Any]) -> list[Any]:
    return [_column(own, each) for own, each in table.items()]


def _column(own: str, said: Any) -> dict[str, Any]:
    if said is False:
        return {"own": own}
    return {"own": own, "name": own, **said} if isinstance(said, dict) else {"own": own, "name": said}


def _is_list(value: object) -> bool:
    return isinstance(value, list)
