"""Tables and lines in a terminal, made with rich."""

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from rich.align import VerticalAlignMethod
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleRenderable, JustifyMethod, RichCast
from rich.table import Table as TextTable
from rich.text import Text

__all__ = ["Heading", "TextTable", "breaking", "text_table", "written"]


class Heading(NamedTuple):
    """The heading and format of a column."""

    text: str
    words: bool = False
    """Whether the column contains words, which are aligned left, rather than numbers."""
    wraps: bool = False
    """Whether cells wrap if the terminal is too narrow for all columns."""


def text_table(
    heads: Iterable[Heading],
    rows: Iterable[Sequence[str | Text]],
    title: str = "",
    caption: str = "",
    ends: Container[int] = (),
    gap: int = 0,
    leading: int = 0,
    vertical: VerticalAlignMethod = "top",
) -> TextTable:
    """Return a table of rows below headings, with a rule below every row whose number is in `ends`.

    `gap` is the number of spaces added between columns, and `leading` is the number of blank lines between rows.
    `vertical` aligns cells that have fewer lines than other cells of their row.
    """
    table = TextTable(
        title=Text(title) if title else None, title_justify="left", box=SIMPLE_HEAD, show_edge=False,
        padding=(0, gap, 0, 0), leading=leading, caption=Text(caption) if caption else None, caption_justify="left",
    )  # fmt: skip
    for head in heads:
        justify: JustifyMethod = "left" if head.words else "right"
        table.add_column(Text(head.text), justify=justify, vertical=vertical, overflow="fold", no_wrap=not head.wraps)
    for i, row in enumerate(rows):
        # Text instead of str, because rich reads brackets in a str as markup.
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row), end_section=i in ends)
    return table


def written(shown: ConsoleRenderable | RichCast, width: int = 120) -> str:
    """Return the lines that a terminal of this width shows, without colors and trailing spaces."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def breaking(text: str) -> str:
    """Replace no-break spaces, which would be printed as escapes, by spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")
