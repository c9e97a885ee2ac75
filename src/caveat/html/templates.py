"""Templates of pages, and tables as columns of cells."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..core.text import decimal, percent, short_source

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|points?|nats|min|s|[kMG]?B)(?!\w)[^<>]*<)")
_PROSE = re.compile(r"<(p|li|dd|figcaption)\b.*?</\1>", re.DOTALL)
"""Running text; cells of tables have no line breaks, and commands and settings stay as they are."""


def render(template: str, **parts: Any) -> str:
    """Render a template, named by its path from this folder, with `parts`; `contents` collects its sections."""
    page = _environment().get_template(template).render(parts, contents=[])
    return _PROSE.sub(lambda text: _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text[0]), page)


@cache
def _environment() -> Environment:
    """Return the environment, which caches compiled templates; an undefined name is an error."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(percent=percent, decimal=decimal, short_source=short_source)
    return found


MARKS = {"bad": "✗", "open": "▲", "unknown": "?", "good": "✓"}
"""Marks for the kinds of statements, in the order of display."""


class Statement(NamedTuple):
    """A verdict: `good`, `unknown` (nothing is shown), `open` (trouble is shown: use with care) or `bad`."""

    kind: str
    text: Markup | str

    @property
    def mark(self) -> str:
        return MARKS[self.kind]


def worst_first(lines: Iterable[Statement]) -> list[Statement]:
    """Return verdicts in the order of `MARKS`."""
    return sorted(lines, key=lambda line: list(MARKS).index(line.kind))


@dataclass(frozen=True)
class Cell:
    """The content of a cell: text, or markup if it is Markup."""

    text: str
    flag: str = ""
    """The reason why the cell is flagged; empty if it is not."""


@dataclass(frozen=True)
class Column:
    """A column with its heading; words are aligned left, numbers right."""

    header: str
    cells: tuple[Cell, ...]
    help: str = ""
    words: bool = False
    measure: str = ""
    """The metric whose selection shows the column; empty for a column that is always shown."""


def column(header: str, cells: Iterable[Cell | str], help: str = "", measure: str = "", words: bool = False) -> Column:
    """Return a column of numbers, from cells or their contents."""
    made = tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in cells)
    return Column(header, made, help, words, measure)


def words(header: str, cells: Iterable[Cell | str], help: str = "") -> Column:
    """Return a column of words, from cells or their contents."""
    return column(header, cells, help, words=True)


@dataclass(frozen=True)
class Table:
    """Columns of one length, with a caption."""

    columns: Sequence[Column]
    caption: str = ""
    names: Sequence[str] = ()
    """The silo or method for highlighting each of the first rows; empty for none."""
    footer: int = 0
    """Number of summary rows at the end."""

    @property
    def rows(self) -> list[tuple[str, tuple[Cell, ...]]]:
        """Name and cells of each row."""
        cells = zip(*(column.cells for column in self.columns), strict=True)
        return list(zip(chain(self.names, repeat("")), cells, strict=False))


def table(columns: Iterable[Column], caption: str = "", names: Sequence[str] = (), footer: int = 0) -> Table | None:
    """Return a table without its empty columns; None if no column is left."""
    kept = [column for column in columns if any(cell.text for cell in column.cells)]
    return Table(kept, caption, names, footer) if kept else None
