"""What the files of analyses hold: `comparison.json`, and `plan.json` and `audit.json` of an audit.

In a comparison methods are called "rows", settings "columns" and runs "cells". An undefined metric is null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from .grid import Measure as Measure
from .grid import Setting as Setting
from .record import File, Finite, Record

Status = Literal["done", "failed", "missing"]


class ComparedMethod(Record):
    """One of the things compared: a method, or a variant of one."""

    name: str
    method: str = ""
    sets: tuple[str, ...] = ()
    note: str = ""


class TuningReport(Record):
    """What was tuned, by method, and on which of the seeds."""

    key: str
    values: dict[str, list[Any]] = {}
    seed: int | None = None
    seeds: tuple[int, ...] = ()
    runs: int | None = None
    by: str = ""


class Trial(Record):
    """A value that tuning tried: its score is the mean accuracy on validation data."""

    value: Any = None
    score: Finite = None
    error: str = ""


class SiloFigures(Record):
    """The measures that a silo has."""

    name: str
    domain: str = ""
    figures: dict[str, Finite] = {}


class ComparedRun(Record):
    """One method under one setting with one seed."""

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
    """The measures of the whole run."""
    curve: tuple[tuple[int, Finite, Finite], ...] = ()
    """Round, mean accuracy and mean entropy on validation data."""


class IntervalRecord(Record):
    """A mean and its 95 % interval."""

    OMITTED: ClassVar = frozenset({"rests_on"})

    mean: Finite = None
    low: Finite = None
    high: Finite = None
    rests_on: int | None = None
    """Of a silo's figure that tells errors from right answers: how many there are of the rarer ones, over all seeds."""


class Result(IntervalRecord):
    """A measure of one method under one setting, over seeds and silos."""

    OMITTED: ClassVar = frozenset({"domains", "silos", "rests_on"})

    row: str
    seeds: int = 0
    failed: int = 0
    worst: Finite = None
    rank: Finite = None
    best: bool = False
    domains: dict[str, IntervalRecord] = {}
    silos: dict[str, IntervalRecord] = {}


class DifferenceRecord(IntervalRecord):
    """What `a` has more than `b`, on the seeds and silos that both have. The interval is one of a family that holds all
    pairs' differences together with 95 %."""

    a: str
    b: str
    p: Finite = None
    p_adjusted: Finite = None
    """Corrected for all pairs of the table: below .05 where the interval excludes 0."""


class MeasureTable(Record):
    """A measure of all methods under one setting."""

    column: str = ""
    measure: str
    rows: tuple[Result, ...] = ()
    pairs: tuple[DifferenceRecord, ...] = ()
    inputs_sampled: bool = False
    """Whether tests and intervals of pairs treat test inputs as random, rather than as fixed."""


class ContrastRecord(IntervalRecord):
    """What a table decides: a figure of `a` less that of `b`, said before the table was made."""

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
    """Both as Holm corrects them over all contrasts of the table."""
    verdict: Literal["better", "worse", "equal", "not decided", ""] = ""
    """Empty while runs are missing."""


class Printed(Record):
    """A figure of a paper, and ours."""

    row: str
    column: str = ""
    measure: str
    paper: Finite = None
    ours: Finite = None
    low: Finite = None
    high: Finite = None
    difference: Finite = None


class Paper(Record):
    """The paper whose table the comparison does again."""

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
    """The method that took as many rounds as all others were given; empty if each had its own."""
    tuning: TuningReport | None = None
    measures: tuple[Measure, ...] = Field(min_length=1)
    cells: tuple[ComparedRun, ...] = ()
    tables: tuple[MeasureTable, ...] = ()
    paper: Paper | None = None
    contrasts: tuple[ContrastRecord, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """A row per finished run and silo, with every measure that silos have."""
        return [
            {"method": run.row, "setting": run.column, "seed": run.seed, "silo": silo.name, "domain": silo.domain}
            | silo.figures
            for run in self.runs(status="done")
            for silo in run.silos
        ]

    def to_frame(self) -> Any:
        """Those rows as a `pandas.DataFrame`. ImportError where pandas is not installed."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    @property
    def series(self) -> dict[str, int]:
        """Which mark and colour each method has, the same all over the page."""
        return {row.name: i for i, row in enumerate(self.rows)}

    def __str__(self) -> str:
        """A table with a row per method and setting: means, and of the first measure the 95 % interval."""
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
        """Without results if that table is not there."""
        found = (t for t in self.tables if t.column == setting.name and t.measure == measure.name)
        return next(found, MeasureTable(column=setting.name, measure=measure.name))

    def result(self, method: ComparedMethod, setting: Setting, measure: Measure) -> Result:
        found = (result for result in self.results(setting, measure).rows if result.row == method.name)
        return next(found, Result(row=method.name))

    def runs(
        self, method: ComparedMethod | None = None, setting: Setting | None = None, status: str = ""
    ) -> list[ComparedRun]:
        """The runs of that method, setting and status, where given."""
        return [
            run
            for run in self.cells
            if (method is None or run.row == method.name)
            and (setting is None or run.column == setting.name)
            and (not status or run.status == status)
        ]

    def printed(self, method: ComparedMethod, setting: Setting, measure: Measure) -> float | None:
        """The paper's figure."""
        keys = (method.name, setting.name, measure.name)
        figures = self.paper.figures if self.paper else ()
        return next((one.paper for one in figures if (one.row, one.column, one.measure) == keys), None)

    def places(self, setting: Setting, part: Literal["domains", "silos"]) -> list[str]:
        """The domains or silos that any method has a figure of, in the order in which they come."""
        tables = [table for table in self.tables if table.column == setting.name]
        return list(dict.fromkeys(name for t in tables for result in t.rows for name in getattr(result, part)))


def domains_of(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """Silo -> the domain that all runs agree on; a silo that other seeds put elsewhere has none."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for silo in run.silos:
            found.setdefault(silo.name, set()).add(silo.domain)
    return {name: next(iter(domains)) if len(domains) == 1 else "" for name, domains in found.items()}


Verdict = Literal["holds", "does not hold", "cannot say", "does not apply"]


class Participating(Record):
    """How many silos a round asks."""

    share: float
    least: int


class AuditPlan(Record):
    """`plan.json`: what decides the results of an audit's runs, apart from shares and seeds."""

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
    """Accuracy with all data beside what chance gives, shares in 0..1, and what to say before all else."""

    mean: float
    by_chance: float
    error: float
    at_chance: bool
    warning: str | None


@dataclass(frozen=True)
class Finding:
    """One promise, and what became of it."""

    name: str
    claim: str
    """What the name of the uncertainty promises."""
    verdict: Verdict
    sentence: str
    """What was found, in plain words."""
    measured: Mapping[str, Any]
    """The numbers behind it, as JSON has them."""


class FusedCopies(Record):
    """Opinions of which so many copies are fused, means over silos; what is kept of their vacuity, if they hold any."""

    copies: float
    vacuity: float
    confidence: float
    kept: float | None


class AuditFile(File):
    """`audit.json`."""

    OMITTED: ClassVar = frozenset({"privacy", "server"})

    schema_version: int = Field(alias="schema")
    version: str
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
    """Per run its share, seed and training examples per silo, and means over silos: accuracy and uncertainties."""
    plane: list[list[int]]
    """Test inputs by rank of epistemic (row) and of aleatoric uncertainty (column) in their silo."""
    fusion: dict[str, list[list[FusedCopies]]]
    """By rule, seed and number of copies that were fused; empty where there are no opinions."""
