"""What the files of a run's folder hold, as the report reads them.

Keys that the report does not know are ignored, so that files may grow; an absent field is None, never zero.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

SCHEMA = 1
INSIDE = "ind"
"""The stream of what a silo knows: its test split."""
NOBODY = "ood_global"
"""The stream of what nobody in the federation knows, so that no answer is right."""
ORACLE = "oracle"
"""The name, among models, of the best choice between two that there could be."""


def _finite(value: object) -> object:
    """A figure that is not a number (an AUROC without any error, say) is one that the run does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Figure = Annotated[float | None, BeforeValidator(_finite)]


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class NullBand(Record):
    """The ECE that a perfectly calibrated model would show on as many samples."""

    mean: float
    upper: float  # 95 % quantile


class Metrics(Record):
    accuracy: Figure = None
    nll: Figure = None
    brier: Figure = None
    ece: Figure = None
    ece_null: NullBand | None = None
    entropy: Figure = None  # nats, as the two below
    aleatoric: Figure = None
    epistemic: Figure = None
    auroc_error: Figure = None
    augrc: Figure = None
    coverage: Figure = None  # share of inputs that were answered; absent in older runs, as is the next
    answered_accuracy: Figure = None

    @property
    def answered(self) -> float | None:
        """The share of inputs that were answered."""
        return self.coverage if self.coverage is not None or self.accuracy is None else 1.0

    @property
    def accuracy_answered(self) -> float | None:
        """The accuracy among these; None where there are none."""
        return self.answered_accuracy if self.coverage is not None else self.accuracy

    @property
    def ece_above_chance(self) -> bool:
        return self.ece is not None and self.ece_null is not None and self.ece > self.ece_null.upper


class Codewords(Record):
    shared: int
    private: int = 0

    def __str__(self) -> str:
        return f"{self.shared} + {self.private}"


class Reliability(Record):
    """Additive counts over equal-width bins of the top probability on [0, 1]."""

    count: list[int]
    confidence: list[float]  # sums, as the next
    correct: list[int]

    @model_validator(mode="after")
    def _same_bins(self) -> Reliability:
        if not len(self.count) == len(self.confidence) == len(self.correct) > 0:
            raise ValueError("count, confidence and correct must have the same number of bins, at least one")
        return self

    def __add__(self, other: Reliability) -> Reliability:
        return Reliability(
            count=[a + b for a, b in zip(self.count, other.count, strict=True)],
            confidence=[a + b for a, b in zip(self.confidence, other.confidence, strict=True)],
            correct=[a + b for a, b in zip(self.correct, other.correct, strict=True)],
        )


class Histogram(Record):
    """Counts over steps of equal width, of which empty ones may be left out."""

    start: list[float] = Field(alias="from")  # lower ends, ascending
    count: list[float]
    step: Annotated[float, Field(gt=0)] = 10.0

    @model_validator(mode="after")
    def _same_steps(self) -> Histogram:
        if len(self.start) != len(self.count) or any(a >= b for a, b in pairwise(self.start)):
            raise ValueError("from must ascend and have as many numbers as count")
        return self


class ModelRecord(Record):
    """Figures over silos."""

    silos: int | None = None
    mean: Metrics = Metrics()
    worst: Metrics = Metrics()
    pooled: Metrics = Metrics()
    log_evidence: Histogram | None = None  # nats, over all silos' inputs


class Separation(Record):
    """How well a score tells inputs that a silo does not know from those that it does."""

    auroc: Figure = None
    auroc_tolerance: Figure = None
    fpr95: Figure = None


class Stream(Record):
    """What came of one kind of test inputs, over the silos that have any."""

    silos: int | None = None
    examples: int | None = None
    models: dict[str, ModelRecord] = {}
    decisions: dict[str, float] = {}
    quadrants: dict[str, int] = {}  # whose answer, and whether it is sure enough to be given: counts
    oracle: Metrics | None = None
    right: dict[str, dict[str, int]] = {}  # who was right: what was decided, in counts
    outside: dict[str, dict[str, Separation]] = {}  # by model and score

    @property
    def chosen(self) -> ModelRecord:
        """The first model: what silos predict, be it a choice between two or all there is."""
        return next(iter(self.models.values()), ModelRecord())


class SiloStream(Record):
    decisions: dict[str, float] = {}


class GuaranteeRecord(Record):
    """What is promised of the inputs that are answered, from counts of the calibration splits."""

    statement: str
    guaranteed: bool
    risk: float
    confidence: float
    answered: int
    errors: int
    total: int


class Selective(Record):
    """A risk-coverage curve: the share of errors among the answered inputs, over the share that is answered."""

    coverage: list[float]
    risk: list[float]

    @model_validator(mode="after")
    def _same_points(self) -> Selective:
        if len(self.coverage) != len(self.risk):
            raise ValueError("coverage and risk must have the same number of points")
        return self


class Policy(Record):
    """By which rule one of several models is chosen, or none."""

    name: str = ""


class SiloRecord(Record):
    name: str
    domain: str = ""
    n_train: int | None = None
    n_validation: int | None = None
    n_calibration: int | None = None
    n_test: int | None = None
    class_counts: list[int] | None = None
    test: Metrics = Metrics()
    entropy_error: Figure = None  # standard error of the mean entropy, nats
    codewords: Codewords | None = None
    perplexity: Figure = None
    reliability: Reliability | None = None
    codeword_use: list[int] | None = None
    decisions: dict[str, float] | None = None
    model: str = ""
    newcomer: bool = False  # took no part in training
    models: dict[str, Metrics] = {}
    streams: dict[str, SiloStream] = {}


class Worst(Record):
    silo: str
    accuracy: Figure = None


class Traffic(Record):
    bytes_up: int | None = None
    bytes_down: int | None = None


class Summary(Record):
    schema_version: int = Field(alias="schema")
    version: str | None = None
    method: str
    policy: Policy = Policy()
    seed: int | None = None
    rounds_run: int
    complete: bool
    silos: list[SiloRecord]
    absent: list[str] = []  # silos that gave no test figures
    classes: list[str] | None = None
    milestones: list[dict[str, Figure]] = []
    mean: Metrics | None = None
    worst: Worst | None = None
    pooled: Metrics = Metrics()
    models: dict[str, ModelRecord] = {}
    decisions: dict[str, float] | None = None
    quadrants: dict[str, int] = {}
    streams: dict[str, Stream] = {}
    guarantee: GuaranteeRecord | None = None
    temperature: dict[str, float] = {}
    risk_coverage: Selective | None = None
    traffic: Traffic | None = None
    seconds: dict[str, float] = {}

    @property
    def tested(self) -> dict[str, Stream]:
        """By stream of test inputs, what came of it: of the test split alone where the run has no others."""
        models = {name: model for name, model in self.models.items() if name != ORACLE}
        if self.streams or not models:
            return self.streams
        oracle = self.models[ORACLE].mean if ORACLE in self.models else None
        found = Stream(models=models, decisions=self.decisions or {}, quadrants=self.quadrants, oracle=oracle)
        return {INSIDE: found}

    @model_validator(mode="after")
    def _known_schema(self) -> Summary:
        if self.schema_version != SCHEMA:
            raise ValueError(f"schema {self.schema_version} was written by another version; this one reads {SCHEMA}")
        return self

    @model_validator(mode="after")
    def _poolable_bins(self) -> Summary:
        if len({len(silo.reliability.count) for silo in self.silos if silo.reliability}) > 1:
            raise ValueError("silos differ in their number of reliability bins, so that they cannot be pooled")
        return self


class RoundRow(Metrics):
    """One line of rounds.jsonl."""

    round: int  # from 1
    phase: str = ""
    split: str
    silo: str
    domain: str = ""
    model: str = ""
    examples: int | None = None
    codewords: Codewords | None = None
    perplexity: Figure = None


class LeftOut(Record):
    """One line of rounds.jsonl that says why a silo that was asked is not counted."""

    round: int
    phase: str = ""
    split: str | None = None  # where it was asked to measure
    silo: str
    left_out: str


class Origin(Record):
    """The recipe that a configuration is, but for some keys."""

    recipe: str
    sets: list[str] = []  # SECTION.KEY=VALUE
