"""What `grid.json` holds: what a comparison was asked to compare, before anything runs.

Its methods are under "rows", its settings under "columns".
"""

from dataclasses import asdict, dataclass
from typing import Any

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
    """Whether more is better; None where neither more nor less is."""
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
class Refinement:
    """What a method tries once the plan's key has its value: a hyperparameter of its own."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class MethodVariant:
    """A method with settings of its own."""

    name: str
    sets: Sets
    values: tuple[Any, ...] = ()
    """What is tried when tuning, if not what every method tries."""
    note: str = ""
    then: Refinement | None = None
    """What is tried after that."""


@dataclass(frozen=True)
class Setting:
    """What all methods are compared under: a configuration and what overrides it.

    The only one of a comparison that sweeps nothing has no name.
    """

    name: str = ""
    recipe: str | None = None
    sets: Sets = ()


@dataclass(frozen=True)
class TuningPlan:
    """Every method tries as many values of a key, and keeps the best on validation data."""

    key: str
    values: tuple[Any, ...]
    model: str = ""
    """Whose accuracy decides where a method has several models: "global", "local"; by default what silos predict
    with."""
    seeds: int = 1
    """On how many of the comparison's seeds, the first ones, every value is tried."""
    on: tuple[int, ...] = ()
    """Seeds on which every value is tried in place of these, such as seeds that the table does not use."""
    extensions: int = 0
    """How often a value three times as far is tried where the best is the first or last of those tried."""


@dataclass(frozen=True)
class Contrast:
    """Two methods of which a table decides which is better, said before it is made."""

    claim: str
    """What it is about, in words."""
    a: str
    b: str
    """The names of both; figures are those of `a` less those of `b`."""
    column: str = ""
    figure: str = "accuracy"
    """Which metric, such as "nll" or "auroc_error"."""
    model: str = ""
    """Whose: "global", "local"; by default what silos predict with."""
    b_model: str = ""
    """Whose of `b`, where it is another: "own" is what silos predict with."""
    pooled: bool = False
    """Whether every test input counts as much as any other, rather than every silo."""
    margin: float = 0.01
    """Methods are equal where they differ by less."""
    known: float | None = None
    """The share of inputs, above 0 and below 1, that are as the silo's own; the rest are what only other silos know,
    stream "ood_local". By default all are of the silo's test split."""
    silos: tuple[str, ...] = ()
    """At which silos they are compared, such as those that were left out of training; by default at all."""


@dataclass(frozen=True)
class PaperFigure:
    """A figure that a paper prints for a method, a setting and a measure, by their names."""

    row: str
    column: str
    measure: str
    value: float


@dataclass(frozen=True)
class Published:
    """The table of a paper that a comparison does again."""

    source: str
    differs: str
    """What differs from the paper's protocol."""
    figures: tuple[PaperFigure, ...]
    claims: tuple[str, ...] = ()
    """What the paper concludes, in words."""


@dataclass(frozen=True)
class GridFile:
    """`grid.json`."""

    title: str
    rows: tuple[MethodVariant, ...]
    columns: tuple[Setting, ...]
    seeds: tuple[int, ...]
    tuning: TuningPlan | None = None
    match_rounds: str = ""
    """The method with whose rounds of training, in the same setting and with the same seed, all others train."""
    measures: tuple[Measure, ...] = MEASURES
    command: str = ""
    """What to type to run it again."""
    about: str = ""
    published: Published | None = None
    swept: tuple[str, ...] = ()
    """Keys whose values make the settings."""
    contrasts: tuple[Contrast, ...] = ()
    """What the table decides."""


def grid_record(grid: GridFile) -> dict[str, Any]:
    """What the file holds of a grid, but for schema and checksum."""
    return asdict(grid)
