"""Text in CSV files that spreadsheets open."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that a spreadsheet takes for a formula, or drops before it looks for one."""


def as_text(cell: str) -> str:
    """A cell that a spreadsheet shows and does not run: with an apostrophe before what would be a formula.

    A plain number such as -1 stays as it is; a carriage return becomes a space.
    """
    safe = cell if not cell.startswith(FORMULA) or _plain(cell) else f"'{cell}"
    return safe.replace("\r", " ")  # Python's csv before 3.13 does not quote it, and readers end the line there


def _plain(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell == cell.strip()
