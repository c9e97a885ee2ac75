"""Text in CSV files that spreadsheets open."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that a spreadsheet takes for a formula, or drops before it looks for one."""


def as_text(cell: str) -> str:
    """A cell that a spreadsheet shows and does not run: with an apostrophe before what would be a formula.

    A plain number such as -1 stays as it is.
    """
    if not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell if cell == cell.strip() else f"'{cell}"
