"""Parts of summary.json: metrics of inputs, silos, models and streams, traffic, and privacy."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field, model_validator

from .base import Count, Figure, Record, Share

INSIDE = "ind"
"""The name of the in-distribution stream, which is the silo's test split."""
NOBODY = "ood_global"
"""The name of the stream of inputs that no silo knows, for which no answer is right."""
ORACLE = "oracle"
"""The name of the best possible choice between two models, which is used like the name of a model."""


class Deferral(NamedTuple):
    """The inputs that are left to the model if a person decides the others."""

    coverage: float
    """Share of these inputs among all inputs."""
    risk: float
    """Error rate on these inputs."""
    limit: float | None
    """Largest total uncertainty of these inputs; None if it is unknown."""


_LEFT, _AROUND = 0.9, 0.05
"""The share of inputs that are left to the model, and the maximum deviation from this share."""
_SPARED, _SHARE_SPARED = 0.005, 0.15
"""The minimum decrease of the error rate for which a person decides inputs: in total, and as a share of the rate."""
_MOST_ERRORS = 0.5
"""The error rate above which no inputs are left to the model."""


class Selective(Record):
    """A risk-coverage curve: the error rate on answered inputs as a function of the fraction of answered inputs."""

    OMITTED: ClassVar = frozenset({"max_uncertainty"})

    coverage: list[float]
    risk: list[float]
    max_uncertainty: list[float] = []  # the largest total uncertainty of answered inputs

    @model_validator(mode="after")
    def _same_points(self) -> Selective:
        if len({len(each) for each in (self.coverage, self.risk, self.max_uncertainty or self.risk)}) > 1:
            raise ValueError("coverage, risk and max_uncertainty must have the same number of points")
        return self

    @property
    def deferral(self) -> Deferral | None:
        """The inputs that are left to the model if a person decides the most uncertain tenth. None if this prevents few
        errors, if most predictions are wrong, or if the curve has no point near this share."""
        points = zip(self.coverage, self.risk, strict=True)
        coverage, risk = min(points, key=lambda point: abs(point[0] - _LEFT), default=(0.0, 0.0))
        few = not self.risk or self.risk[-1] - risk < max(_SPARED, _SHARE_SPARED * self.risk[-1])
        if few or abs(coverage - _LEFT) > _AROUND or self.risk[-1] > _MOST_ERRORS:
            return None
        limits = dict(zip(self.coverage, self.max_uncertainty, strict=False))
        return Deferral(coverage, risk, limits.get(coverage))


class NullBand(Record):
    """The distribution of the ECE of a perfectly calibrated model on the same number of samples."""

    mean: float
    upper: float  # 95 % quantile


class Codewords(Record):
    """The numbers of codewords that a silo shares with others, and of its private codewords."""

    shared: int
    private: int = 0

    def __str__(self) -> str:
        return f"{self.shared} + {self.private}"


class Metrics(Record):
    """Metrics of predictions. Undefined metrics are absent."""

    OMITTED: ClassVar = frozenset({
        "ece_null", "unfamiliar", "novel", "unsure", "auroc", "auroc_tolerance", "average_precision",
        "average_precision_tolerance", "sensitivity", "specificity", "f1", "balanced_accuracy",
        "mae", "rmse", "crps", "spread", "reference_mae", "reference_rmse", "reference_crps", "interval_coverage",
        "interval_low", "events", "c_index", "c_index_uno", "integrated_brier", "reference_integrated_brier",
        "d_calibration",
        "interval_width",
    })  # fmt: skip
    accuracy: Share = None
    nll: Figure = None
    brier: Figure = None
    ece: Figure = None
    ece_classwise: Figure = None
    ece_null: NullBand | None = None
    entropy: Figure = None  # in nats, like the next two metrics
    aleatoric: Figure = None
    epistemic: Figure = None
    coverage: Figure = None  # share of inputs that were answered
    answered_accuracy: Figure = None
    set_coverage: Figure = None  # share of prediction sets that contain the label
    set_size: Figure = None  # mean number of classes in a prediction set
    unfamiliar: Share = None  # share of inputs with this alarm, like the next two metrics
    novel: Share = None
    unsure: Share = None
    auroc_error: Figure = None
    auroc_error_tolerance: Figure = None
    fpr95_error: Figure = None
    aurc: Figure = None
    eaurc: Figure = None
    augrc: Figure = None
    coverage_at_1: Figure = None
    coverage_at_5: Figure = None
    risk_at_80: Figure = None
    auroc: Share = None  # for the positive class of two, or the mean over classes of each class against the rest
    auroc_tolerance: Figure = None  # maximum effect of binning
    average_precision: Share = None
    average_precision_tolerance: Figure = None
    sensitivity: Share = None  # for two classes, at the threshold of the silo
    specificity: Share = None
    f1: Share = None
    balanced_accuracy: Share = None
    mae: Figure = None  # for a quantity, in its unit, like the next six metrics
    rmse: Figure = None
    crps: Figure = None
    spread: Figure = None  # mean standard deviation of predicted distributions
    reference_mae: Figure = None  # for a prediction without inputs: the median, mean and bars of all training targets
    reference_rmse: Figure = None
    reference_crps: Figure = None
    interval_coverage: Share = None
    interval_width: Figure = None
    interval_low: Figure = None  # mean lower bound of times
    events: Figure = None  # for times, like the next five metrics
    c_index: Share = None
    c_index_uno: Share = None
    integrated_brier: Figure = None
    reference_integrated_brier: Figure = None
    d_calibration: Share = None  # p-value

    @property
    def alarms(self) -> float | None:
        """The fraction of inputs with any alarm; None if it is unknown."""
        return None if self.unfamiliar is None else self.unfamiliar + (self.novel or 0.0) + (self.unsure or 0.0)

    @property
    def answered(self) -> float | None:
        """The fraction of answered inputs."""
        return self.coverage if self.coverage is not None or self.accuracy is None else 1.0

    @property
    def accuracy_answered(self) -> float | None:
        """The accuracy on answered inputs; None if no inputs were answered."""
        return self.answered_accuracy if self.coverage is not None else self.accuracy

    @property
    def ece_above_chance(self) -> bool:
        return self.ece is not None and self.ece_null is not None and self.ece > self.ece_null.upper


class OwnMetricRecord(Record):
    """A custom metric, aggregated over the silos at which it is defined."""

    higher_is_better: bool = True
    silos: int = 0  # number of silos at which it is defined
    mean: Figure = None
    worst: Figure = None


class OperatingRecord(Record):
    """The threshold for the positive class, and the confusion counts at this threshold on the test split."""

    threshold: Share = None  # probability of the positive class
    whose: str = ""  # "silo", or "federation" if the silo has too few calibration inputs
    positives: int | None = None  # number of calibration inputs with which the threshold was chosen
    negatives: int | None = None
    true_positives: int = 0  # number of test inputs, like the next three
    false_negatives: int = 0
    false_positives: int = 0
    true_negatives: int = 0


class ClassificationRecord(Record):
    """The confusion matrix and, for two classes, the operating point."""

    OMITTED: ClassVar = frozenset({"positive", "rule", "confusion", "operating"})

    positive: str = ""  # the positive class of two classes
    rule: str = ""  # how thresholds are chosen
    confusion: list[list[int]] | None = None  # test inputs by class (row) and most probable class (column)
    operating: OperatingRecord | None = None

    @model_validator(mode="after")
    def _square(self) -> ClassificationRecord:
        if self.confusion is not None and any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError("confusion must have as many columns as rows")
        return self


class Reliability(Record):
    """Counts and sums in bins of equal width on [0, 1], by the probability of the most probable class."""

    count: list[Count]
    confidence: list[float]  # sums of probabilities
    correct: list[Count]  # numbers of correct predictions

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
    """A histogram with bins of equal width; empty bins may be omitted."""

    start: list[float] = Field(alias="from")  # lower ends, ascending
    count: list[float]
    step: Annotated[float, Field(gt=0)] = 10.0

    @model_validator(mode="after")
    def _same_steps(self) -> Histogram:
        if len(self.start) != len(self.count) or any(a >= b for a, b in pairwise(self.start)):
            raise ValueError("from must ascend and have as many numbers as count")
        return self


class ModelRecord(Record):
    """Metrics of one model over silos."""

    OMITTED: ClassVar = frozenset({"log_evidence", "uncertainty"})

    mean: Metrics = Metrics()
    worst: Metrics = Metrics()
    silos: int | None = None
    pooled: Metrics = Metrics()
    log_evidence: Histogram | None = None  # in nats, for the inputs of all silos
    uncertainty: dict[str, Histogram] = {}  # entropies of right and of wrong predictions in nats, if there are streams


class Separation(Record):
    """Metrics of how well a score separates out-of-distribution inputs from the test split."""

    auroc: Figure = None
    auroc_tolerance: Figure = None
    fpr95: Figure = None
    aupr_out: Figure = None
    aupr_in: Figure = None
    share_out: Figure = None


class SeparationOverSilos(Separation):
    """The separation as a mean over silos, at the worst silo, and for the inputs of all silos together."""

    worst: Separation = Separation()
    pooled: Separation = Separation()


class StreamOutcome(Record):
    """The outcome for a stream of test inputs, without the metrics of each model."""

    OMITTED: ClassVar = frozenset({"oracle", "outside"})

    silos: int | None = None
    examples: int | None = None
    decisions: dict[str, float] = {}
    quadrants: dict[str, int] = {}  # counts by model and by whether it answers or abstains
    oracle: Metrics | None = None
    outside: dict[str, dict[str, SeparationOverSilos]] = {}  # by model and score


class Stream(StreamOutcome):
    """The outcome for a stream of test inputs, over the silos that have the stream."""

    models: dict[str, ModelRecord] = {}

    @property
    def chosen(self) -> ModelRecord:
        """The metrics of the first model, which are those of the silos' predictions. A prediction may be a choice
        between two models."""
        return next(iter(self.models.values()), ModelRecord())


class SiloStream(StreamOutcome):
    """The outcome for a stream of test inputs at one silo."""

    models: dict[str, Metrics] = {}


class RowEpsilons(Record):
    """Record-level epsilons, based on the assumption that replacing one row of a silo may reverse a clipped update. An
    infinite epsilon is None."""

    epsilon: float | None
    epsilon_server: float | None


class PrivacyRecord(Record):
    """Silo-level differential privacy by clipping and noise. An infinite epsilon is None."""

    OMITTED: ClassVar = frozenset({"row", "where"})

    clip_norm: float | None
    noise_multiplier: float
    delta: float
    where: str | None = None
    epsilon: float | None
    epsilon_server: float | None
    covers: list[str]
    not_covered: list[str]
    row: RowEpsilons | None = None
    """Record-level privacy of a silo that took part in training."""


class RoundTraffic(Record):
    """Bytes of one round, from silos (up) and to silos (down)."""

    round: int
    phase: str
    silos: int
    up: int
    down: int


class Traffic(Record):
    """Bytes of a run, from silos (up) and to silos (down)."""

    bytes_up: int | None = None
    bytes_down: int | None = None
    per_round: list[RoundTraffic] = []
