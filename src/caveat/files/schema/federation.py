"""The files of a federation: `federation.json` of the server, and the files of a silo's state."""

from typing import Any, ClassVar

from .base import File, Record, Size
from .preparation import PreparationFile
from .training_files import FileSum, KeptState, Sums


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
    """What a silo sent when it joined: its metadata, and the record of its splits."""

    card: dict[str, Any]
    record: dict[str, Any]


class FederationFile(File):
    """`federation.json`. Its parts were sent by silos, and are validated where they are used."""

    SEALED: ClassVar = True

    federation: str = ""
    agreement: dict[str, Any] | None = None
    silos: dict[str, Member] = {}
    sketches: dict[str, DataSchemaRecord] = {}
    keys: dict[str, str] = {}  # fingerprints of the registered keys, by silo


class OwnState(File):
    """`kept.json` of a silo in a federation: the states and files that the silo stored."""

    SEALED: ClassVar = True

    OMITTED: ClassVar = frozenset({"rollbacks"})

    states: list[KeptState] = []  # the states of the last rounds, oldest first
    rollbacks: int = 0  # number of rollbacks of the server's run at the last request
    afresh: bool = False  # whether the silo may start without its lost state
    ledger: FileSum | None = None
    files: Sums = {}  # the files of the model from the last evaluation


class SlotUsed(Record):
    """A used slot of a session, see `caveat.secure.silo.SlotUse`."""

    slot: int
    work: str
    context: str
    agreed: str = ""
    opened: bool = False


class SecureKept(File):
    """`secure.json` of a silo in a federation: its secrets for a session, see `caveat.secure.silo.SiloSecrets`."""

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

    keys: dict[str, str] = {}  # fingerprints as printed by `ssh-keygen -lf`


class SourceState(Record):
    """Fingerprints of the files of a silo's source."""

    looks: str  # SHA-256 of the files' names, sizes and times
    holds: str  # SHA-256 of the files' names and contents


class NoticedChange(SourceState):
    """A change of a source, and the reaction that `data.changed` sets."""

    rule: str  # "keep" or "drop"


class DataFile(File):
    """The description of the file with a silo's tensors, and of the source of these tensors."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({"place", "noticed", "dropped"})

    file: FileSum
    place: str = ""  # name of the file with the tensors, if rows were removed
    preparation: PreparationFile  # the preprocessing of new inputs
    source: SourceState
    columns: list[str] = []  # the columns of a table
    told: dict[str, Any] = {}  # what the silo sent about its data before the agreement
    noticed: NoticedChange | None = None
    dropped: dict[str, Size] = {}  # numbers of removed rows, by split


class HeldOutRows(Record):
    """Rows of a silo that were used to test or calibrate a model for a target column, as keyed hashes of their
    content."""

    target: str  # the column that was predicted; "" if the source is not a table
    columns: list[str] = []  # the hashed columns
    test: list[str]
    calibration: list[str]


class HeldOutFile(File):
    """`held-out.json` of a silo's state: rows that are never used for training."""

    SEALED: ClassVar = True

    key: str  # fingerprint of the key with which rows are hashed
    rows: list[HeldOutRows] = []


class SiloSource(Record):
    """A silo's own data source, from its `silo.toml`."""

    OMITTED: ClassVar = frozenset({"label_codes", "rename_columns", "thousands", "missing"})

    silo: str
    state: str  # path of the folder with the silo's state
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
    """`silo.json`: the silo's data source, and the terms of the federation that trained the model."""

    file: SiloSource
    terms: str
