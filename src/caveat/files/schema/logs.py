"""What the lines of rounds.jsonl and of ledger.jsonl hold: metrics along the way, and what left the silos."""

from typing import ClassVar

from .figures import Metrics
from .record import Figure, Record, Size
from .summary import Codewords

NO_PART = "had no part in training"
"""Why a silo that came after training, or was away for all of it, is left out of what follows."""


class RoundRow(Metrics):
    """A silo's figures on a split after a round, of what it predicts or of one model, and what its method adds."""

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
    """Why a silo that was asked is not counted, or one that is there was not asked."""

    OMITTED: ClassVar = frozenset({"split"})

    round: int
    phase: str = ""
    split: str | None = None  # where it was asked to measure
    silo: str
    left_out: str


class NotedUpdate(Record):
    """What there was to say of a silo's update in a round."""

    OMITTED: ClassVar = frozenset({"times_bound", "times_far"})

    round: int
    phase: str = ""
    silo: str
    noted: str
    times_bound: Figure = None  # its norm over the bound, to which it was scaled down
    times_far: Figure = None  # its distance from the middle of all updates over the median silo's


_MEASURING = ("validation", "test")
"""The works that measure, of which a silo's own ledger does not say that they are on a split."""


class TensorForm(Record):
    """The form of one tensor; bytes are those of its values."""

    shape: list[int]
    dtype: str
    bytes: Size


class Form(Record):
    """The tensors that many messages have in common, by "group/name"."""

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

    A run's ledger gives its round and phase, a silo's own ledger the address of its work, such as base.train.
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
        """The split that it is a measurement on; empty for an update of the model."""
        return self.split or (self.task if self.task in _MEASURING else "")

    @property
    def purpose(self) -> str:
        return purpose(self.phase or self.task.rpartition(".")[2], self.measured)


def purpose(phase: str, split: str | None) -> str:
    """What a silo was asked for, in words."""
    return f"measure {split}" if split else phase
