"""The results of a run: `summary.json`, `gallery.json` and `features.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from . import summary_metrics
from .base import Count, Figure, File, Record, Size
from .preparation import QuantityRecord
from .training_files import LargestPart, Reset, Rollback, Sums, VectorizedRecord


class GuaranteeRecord(Record):
    """The guarantee for answered inputs, which is computed from counts on the calibration splits."""

    OMITTED: ClassVar = frozenset({"of", "subgroups", "tolerance"})

    limit: float | None = None
    risk: float
    confidence_level: float
    answered: int
    errors: int
    total: int
    upper: float | None = None
    needed: int = 0
    enough: int = 0  # approximate number of calibration inputs for answers to `enough_share` of inputs; 0 if unknown
    enough_share: float = 0.0
    coverage: float | None = None
    statement: str
    guaranteed: bool
    tolerance: float | None = None  # for a quantity, the maximum error of a correct prediction
    whose: str = ""  # "federation", "domain" or "silo"; empty if the record does not belong to a silo
    of: list[str] = []  # the subgroups of inputs that the guarantee covers, if it does not cover all inputs
    subgroups: list[GuaranteeRecord] = []  # the guarantees for pools of subgroups


class SetsRecord(Record):
    """The guaranteed coverage of prediction sets."""

    OMITTED: ClassVar = frozenset({"subgroups", "per_class"})

    coverage: float
    least: int  # number of calibration inputs that a silo needs for its own guarantee
    label_shift: bool = False  # whether the guarantee also holds at silos that differ only in their class frequencies
    per_class: bool = False  # whether the guarantee holds for the inputs of each class
    subgroups: list[str] = []  # subgroups with a separate guarantee, alone or together with the next larger subgroup


class AlarmsRecord(Record):
    """The silos that the false alarm rate covers."""

    least: int  # number of calibration inputs that a silo needs for its own false alarm rate
    pooled: int = 0  # number of calibration inputs of all other silos, which the rate covers together


class Policy(Record):
    """The policy that chooses a model or abstains, with its settings."""

    name: str = ""


class SourceRecord(Record):
    """The uncertainty estimator, if it is not the estimator of the method."""

    OMITTED: ClassVar = frozenset({"ensemble_size", "prior_precision"})

    name: str
    ensemble_size: int | None = None
    prior_precision: dict[str, float] = {}  # prior precision of the shared last layer, by model


class WarningRecord(Record):
    """A warning about the result, such as a collapsed model."""

    OMITTED: ClassVar = frozenset({"silos", "against_baseline", "settings"})

    kind: str
    text: str  # a sentence with the finding and its split
    advice: str = ""  # a sentence that states what to try
    silos: list[str] = []  # the affected silos; empty if the warning is about the whole run
    against_baseline: dict[str, int] = {}  # see `caveat.core.method.Caution`
    settings: list[str] = []  # the settings that a warning about the data proposes, as lines of TOML

    @property
    def sentences(self) -> str:
        return f"{self.text} {self.advice}".rstrip()

    @property
    def of_data(self) -> bool:
        """Whether the warning is about the data. Such a warning is issued when the data are read, and may contain
        values."""
        return self.kind == "data"


class SiloRecord(Record):
    """The final metrics of a silo, with entries of the method."""

    OMITTED: ClassVar = frozenset(
        {
            "entropy_error",
            "models",
            "streams",
            "model",
            "newcomer",
            "promise",
            "classification",
            "metrics",
            "dropped",
            "pit",
        }
    )

    name: str
    domain: str = ""
    n_train: Size | None = None
    n_validation: Size | None = None
    n_calibration: Size | None = None
    n_test: Size | None = None
    class_counts: list[Size] | None = None
    pit: list[float] = []  # for a quantity or a time: numbers of inputs by probability of a smaller value, in ten bins
    dropped: dict[str, Size] = {}  # numbers of examples removed during the run by split, not included in the sizes
    test: summary_metrics.Metrics = summary_metrics.Metrics()
    entropy_error: Figure = None  # standard error of the mean entropy, in nats
    reliability: summary_metrics.Reliability | None = None
    decisions: dict[str, float] | None = None
    models: dict[str, summary_metrics.Metrics] = {}
    streams: dict[str, summary_metrics.SiloStream] = {}
    codewords: summary_metrics.Codewords | None = None
    perplexity: Figure = None
    codeword_use: list[int] | None = None
    model: str = ""  # the architecture of the silo's local model
    newcomer: bool = False  # whether the silo took no part in training
    metrics: dict[str, Figure] = {}  # custom metrics on the test split
    classification: summary_metrics.ClassificationRecord | None = None
    promise: GuaranteeRecord | None = None  # the guarantee for the silo's decisions, if silos or domains have their own


class SubgroupRecord(summary_metrics.Metrics):
    """The metrics of a subgroup on the test inputs of all silos together."""

    name: str
    examples: Count


class DomainRecord(summary_metrics.Metrics):
    """The mean metrics of the silos of one domain."""

    domain: str
    silos: int


class Worst(Record):
    """The silo with the lowest accuracy."""

    silo: str
    accuracy: Figure = None


class Newcomers(Record):
    """The mean metrics of held-out silos."""

    mean: summary_metrics.Metrics


class DeviceRecord(Record):
    """The device of training and prediction, if it is not the CPU. Results are bit-identical only on equal devices."""

    names: list[str]  # names in torch, such as cuda:0
    kind: str  # the vendor's name of the device
    versions: dict[str, str]


class SecureRecord(Record):
    """The messages, including those of evaluations, of which the server saw only the sum over silos (secure
    aggregation)."""

    silos: list[str]  # the silos in the sums over test splits
    sums: list[str]  # the kinds of rounds of which the server saw only sums
    single: list[str] = []  # the kinds of rounds in which the server needs each silo's own update


class Summary(File):
    """`summary.json`, with the entries of the method and its wrappers."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({
        "absent", "source", "streams", "privacy", "newcomers", "reset", "sets", "alarms", "stopped", "classification",
        "device", "vectorized", "metrics", "rollbacks", "largest", "warnings", "class_bias", "subgroups", "target",
        "intervals", "secure",
    })  # fmt: skip

    schema_version: int = Field(alias="schema")
    version: str | None = None
    method: str
    policy: Policy = Policy()
    source: SourceRecord | None = None
    seed: int | None = None
    rounds_run: int
    stopped: bool = False  # whether training stopped early, because the validation loss did not decrease
    complete: bool
    warnings: list[WarningRecord] = []
    classes: list[str] | None = None
    target: QuantityRecord | None = None  # None if the target has classes
    silos: list[SiloRecord]
    absent: list[str] = []  # silos without test metrics
    domains: list[DomainRecord] = []
    mean: summary_metrics.Metrics | None = None
    worst: Worst | None = None
    secure: SecureRecord | None = None  # None if the server saw each silo's messages
    metrics: dict[str, summary_metrics.OwnMetricRecord] = {}  # custom metrics
    pooled: summary_metrics.Metrics = summary_metrics.Metrics()
    subgroups: list[SubgroupRecord] = []
    risk_coverage: summary_metrics.Selective | None = None
    classification: summary_metrics.ClassificationRecord | None = None  # for the inputs of all silos together
    models: dict[str, summary_metrics.ModelRecord] = {}
    decisions: dict[str, float] | None = None
    quadrants: dict[str, int] = {}
    streams: dict[str, summary_metrics.Stream] = {}
    privacy: summary_metrics.PrivacyRecord | None = None
    guarantee: GuaranteeRecord | None = None
    sets: SetsRecord | None = None
    intervals: SetsRecord | None = None  # for prediction intervals of a quantity
    alarms: AlarmsRecord | None = None  # None if all silos have enough calibration inputs, or if nothing leaves silos
    temperature: dict[str, float] = {}
    temperature_spread: dict[str, float] = {}  # standard deviation of the logarithms of the silos' inverse temperatures
    class_bias: dict[str, float] = {}  # standard deviation of the silos' class biases
    milestones: list[dict[str, Figure]] = []
    traffic: summary_metrics.Traffic | None = None
    seconds: dict[str, float] = {}
    device: DeviceRecord | None = None
    newcomers: Newcomers | None = None
    reset: list[Reset] = []  # silos that were reset because their states were lost
    largest: list[LargestPart] = []  # the silos with the largest shares in a federation's sums after training
    rollbacks: list[Rollback] = []  # rollbacks to an earlier round
    vectorized: dict[str, VectorizedRecord] = {}  # by task, if vectorization was requested
    files: Sums = {}

    @property
    def tested(self) -> dict[str, summary_metrics.Stream]:
        """The outcomes by stream of test inputs; only that of the test split if the run has no other streams."""
        models = {name: model for name, model in self.models.items() if name != summary_metrics.ORACLE}
        if self.streams or not models:
            return self.streams
        oracle = self.models[summary_metrics.ORACLE].mean if summary_metrics.ORACLE in self.models else None
        found = summary_metrics.Stream(
            models=models, decisions=self.decisions or {}, quadrants=self.quadrants, oracle=oracle
        )
        return {summary_metrics.INSIDE: found}

    @model_validator(mode="after")
    def _poolable_bins(self) -> Summary:
        if len({len(silo.reliability.count) for silo in self.silos if silo.reliability}) > 1:
            raise ValueError("silos have different numbers of reliability bins, so the bins cannot be pooled")
        return self


Point = tuple[float, float]


class Item(Record):
    """A test input. Its image is a PNG in base64, which is absent for tabular data."""

    OMITTED: ClassVar = frozenset({"image"})

    image: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")] = None
    label: int  # -1 if the true class is not a class of the model
    predicted: int
    probability: float
    total: Figure = None
    aleatoric: Figure = None
    epistemic: Figure = None
    dirichlet_entropy: Figure = None
    vacuity: Figure = None
    conflict: Figure = None
    decision: str | None = None

    @property
    def right(self) -> bool:
        return self.label == self.predicted


class Quadrant(Record):
    """Inputs of a stream that a model answered, or from which it abstained."""

    stream: str
    model: str
    abstained: bool
    items: list[Item]


class GallerySilo(Record):
    """Test inputs of a silo for the gallery."""

    name: str
    domain: str = ""
    certain: Sequence[Item] = ()
    uncertain: Sequence[Item] = ()
    quadrants: Sequence[Quadrant] = ()


class SureError(Item):
    """A wrong answer, with its silo and, for a table, its row."""

    OMITTED: ClassVar = frozenset({"image", "source_row", "row_values"})

    silo: str
    source_row: int | None = None  # position among the rows of the source; the first row is 1
    row_values: dict[str, str] = {}  # the values of the row by column


class ObservedInputs(Record):
    """Observed values of a quantity for test inputs of a silo, with predicted medians and intervals. An infinite end of
    an interval is None."""

    silo: str
    observed: list[float]
    value: list[float]
    low: list[Figure] = []
    high: list[Figure] = []


class SurvivalCurves(Record):
    """The mean predicted survival of a silo's test inputs at several times, and their Kaplan-Meier curve."""

    silo: str
    times: list[float]
    predicted: list[float]
    observed: list[float]


class Gallery(Record):
    """`gallery.json`."""

    OMITTED: ClassVar = frozenset({"sure_errors", "observed", "survival"})

    classes: Sequence[str] = ()
    sure_errors: Sequence[SureError] = ()
    """The most confident errors of all silos, with the most confident error first."""
    silos: list[GallerySilo]
    observed: list[ObservedInputs] = []  # for a quantity, instead of `silos` and `sure_errors`
    survival: list[SurvivalCurves] = []  # for a time, instead of `silos` and `sure_errors`

    @property
    def decided(self) -> bool:
        """Whether the decisions for the most and least certain inputs differ."""
        return len({item.decision for silo in self.silos for item in (*silo.certain, *silo.uncertain)}) > 1

    def name_of(self, label: int) -> str:
        if label < 0:
            return "not a class of the model"
        return self.classes[label] if label < len(self.classes) else str(label)


class FeatureSilo(Record):
    """The labels of some test inputs of a silo, and two-dimensional projections of their features at each stage."""

    name: str
    domain: str = ""
    labels: Sequence[int] = ()
    points: Mapping[str, Sequence[Point]]


class Features(File):
    """`features.json`."""

    schema_version: int = Field(alias="schema")
    stages: Sequence[str]
    explained: Sequence[float] = ()
    """For each axis, the fraction of the variance of the first stage that the axis explains."""
    silos: Sequence[FeatureSilo]

    @model_validator(mode="after")
    def _same_stages(self) -> Features:
        if any(set(silo.points) != set(self.stages) for silo in self.silos):
            raise ValueError("every silo must have points of every stage, and no others")
        return self
