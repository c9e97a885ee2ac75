"""What the small files of a run's folder hold, beside its figures, its ledger and its pictures."""

from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from .data import PreparationFile
from .figures import RoundTraffic
from .record import SCHEMA, Figure, File, Record, Size


class JoinFile(File):
    """`join.json`: which finished federation the silos of a folder joined, and what they had of it before."""

    SEALED: ClassVar = True

    federation: str  # the folder of its run
    server: str  # SHA-256 of its server's last state
    rounds: int  # of training, at the silos that joined
    before: dict[str, dict[str, Figure]] = {}  # by silo, figures of its test split with what every newcomer has


class ModelFile(File):
    """`model/model.json`: what the weights beside it are of. What a silo keeps has no more than the round."""

    OMITTED: ClassVar = frozenset({"personal"})

    method: dict[str, Any] = {}
    t: int  # the schedule's position after which they were sent
    model: dict[str, Any] = {}
    personal: dict[str, dict[str, Any]] = {}  # by silo
    shape: list[int] = []  # of one input
    classes: list[str] = []


class FileSum(Record):
    """What a file has to hold: of a file that grows, up to then."""

    bytes: Size
    sha256: str


Sums = dict[str, FileSum]
"""By a file's place in a run's folder, e.g. "model/model.safetensors"."""


class KeptState(Record):
    """A line of `state/states.jsonl`: the state that a silo kept of a round, or that it was begun afresh."""

    silo: str
    t: int  # the schedule's position
    sha256: str | None = None  # of its file; None where the silo begins afresh after that round


class StackedRecord(Record):
    """Whether a work is carried out for many silos at once, in one batched call."""

    OMITTED: ClassVar = frozenset({"why", "padded", "bytes"})

    stacked: bool
    why: str = ""  # why not
    padded: bool = False  # batches of different sizes are filled up with examples that do not count
    bytes: Size = 0  # that a step of training keeps for each silo


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


class Failure(File):
    """`failure.json`: what the run that was last carried out in a folder failed of; gone once it has gone on."""

    SEALED: ClassVar = True

    error: str
    diverged: bool = False  # the same settings fail again
    lost: bool = False  # a silo's private state is
    round: int  # of training, the first is 1
    silo: str = ""  # where, if at one


class Reset(Record):
    """A silo that began afresh after a round, since its state was lost."""

    silo: str
    round: int


class LargestPart(Record):
    """Of what is added up in a round, and not bounded, how much is one silo's at most."""

    phase: str
    split: str  # whose inputs are counted
    silo: str
    share: float


class Rollback(Record):
    """That a run has gone back to an earlier round, by command."""

    to: int  # the round of training after which it goes on
    undone: int  # the last round of training that had been made
    ledger: FileSum  # what left the silos in the rounds that are undone, beside the run's own ledger


class RunState(Record):
    """What is counted along the way of a run that is under way."""

    model_config = ConfigDict(frozen=False)
    OMITTED: ClassVar = frozenset({"best", "worse", "stopped", "stacking", "stacked", "norms", "rollbacks", "largest"})

    number: int = 0
    """Rounds of training so far."""
    last: int = -1
    """The schedule's position of the last round carried out."""
    measured: int = -1
    """The schedule's position of the last round after which silos were evaluated."""
    traffic: list[RoundTraffic] = []
    best: float | None = None
    """The lowest validation loss so far, where training may stop early."""
    worse: int = 0
    """Evaluations since then."""
    stopped: bool = False
    """Training has ended before its last round."""
    reset: list[Reset] = []
    rollbacks: list[Rollback] = []
    largest: list[LargestPart] = []
    milestones: list[dict[str, Figure]] = []
    stacking: str = "off"
    """`engine.vectorized`, with which the run goes on."""
    stacked: dict[str, StackedRecord] = {}
    """Which works are carried out for many silos at once, by address and what silos keep."""
    norms: dict[str, dict[str, list[float]]] = {}
    """Median norms of updates in the last rounds, by address and part."""
    seconds: dict[str, float] = {"train": 0.0, "evaluate": 0.0, "engine": 0.0}


class Checkpoint(RunState):
    """`state/checkpoint.json`: the round after which a run continues, and what was counted until then."""

    SEALED: ClassVar = True

    schema_version: int = Field(default=SCHEMA, alias="schema")
    t: int  # the schedule's position
    server: str  # the file of the server's state beside it
    files: Sums = {}


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


class Started(File):
    """`started.json`: which project started a federation's run, with which overrides."""

    project: str = ""
    sets: list[str] = Field(default=[], alias="set")
