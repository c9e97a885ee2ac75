"""The list of all tables for the terminal."""

from __future__ import annotations

from ...terminal.tables import Heading, TextTable, text_table
from .table import PaperTable, Scale, absent, missing, named, seeds_of, tables


def listing() -> TextTable:
    """Name, title, size, expected time, data and packages of every table."""
    wrapping = ("what", "runs", "2 cores", "paper's size, on a GPU", "data below CAVEAT_DATA, packages")
    rows = []
    for table in map(named, tables()):
        times = (duration(table.minutes[scale]) if scale in table.minutes else "" for scale in Scale)
        rows.append((table.name, table.title, str(runs(table, None)), *times, _needs(table)))
    return text_table(
        [Heading("table", words=True), *(Heading(name, words=True, wraps=True) for name in wrapping)], rows, gap=2
    )


def runs(table: PaperTable, count: int | None) -> int:
    """One per row, column and seed, and one per value on every seed on which values are tried."""
    seeds = seeds_of(table, count)
    tried = set(table.tuning.on or seeds[: table.tuning.seeds])
    places = len(table.rows) * len(table.columns) * (len(table.tuning.values) * len(tried) + len({*seeds} - tried))
    return places + len(table.columns) * len(tried) * sum(len(row.then.values) for row in table.rows if row.then)


def duration(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _needs(table: PaperTable) -> str:
    gone = {*missing(table), *absent(table)}
    return ", ".join(f"{name} (missing)" if name in gone else name for name in (*table.data, *table.packages))
