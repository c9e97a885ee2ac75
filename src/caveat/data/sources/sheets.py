"""The cells of tables as text, wherever they are from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ..pools import Array, shown

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Texts that stand for a missing value, in lower case."""


class Sheet:
    """The cells of one file with a header, as text."""

    path: Path
    columns: tuple[str, ...]
    lines: Sequence[int]
    """The line of the file where each row ends, for messages."""

    def __len__(self) -> int:
        """How many rows it has."""
        return len(self.lines)

    def verbatim(self, name: str) -> Iterable[str]:
        """The cells of a column as they are written, from the first row to the last."""
        raise NotImplementedError

    def numbers(self, name: str, decimal: str) -> Iterable[Array] | None:
        """The values of a column, in parts (n,) of float64 with NaN where one is missing, if the file holds numbers;
        None if it holds text, and where the text of its numbers would be none with this decimal mark.
        """
        return None

    def parts(self) -> Iterator[Sheet]:
        """The rows in parts that memory holds, from the first to the last."""
        yield self

    @property
    def changes(self) -> object:
        """What of it is not as the file has it, as JSON can write it; None where all is."""
        return None

    def with_columns(self, cells: Mapping[str, Sequence[str] | None]) -> Sheet:
        """The same with other cells in columns that it has; None leaves a column out."""
        return ChangedSheet(self, {name: name for name in self.columns}).with_columns(cells) if cells else self

    def renamed(self, names: Mapping[str, str]) -> Sheet:
        """The same with other names of its columns."""
        return ChangedSheet(self, {name: name for name in self.columns}).renamed(names)

    def column(self, name: str) -> Iterable[str]:
        """The cells of a column, without the spaces around them."""
        return (text.strip() for text in self.verbatim(name))

    def place(self, name: str, row: int) -> str:
        """Where a cell is and what it holds, for messages."""
        cell = next(islice(self.column(name), row, None))
        return f"{self.path}, line {self.lines[row]}: {shown(name)} is {shown(cell)}"


@dataclass(frozen=True)
class CsvSheet(Sheet):
    """The text of a CSV file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: Sequence[int]

    def verbatim(self, name: str) -> Iterable[str]:
        at = self.columns.index(name)
        return (row[at] for row in self.rows)


@dataclass(frozen=True)
class ChangedSheet(Sheet):
    """A file of which columns are called otherwise, left out, or have other cells, which memory holds."""

    base: Sheet
    names: Mapping[str, str]
    """What the file calls each column, in their order."""
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Cells in place of the file's, by column."""
    first: int = 0
    """The row of `cells` at which the file begins, of which it may be a part."""

    @property
    def path(self) -> Path:  # type: ignore[override]
        return self.base.path

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.names)

    @property
    def lines(self) -> Sequence[int]:  # type: ignore[override]
        return self.base.lines

    @property
    def changes(self) -> object:
        return [list(self.names.items()), {name: list(cells) for name, cells in self.cells.items()}]

    def verbatim(self, name: str) -> Iterable[str]:
        if name in self.cells:
            return islice(self.cells[name], self.first, self.first + len(self))
        return self.base.verbatim(self.names[name])

    def numbers(self, name: str, decimal: str) -> Iterable[Array] | None:
        return None if name in self.cells else self.base.numbers(self.names[name], decimal)

    def parts(self) -> Iterator[Sheet]:
        first = self.first
        for part in self.base.parts():
            yield ChangedSheet(part, self.names, self.cells, first)
            first += len(part)

    def with_columns(self, cells: Mapping[str, Sequence[str] | None]) -> Sheet:
        names = {name: own for name, own in self.names.items() if cells.get(name, ()) is not None}
        given = {name: each for name, each in cells.items() if each is not None}
        known = {name: each for name, each in self.cells.items() if name in names}
        return ChangedSheet(self.base, names, known | given)

    def renamed(self, names: Mapping[str, str]) -> Sheet:
        called = {names[name]: own for name, own in self.names.items()}
        return ChangedSheet(self.base, called, {names[name]: each for name, each in self.cells.items()})


def missing(text: str) -> bool:
    return text.lower() in MISSING


def first_place(sheets: Sequence[Sheet], name: str, texts: Collection[str]) -> str:
    """Where a column has one of some texts first, for messages."""
    cells = ((sheet, row, text) for sheet in sheets for row, text in enumerate(sheet.column(name)))
    return next(sheet.place(name, row) for sheet, row, text in cells if text in texts)


def spaces(sheets: Sequence[Sheet], name: str) -> str:
    """Where a column has a text with other spaces around it than elsewhere, for messages; "" if nowhere.

    Spaces are never read, so that these count as one text.
    """
    written: dict[str, str] = {}
    for sheet in sheets:
        for row, text in enumerate(sheet.verbatim(name)):
            first = written.setdefault(text.strip(), text)
            if first != text and not missing(text.strip()):
                return (
                    f"{sheet.path}, line {sheet.lines[row]}: {shown(name)} is {shown(text)}, elsewhere {shown(first)}: "
                    f"read as one, without the spaces"
                )
    return ""
