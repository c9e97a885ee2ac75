"""What the server of a federation and its silos keep: `federation.json`, and the files of a silo's state."""

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


class OwnState(File):
    """`kept.json` of a silo in a federation: what it has kept, by its own books."""

    SEALED: ClassVar = True

    OMITTED: ClassVar = frozenset({"rollbacks"})

    states: list[KeptState] = []  # of the last rounds that it has worked in, oldest first
    rollbacks: int = 0  # how often the server's run had gone back when it asked last
    afresh: bool = False  # whether it may begin without the state that it lost
    ledger: FileSum | None = None
    files: Sums = {}  # the model that it was measured with last


class SourceState(Record):
    """What the files of a silo's source look like and hold."""

    looks: str  # SHA-256 of their names, sizes and times
    holds: str  # SHA-256 of their names and content


class NoticedChange(SourceState):
    """What a source was changed to, and what `data.changed` had the silo do then."""

    rule: str  # "keep" or "drop"


class DataFile(File):
    """Beside the tensors of a silo's data: what that file holds, and what its source was when they were made."""

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
    """Rows of a silo that once tested or calibrated a model of a column, by keyed hashes of their content."""

    target: str  # the column that was predicted; "" where the source is no table
    columns: list[str] = []  # that the hashes are of
    test: list[str]
    calibration: list[str]


class HeldOutFile(File):
    """`held-out.json` of a silo's state: what it never trains on."""

    SEALED: ClassVar = True

    key: str  # by which the key of the hashes is known again
    rows: list[HeldOutRows] = []


class SiloSource(Record):
    """A silo's own data, as its `silo.toml` names them."""

    OMITTED: ClassVar = frozenset({"label_codes", "rename_columns"})

    silo: str
    state: str  # a folder
    source: str
    target: str | None = None
    categorical: list[str] | None = None
    numeric: list[str] | None = None
    decimal: str | None = None
    separator: str | None = None
    label_codes: list[dict[str, Any]] = []  # what labels of its table mean
    rename_columns: list[dict[str, Any]] = []  # what its table calls columns


class SiloKeeps(File):
    """`silo.json`: whose data to predict on, and the terms of the federation that trained the model."""

    file: SiloSource
    terms: str
