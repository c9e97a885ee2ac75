"""The descriptions of a run: `run.json`, `started.json`, `join.json`, `preparation.json`, `model/model.json`.

Also the files of a federation: `federation.json` of the server, and the files of a silo's state.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from .base import Count, Figure, File, Finite, Record, Size
from .training_files import FileSum, KeptState, Sums


class GivenConfiguration(Record):
    """The arguments of `caveat run`."""

    source: str  # name of a recipe, or a TOML file
    sets: list[str] = []  # the --set overrides, SECTION.KEY=VALUE


class DataFingerprint(Record):
    """The classes and columns of a run's data, and hashes of what `splits.json` omits."""

    classes: list[str]
    columns: str  # SHA-256 of the names and categories of all columns of a table
    others: str | None = None  # SHA-256 of the record of the splits of silos that are not measured


class CodeFingerprint(Record):
    """Fingerprints of custom models and methods when the run started."""

    OMITTED: ClassVar = frozenset({"model", "says", "method", "plugins", "models"})

    model: str | None = None  # SHA-256 of the names, shapes and values of all tensors of the initial models
    says: tuple[tuple[Finite, ...], ...] = ()  # each model's output for fixed inputs, in evaluation and in training
    method: str | None = None  # SHA-256 of the source text of the method's classes
    plugins: list[str] = []  # the values of --plugin
    models: list[str] = []  # the values that --model needs


class RunFile(File):
    """`run.json`. `spec` has the keys of a configuration; under `method`, it also has the keys of `[training]` and
    `rounds`."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({"given", "data", "code", "init_model", "rounds"})

    spec: dict[str, Any]  # RunSpec: everything that determines the results
    engine: dict[str, Any]  # EngineSettings: everything else about execution
    given: GivenConfiguration | None = None
    data: DataFingerprint | None = None  # None if silos keep their data on their own machines
    code: CodeFingerprint | None = None  # None for built-in models and methods
    init_model: str | None = None  # SHA-256 of the model of another run from which this one started
    rounds: list[int] = []  # for an extended run, all requested numbers of rounds

    @property
    def in_python(self) -> bool:
        """Whether a Python program started the run, with data that only that program has."""
        return self.spec["data"] is None

    @property
    def federated(self) -> bool:
        """Whether the run uses Flower, so it is continued from its project."""
        return bool(self.engine.get("name") == "flower")

    @property
    def codes(self) -> list[str]:
        """The names of custom code for models."""
        models = [self.spec["model"], *self.spec["personal"]]
        return list(dict.fromkeys(str(m[key]) for m in models for key in ("factory", "encoder") if m.get(key)))


class Started(File):
    """`started.json`: which project started a federation's run, with which overrides."""

    project: str = ""
    sets: list[str] = Field(default=[], alias="set")


class JoinFile(File):
    """`join.json`: the finished federation that silos joined, and their metrics before joining."""

    SEALED: ClassVar = True

    federation: str  # the folder of its run
    server: str  # SHA-256 of the server's last state
    rounds: int  # number of training rounds at the silos that joined
    before: dict[str, dict[str, Figure]] = {}  # by silo, test metrics with the model that every newcomer gets


Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Length = Annotated[int, Field(ge=1)]


class TableColumnRecord(Record):
    """A column of a table."""

    OMITTED: ClassVar = frozenset({"categories"})

    name: str
    categories: list[str] | None = None  # None if it has numbers


class ColumnReferenceRecord(Record):
    """Values of a column in a silo's calibration split, not linked to rows."""

    values: list[Number]  # numbers, or codes of categories, ascending
    missing: Count


class ReferenceRecord(Record):
    """Values of all columns of a silo's raw rows, in order."""

    columns: list[ColumnReferenceRecord]


class SiloEncoder(Record):
    """A silo's fitted constants, per numeric column of the layout."""

    OMITTED: ClassVar = frozenset({"reference"})

    table: Annotated[int, Field(ge=0)]  # index of the table for its rows
    medians: list[Number]
    means: list[Number]
    scales: list[Positive]
    reference: ReferenceRecord | None = None  # for tests of batches of new rows


class DeclaredRecord(Record):
    """Declarations of columns and labels for reading rows: entries with the keys of settings."""

    classes: list[str] = []
    label_codes: list[dict[str, Any]] = []
    rename_columns: list[dict[str, Any]] = []
    dictionary: list[dict[str, Any]] = []
    thousands: str | None = None
    missing: list[str | float] = []
    files: list[dict[str, Any]] = []


class TableRecord(Record):
    """How rows of tables become features."""

    OMITTED: ClassVar = frozenset({"declared"})

    columns: list[TableColumnRecord]  # of the features, with the categories of all training splits
    flagged: list[str]  # columns with an indicator of missing numbers
    separator: str | None = None
    decimal: str
    tables: list[list[TableColumnRecord]]  # the columns of raw rows; silos of one source have the same
    silos: dict[str, SiloEncoder]
    declared: DeclaredRecord | None = None


class ImageRecord(Record):
    """How images become inputs."""

    mean: list[Number]
    std: list[Positive]
    size: Length | None = None
    channels: Literal[1, 3] | None = None
    exif_rotation: bool


class SequenceRecord(Record):
    """How sequences become inputs."""

    kind: Literal["tokens", "series"]
    length: Length
    pad: Annotated[int, Field(ge=0)]
    masked: bool
    cut: bool


class ScalingRecord(Record):
    """The standardization of the channels of a silo's series, without a mask."""

    means: list[Number]
    scales: list[Positive]


class SubgroupsRecord(Record):
    """The subgroups of inputs that have their own guarantees: values of a column, or bins of its numbers."""

    column: str
    values: list[str] = []
    edges: list[Number] = []


class QuantityRecord(Record):
    """A quantity that is predicted, as `caveat.core.quantity.Quantity`, or a time to an event, as `Times`."""

    OMITTED: ClassVar = frozenset({"name", "declared", "standardized", "event", "horizons"})

    edges: Annotated[list[Number], Field(min_length=3)]
    means: list[Number]
    shares: list[Number]
    targets: Length
    name: str = ""
    declared: bool = False
    standardized: bool = False
    event: str = ""  # "" for a quantity
    horizons: list[Number] = []


class PreparationFile(File):
    """`preparation.json`: the silos, the format of model inputs, and the preprocessing of raw inputs."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({
        "silos", "population", "table", "images", "sequences", "scalings", "subgroups", "target",
    })  # fmt: skip

    silos: list[str] = []
    population: Length | None = None  # number of silos, if they are named by their numbers
    classes: Annotated[list[str], Field(min_length=2)]
    shape: Annotated[list[Length], Field(min_length=1)]  # of one input
    dtype: Literal["float32", "int64"]
    table: TableRecord | None = None
    images: ImageRecord | None = None
    sequences: SequenceRecord | None = None
    scalings: dict[str, ScalingRecord] = {}  # by silo, if series are standardized
    subgroups: SubgroupsRecord | None = None
    target: QuantityRecord | None = None  # None if the target has classes


class ModelFile(File):
    """`model/model.json`: the description of the weights next to it; a silo's copy has only the round."""

    OMITTED: ClassVar = frozenset({"personal"})

    method: dict[str, Any] = {}
    t: int  # position in the schedule after which they were sent
    model: dict[str, Any] = {}
    personal: dict[str, dict[str, Any]] = {}  # by silo
    shape: list[int] = []  # of one input
    classes: list[str] = []


class ColumnRecord(Record):
    """A column of a silo's table."""

    name: str
    holds: str = ""
    categories: tuple[str, ...] = ()
    missing: bool = False
    magnitude: int | None = None


class DataSchemaRecord(Record):
    """The schema of one silo's data."""

    labels: tuple[str, ...]
    shape: tuple[int, ...] = ()
    columns: tuple[ColumnRecord, ...] = ()


class Member(Record):
    """What a silo sent when it joined: its sizes, and the record of its splits."""

    card: dict[str, Any]
    record: dict[str, Any]


class FederationFile(File):
    """`federation.json`. Its parts come from silos and are validated where they are used."""

    SEALED: ClassVar = True

    federation: str = ""
    agreement: dict[str, Any] | None = None
    silos: dict[str, Member] = {}
    sketches: dict[str, DataSchemaRecord] = {}
    keys: dict[str, str] = {}  # by silo, the fingerprint of its registered key


class OwnState(File):
    """`kept.json` of a silo in a federation: the states and files that the silo stored."""

    SEALED: ClassVar = True

    OMITTED: ClassVar = frozenset({"rollbacks"})

    states: list[KeptState] = []  # of its last rounds, oldest first
    rollbacks: int = 0  # number of rollbacks of the server's run at the last request
    afresh: bool = False  # whether it may start without its lost state
    ledger: FileSum | None = None
    files: Sums = {}  # the model of its last evaluation


class SlotUsed(Record):
    """A used slot of a session, see `caveat.secure.silo.SlotUse`."""

    slot: int
    work: str
    context: str
    agreed: str = ""
    opened: bool = False


class SecureKept(File):
    """`secure.json` of a silo in a federation: its secrets of a session, see `caveat.secure.silo.SiloSecrets`."""

    federation: str
    number: int
    silo: str
    channel: str
    keys: list[str]
    seeds: list[str]
    sent: str
    roster: str = ""
    members: list[str] = []
    held: dict[str, list[str]] = {}
    used: list[SlotUsed] = []
    summed: list[str] = []


class PeersFile(File):
    """`peers.json` of a silo in a federation: the stored keys of the other silos."""

    keys: dict[str, str] = {}  # fingerprints as of `ssh-keygen -lf`


class SourceState(Record):
    """Fingerprints of the files of a silo's source."""

    looks: str  # SHA-256 of their names, sizes and times
    holds: str  # SHA-256 of their names and content


class NoticedChange(SourceState):
    """A change of a source, and the reaction set by `data.changed`."""

    rule: str  # "keep" or "drop"


class DataFile(File):
    """The description of the file with a silo's tensors, and of the source of these tensors."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({"place", "noticed", "dropped"})

    file: FileSum
    place: str = ""  # the file of the tensors, if rows were removed
    preparation: PreparationFile  # preprocessing of new inputs
    source: SourceState
    columns: list[str] = []  # of a table
    told: dict[str, Any] = {}  # what the silo sent about its data before the agreement
    noticed: NoticedChange | None = None
    dropped: dict[str, Size] = {}  # removed rows by split


class HeldOutRows(Record):
    """Rows of a silo that tested or calibrated a model for a target column, as keyed hashes of their content."""

    target: str  # the column that was predicted; "" if the source is not a table
    columns: list[str] = []  # the hashed columns
    test: list[str]
    calibration: list[str]


class HeldOutFile(File):
    """`held-out.json` of a silo's state: rows that are never used for training."""

    SEALED: ClassVar = True

    key: str  # fingerprint of the key of the hashes
    rows: list[HeldOutRows] = []


class SiloSource(Record):
    """A silo's own data source, from its `silo.toml`."""

    OMITTED: ClassVar = frozenset({"label_codes", "rename_columns", "thousands", "missing"})

    silo: str
    state: str  # a folder
    source: str
    target: str | None = None
    categorical: list[str] | None = None
    numeric: list[str] | None = None
    decimal: str | None = None
    separator: str | None = None
    thousands: str | None = None
    missing: list[str | float] | None = None
    label_codes: list[dict[str, Any]] = []  # the meanings of the labels in its table
    rename_columns: list[dict[str, Any]] = []  # the names of columns in its table


class SiloKeeps(File):
    """`silo.json`: the data source to predict on, and the terms of the federation that trained the model."""

    file: SiloSource
    terms: str
