"""What is compared: rows (methods and variants of them) x columns (settings) x seeds, and how rows are tuned."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...config import Config, load
from ...config.text import toml
from ...core import ConfigurationError

LONGEST = 100
"""Bytes of a folder's name, more or less."""
Sets = tuple[str, ...]
"""Overrides "SECTION.KEY=VALUE", as of `--set`."""


@dataclass(frozen=True)
class Measure:
    """A figure of `summary.json`."""

    name: str
    figure: str = ""
    """Of every silo, below its `test` or, with slashes, below the silo: intervals then know of silos and seeds."""
    path: str = ""
    """Otherwise a path into the summary, of keys and of entries by their name or domain, between slashes."""
    higher: bool | None = None
    """Whether more is better; None where neither is."""
    percent: bool = False
    """Shown times 100."""


MEASURES = (
    Measure("accuracy", "accuracy", higher=True, percent=True),
    Measure("entropy", "entropy"),
    Measure("nll", "nll", higher=False),
    Measure("brier", "brier", higher=False),
    Measure("ece", "ece", higher=False),
    Measure("auroc_error", "auroc_error", higher=True),
    Measure("augrc", "augrc", higher=False),
)
"""What is compared unless a table says otherwise."""


@dataclass(frozen=True)
class MethodRow:
    """A method with settings of its own."""

    name: str
    sets: Sets
    values: tuple[Any, ...] = ()
    """What is tried when tuning, if not what every row tries."""
    note: str = ""


@dataclass(frozen=True)
class SettingColumn:
    """A setting that all rows have in common: a configuration and what overrides it."""

    name: str
    recipe: str | None
    sets: Sets = ()


@dataclass(frozen=True)
class Tuning:
    """Every row tries as many values of a key, and keeps the best on validation data."""

    key: str
    values: tuple[Any, ...]
    model: str = ""
    """Whose accuracy decides where a row has several models: "global", "local"; by default what silos predict with."""
    seeds: int = 1
    """On how many of the comparison's seeds, the first ones, every value is tried."""


@dataclass(frozen=True)
class Figure:
    """A figure that a paper prints for a place in the table."""

    row: str
    column: str
    measure: str
    value: float


@dataclass(frozen=True)
class Published:
    """The table that a comparison does again."""

    source: str
    differs: str
    """What differs from the paper's protocol."""
    figures: tuple[Figure, ...]
    claims: tuple[str, ...] = ()
    """What the paper concludes, in words."""


@dataclass(frozen=True)
class Cell:
    """One run: a row in a column with a seed, and with one of the values that are tried."""

    row: MethodRow
    column: SettingColumn
    seed: int
    tuned: Sets = ()

    @property
    def title(self) -> str:
        where = ", ".join(part for part in (self.column.name, f"seed {self.seed}", *self.tuned) if part)
        return f"{self.row.name} ({where})"

    @property
    def folder(self) -> str:
        """Where the run lies, relative to the comparison's folder."""
        parts = (self.column.name, self.row.name, *self.tuned, f"seed-{self.seed}")
        return "/".join(["runs", *(slug(part) for part in parts if part)])

    def config(self, rounds: int | None = None) -> Config:
        """The run's configuration. Raises ConfigurationError naming the cell."""
        more = () if rounds is None else (f"rounds={rounds}",)
        sets = [*self.column.sets, *self.row.sets, *self.tuned, *more, f"seed={self.seed}", "beside=[]"]
        try:
            config = load(self.column.recipe, [*sets, "engine.workers=1"])
            if config.method.name == _method_of(self.column.recipe, self.column.sets):
                return config
            # What decides in the recipe may mean nothing to another method, but what the row asks for stays.
            asked = [key.split(".")[1] for key in map(key_of, self.row.sets) if key.startswith("uncertainty.")]
            kept = {name: getattr(config.uncertainty, name) for name in asked}
            fitting = config.uncertainty.fitting(config.build_method())
            return dataclasses.replace(config, uncertainty=dataclasses.replace(fitting, **kept))
        except ConfigurationError as error:
            lines = (f"{self.row.name}{' in ' if self.column.name else ''}{self.column.name}: {line}"
                     for line in str(error).splitlines())  # fmt: skip
            raise ConfigurationError("\n".join(lines)) from None


@dataclass(frozen=True)
class Grid:
    """A comparison, before anything runs."""

    title: str
    rows: tuple[MethodRow, ...]
    columns: tuple[SettingColumn, ...]
    seeds: tuple[int, ...]
    tuning: Tuning | None = None
    rounds_of: str = ""
    """The row with whose rounds of training, in the same column and with the same seed, all others train."""
    measures: tuple[Measure, ...] = MEASURES
    command: str = ""
    """What to type to run it again."""
    about: str = ""
    published: Published | None = None
    swept: tuple[str, ...] = ()
    """Keys whose values make the columns."""

    def check(self) -> None:
        """Raises ConfigurationError for what cannot be compared, with a line per problem, before anything runs."""
        for kind, names in (("row", [row.name for row in self.rows]), ("column", [c.name for c in self.columns])):
            slugs = [slug(name) for name in names]
            if doubled := [name for name, short in zip(names, slugs, strict=True) if slugs.count(short) > 1]:
                raise ConfigurationError(f"more than one {kind} is called {doubled[0]!r}; give each a name of its own")
        if len(set(self.seeds)) < len(self.seeds) or not self.seeds:
            raise ConfigurationError(f"seeds {', '.join(map(str, self.seeds))}: expected some, all different")
        if self.rounds_of and self.rounds_of not in [row.name for row in self.rows]:
            rows = ", ".join(row.name for row in self.rows)
            raise ConfigurationError(f"no row {self.rounds_of!r} to take the rounds of; rows: {rows}")
        self._check_rows()
        self._check_tuning()
        problems = []
        firsts = [(column, row) for column in self.columns for row in self.rows]
        trials = [cell for column, row in firsts for cell in self.tried(row, column) or [self.first(row, column)]]
        others = [Cell(self.rows[0], self.columns[0], seed) for seed in self.seeds]
        for cell in (*trials, *others):
            try:
                cell.config()
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError("\n".join(problems))

    def _check_rows(self) -> None:
        for row in self.rows:
            for each in row.sets:
                if _is_shared(key_of(each)):
                    raise ConfigurationError(
                        f"row {row.name!r} sets {each}: rows are compared on the same data, silos and seeds; settings "
                        "of the data make columns"
                    )
                if key_of(each) in self.swept:
                    raise ConfigurationError(f"row {row.name!r} sets {each}, which is swept over as well")
                if key_of(each) == "rounds" and self.rounds_of not in ("", row.name):
                    raise ConfigurationError(f"row {row.name!r} sets {each}, but takes the rounds of {self.rounds_of}")
            if self.tuning and row.values and len(row.values) != len(self.tuning.values):
                raise ConfigurationError(
                    f"row {row.name!r} tries {len(row.values)} values of {self.tuning.key}, the others "
                    f"{len(self.tuning.values)}; every row gets as many"
                )

    def _check_tuning(self) -> None:
        if self.tuning is None:
            return
        key = self.tuning.key
        if _is_shared(key):
            raise ConfigurationError(f"{key} cannot be tuned: rows are compared on the same data, silos and seeds")
        if key in self.swept:
            raise ConfigurationError(f"{key} is tuned and swept over; choose one")
        for row in self.rows:
            if key in map(key_of, row.sets):
                raise ConfigurationError(f"{key} is tuned, but row {row.name!r} sets it")

    def values(self, row: MethodRow) -> tuple[Any, ...]:
        """What a row tries; empty if nothing is tuned."""
        return (row.values or self.tuning.values) if self.tuning else ()

    @property
    def judged(self) -> str:
        """The model whose accuracy decides."""
        return self.tuning.model if self.tuning else ""

    def first(self, row: MethodRow, column: SettingColumn) -> Cell:
        """A row's first run in a column."""
        return next(iter(self.tried(row, column)), Cell(row, column, self.seeds[0]))

    def tried(self, row: MethodRow, column: SettingColumn) -> list[Cell]:
        """The runs that tuning compares, in the order of the values; empty if nothing is tuned."""
        return [cell for _, cells in self.trials(row, column) for cell in cells]

    def trials(self, row: MethodRow, column: SettingColumn) -> list[tuple[Any, list[Cell]]]:
        """Every value that tuning compares, with its runs."""
        return [
            (value, [Cell(row, column, seed, (self.setting(value),)) for seed in self.seeds_tried])
            for value in self.values(row)
        ]

    @property
    def seeds_tried(self) -> tuple[int, ...]:
        """Those that values are tried on."""
        return self.seeds[: self.tuning.seeds] if self.tuning else ()

    def setting(self, value: Any) -> str:
        assert self.tuning is not None
        return f"{self.tuning.key}={toml(value)}"

    def places(self) -> Iterator[tuple[SettingColumn, MethodRow, int]]:
        """Every place in the table, by column, seed and row."""
        for column in self.columns:
            for seed in self.seeds:
                for row in self.rows:
                    yield column, row, seed

    def at(self, row: MethodRow, column: SettingColumn, seed: int, chosen: Sets) -> Cell:
        """The run in a place of the table, with the value that was chosen."""
        return Cell(row, column, seed, chosen)


def slug(name: str) -> str:
    """A name as that of a folder."""
    short = re.sub(r"[^\w.=+-]+", "-", name.strip()).strip("-.") or "-"
    if len(short.encode()) <= LONGEST:
        return short
    return f"{short.encode()[:LONGEST].decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@functools.cache
def _method_of(recipe: str | None, sets: Sets) -> str:
    """The method that a column's configuration names itself."""
    return load(recipe, sets).method.name


def key_of(setting: str) -> str:
    """The key of "SECTION.KEY=VALUE"."""
    return setting.partition("=")[0].strip()


def _is_shared(key: str) -> bool:
    """Whether all rows must have the same value of a key."""
    return key.split(".")[0] in ("data", "seed") or key in ("evaluation.silos", "federation.newcomers")


def swept(columns: Sequence[SettingColumn], sweeps: Mapping[str, Sequence[Any]]) -> tuple[SettingColumn, ...]:
    """The columns once for every combination of values of the keys."""
    found = tuple(columns)
    ends = [key.split(".")[-1] for key in sweeps]
    for key, values in sweeps.items():
        end = key.split(".")[-1]
        label = key if ends.count(end) > 1 else end
        found = tuple(
            replace(column, name=", ".join(filter(None, (column.name, f"{label}={toml(value)}"))),
                    sets=(*column.sets, f"{key}={toml(value)}"))
            for column in found
            for value in values
        )  # fmt: skip
    return found
