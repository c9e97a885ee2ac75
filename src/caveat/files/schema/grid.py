"""`grid.json`: the specification of a comparison, written before anything runs.

Methods are stored under the key "rows", and settings under the key "columns".
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

Sets = tuple[str, ...]
"""Overrides "SECTION.KEY=VALUE", as in `--set`."""


@dataclass(frozen=True)
class Measure:
    """A metric of `summary.json`."""

    name: str
    figure: str = ""
    """Path of a silo metric, in a silo's `test` or, with slashes, in the silo. Its intervals use silos and seeds."""
    path: str = ""
    """Path of any other metric in the summary: keys, and names or domains of entries, separated by slashes."""
    higher: bool | None = None
    """Whether higher values are better; None if neither higher nor lower values are better."""
    percent: bool = False
    """Whether the metric is shown in percent."""

    @property
    def title(self) -> str:
        """The name of the metric in words."""
        return _TITLES.get(self.name, self.name)


_TITLES = {
    "nll": "NLL", "brier": "Brier score", "ece": "calibration error (ECE)", "auroc_error": "AUROC of errors",
    "augrc": "risk over answers (AUGRC)", "crps": "CRPS", "mae": "MAE", "rmse": "RMSE", "c_index": "C-index",
    "interval_coverage": "coverage of intervals", "interval_width": "width of intervals",
    "interval_low": "lower bound", "integrated_brier": "integrated Brier score", "c_index_uno": "Uno's C-index",
}  # fmt: skip
_COVERAGE = Measure("interval_coverage", "interval_coverage", percent=True)
MEASURES = {
    "classes": (
        Measure("accuracy", "accuracy", higher=True, percent=True),
        Measure("entropy", "entropy"),
        Measure("nll", "nll", higher=False),
        Measure("brier", "brier", higher=False),
        Measure("ece", "ece", higher=False),
        Measure("auroc_error", "auroc_error", higher=True),
        Measure("augrc", "augrc", higher=False),
    ),
    "quantity": (
        Measure("crps", "crps", higher=False),
        Measure("mae", "mae", higher=False),
        Measure("rmse", "rmse", higher=False),
        _COVERAGE,
        Measure("interval_width", "interval_width", higher=False),
        Measure("spread", "spread"),
    ),
    "time": (
        Measure("integrated_brier", "integrated_brier", higher=False),
        Measure("c_index", "c_index", higher=True),
        Measure("c_index_uno", "c_index_uno", higher=True),
        _COVERAGE,
        Measure("interval_low", "interval_low"),
    ),
}
"""The default metrics of a comparison, by what is predicted (`data.predict`)."""
CURVES = {
    "classes": ("accuracy", "entropy"), "quantity": ("crps", "spread"), "time": ("integrated_brier", "c_index"),
}  # fmt: skip
"""The metrics that are shown over rounds, by what is predicted. The first metric decides which value is kept in
tuning."""


def predicted(measures: Iterable[Measure]) -> str:
    """Return what the runs of a comparison with these metrics predict: "classes", "quantity" or "time"."""
    names = {measure.figure for measure in measures}
    return next((kind for kind in ("quantity", "time") if CURVES[kind][0] in names), "classes")


@dataclass(frozen=True)
class Refinement:
    """A hyperparameter of a single method, which is tuned after the key of the tuning plan."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class MethodVariant:
    """A method with its own settings."""

    name: str
    sets: Sets
    values: tuple[Any, ...] = ()
    """The values to try in tuning, instead of the values that every method tries."""
    note: str = ""
    then: Refinement | None = None
    """A hyperparameter to tune afterwards."""


@dataclass(frozen=True)
class Setting:
    """A setting in which all methods are compared: a configuration and its overrides. Without a sweep, there is only
    one setting, which has no name."""

    name: str = ""
    recipe: str | None = None
    sets: Sets = ()


@dataclass(frozen=True)
class TuningPlan:
    """Tuning, in which every method tries values of a key and keeps the value that is best on validation data."""

    key: str
    values: tuple[Any, ...]
    model: str = ""
    """The model that decides if a method has several models: "global", "local", or by default the model that
    predicts."""
    seeds: int = 1
    """Number of seeds on which every value is tried, the first seeds of the comparison."""
    on: tuple[int, ...] = ()
    """Seeds on which every value is tried instead of the first seeds, such as seeds that the table does not use."""
    extensions: int = 0
    """Maximum number of times that the values are extended by a factor of three if the best value is the first or
    last."""


@dataclass(frozen=True)
class Contrast:
    """Two methods to compare, which are fixed before the table is made."""

    claim: str
    """A description of the contrast."""
    a: str
    b: str
    """The names of the two methods; differences are `a` minus `b`."""
    column: str = ""
    figure: str = "accuracy"
    """The metric, such as "nll" or "auroc_error"."""
    model: str = ""
    """The compared model, "global" or "local"; by default the model that predicts."""
    b_model: str = ""
    """The compared model of `b`, if it differs from `model`; "own" is the model that predicts."""
    pooled: bool = False
    """Whether all test inputs have equal weights; otherwise, all silos have equal weights."""
    margin: float = 0.01
    """Differences below this margin count as equal."""
    known: float | None = None
    """The share of inputs, above 0 and below 1, that are from the silo's test split; the other inputs are from the
    stream "ood_local", which only other silos know. By default, all inputs are from the test split."""
    silos: tuple[str, ...] = ()
    """The silos at which the methods are compared, such as held-out silos; by default all silos."""


@dataclass(frozen=True)
class PaperFigure:
    """A paper's result for a method, a setting and a metric, by their names."""

    row: str
    column: str
    measure: str
    value: float


@dataclass(frozen=True)
class Published:
    """The table of a paper that a comparison reproduces."""

    source: str
    differs: str
    """Differences from the paper's protocol."""
    figures: tuple[PaperFigure, ...]
    claims: tuple[str, ...] = ()
    """The paper's conclusion."""


@dataclass(frozen=True)
class GridFile:
    """`grid.json`."""

    title: str
    rows: tuple[MethodVariant, ...]
    columns: tuple[Setting, ...]
    seeds: tuple[int, ...]
    tuning: TuningPlan | None = None
    match_rounds: str = ""
    """The method whose number of training rounds, for the same setting and seed, all other methods use."""
    measures: tuple[Measure, ...] = MEASURES["classes"]
    command: str = ""
    """The command that started the comparison, which can be repeated."""
    about: str = ""
    published: Published | None = None
    swept: tuple[str, ...] = ()
    """Keys whose values define the settings."""
    contrasts: tuple[Contrast, ...] = ()
    """The contrasts that the comparison tests."""


def grid_record(grid: GridFile) -> dict[str, Any]:
    """Return the content of the file of a grid, without its schema and checksum."""
    return asdict(grid)
