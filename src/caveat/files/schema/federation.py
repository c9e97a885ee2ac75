"""The files of a federation: `federation.json` of the server, and those of a silo's state."""

from typing import Any, ClassVar

from .progress import FileSum, KeptState, Sums
from .record import File, Record, Size
from .run import PreparationFile


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
    keys: dict[str, str] = {}  # by name the fingerprint of the key that it is bound to


class OwnState(File):
    """`kept.json` of a silo in a federation: the states and files that it has stored."""

    SEALED: ClassVar = True

    OMITTED: ClassVar = frozenset({"rollbacks"})

    states: list[KeptState] = []  # of the last rounds that it has worked in, oldest first
    rollbacks: int = 0  # how often the server's run had gone back when it asked last
    afresh: bool = False  # whether it may begin without the state that it lost
    ledger: FileSum | None = None
    files: Sums = {}  # the model that it was measured with last


class SourceState(Record):
    """Fingerprints of the files of a silo's source."""

    looks: str  # SHA-256 of their names, sizes and times
    holds: str  # SHA-256 of their names and content


class NoticedChange(SourceState):
    """A change of a source, and the reaction set by `data.changed`."""

    rule: str  # "keep" or "drop"


class DataFile(File):
    """The description of the file with a silo's tensors, and of the source that they were made from."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({"place", "noticed", "dropped"})

    file: FileSum
    place: str = ""  # the file of the tensors, where rows have left them
    preparation: PreparationFile  # what makes new inputs like these
    source: SourceState
    columns: list[str] = []  # of a table
    told: dict[str, Any] = {}  # what the silo said of its data before there was an agreement
    noticed: NoticedChange | None = None
    dropped: dict[str, Size] = {}  # rows that have left, by split


class HeldOutRows(Record):
    """Rows of a silo that once tested or calibrated a model of a column, as keyed hashes of their content."""

    target: str  # the column that was predicted; "" where the source is no table
    columns: list[str] = []  # that the hashes are of
    test: list[str]
    calibration: list[str]


class HeldOutFile(File):
    """`held-out.json` of a silo's state: rows that it never trains on."""

    SEALED: ClassVar = True

    key: str  # by which the key of the hashes is known again
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
    label_codes: list[dict[str, Any]] = []  # what labels of its table mean
    rename_columns: list[dict[str, Any]] = []  # what its table calls columns


class SiloKeeps(File):
    """`silo.json`: the data source to predict on, and the terms of the federation that trained the model."""

    file: SiloSource
    terms: str
