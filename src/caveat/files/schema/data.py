"""What preparation.json and federation.json hold of data: columns, categories and what inputs become."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from .record import File, Record

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Length = Annotated[int, Field(ge=1)]


class TableColumnRecord(Record):
    """A column of a table."""

    OMITTED: ClassVar = frozenset({"categories"})

    name: str
    categories: list[str] | None = None  # None where it holds numbers


class SiloEncoder(Record):
    """What a silo's training split came to, per column of numbers of the layout."""

    table: Annotated[int, Field(ge=0)]  # which of the tables its rows are read as
    medians: list[Number]
    means: list[Number]
    scales: list[Positive]


class DeclaredRecord(Record):
    """What is declared of columns and labels, by which files with rows are read: entries with the keys of settings."""

    classes: list[str] = []
    codes: list[dict[str, Any]] = []
    columns: list[dict[str, Any]] = []
    dictionary: list[dict[str, Any]] = []


class TableRecord(Record):
    """How rows of tables become features."""

    OMITTED: ClassVar = frozenset({"declared"})

    columns: list[TableColumnRecord]  # of the features, with the categories of all training splits
    flagged: list[str]  # columns with a feature that says where a number is missing
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
    """What standardises the channels of a silo's series, without a mask."""

    means: list[Number]
    scales: list[Positive]


class PreparationFile(File):
    """`preparation.json`: whose inputs a run's models take, of which form, and how raw ones are brought to it."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({"silos", "population", "table", "images", "sequences", "scalings"})

    silos: list[str] = []
    population: Length | None = None  # so many silos that are named by their numbers, in place of the names
    classes: Annotated[list[str], Field(min_length=2)]
    shape: Annotated[list[Length], Field(min_length=1)]  # of one input
    dtype: Literal["float32", "int64"]
    table: TableRecord | None = None
    images: ImageRecord | None = None
    sequences: SequenceRecord | None = None
    scalings: dict[str, ScalingRecord] = {}  # by silo, where series are standardised


class ColumnRecord(Record):
    """A column of a silo's table."""

    name: str
    holds: str = ""
    categories: tuple[str, ...] = ()
    missing: bool = False


class DataSchemaRecord(Record):
    """The schema of one silo's data."""

    labels: tuple[str, ...]
    shape: tuple[int, ...] = ()
    columns: tuple[ColumnRecord, ...] = ()


class Member(Record):
    """What a silo said when it joined: its sizes, and the record of its splits."""

    card: dict[str, Any]
    record: dict[str, Any]


class FederationFile(File):
    """`federation.json`. Cards, agreement and schemas are checked where they are used: silos wrote them."""

    SEALED: ClassVar = True

    federation: str = ""
    agreement: dict[str, Any] | None = None
    silos: dict[str, Member] = {}
    sketches: dict[str, DataSchemaRecord] = {}
    keys: dict[str, str] = {}  # by name the fingerprint of the key that it is bound to
