"""The comparison that a paper's table asks for at a scale."""

from typing import Any

from ...config.toml import toml
from ...files.schema.grid import MethodVariant, PaperFigure, Published, Sets, Setting
from ..compare.grid import Grid
from .table import Keys, PaperTable, Scale


def grid(table: PaperTable, scale: Scale, seeds: tuple[int, ...], command: str = "") -> Grid:
    """The comparison that makes the table again."""
    shared: Keys = getattr(table, scale)
    columns = tuple(
        Setting(part.name, part.recipe or table.recipe,
               _sets(shared | part.sets | getattr(part, scale)))
        for part in table.columns
    )  # fmt: skip
    return Grid(
        title=f"{table.title} ({scale} scale)",
        rows=tuple(
            MethodVariant(part.name, _sets(part.sets | getattr(part, scale)), part.tuning, part.note, part.then)
            for part in table.rows
        ),
        columns=columns,
        seeds=seeds,
        tuning=table.tuning,
        match_rounds=table.match_rounds,
        measures=table.measures,
        command=command,
        about=table.differs,
        published=Published(table.source, table.differs, _figures(table), tuple(c.told for c in table.claims)),
        contrasts=table.contrasts,
    )


def _figures(table: PaperTable) -> tuple[PaperFigure, ...]:
    return tuple(
        PaperFigure(row.name, column, measure, value)
        for row in table.rows
        for column, found in row.figures.items()
        for measure, value in found.items()
    )


def _sets(keys: Keys) -> Sets:
    return tuple(f"{key}={_text(value)}" for key, value in keys.items())


def _text(value: Any) -> str:
    return toml(tuple(value) if isinstance(value, list) else value)
