"""Tables of papers as TOML files below `papers/`: runs, scales, and the results in the paper."""

import csv
import os
import tomllib
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from ..core import ConfigurationError
from ..core.errors import cut, one_of
from ..files import schema
from ..terminal.tables import Heading, TextTable, text_table

if TYPE_CHECKING:
    from .compare.grid import Grid

FOLDER = Path(__file__).parent / "papers"
Keys = dict[str, Any]
FORBID = ConfigDict(extra="forbid")


class Scale(StrEnum):
    """The scale of a reproduction."""

    cpu = "cpu"
    """Smaller models, fewer rounds and less data, for two CPU cores."""
    paper = "paper"
    """The paper's models, rounds and data, for a GPU."""


class TablePart(BaseModel):
    """A part of a file of `papers/`; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, config=FORBID)
class TableMeasure(schema.Measure):
    """A metric, by its name or by a path in the summary."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.figure) == bool(self.path):
            raise ValueError("a measure needs either a figure or a path")
        return self


@dataclass(frozen=True, config=FORBID)
class TableTuning(schema.TuningPlan):
    """The tuning of every method of a table."""

    values: Annotated[tuple[Any, ...], Field(min_length=1)]
    seeds: Annotated[int, Field(gt=0)] = 1


@dataclass(frozen=True, config=FORBID)
class TableContrast(schema.Contrast):
    """A contrast of a table, fixed in advance."""

    known: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _counted_by_silo(self) -> Self:
        if self.pooled and self.known is not None:
            raise ValueError("pooled and known cannot be combined, because shares of known inputs are counted per silo")
        return self


@dataclass(frozen=True, config=FORBID)
class TableRefinement(schema.Refinement):
    """The tuning of a method's own key."""


class TableSetting(TablePart):
    """A setting, with overrides for either scale."""

    name: str
    recipe: str = ""
    sets: Keys = {}
    cpu: Keys = {}
    paper: Keys = {}


class TableMethod(TablePart):
    """A method, with overrides for either scale."""

    name: str
    sets: Keys
    cpu: Keys = {}
    paper: Keys = {}
    figures: dict[str, dict[str, float]] = {}
    """The paper's results by column and metric."""
    note: str = ""
    tuning: tuple[Any, ...] = ()
    then: TableRefinement | None = None


class TableClaim(TablePart):
    """A claim of the paper, and why this table does not test it, unless a contrast tests it."""

    text: str
    not_tested: str = ""

    @property
    def told(self) -> str:
        return f"{self.text} (not tested: {self.not_tested})" if self.not_tested else self.text


class PaperTable(TablePart):
    """A file of `papers/`."""

    name: str
    title: str
    source: str
    differs: str
    claims: tuple[TableClaim, ...] = ()
    data: tuple[str, ...]
    packages: tuple[str, ...] = ()
    """Packages needed in addition to caveat's dependencies, by import name."""
    recipe: str
    minutes: dict[Scale, float]
    """Expected minutes with three seeds, on two cores and on a GPU."""
    tuning: TableTuning | None = None
    match_rounds: str = ""
    cpu: Keys = {}
    paper: Keys = {}
    measures: Annotated[tuple[TableMeasure, ...], Field(min_length=1)]
    columns: Annotated[tuple[TableSetting, ...], Field(min_length=1)]
    rows: Annotated[tuple[TableMethod, ...], Field(min_length=1)]
    seeds: tuple[int, ...] = ()
    """Seeds of a table with contrasts: unused before, and fixed in advance."""
    contrasts: tuple[TableContrast, ...] = ()

    @model_validator(mode="after")
    def _figures_have_places(self) -> Self:
        columns, measures = {c.name for c in self.columns}, {m.name for m in self.measures}
        for row in self.rows:
            if other := row.figures.keys() - columns:
                raise ValueError(f"row {row.name}: figures for {sorted(other)}, which are not columns")
            for found in row.figures.values():
                if other := found.keys() - measures:
                    raise ValueError(f"row {row.name}: figures of {sorted(other)}, which are not measures")
        return self

    @model_validator(mode="after")
    def _claims_are_tested_or_not(self) -> Self:
        tested = {contrast.claim for contrast in self.contrasts}
        for claim in self.claims:
            if bool(claim.not_tested) == (claim.text in tested):
                raise ValueError(f"claim {claim.text!r}: expected either a contrast with this claim or not_tested")
        return self


def tables() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def named(name: str) -> PaperTable:
    """Return the table of this name. Raises ConfigurationError for an unknown name."""
    if name not in tables():
        raise ConfigurationError(f"{name}: unknown table{one_of(name, tables())}")
    return PaperTable(name=name, **tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")))


def with_rows(table: PaperTable, names: str) -> PaperTable:
    """Return the table with these rows only, separated by commas, and with the contrasts between them.

    Raises ConfigurationError for a row that the table lacks.
    """
    # A row's name may have a comma, so the names are a line of CSV, with quotes where necessary.
    known = [row.name for row in table.rows]
    separated = [name.strip() for name in next(csv.reader([names], skipinitialspace=True))] or [""]
    asked = [names.strip()] if names.strip() in known else separated
    for name in asked:
        if name not in known:
            there = one_of(name, [f'"{row}"' if "," in row else row for row in known])
            raise ConfigurationError(f"--rows: {table.name} has no row {cut(name, 100)!r}{there}")
    contrasts = tuple(each for each in table.contrasts if each.a in asked and each.b in asked)
    tested = {each.claim for each in contrasts}
    claims = tuple(c if c.not_tested or c.text in tested else c.model_copy(update={"not_tested": "rows are left out"})
                   for c in table.claims)  # fmt: skip
    rows = tuple(row for row in table.rows if row.name in asked)
    return table.model_copy(update={"rows": rows, "contrasts": contrasts, "claims": claims})


def seeds_of(table: PaperTable, count: int | None) -> tuple[int, ...]:
    """Return the seeds of a run of the table: its fixed seeds if it has contrasts, else 0, 1, ..."""
    if table.seeds:
        if count not in (None, len(table.seeds)):
            raise ConfigurationError(
                f"--seeds {count}: {table.name} tests contrasts with {len(table.seeds)} fixed seeds; omit --seeds"
            )
        return table.seeds
    return tuple(range(count or 3))


def missing(table: PaperTable) -> list[str]:
    """Return the files that the table needs and $CAVEAT_DATA lacks."""
    folder = os.environ.get("CAVEAT_DATA")
    return [file for file in table.data if not Path(file).exists() and not (folder and (Path(folder) / file).exists())]


def absent(table: PaperTable) -> list[str]:
    """Return the packages that the table needs and that are not installed."""
    return [name for name in table.packages if find_spec(name) is None]


def listing() -> TextTable:
    """Return a table of all tables: name, title, size, expected time, data and packages."""
    wrapping = ("what", "runs", "2 cores", "paper's size, on a GPU", "data below CAVEAT_DATA, packages")
    rows = []
    for table in map(named, tables()):
        times = (duration(table.minutes[scale]) if scale in table.minutes else "" for scale in Scale)
        rows.append((table.name, table.title, str(runs_of(table, None)), *times, _needs(table)))
    return text_table(
        [Heading("table", words=True), *(Heading(name, words=True, wraps=True) for name in wrapping)], rows, gap=2
    )


def runs_of(table: PaperTable, count: int | None) -> int:
    """Return the number of runs: one per row, column and seed, and one per trial of tuning."""
    seeds = seeds_of(table, count)
    places = len(table.rows) * len(table.columns)
    if table.tuning is None:
        return places * len(seeds)
    tried = set(table.tuning.on or seeds[: table.tuning.seeds])
    places *= len(table.tuning.values) * len(tried) + len({*seeds} - tried)
    return places + len(table.columns) * len(tried) * sum(len(row.then.values) for row in table.rows if row.then)


def duration(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _needs(table: PaperTable) -> str:
    gone = {*missing(table), *absent(table)}
    return ", ".join(f"{name} (missing)" if name in gone else name for name in (*table.data, *table.packages))


def grid(table: PaperTable, scale: Scale, seeds: tuple[int, ...], command: str = "") -> "Grid":
    """Return the comparison that reproduces the table."""
    from .compare.grid import Grid  # imports torch, which --list does not need

    shared: Keys = getattr(table, scale)
    columns = tuple(
        schema.Setting(part.name, part.recipe or table.recipe,
               _sets(shared | part.sets | getattr(part, scale)))
        for part in table.columns
    )  # fmt: skip
    return Grid(
        title=f"{table.title} ({scale} scale)",
        rows=tuple(
            schema.MethodVariant(part.name, _sets(part.sets | getattr(part, scale)), part.tuning, part.note, part.then)
            for part in table.rows
        ),
        columns=columns,
        seeds=seeds,
        tuning=table.tuning,
        match_rounds=table.match_rounds,
        measures=table.measures,
        command=command,
        about=table.differs,
        published=schema.Published(table.source, table.differs, _figures(table), tuple(c.told for c in table.claims)),
        contrasts=table.contrasts,
    )


def _figures(table: PaperTable) -> tuple[schema.PaperFigure, ...]:
    return tuple(
        schema.PaperFigure(row.name, column, measure, value)
        for row in table.rows
        for column, found in row.figures.items()
        for measure, value in found.items()
    )


def _sets(keys: Keys) -> schema.Sets:
    return tuple(f"{key}={_text(value)}" for key, value in keys.items())


def _text(value: Any) -> str:
    from ..config.toml import toml

    return toml(tuple(value) if isinstance(value, list) else value)
