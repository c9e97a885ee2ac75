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
    """The guarantee for answered inputs, from counts of the calibration splits."""

    OMITTED: ClassVar = frozenset({"of", "subgroups", "tolerance"})

    limit: float | None = None
    risk: float
    confidence_level: float
    answered: int
    errors: int
    total: int
    upper: float | None = None
    needed: int = 0
    enough: int = 0  # about how many calibration inputs would answer `enough_share` of inputs; 0 if unknown
    enough_share: float = 0.0
    coverage: float | None = None
    statement: str
    guaranteed: bool
    tolerance: float | None = None  # of a quantity: the largest error of a correct prediction
    whose: str = ""  # "federation", "domain" or "silo"; empty if the record is not a silo's
    of: list[str] = []  # the subgroups of inputs that it covers, if not all inputs
    subgroups: list[GuaranteeRecord] = []  # the guarantees of pools of subgroups


class SetsRecord(Record):
    """The guaranteed coverage of prediction sets."""

    OMITTED: ClassVar = frozenset({"subgroups", "per_class"})

    coverage: float
    least: int  # calibration inputs that a silo needs for its own guarantee
    label_shift: bool = False  # whether other silos have it, too, if only their class frequencies differ
    per_class: bool = False  # whether the guarantee holds for the inputs of each class
    subgroups: list[str] = []  # subgroups with their own guarantee, or pooled with the next larger one


class AlarmsRecord(Record):
    """The silos that the false alarm rate covers."""

    least: int  # calibration inputs that a silo needs for its own false alarm rate
    pooled: int = 0  # calibration inputs of all other silos, which it covers together


class Policy(Record):
    """The policy that chooses one of several models, or abstains, and its settings."""

    name: str = ""


class SourceRecord(Record):
    """The uncertainty estimator, if it is not the method's own."""

    OMITTED: ClassVar = frozenset({"ensemble_size", "prior_precision"})

    name: str
    ensemble_size: int | None = None
    prior_precision: dict[str, float] = {}  # of the shared last layers, by model


class WarningRecord(Record):
    """A warning about the result, such as a collapsed model."""

    OMITTED: ClassVar = frozenset({"silos", "against_baseline", "settings"})

    kind: str
    text: str  # the finding, and its split
    advice: str = ""  # what to try
    silos: list[str] = []  # the affected silos; empty for the whole run
    against_baseline: dict[str, int] = {}  # of inputs, those that only_baseline and only_model predict correctly
    settings: list[str] = []  # of a warning about the data: the proposed settings, each a line of TOML

    @property
    def sentences(self) -> str:
        return f"{self.text} {self.advice}".rstrip()

    @property
    def of_data(self) -> bool:
        """Whether it is about the data, whose values it can name; it was issued when the data were read."""
        return self.kind == "data"


class SiloRecord(Record):
    """The final metrics of one silo, and its method's entries."""

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
    pit: list[float] = []  # of a quantity or a time: inputs by predicted probability of a smaller value, in ten bins
    dropped: dict[str, Size] = {}  # examples removed from a split during the run, not counted above
    test: summary_metrics.Metrics = summary_metrics.Metrics()
    entropy_error: Figure = None  # standard error of the mean entropy, nats
    reliability: summary_metrics.Reliability | None = None
    decisions: dict[str, float] | None = None
    models: dict[str, summary_metrics.Metrics] = {}
    streams: dict[str, summary_metrics.SiloStream] = {}
    codewords: summary_metrics.Codewords | None = None
    perplexity: Figure = None
    codeword_use: list[int] | None = None
    model: str = ""  # the architecture of its local model
    newcomer: bool = False  # took no part in training
    metrics: dict[str, Figure] = {}  # custom metrics, on the test split
    classification: summary_metrics.ClassificationRecord | None = None
    promise: GuaranteeRecord | None = None  # the guarantee for its decisions, if silos or domains have their own


class SubgroupRecord(summary_metrics.Metrics):
    """The metrics of a subgroup's test inputs, of all silos together."""

    name: str
    examples: Count


class DomainRecord(summary_metrics.Metrics):
    """The mean metrics of the silos of one domain."""

    domain: str
    silos: int


class Worst(Record):
    silo: str
    accuracy: Figure = None


class Newcomers(Record):
    """The mean metrics of held-out silos."""

    mean: summary_metrics.Metrics


class DeviceRecord(Record):
    """The device of training and prediction, if not the CPU: it must be equal for bit-identical results."""

    names: list[str]  # torch's names, such as cuda:0
    kind: str  # the vendor's name
    versions: dict[str, str]


class SecureRecord(Record):
    """Secure aggregation: the messages of which the server saw only the sum over silos, including evaluations."""

    silos: list[str]  # in the sums of the test split
    sums: list[str]  # rounds
    single: list[str] = []  # rounds whose server needs each silo's own update


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
    stopped: bool = False  # stopped early, because validation did not improve
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
    classification: summary_metrics.ClassificationRecord | None = None  # of all silos' inputs together
    models: dict[str, summary_metrics.ModelRecord] = {}
    decisions: dict[str, float] | None = None
    quadrants: dict[str, int] = {}
    streams: dict[str, summary_metrics.Stream] = {}
    privacy: summary_metrics.PrivacyRecord | None = None
    guarantee: GuaranteeRecord | None = None
    sets: SetsRecord | None = None
    intervals: SetsRecord | None = None  # prediction intervals of a quantity
    alarms: AlarmsRecord | None = None  # None if no silo has too few calibration inputs, or if nothing leaves silos
    temperature: dict[str, float] = {}
    temperature_spread: dict[str, float] = {}  # standard deviation of the silos' ln inverse temperatures
    class_bias: dict[str, float] = {}  # standard deviation of the silos' class biases
    milestones: list[dict[str, Figure]] = []
    traffic: summary_metrics.Traffic | None = None
    seconds: dict[str, float] = {}
    device: DeviceRecord | None = None
    newcomers: Newcomers | None = None
    reset: list[Reset] = []  # silos that were reset because their states were lost
    largest: list[LargestPart] = []  # the silos with the largest share of a federation's sums after training
    rollbacks: list[Rollback] = []  # rollbacks to an earlier round
    vectorized: dict[str, VectorizedRecord] = {}  # by task, if vectorization was requested
    files: Sums = {}

    @property
    def tested(self) -> dict[str, summary_metrics.Stream]:
        """The outcome by stream of test inputs; only of the test split if the run has no others."""
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
            raise ValueError("silos differ in their number of reliability bins, so they cannot be pooled")
        return self


Point = tuple[float, float]


class Item(Record):
    """One test input; images are base64 PNG, absent for tabular data."""

    OMITTED: ClassVar = frozenset({"image"})

    image: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")] = None
    label: int  # -1 if it is not a class of the model
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
    """Inputs of one stream that one model answered or abstained from."""

    stream: str
    model: str
    abstained: bool
    items: list[Item]


class GallerySilo(Record):
    name: str
    domain: str = ""
    certain: Sequence[Item] = ()
    uncertain: Sequence[Item] = ()
    quadrants: Sequence[Quadrant] = ()


class SureError(Item):
    """A wrong answer, its silo and, of a table, its row."""

    OMITTED: ClassVar = frozenset({"image", "source_row", "row_values"})

    silo: str
    source_row: int | None = None  # its position among the rows of the source, from 1
    row_values: dict[str, str] = {}  # by column


class ObservedInputs(Record):
    """Test inputs of a silo: observed values of a quantity, predicted medians, and intervals (None is infinite)."""

    silo: str
    observed: list[float]
    value: list[float]
    low: list[Figure] = []
    high: list[Figure] = []


class SurvivalCurves(Record):
    """Mean predicted survival of a silo's test inputs at some times, and their Kaplan-Meier curve."""

    silo: str
    times: list[float]
    predicted: list[float]
    observed: list[float]


class Gallery(Record):
    """`gallery.json`."""

    OMITTED: ClassVar = frozenset({"sure_errors", "observed", "survival"})

    classes: Sequence[str] = ()
    sure_errors: Sequence[SureError] = ()
    """The most confident errors of all silos, most confident first."""
    silos: list[GallerySilo]
    observed: list[ObservedInputs] = []  # instead of the others, if the target is a quantity
    survival: list[SurvivalCurves] = []  # instead of the others, if the target is a time

    @property
    def decided(self) -> bool:
        """Whether decisions differ among the most and least certain inputs."""
        return len({item.decision for silo in self.silos for item in (*silo.certain, *silo.uncertain)}) > 1

    def name_of(self, label: int) -> str:
        if label < 0:
            return "not a class of the model"
        return self.classes[label] if label < len(self.classes) else str(label)


class FeatureSilo(Record):
    """The labels of some test inputs of one silo, and their 2-D projections at each stage."""

    name: str
    domain: str = ""
    labels: Sequence[int] = ()
    points: Mapping[str, Sequence[Point]]


class Features(File):
    """`features.json`."""

    schema_version: int = Field(alias="schema")
    stages: Sequence[str]
    explained: Sequence[float] = ()
    """Fractions of the first stage's variance explained by each axis."""
    silos: Sequence[FeatureSilo]

    @model_validator(mode="after")
    def _same_stages(self) -> Features:
        if any(set(silo.points) != set(self.stages) for silo in self.silos):
            raise ValueError("every silo must have points of every stage")
        return self
