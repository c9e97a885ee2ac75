"""The files of analyses: `comparison.json`, and `plan.json` and `audit.json` of an audit.

In a comparison methods are called "rows", settings "columns" and runs "cells". An undefined metric is null.
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
    """A compared method, or a variant of one."""

    name: str
    method: str = ""
    sets: tuple[str, ...] = ()
    note: str = ""


class TuningReport(Record):
    """The results of tuning, by method, and the seeds on which it ran."""

    key: str
    values: dict[str, list[Any]] = {}
    seed: int | None = None
    seeds: tuple[int, ...] = ()
    runs: int | None = None
    by: str = ""


class Trial(Record):
    """A value tried in tuning; its score is the mean accuracy on validation data."""

    value: Any = None
    score: Finite = None
    error: str = ""


class SiloFigures(Record):
    """The metrics of one silo."""

    name: str
    domain: str = ""
    figures: dict[str, Finite] = {}


class MajorityRecord(Record):
    """The most frequent class of each silo's training data as the prediction of its test inputs, compared with a
    run."""

    accuracy: float
    """Its mean over silos."""
    gained: int
    """Number of inputs for which only the run is right."""
    lost: int
    """Number of inputs for which only the most frequent class is right."""


class ComparedRun(Record):
    """One method under one setting with one seed."""

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
    """Round, and the means of two metrics on validation data (`CURVES`): accuracy and entropy of classes."""
    majority: MajorityRecord | None = None
    without_inputs: dict[str, Finite] = {}
    """For a quantity or a time, metrics of the distribution of all training targets, mean over silos."""


class IntervalRecord(Record):
    """A mean and its 95 % interval."""

    OMITTED: ClassVar = frozenset({"rests_on"})

    mean: Finite = None
    low: Finite = None
    high: Finite = None
    rests_on: int | None = None
    """For a metric of a silo that separates wrong from right answers: the number of the rarer ones, over all seeds."""


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
    """The difference `a` minus `b`, on the seeds and silos that both have. The interval is simultaneous: with 95 %
    confidence, the intervals of all pairs cover their differences."""

    a: str
    b: str
    p: Finite = None
    p_adjusted: Finite = None
    """Corrected for all pairs of the table: below .05 if the interval excludes 0."""


class MeasureTable(Record):
    """A metric of all methods under one setting."""

    column: str = ""
    measure: str
    rows: tuple[Result, ...] = ()
    pairs: tuple[DifferenceRecord, ...] = ()
    inputs_sampled: bool = False
    """Whether tests and intervals of pairs treat test inputs as random rather than fixed."""


class ContrastRecord(IntervalRecord):
    """The result of a contrast that was fixed before the table was made: a metric of `a` minus the metric of `b`."""

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
    """Both are corrected by Holm's method over all contrasts of the table."""
    verdict: Literal["better", "worse", "equal", "not decided", ""] = ""
    """Empty while runs are missing."""


class Printed(Record):
    """A result of a paper, and ours."""

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
    """The method whose number of rounds all others were given; empty if each had its own."""
    tuning: TuningReport | None = None
    measures: tuple[Measure, ...] = Field(min_length=1)
    cells: tuple[ComparedRun, ...] = ()
    tables: tuple[MeasureTable, ...] = ()
    paper: Paper | None = None
    contrasts: tuple[ContrastRecord, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row per finished run and silo, with all metrics of silos."""
        return [
            {"method": run.row, "setting": run.column, "seed": run.seed, "silo": silo.name, "domain": silo.domain}
            | silo.figures
            for run in self.runs(status="done")
            for silo in run.silos
        ]

    def to_frame(self) -> Any:
        """Return the same rows as a `pandas.DataFrame`. Raises ImportError if pandas is not installed."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    @property
    def series(self) -> dict[str, int]:
        """Return the number of each method, which determines its marker and color on the whole page."""
        return {row.name: i for i, row in enumerate(self.rows)}

    def __str__(self) -> str:
        """Return a table with a row per method and setting: means, and the 95 % interval of the first metric."""
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
        """Return the table of a metric under a setting, without results if it does not exist."""
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
        """Return the paper's result."""
        keys = (method.name, setting.name, measure.name)
        figures = self.paper.figures if self.paper else ()
        return next((one.paper for one in figures if (one.row, one.column, one.measure) == keys), None)

    def places(self, setting: Setting, part: Literal["domains", "silos"]) -> list[str]:
        """Return the domains or silos for which some method has a metric, in order of appearance."""
        tables = [table for table in self.tables if table.column == setting.name]
        return list(dict.fromkeys(name for t in tables for result in t.rows for name in getattr(result, part)))


def domains_of(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """Return the domain of each silo, without silos whose domain differs between runs."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for silo in run.silos:
            found.setdefault(silo.name, set()).add(silo.domain)
    return {name: next(iter(domains)) if len(domains) == 1 else "" for name, domains in found.items()}


Verdict = Literal["holds", "does not hold", "cannot say", "does not apply"]


class Participating(Record):
    """The number of silos in a round."""

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
    """Return a mean, with its interval if `bounds` and if there is one; "-" without a mean."""
    known = [each for each in (value.mean, value.low, value.high) if each is not None]
    texts = [f"{100 * each:.1f}" if measure.percent else f"{each:.3f}" for each in known]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if bounds and len(known) == 3 else (texts or ["-"])[0]


class AccuracyRecord(Record):
    """Accuracy with all data and by chance, both in 0..1, and a statement that precedes all findings."""

    mean: float
    by_chance: float
    error: float
    at_chance: bool
    warning: str | None


@dataclass(frozen=True)
class Finding:
    """One property that was tested, with its verdict."""

    name: str
    claim: str
    """The property that the name of the uncertainty suggests."""
    verdict: Verdict
    sentence: str
    """The finding as a sentence."""
    measured: Mapping[str, Any]
    """The numbers behind it, as in JSON."""


class FusedCopies(Record):
    """Fused copies of an opinion, means over silos, with the fraction of vacuity that is left, if there was any."""

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
    """Per run: fraction, seed, training examples per silo, and the means over silos of accuracy and uncertainties."""
    fusion: dict[str, list[list[FusedCopies]]]
    """By rule, seed and number of fused copies; empty without opinions."""
