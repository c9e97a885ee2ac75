"""The record of the preparation of a run's inputs: `preparation.json`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from .base import Count, File, Record

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Length = Annotated[int, Field(ge=1)]


class TableColumnRecord(Record):
    """A column of a table."""

    OMITTED: ClassVar = frozenset({"categories"})

    name: str
    categories: list[str] | None = None  # None for a column of numbers


class ColumnReferenceRecord(Record):
    """Sorted values of a column in a silo's calibration split, which cannot be linked to rows."""

    values: list[Number]  # numbers, or codes of categories, ascending
    missing: Count


class ReferenceRecord(Record):
    """Values of all columns of a silo's raw rows, in the order of the columns."""

    columns: list[ColumnReferenceRecord]


class SiloEncoder(Record):
    """The constants that were fitted at a silo, for each numeric column of the layout."""

    OMITTED: ClassVar = frozenset({"reference"})

    table: Annotated[int, Field(ge=0)]  # index in `TableRecord.tables` of the columns of the silo's rows
    medians: list[Number]
    means: list[Number]
    scales: list[Positive]
    reference: ReferenceRecord | None = None  # values with which batches of new rows are compared


class DeclaredRecord(Record):
    """Declarations of columns and labels for reading rows. The entries of lists have the keys of settings."""

    classes: list[str] = []
    label_codes: list[dict[str, Any]] = []
    rename_columns: list[dict[str, Any]] = []
    dictionary: list[dict[str, Any]] = []
    thousands: str | None = None
    missing: list[str | float] = []
    files: list[dict[str, Any]] = []


class TableRecord(Record):
    """How rows of tables are converted to features."""

    OMITTED: ClassVar = frozenset({"declared"})

    columns: list[TableColumnRecord]  # the columns of the features, with the categories of all training splits
    flagged: list[str]  # columns with an indicator of missing numbers
    separator: str | None = None
    decimal: str
    tables: list[list[TableColumnRecord]]  # the columns of raw rows; silos of one source share an entry
    silos: dict[str, SiloEncoder]
    declared: DeclaredRecord | None = None


class ImageRecord(Record):
    """How images are converted to inputs."""

    mean: list[Number]
    std: list[Positive]
    size: Length | None = None
    channels: Literal[1, 3] | None = None
    exif_rotation: bool


class SequenceRecord(Record):
    """How sequences are converted to inputs."""

    kind: Literal["tokens", "series"]
    length: Length
    pad: Annotated[int, Field(ge=0)]
    masked: bool
    cut: bool


class ScalingRecord(Record):
    """The standardization of the channels of a silo's series, except for a mask."""

    means: list[Number]
    scales: list[Positive]


class SubgroupsRecord(Record):
    """The subgroups of inputs with separate guarantees, which are values of a column or bins of its numbers."""

    column: str
    values: list[str] = []
    edges: list[Number] = []


class QuantityRecord(Record):
    """The target of a run: a quantity, with the fields of `caveat.core.quantity.Quantity`, or a time to an event, with
    the fields of `Times`."""

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
    population: Length | None = None  # number of silos, if silos are named by their numbers
    classes: Annotated[list[str], Field(min_length=2)]
    shape: Annotated[list[Length], Field(min_length=1)]  # shape of one input
    dtype: Literal["float32", "int64"]
    table: TableRecord | None = None
    images: ImageRecord | None = None
    sequences: SequenceRecord | None = None
    scalings: dict[str, ScalingRecord] = {}  # by silo, if series are standardized
    subgroups: SubgroupsRecord | None = None
    target: QuantityRecord | None = None  # None if the target has classes
