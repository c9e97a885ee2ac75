"""Files that a run writes during training: `rounds.jsonl`, `ledger.jsonl`, checkpoints and failures."""

from typing import ClassVar

from pydantic import ConfigDict, Field

from .figures import Codewords, Metrics, RoundTraffic
from .record import SCHEMA, Figure, File, Record, Size

NO_PART = "had no part in training"
"""Why a silo that joined after training, or missed all of it, is left out of later rounds."""


class RoundRow(Metrics):
    """A silo's metrics on a split after a round, of its predictions or of one model, and its method's entries."""

    round: int  # from 1
    phase: str = ""
    split: str
    silo: str
    domain: str = ""
    model: str = ""
    examples: int | None = None
    codewords: Codewords | None = None
    perplexity: Figure = None


class LeftOut(Record):
    """Why a silo was not included in a round, or not asked."""

    OMITTED: ClassVar = frozenset({"split"})

    round: int
    phase: str = ""
    split: str | None = None  # where it was asked to measure
    silo: str
    left_out: str


class NotedUpdate(Record):
    """A remark on a silo's update in a round."""

    OMITTED: ClassVar = frozenset({"times_bound", "times_far"})

    round: int
    phase: str = ""
    silo: str
    noted: str
    times_bound: Figure = None  # its norm over the bound, to which it was scaled down
    times_far: Figure = None  # its distance from the middle of all updates over the median silo's


_MEASURING = ("validation", "test")
"""The tasks of evaluations, which a silo's own ledger lists without a split."""


class TensorForm(Record):
    """Shape, type and bytes of a tensor."""

    shape: list[int]
    dtype: str
    bytes: Size


class Form(Record):
    """The forms of a message's tensors, by "group/name", shared by many messages."""

    form: str
    tensors: dict[str, TensorForm]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())

    @property
    def groups(self) -> dict[str, int]:
        """The number of tensors in each group."""
        found: dict[str, int] = {}
        for name in self.tensors:
            group = name.partition("/")[0]
            found[group] = found.get(group, 0) + 1
        return found


class Message(Record):
    """A message that a silo sent.

    A run's ledger has its round and phase, a silo's own ledger the address of its task, such as base.train.
    """

    round: int | None = None
    t: int | None = None  # the schedule's position
    phase: str = ""
    task: str = ""
    split: str | None = None
    silo: str
    form: str
    bytes: Size
    examples: int | None = None

    @property
    def measured(self) -> str:
        """The split of an evaluation; empty for an update of the model."""
        return self.split or (self.task if self.task in _MEASURING else "")

    @property
    def purpose(self) -> str:
        return purpose(self.phase or self.task.rpartition(".")[2], self.measured)


def purpose(phase: str, split: str | None) -> str:
    """Return the purpose of a message, in words."""
    return f"measure {split}" if split else phase


class FileSum(Record):
    """The size and hash of a file, or of its beginning if it is append-only."""

    bytes: Size
    sha256: str


Sums = dict[str, FileSum]
"""By path in a run's folder, e.g. "model/model.safetensors"."""


class KeptState(Record):
    """A line of `state/states.jsonl`: the state that a silo stored in a round, or that it was reset."""

    silo: str
    t: int  # the schedule's position
    sha256: str | None = None  # of its file; None where the silo begins afresh after that round


class VectorizedRecord(Record):
    """Whether a task runs for many silos at once, in one batched call."""

    OMITTED: ClassVar = frozenset({"why", "padded", "bytes"})

    vectorized: bool
    why: str = ""  # why not
    padded: bool = False  # batches of different sizes are filled up with examples that do not count
    bytes: Size = 0  # that a step of training keeps for each silo


class Failure(File):
    """`failure.json`: the error of a failed run; deleted when the run continues."""

    SEALED: ClassVar = True

    error: str
    diverged: bool = False  # the same settings fail again
    lost: bool = False  # a silo's private state is
    round: int  # of training, the first is 1
    silo: str = ""  # where, if at one


class Reset(Record):
    """A silo that was reset after a round because its state was lost."""

    silo: str
    round: int


class LargestPart(Record):
    """The largest share of one silo in an unbounded sum of a round."""

    phase: str
    split: str  # whose inputs are counted
    silo: str
    share: float


class Rollback(Record):
    """A rollback of a run to an earlier round."""

    to: int  # the round of training after which it goes on
    undone: int  # the last round of training that had been made
    ledger: FileSum  # what left the silos in the rounds that are undone, beside the run's own ledger


class RunState(Record):
    """The counters of a run in progress."""

    model_config = ConfigDict(frozen=False)
    OMITTED: ClassVar = frozenset(
        {"best", "worse", "stopped", "vectorization", "vectorized", "norms", "rollbacks", "largest"}
    )

    number: int = 0
    """Training rounds so far."""
    last: int = -1
    """The schedule's position of the last completed round."""
    measured: int = -1
    """The schedule's position of the last evaluation."""
    traffic: list[RoundTraffic] = []
    best: float | None = None
    """The lowest validation loss so far, with early stopping."""
    worse: int = 0
    """Evaluations since then."""
    stopped: bool = False
    """Training has ended before its last round."""
    reset: list[Reset] = []
    rollbacks: list[Rollback] = []
    largest: list[LargestPart] = []
    milestones: list[dict[str, Figure]] = []
    vectorization: str = "off"
    """`engine.vectorized`, with which the run continues."""
    vectorized: dict[str, VectorizedRecord] = {}
    """The tasks that run for many silos at once, by address and stored state."""
    norms: dict[str, dict[str, list[float]]] = {}
    """Median norms of updates in the last rounds, by address and part."""
    seconds: dict[str, float] = {"train": 0.0, "evaluate": 0.0, "engine": 0.0}


class Checkpoint(RunState):
    """`state/checkpoint.json`: the round after which a run continues, and its counters."""

    SEALED: ClassVar = True

    schema_version: int = Field(default=SCHEMA, alias="schema")
    t: int  # the schedule's position
    server: str  # the file of the server's state beside it
    files: Sums = {}
