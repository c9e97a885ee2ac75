"""Files that a run writes during training: `rounds.jsonl`, `ledger.jsonl`, checkpoints and failures."""

from typing import ClassVar

from pydantic import ConfigDict, Field

from .base import SCHEMA, Figure, File, Record, Size
from .summary_metrics import Codewords, Metrics, RoundTraffic

NO_PART = "did not take part in training"
"""The reason why a silo that joined after training, or missed all training rounds, is excluded from later rounds."""


class RoundRow(Metrics):
    """A silo's metrics on a split after a round, for its predictions or for one model, with entries of the method."""

    round: int  # the first round is 1
    phase: str = ""
    split: str
    silo: str
    domain: str = ""
    model: str = ""
    examples: int | None = None
    codewords: Codewords | None = None
    perplexity: Figure = None


class LeftOut(Record):
    """The reason why a silo was excluded from a round, or was not asked to take part."""

    OMITTED: ClassVar = frozenset({"split"})

    round: int
    phase: str = ""
    split: str | None = None  # the split of an evaluation
    silo: str
    left_out: str


class NotedUpdate(Record):
    """A remark on a silo's update in a round."""

    OMITTED: ClassVar = frozenset({"times_bound", "times_far"})

    round: int
    phase: str = ""
    silo: str
    noted: str
    times_bound: Figure = None  # norm of the update, divided by the bound to which it was scaled down
    times_far: Figure = None  # distance of the update from the center of all updates, divided by the median distance


_MEASURING = ("validation", "test")
"""The tasks of evaluations, which a silo's own ledger records without a split."""


class TensorForm(Record):
    """The shape, type and bytes of a tensor."""

    shape: list[int]
    dtype: str
    bytes: Size


class Form(Record):
    """The forms of a message's tensors, by "group/name", shared by many messages."""

    OMITTED: ClassVar = frozenset({"summed"})

    form: str
    tensors: dict[str, TensorForm]
    summed: bool = False  # whether the server saw only the sum of the tensors over silos

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
    """A message that a silo sent. In a run's ledger, it has a round and a phase. In a silo's own ledger, it has the
    address of its task, such as base.train."""

    round: int | None = None
    t: int | None = None  # position in the schedule
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
"""The sizes and hashes of files by their paths in a run's folder, e.g. "model/model.safetensors"."""


class KeptState(Record):
    """A line of `state/states.jsonl`: the state that a silo stored in a round, or its reset."""

    silo: str
    t: int  # position in the schedule
    sha256: str | None = None  # hash of the file; None if the silo starts from scratch after that round


class VectorizedRecord(Record):
    """Whether a task runs for many silos at once, in one batched call."""

    OMITTED: ClassVar = frozenset({"why", "padded", "bytes"})

    vectorized: bool
    why: str = ""  # the reason if the task is not vectorized
    padded: bool = False  # whether batches of different sizes are padded with examples that do not count
    bytes: Size = 0  # memory of a training step per silo


class Failure(File):
    """`failure.json`: the error of a failed run. The file is deleted when the run continues."""

    SEALED: ClassVar = True

    error: str
    diverged: bool = False  # whether training diverged, so that the run would fail again with the same settings
    lost: bool = False  # whether a silo's private state is lost
    round: int  # the training round; the first round is 1
    silo: str = ""  # the silo at which the run failed, if known


class Reset(Record):
    """A silo that was reset after a round because its state was lost."""

    silo: str
    round: int


class LargestPart(Record):
    """The largest share that a single silo has in an unbounded sum of a round."""

    phase: str
    split: str  # the split whose inputs are counted
    silo: str
    share: float


class Rollback(Record):
    """A rollback of a run to an earlier round."""

    to: int  # the training round after which the run continues
    undone: int  # the last training round before the rollback
    ledger: FileSum  # the ledger of the undone rounds


class RunState(Record):
    """The counters of a run that is in progress."""

    model_config = ConfigDict(frozen=False)
    OMITTED: ClassVar = frozenset(
        {"best", "worse", "stopped", "vectorization", "vectorized", "norms", "rollbacks", "largest"}
    )

    number: int = 0
    """Number of completed training rounds."""
    last: int = -1
    """Position of the last completed round in the schedule."""
    measured: int = -1
    """Position of the last evaluation in the schedule."""
    traffic: list[RoundTraffic] = []
    best: float | None = None
    """The lowest validation loss so far, if early stopping is on."""
    worse: int = 0
    """Number of evaluations since the lowest validation loss."""
    stopped: bool = False
    """Whether training ended before its last round."""
    reset: list[Reset] = []
    rollbacks: list[Rollback] = []
    largest: list[LargestPart] = []
    milestones: list[dict[str, Figure]] = []
    vectorization: str = "off"
    """The value of `engine.vectorized` with which the run continues."""
    vectorized: dict[str, VectorizedRecord] = {}
    """The tasks that run for many silos at once, by address and stored state."""
    norms: dict[str, dict[str, list[float]]] = {}
    """Median norms of updates in the last rounds, by address and part."""
    seconds: dict[str, float] = {"train": 0.0, "evaluate": 0.0, "engine": 0.0}


class Checkpoint(RunState):
    """`state/checkpoint.json`: the round after which a run continues, and the counters of the run."""

    SEALED: ClassVar = True

    schema_version: int = Field(default=SCHEMA, alias="schema")
    t: int  # position in the schedule
    server: str  # name of the file with the server's state
    files: Sums = {}
