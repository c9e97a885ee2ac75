"""The files of analyses: `comparison.json`, and `plan.json` and `audit.json` of an audit.

In the file of a comparison, methods are called "rows", settings "columns", and runs "cells". An undefined metric is
null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from .base import File, Finite, Record
from .grid import Measure as Measure
from .grid import Setting as Setting

Status = Literal["done", "failed", "missing"]


class ComparedMethod(Record):
    """A compared method or variant of a method."""

    name: str
    method: str = ""
    sets: tuple[str, ...] = ()
    note: str = ""


class TuningReport(Record):
    """The results of tuning by method, and the seeds on which values were tried."""

    key: str
    values: dict[str, list[Any]] = {}
    seed: int | None = None
    seeds: tuple[int, ...] = ()
    runs: int | None = None
    by: str = ""


class Trial(Record):
    """A value that was tried in tuning, and its score, the mean of the deciding metric on validation data."""

    value: Any = None
    score: Finite = None
    error: str = ""


class SiloFigures(Record):
    """The metrics of one silo."""

    name: str
    domain: str = ""
    figures: dict[str, Finite] = {}


class MajorityRecord(Record):
    """The baseline that always predicts the most frequent class of each silo's training data, compared with a run."""

    accuracy: float
    """Mean accuracy of the baseline over silos."""
    gained: int
    """Number of test inputs that only the run predicts correctly."""
    lost: int
    """Number of test inputs that only the baseline predicts correctly."""


class ComparedRun(Record):
    """A run of a method under a setting with a seed."""

    OMITTED: ClassVar = frozenset({"majority", "without_inputs"})

    row: str
    column: str = ""
    seed: int
    status: Status
    error: str = ""
    folder: str = ""
    tuned: dict[str, Any] = {}
    tuning: tuple[Trial, ...] = ()
    rounds: int | None = None
    seconds: Finite = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    silos: tuple[SiloFigures, ...] = ()
    figures: dict[str, Finite] = {}
    """The metrics of the whole run."""
    curve: tuple[tuple[int, Finite, Finite], ...] = ()
    """Per round, its number and the means of the two metrics in `CURVES` on validation data."""
    majority: MajorityRecord | None = None
    without_inputs: dict[str, Finite] = {}
    """For a quantity or a time, mean metrics over silos of a prediction without inputs, which is the distribution of
    all training targets."""


class IntervalRecord(Record):
    """A mean and its 95 % interval."""

    OMITTED: ClassVar = frozenset({"rests_on"})

    mean: Finite = None
    low: Finite = None
    high: Finite = None
    rests_on: int | None = None
    """For a silo's metric that separates wrong from right answers: the number of wrong or of right answers over all
    seeds, whichever is smaller."""


class Result(IntervalRecord):
    """A metric of one method under one setting, over seeds and silos."""

    OMITTED: ClassVar = frozenset({"domains", "silos", "rests_on"})

    row: str
    seeds: int = 0
    failed: int = 0
    worst: Finite = None
    rank: Finite = None
    domains: dict[str, IntervalRecord] = {}
    silos: dict[str, IntervalRecord] = {}


class DifferenceRecord(IntervalRecord):
    """The difference `a` minus `b`, on the seeds and silos for which both methods have results. The interval is
    simultaneous: with 95 % confidence, the intervals of all pairs contain the true differences."""

    a: str
    b: str
    p: Finite = None
    p_adjusted: Finite = None
    """The p-value corrected for all pairs of the table, which is below .05 if the interval excludes 0."""


class MeasureTable(Record):
    """A metric of all methods under one setting."""

    column: str = ""
    measure: str
    rows: tuple[Result, ...] = ()
    pairs: tuple[DifferenceRecord, ...] = ()
    inputs_sampled: bool = False
    """Whether tests and intervals of pairs treat test inputs as random rather than fixed."""


class ContrastRecord(IntervalRecord):
    """The result of a contrast that was fixed before the table was made: the metric of `a` minus that of `b`."""

    claim: str
    a: str
    b: str
    column: str = ""
    figure: str = "accuracy"
    model: str = ""
    b_model: str = ""
    pooled: bool = False
    margin: float
    known: float | None = None
    silos: tuple[str, ...] = ()
    seeds: int = 0
    p_different: Finite = None
    p_equal: Finite = None
    """Both p-values are corrected by Holm's method for all contrasts of the table."""
    verdict: Literal["better", "worse", "equal", "not decided", ""] = ""
    """The verdict about `a`; empty while runs are missing."""


class Printed(Record):
    """A result of a paper, with the reproduced result."""

    row: str
    column: str = ""
    measure: str
    paper: Finite = None
    ours: Finite = None
    low: Finite = None
    high: Finite = None
    difference: Finite = None


class Paper(Record):
    """The paper whose table the comparison reproduces."""

    source: str = ""
    differs: str = ""
    claims: tuple[str, ...] = ()
    figures: tuple[Printed, ...] = ()


class Comparison(File):
    """`comparison.json`."""

    OMITTED: ClassVar = frozenset({"contrasts"})

    schema_version: int = Field(alias="schema")
    version: str = ""
    title: str = "comparison"
    command: str = ""
    about: str = ""
    seeds: tuple[int, ...] = ()
    rows: tuple[ComparedMethod, ...]
    columns: tuple[Setting, ...] = (Setting(),)
    match_rounds: str = ""
    """The method whose number of rounds all other methods used; empty if each method had its own number."""
    tuning: TuningReport | None = None
    measures: tuple[Measure, ...] = Field(min_length=1)
    cells: tuple[ComparedRun, ...] = ()
    tables: tuple[MeasureTable, ...] = ()
    paper: Paper | None = None
    contrasts: tuple[ContrastRecord, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row per finished run and silo, with all metrics of the silo."""
        return [
            {"method": run.row, "setting": run.column, "seed": run.seed, "silo": silo.name, "domain": silo.domain}
            | silo.figures
            for run in self.runs(status="done")
            for silo in run.silos
        ]

    def to_frame(self) -> Any:
        """Return the rows of `to_rows` as a `pandas.DataFrame`. Raises ImportError if pandas is not installed."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    @property
    def series(self) -> dict[str, int]:
        """The number of each method, which determines its marker and color on the whole page."""
        return {row.name: i for i, row in enumerate(self.rows)}

    def __str__(self) -> str:
        """Return a table with a row per method and setting, which contains means, and the 95 % interval of the first
        metric."""
        rows = [["method", *(f"{each.name}{', %' * each.percent}" for each in self.measures)]]
        for setting in self.columns:
            for method in self.rows:
                found = [self.result(method, setting, each) for each in self.measures]
                cells = [_numbers(*each, i == 0) for i, each in enumerate(zip(self.measures, found, strict=True))]
                name = f"{method.name}, {setting.name}" if setting.name else method.name
                rows.append([f"{name} ({found[0].failed} failed)" if found[0].failed else name, *cells])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(f"{cell:<{n}}" for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows)
        return "\n".join([f"{self.title}, {len(self.seeds)} seeds", *lines])

    def __repr__(self) -> str:
        return str(self)

    def results(self, setting: Setting, measure: Measure) -> MeasureTable:
        """Return the table of a metric under a setting; if there is no such table, one without results."""
        found = (t for t in self.tables if t.column == setting.name and t.measure == measure.name)
        return next(found, MeasureTable(column=setting.name, measure=measure.name))

    def result(self, method: ComparedMethod, setting: Setting, measure: Measure) -> Result:
        found = (result for result in self.results(setting, measure).rows if result.row == method.name)
        return next(found, Result(row=method.name))

    def runs(
        self, method: ComparedMethod | None = None, setting: Setting | None = None, status: str = ""
    ) -> list[ComparedRun]:
        """Return the runs with this method, setting and status, if given."""
        return [
            run
            for run in self.cells
            if (method is None or run.row == method.name)
            and (setting is None or run.column == setting.name)
            and (not status or run.status == status)
        ]

    def printed(self, method: ComparedMethod, setting: Setting, measure: Measure) -> float | None:
        """Return the paper's result for a method, setting and metric; None if there is none."""
        keys = (method.name, setting.name, measure.name)
        figures = self.paper.figures if self.paper else ()
        return next((one.paper for one in figures if (one.row, one.column, one.measure) == keys), None)

    def places(self, setting: Setting, part: Literal["domains", "silos"]) -> list[str]:
        """Return the domains or silos for which a method has a metric under a setting, in order of appearance."""
        tables = [table for table in self.tables if table.column == setting.name]
        return list(dict.fromkeys(name for t in tables for result in t.rows for name in getattr(result, part)))


def domains_of(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """Return the domain of each silo; "" for a silo whose domain differs between runs."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for silo in run.silos:
            found.setdefault(silo.name, set()).add(silo.domain)
    return {name: next(iter(domains)) if len(domains) == 1 else "" for name, domains in found.items()}


Verdict = Literal["holds", "does not hold", "cannot say", "does not apply"]


class Participating(Record):
    """The participation of silos in a round, as a share and as a minimum number."""

    share: float
    least: int


class AuditPlan(Record):
    """`plan.json`: everything that determines the results of an audit's runs, except for fractions and seeds."""

    OMITTED: ClassVar = frozenset({"privacy", "server"})

    method: dict[str, Any]
    model: dict[str, Any]
    uncertainty: dict[str, Any]
    privacy: dict[str, Any] = {}
    server: dict[str, Any] = {}
    participation: Participating
    personal: list[str]
    data: dict[str, Any]


def _numbers(measure: Measure, value: IntervalRecord, bounds: bool) -> str:
    """Return a mean as text, with its interval if `bounds` is true and the interval is known; "-" without a mean."""
    known = [each for each in (value.mean, value.low, value.high) if each is not None]
    texts = [f"{100 * each:.1f}" if measure.percent else f"{each:.3f}" for each in known]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if bounds and len(known) == 3 else (texts or ["-"])[0]


class AccuracyRecord(Record):
    """The accuracy with all data and by chance, both from 0 to 1, and a warning that precedes all findings."""

    mean: float
    by_chance: float
    error: float
    at_chance: bool
    warning: str | None


@dataclass(frozen=True)
class Finding:
    """A tested property, with its verdict."""

    name: str
    claim: str
    """The property that the name of the uncertainty suggests."""
    verdict: Verdict
    sentence: str
    """The finding as a sentence."""
    measured: Mapping[str, Any]
    """The numbers on which the finding is based, as in JSON."""


class FusedCopies(Record):
    """Means over silos for fused copies of an opinion. `kept` is the remaining fraction of vacuity, or None if there
    was no vacuity."""

    copies: float
    vacuity: float
    confidence: float
    kept: float | None


class AuditFile(File):
    """`audit.json`."""

    OMITTED: ClassVar = frozenset({"privacy", "server", "command"})

    schema_version: int = Field(alias="schema")
    version: str
    command: str = ""
    seeds: list[int]
    shares: list[float]
    silos: int
    method: dict[str, Any]
    model: dict[str, Any]
    uncertainty: dict[str, Any]
    privacy: dict[str, Any] = {}
    server: dict[str, Any] = {}
    participation: Participating
    personal: list[str]
    accuracy: AccuracyRecord
    findings: list[Finding]
    runs: list[dict[str, int | float]]
    """Per run: the fraction, the seed, the training examples per silo, and mean accuracy and uncertainties over
    silos."""
    fusion: dict[str, list[list[FusedCopies]]]
    """Results by rule, seed and number of fused copies; empty for a method without opinions."""
