"""Wrap Markdown at 120 characters; divide tables that are too wide."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

WIDTH = 120
BESIDE = "worst silo"
"""The heading of a column that belongs to the column before it."""
ITEM = re.compile(r"(\s*)([-*]|\d+\.) ")
MARKS = re.compile(r" (?=%|(?:[-+*>#=|]+|\d+[.)])(?: |$))")
"""A space before what would be a comment (%), a list, a quotation or a heading at the beginning of a line."""
KEPT = "\0"
"""Stands for a space at which no line ends."""

Row = list[str]


def wrapped(text: str) -> str:
    """The text with all lines of 120 characters at most; blocks that fit stay as they are, and so does code."""
    blocks = ["\n".join(lines) for lines in _blocks(text.split("\n"))]
    return "\n".join(block if _fits(block) or block.startswith("```") else _wrapped(block) for block in blocks)


def cells(line: str) -> Row:
    """The cells of a line of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _fits(text: str) -> bool:
    return max(map(len, text.split("\n"))) <= WIDTH


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Tables, items of lists, paragraphs and code, one after the other; what is between them is a block as well."""
    block, kind, fenced = list[str](), "", False
    for line in lines:
        fence = line.lstrip().startswith("```")
        found = "code" if fence or fenced else _kind(line)
        begins = found != kind or (not fenced and (fence or bool(ITEM.match(line))))
        if block and begins and not (kind == "item" and found == "prose"):
            yield block
            block = []
        if not block:
            kind = found
        block.append(line)
        fenced ^= fence
        if fence and not fenced:
            kind = ""
    yield block


def _kind(line: str) -> str:
    if line.startswith("|"):
        return "table"
    return "item" if ITEM.match(line) else "prose" if line.strip() and line[0] not in "#<" else "other"


def _wrapped(block: str) -> str:
    if block.startswith("|"):
        return "\n\n".join(_tables([cells(line) for line in block.split("\n")]))
    item = ITEM.match(block)
    first = item[0] if item else " " * (len(block) - len(block.lstrip()))
    words = " ".join(block[len(first) :].split())
    # A span of code and what marks would make of a line's beginning stay where they are.
    whole = re.sub(r"`[^`]{1,90}`", lambda span: span[0].replace(" ", KEPT), words)
    lines = textwrap.wrap(
        MARKS.sub(KEPT, whole),
        WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
        initial_indent=first,
        subsequent_indent=" " * len(first),
    )
    return "\n".join(lines).replace(KEPT, " ")


def _tables(rows: Sequence[Row]) -> Iterator[str]:
    """A table as several that fit, each with the first column and some of the others.

    Columns headed "what, setting" are shown by setting; others as many at a time as fit.
    """
    heads = rows[0][1:]
    if len(heads) > 1 and all(", " in head for head in heads):
        for setting, found in groupby(range(len(heads)), lambda i: heads[i].partition(", ")[2]):
            picked = _picked(rows, [1 + i for i in found])
            picked[0] = [head.partition(", ")[0] for head in picked[0]]
            yield f"{setting}:\n\n{_text(picked)}"
        return
    shown = list[int]()
    for unit in _units(heads):
        if shown and not _fits(_text(_picked(rows, [*shown, *unit]))):
            yield _text(_picked(rows, shown))
            shown = []
        shown += unit
    yield _text(_picked(rows, shown))


def _units(heads: Sequence[str]) -> list[list[int]]:
    """The positions of columns that stay together."""
    units = list[list[int]]()
    for place, head in enumerate(heads, 1):
        if head == BESIDE and units:
            units[-1].append(place)
        else:
            units.append([place])
    return units


def _picked(rows: Sequence[Row], shown: Sequence[int]) -> list[Row]:
    return [[row[0], *(row[i] for i in shown)] for row in rows]


def _text(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines[1] = f"|{'|'.join(rows[1])}|"
    return "\n".join(lines)
